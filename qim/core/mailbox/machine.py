"""MailboxNode: one entry a recipient a message, in the order of the dispatch log, and what is read from it (pipeline.md §3).

It owns mailbox shards by lease; partition == shard and offset is the sequence. OpenMailbox raises the fence and answers all
state in one script; only then it fetches. A dispatch is materialised at its first offset, by lane; W moves with the rows in
one script. It never decides who gets a message (the frozen version does), never lets a push move a cursor (pull.py alone
makes cursors), and holds no body beyond its cache.

    LeaseHeld --> shard opened (opening.py) --> fetched --> claimed --> version known --> rows by lane --> W moved
    W moved --> hints pushed (push.py), progress marked, floors raised, old days trimmed (trim.py)
    PULL --> judged --> rows and W in one script --> bodies joined --> batch and new cursor (pull.py)
"""

from collections.abc import Sequence
from typing import assert_never

from qim.core.audience import named_version
from qim.core.contract import routing
from qim.core.contract.entities import NO_SOURCE
from qim.core.contract.rpc import AskPull, AskSync, AskWatermark
from qim.core.machine import Choose, Ms
from qim.core.mailbox import opening
from qim.core.mailbox.appending import append, finish, on_finished, on_refused, on_stored
from qim.core.mailbox.bodies import BodyCache, body_of_dispatch
from qim.core.mailbox.materialise import admit, claim, fill, on_claimed
from qim.core.mailbox.orders import Orders, Pending, What
from qim.core.mailbox.pull import Pulls
from qim.core.mailbox.push import Hint, Pushes
from qim.core.mailbox.shard import Shard, Stage, WindowRecord
from qim.core.mailbox.trim import on_floor_raised, on_trimmed, raise_floor, trim
from qim.core.mailbox.vocabulary import (
    VERSION_UNKNOWN,
    MailboxCompletion,
    MailboxConfig,
    MailboxEffect,
    MailboxEvent,
)
from qim.core.ports.completion import Failed, Fenced, StoreReset, StoreRole, Unknown
from qim.core.ports.local import DrainRequested, FreshEpochWanted, LeaseGone, LeaseHeld, Started
from qim.core.ports.log import EndsRead, Fetched, OutOfRange
from qim.core.ports.network import Received
from qim.core.ports.observe import Count, Gauge, Violation
from qim.core.ports.registry import Resource, Role
from qim.core.ports.store_mailbox import (
    AppendEntries,
    Claimed,
    DispatchesFinished,
    EntriesAppended,
    FinishDispatches,
    FloorRaised,
    MailboxesRead,
    MailboxOpened,
    MailboxTrimmed,
    PresenceRead,
    RaiseFloor,
    TrimMailbox,
    Trimmed,
)
from qim.core.ports.store_message import BodiesRead, ReadVersions, VersionsRead
from qim.core.timers import Timers, back_off
from qim.core.version_shelf import VersionShelf

FLOOR_DUE = "floor due"
TRIM_DUE = "trim due"
LANE_DUE = "lane due"


class MailboxNode:
    """The machine: LeaseHeld --> a Shard (states in shard.py) --> W that never passes what isn't stored."""

    def __init__(self, config: MailboxConfig, *, choose: Choose) -> None:
        self._config = config
        self._choose = choose
        self._orders = Orders()
        self._shards: dict[int, Shard] = {}
        self._timers = Timers()
        self._cache = BodyCache(config.body_cache_bytes_max)
        self._pulls = Pulls(config, self._orders, self._cache)
        self._pushes = Pushes(config, self._orders)
        self._wall_ahead = 0
        """Wall clock minus monotonic clock, as of the last event that carried both."""
        self._gauged_at: Ms | None = None
        self._draining = False
        self._shelf = VersionShelf(
            shard_count=config.shard_count,
            names_max=config.version_names_max,
            members_max=config.version_members_max,
            retry_first_ms=config.retry_first_ms,
            retry_most_ms=config.retry_most_ms,
        )

    # ------------------------------------------------------------ the shape

    def step(self, now: Ms, events: Sequence[MailboxEvent]) -> list[MailboxEffect]:
        """Take facts, then order what they make possible, shard by shard; reads and hints of all shards last."""
        for event in events:
            self._take(now, event)
        for number, what in self._timers.due(now):
            self._on_due(now, number, what)
        for number in list(self._shards):
            self._pump(now, self._shards[number])
        names = self._shelf.next_names(now)
        if names:
            self._orders.give(ReadVersions(op=self._orders.op(What.VERSIONS), names=names))
        self._pulls.flush()
        self._pushes.flush(self._wall(now))
        self._gauge(now)
        return self._orders.taken()

    def deadline(self) -> Ms | None:
        """The earliest retry, floor or trim."""
        times = [at for at in (self._timers.next(), self._shelf.deadline()) if at is not None]
        return min(times, default=None)

    def idle(self) -> bool:
        """No record is half written, no mark or pull in flight (a parked Fetch doesn't count, nor do hints)."""
        return not self._pulls.in_flight() and not any(
            shard.window or shard.finishing or any(what != What.FETCH for what in shard.requests)
            for shard in self._shards.values()
        )

    def serving(self) -> int:
        """How many shards are open: their position is trusted and pulls are served."""
        return sum(shard.running() for shard in self._shards.values())

    def check(self) -> None:
        """Windows, lanes, cache, queue and shelf keep their books; one request of each kind is in flight a shard."""
        for shard in self._shards.values():
            shard.check()
            assert len(shard.window) <= self._config.window_records_max
        self._cache.check()
        self._pulls.check()
        self._pushes.check()
        self._shelf.check()

    # ------------------------------------------------------------ events

    def _take(self, now: Ms, event: MailboxEvent) -> None:
        match event:
            case Received():
                self._wall_ahead = event.wall - now
                self._on_received(event)
            case LeaseHeld():
                self._wall_ahead = event.wall - now
                self._on_lease_held(event)
            case LeaseGone():
                if event.resource.role is Role.MAILBOX:
                    self._forget(event.resource.number)
            case DrainRequested():
                self._draining = True
            case Started():
                self._wall_ahead = event.wall - now
            case StoreReset(op=None):
                self._on_store_reset(event.store)
            case _:
                self._on_completion(now, event)

    def _on_received(self, event: Received) -> None:
        message = event.message
        if isinstance(message, AskPull | AskSync):
            number = routing.shard(message.actor.user_id, self._config.shard_count)
        elif isinstance(message, AskWatermark):
            number = message.shard
        else:
            # Late answers and strangers: nothing here asks a question over the network.
            self._orders.give(Count(name="mailbox_message_ignored"))
            return
        self._pulls.on_ask(event.source, event.wall, message, self._shards.get(number))

    def _on_completion(self, now: Ms, event: MailboxCompletion) -> None:
        assert event.op is not None
        pending = self._orders.pending.pop(event.op)
        if pending.shard is not None:
            if pending.shard.live:
                self._on_shard_answer(now, pending.shard, pending.what, event)
        else:
            self._on_shared_answer(now, pending, event.op, event)

    def _on_shared_answer(
        self, now: Ms, pending: Pending, op: int, event: MailboxCompletion
    ) -> None:
        """Reads of pull, push and shelf: harmless, so everything but an answer is a failure of the read."""
        match event:
            case MailboxesRead():
                self._pulls.on_rows(self._wall(now), event)
            case BodiesRead():
                self._pulls.on_bodies(self._wall(now), event)
            case PresenceRead():
                self._pushes.on_presence(event)
            case VersionsRead():
                self._on_versions(now, event)
            case _ if pending.what is What.READ:
                self._pulls.on_read_failed(op)
            case _ if pending.what is What.BODIES:
                self._pulls.on_bodies_failed(op)
            case _ if pending.what is What.PRESENCE:
                self._pushes.on_failed()
            case _:
                assert pending.what is What.VERSIONS
                self._shelf.failed(now)

    def _on_shard_answer(self, now: Ms, shard: Shard, what: What, event: MailboxCompletion) -> None:
        match event:
            case Failed():
                self._on_shard_failed(now, shard, what, event)
                return
            case Unknown():
                shard.unsettled[what] = True
                self._put_off(now, shard, what)
                return
            case Fenced():
                self._want_fresh_epoch(shard, event.epoch)
                return
            case StoreReset():
                self._want_fresh_epoch(shard, 0)
                return
            case Trimmed():
                # Trim never passes min W: another owner trimmed, so this one is a thing of the past.
                self._want_fresh_epoch(shard, 0)
                return
            case _:
                pass
        request = shard.requests.pop(what)
        shard.attempts.pop(what, None)
        shard.unsettled.pop(what, None)
        stop: Violation | None = None
        match event:
            case EntriesAppended():
                assert isinstance(request, AppendEntries)
                self._on_entries(shard, request)
            case Claimed():
                on_claimed(self._orders, shard, event)
            case Fetched() | OutOfRange():
                stop = self._on_fetch_answer(now, shard, event)
            case DispatchesFinished():
                assert isinstance(request, FinishDispatches)
                on_finished(self._orders, shard, request, event)
            case FloorRaised():
                assert isinstance(request, RaiseFloor)
                if on_floor_raised(shard, request, event):
                    raise_floor(self._orders, shard, self._config)
            case MailboxTrimmed():
                assert isinstance(request, TrimMailbox)
                on_trimmed(shard, request, event)
                trim(self._orders, shard, self._config, self._wall(now))
            case EndsRead():
                stop = self._on_ends(now, shard, event)
            case MailboxOpened():
                stop = opening.on_opened(self._orders, shard, event)
            case MailboxesRead() | BodiesRead() | PresenceRead() | VersionsRead():
                raise AssertionError(f"{type(event).__name__} answers no op of a shard")
            case _:
                assert_never(event)
        if stop is not None:
            self._stop(shard, stop)

    # ------------------------------------------------------------ leases

    def _on_lease_held(self, event: LeaseHeld) -> None:
        if event.resource.role is not Role.MAILBOX:
            return
        number = event.resource.number
        self._forget(number)
        shard = self._shards[number] = Shard(number, event.epoch)
        opening.read_ends(self._orders, shard)

    def _forget(self, number: int) -> None:
        shard = self._shards.pop(number, None)
        if shard is not None:
            self._retire(shard)

    def _retire(self, shard: Shard) -> None:
        shard.retire()
        self._shelf.forget(shard.number)
        self._timers.clear_number(shard.number)

    def _on_store_reset(self, store: StoreRole) -> None:
        """The adapter noticed another incarnation by itself: nothing learnt in the old one justifies a request."""
        if store is StoreRole.MESSAGE:
            self._shelf.clear()
            self._cache.clear()
            return
        for number in list(self._shards):
            self._want_fresh_epoch(self._shards[number], 0)

    def _want_fresh_epoch(self, shard: Shard, above: int) -> None:
        """What this epoch learnt is void; a new object begins with the next LeaseHeld (pipeline.md §0)."""
        if shard.stage is Stage.AWAITING_EPOCH:
            return
        self._retire(shard)
        shard.stage = Stage.AWAITING_EPOCH
        resource = Resource(role=Role.MAILBOX, number=shard.number)
        self._orders.give(FreshEpochWanted(resource=resource, above=above))

    def _stop(self, shard: Shard, violation: Violation) -> None:
        """There is no automatic reset: the shard stands until somebody looked at it (pipeline.md §7)."""
        self._retire(shard)
        shard.stage = Stage.STOPPED
        self._orders.give(violation)

    # ------------------------------------------------------------ opening, fetching

    def _on_ends(self, now: Ms, shard: Shard, event: EndsRead) -> Violation | None:
        if shard.stage is Stage.READING_START:
            opening.open_mailbox(
                self._orders, shard, event.start, self._choose, self._config.shard_epoch
            )
            return None
        stop = opening.on_ends_read(self._orders, shard, event)
        self._if_running(now, shard)
        return stop

    def _if_running(self, now: Ms, shard: Shard) -> None:
        if shard.running():
            self._timers.set((shard.number, FLOOR_DUE), now + self._config.floor_ms)
            self._timers.set((shard.number, TRIM_DUE), now + self._config.trim_ms)

    def _on_fetch_answer(
        self, now: Ms, shard: Shard, event: Fetched | OutOfRange
    ) -> Violation | None:
        if shard.stage is Stage.CHECKING:
            stop = opening.on_predecessor(self._orders, shard, event)
            self._if_running(now, shard)
            return stop
        stop = opening.on_running_fetch_strange(shard, event)
        if stop is not None or isinstance(event, OutOfRange):
            return stop
        shard.end_offset = max(shard.end_offset, event.end)
        for stored in event.records:
            record = admit(self._orders, shard, stored, self._config.mailbox_day_ms)
            if record is None:
                break
            self._want_version(now, shard, record)
        return None

    def _fetch_if_room(self, shard: Shard) -> None:
        config = self._config
        room = config.window_records_max - len(shard.window)
        bytes_room = config.window_bytes_max - shard.bytes
        if What.FETCH in shard.requests or shard.halted or self._draining:
            return
        if room > 0 and bytes_room > 0:
            opening.fetch(
                self._orders,
                shard,
                shard.next_offset,
                limit=min(room, config.fetch_records_max),
                bytes_max=min(bytes_room, config.fetch_bytes_max),
                wait_ms=config.fetch_wait_ms,
            )

    # ------------------------------------------------------------ versions

    def _want_version(self, now: Ms, shard: Shard, record: WindowRecord) -> None:
        dispatch = record.dispatch
        named = named_version(dispatch) if dispatch is not None else None
        if dispatch is None or named is None or self._shelf.find(named) is not None:
            return
        writer = routing.writer_shard(dispatch.conversation_id, self._config.outbox_partition_count)
        source = dispatch.source_partition
        offset = dispatch.source_offset if source == writer and source != NO_SOURCE else -1
        self._shelf.want(now, named, writer_shard=writer, waiter=shard.number, offset=offset)

    def _on_versions(self, now: Ms, event: VersionsRead) -> None:
        shelf = self._shelf.answered(now, event)
        if shelf.not_yet:
            count = Count(name="version_not_yet", value=shelf.not_yet, label="mailbox")
            self._orders.give(count)
        for conversation_id, version, digest in shelf.unknown:
            name = f"{conversation_id.hex()} V{version} {digest.hex()}"
            self._orders.give(Violation(check=VERSION_UNKNOWN, detail=f"mailbox waits for {name}"))

    # ------------------------------------------------------------ materialising

    def _pump(self, now: Ms, shard: Shard) -> None:
        if not shard.running():
            return
        config = self._config
        claim(self._orders, shard, config.claims_max)
        while shard.unready and self._materialise(now, shard, shard.unready[0]):
            shard.ready = shard.unready.popleft().seq
        append(self._orders, shard, now, config.rows_max)
        finish(self._orders, shard, config.finish_items_max)
        self._fetch_if_room(shard)

    def _materialise(self, now: Ms, shard: Shard, record: WindowRecord) -> bool:
        """Make the head record's rows; False where its version is awaited, and all behind it wait too."""
        dispatch = record.dispatch
        if dispatch is None or record.duplicate:
            return True
        named = named_version(dispatch)
        audience = self._shelf.find(named) if named is not None else None
        if named is not None and audience is None:
            self._want_version(now, shard, record)
            return False
        fill(shard, record, audience, self._config.shard_count)
        if dispatch.inline_body is not None:
            self._cache.keep(dispatch.message_id, body_of_dispatch(dispatch))
        return True

    def _on_entries(self, shard: Shard, request: AppendEntries) -> None:
        for record, users in on_stored(self._orders, shard, request, self._config.finish_queue_max):
            assert record.dispatch is not None
            hint = Hint(shard=shard.number, seq=record.seq, dispatch=record.dispatch, users=users)
            self._pushes.add(hint)

    # ------------------------------------------------------------ waiting

    def _on_shard_failed(self, now: Ms, shard: Shard, what: What, event: Failed) -> None:
        """Surely not applied: repeated with back-off, except a call refused for its rows, which is planned anew."""
        again = on_refused(shard, now, event.why, self._config) if what is What.APPEND else None
        if again is None:
            self._put_off(now, shard, what)
        elif again > now:
            self._timers.set((shard.number, LANE_DUE), again)

    def _put_off(self, now: Ms, shard: Shard, what: What) -> None:
        config = self._config
        attempts = shard.attempts[what] = shard.attempts.get(what, 0) + 1
        delay = back_off(attempts, config.retry_first_ms, config.retry_most_ms)
        self._timers.set((shard.number, what.name), now + delay)

    def _on_due(self, now: Ms, number: int, what: str) -> None:
        shard = self._shards[number]
        if what == FLOOR_DUE:
            raise_floor(self._orders, shard, self._config)
            self._timers.set((number, FLOOR_DUE), now + self._config.floor_ms)
        elif what == TRIM_DUE:
            trim(self._orders, shard, self._config, self._wall(now))
            self._timers.set((number, TRIM_DUE), now + self._config.trim_ms)
        elif what != LANE_DUE:
            self._orders.repeat(What[what], shard)

    def _wall(self, now: Ms) -> int:
        return now + self._wall_ahead

    def _gauge(self, now: Ms) -> None:
        if self._gauged_at is not None and now - self._gauged_at < self._config.gauge_ms:
            return
        self._gauged_at = now
        shards = self._shards.values()
        self._orders.give(
            Gauge(name="mailbox_window_records", value=sum(len(s.window) for s in shards))
        )
        self._orders.give(
            Gauge(name="mailbox_finish_queue", value=sum(len(s.finishing) for s in shards))
        )
        self._orders.give(Gauge(name="mailbox_pulls", value=self._pulls.in_flight()))
        self._orders.give(Gauge(name="mailbox_push_users", value=self._pushes.queued()))
        self._orders.give(Gauge(name="mailbox_versions_wanted", value=self._shelf.waiting()))
