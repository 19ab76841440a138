"""A shard's way from fetched records to moved watermarks: what each answer leads to, what is ordered next (pipeline.md §3).

    fetch --> admit --> claim --> version known --> fill --> append --> hint, mark, floor

Every request of a shard is kept until it is settled. Failed: repeated with back-off. Unknown: nothing but the same request
again, since it may still be applied; and it stays so until an answer comes, whatever fails meanwhile.
"""

from typing import assert_never

from msgspec import Struct

from qim.core.audience import named_version
from qim.core.contract import routing
from qim.core.contract.entities import NO_SOURCE
from qim.core.contract.sequences import before_first
from qim.core.machine import Ms
from qim.core.mailbox import opening
from qim.core.mailbox.appending import append, finish, on_finished, on_refused, on_stored
from qim.core.mailbox.bodies import BodyCache, body_of_dispatch
from qim.core.mailbox.materialise import admit, claim, fill, on_claimed
from qim.core.mailbox.orders import Orders, What
from qim.core.mailbox.push import Hint, Pushes
from qim.core.mailbox.shard import Shard, Stage, WindowRecord
from qim.core.mailbox.trim import on_floor_raised, on_trimmed, raise_floor, trim
from qim.core.mailbox.vocabulary import VERSION_UNKNOWN, MailboxConfig, ShardReply
from qim.core.opener import Opener
from qim.core.ports.completion import Failed
from qim.core.ports.log import EndsRead, Fetched, OutOfRange
from qim.core.ports.observe import Count, Violation
from qim.core.ports.store_mailbox import (
    AppendEntries,
    Claimed,
    DispatchesFinished,
    EntriesAppended,
    FinishDispatches,
    FloorRaised,
    MailboxOpened,
    MailboxTrimmed,
    OpenMailbox,
    RaiseFloor,
    TrimMailbox,
)
from qim.core.ports.store_reads import VersionsRead
from qim.core.position import record_digest
from qim.core.timers import Timers, back_off
from qim.core.version_shelf import VersionShelf

FLOOR_DUE = "floor due"
TRIM_DUE = "trim due"
LANE_DUE = "lane due"


class Clock(Struct, frozen=True):
    """Now, monotonic and wall, in ms."""

    now: Ms
    wall: int


class Flow:
    """The rules of a shard's pipeline, over the books that all shards of a node share."""

    def __init__(
        self,
        config: MailboxConfig,
        orders: Orders,
        timers: Timers,
        shelf: VersionShelf,
        cache: BodyCache,
        pushes: Pushes,
        opener: Opener,
    ) -> None:
        self._config = config
        self._orders = orders
        self._timers = timers
        self._shelf = shelf
        self._cache = cache
        self._pushes = pushes
        self._opener = opener

    # ------------------------------------------------------------ answers

    def on_answer(
        self, clock: Clock, shard: Shard, what: What, event: ShardReply
    ) -> Violation | None:
        """The request is settled. Answers what stops the shard."""
        request = shard.requests.pop(what)
        shard.attempts.pop(what, None)
        shard.unsettled.pop(what, None)
        match event:
            case EntriesAppended():
                assert isinstance(request, AppendEntries)
                self._on_entries(clock.now, shard, request)
            case Claimed():
                on_claimed(self._orders, shard, event)
            case Fetched() | OutOfRange():
                return self._on_fetch_answer(clock.now, shard, event)
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
                trim(self._orders, shard, self._config, clock.wall)
            case EndsRead():
                return self._on_ends(clock.now, shard, event)
            case MailboxOpened():
                return opening.on_opened(self._orders, shard, event)
            case _:
                assert_never(event)
        return None

    def on_failed(self, now: Ms, shard: Shard, what: What, event: Failed) -> None:
        """Surely not applied: repeated with back-off, except a call refused for its rows, which is planned anew."""
        again = on_refused(shard, now, event.why, self._config) if what is What.APPEND else None
        if again is None:
            self._put_off(now, shard, what)
        elif again > now:
            self._timers.set((shard.number, LANE_DUE), again)

    def on_unknown(self, now: Ms, shard: Shard, what: What) -> None:
        """May be applied, or may still be: only the same request settles it."""
        shard.unsettled[what] = True
        self._put_off(now, shard, what)

    def _put_off(self, now: Ms, shard: Shard, what: What) -> None:
        config = self._config
        attempts = shard.attempts[what] = shard.attempts.get(what, 0) + 1
        delay = back_off(attempts, config.retry_first_ms, config.retry_most_ms)
        self._timers.set((shard.number, what.name), now + delay)

    def on_due(self, clock: Clock, shard: Shard, what: str) -> None:
        """A time has come: a floor or trim to be looked after, a lane to be tried alone, a request to be repeated."""
        if what == FLOOR_DUE:
            raise_floor(self._orders, shard, self._config)
        elif what == TRIM_DUE:
            trim(self._orders, shard, self._config, clock.wall)
            self._timers.set((shard.number, TRIM_DUE), clock.now + self._config.trim_ms)
        elif what == What.OPEN.name:
            opened = shard.requests.pop(What.OPEN)
            assert isinstance(opened, OpenMailbox)
            opening.open_mailbox(self._orders, shard, opened.initial, self._opener)
        elif what != LANE_DUE:
            self._orders.repeat(What[what], shard)

    # ------------------------------------------------------------ opening, fetching

    def _on_ends(self, now: Ms, shard: Shard, event: EndsRead) -> Violation | None:
        if shard.stage is Stage.READING_START:
            initial = before_first(self._config.shard_epoch, event.start)
            opening.open_mailbox(self._orders, shard, initial, self._opener)
            return None
        stop = opening.on_ends_read(self._orders, shard, event)
        self._if_running(now, shard)
        return stop

    def _if_running(self, now: Ms, shard: Shard) -> None:
        if shard.running():
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
        # A new leader may tell a lower end for a moment; one below what was read is no mailbox's to mend, see above.
        shard.end_offset = max(shard.end_offset, event.end)
        for stored in event.records:
            record = admit(self._orders, shard, stored, self._config.mailbox_day_ms)
            if record is None:
                break
            self._want_version(now, shard, record)
        if shard.window and event.records:
            shard.before = record_digest(shard.window[-1].stored)
        return None

    def _fetch_if_room(self, shard: Shard, draining: bool) -> None:
        config = self._config
        room = config.window_records_max - len(shard.window)
        bytes_room = config.window_bytes_max - shard.bytes
        if What.FETCH in shard.requests or shard.halted or draining:
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

    def on_versions(self, now: Ms, event: VersionsRead) -> None:
        """Versions that records of any shard wait for."""
        shelf = self._shelf.answered(now, event)
        if shelf.not_yet:
            count = Count(name="version_not_yet", value=shelf.not_yet, label="mailbox")
            self._orders.give(count)
        for conversation_id, version, digest in shelf.unknown:
            name = f"{conversation_id.hex()} V{version} {digest.hex()}"
            self._orders.give(Violation(check=VERSION_UNKNOWN, detail=f"mailbox waits for {name}"))

    # ------------------------------------------------------------ materialising

    def pump(self, now: Ms, shard: Shard, *, draining: bool) -> None:
        """Order all that has become possible."""
        if not shard.running():
            return
        config = self._config
        claim(self._orders, shard, config.claims_max)
        while shard.unready and self._materialise(now, shard, shard.unready[0]):
            shard.ready = shard.unready.popleft().seq
        append(self._orders, shard, now, config.rows_max)
        finish(self._orders, shard, config.finish_items_max)
        self._fetch_if_room(shard, draining)

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
            self._cache.keep(
                dispatch.message_id, body_of_dispatch(dispatch, self._config.retention)
            )
        return True

    def _on_entries(self, now: Ms, shard: Shard, request: AppendEntries) -> None:
        for record, users in on_stored(self._orders, shard, request, self._config.finish_queue_max):
            assert record.dispatch is not None
            hint = Hint(shard=shard.number, seq=record.seq, dispatch=record.dispatch, users=users)
            self._pushes.add(hint)
        # Coalesced: in the time until it is due, only the greatest f of each source is kept.
        if shard.passed and not self._timers.has((shard.number, FLOOR_DUE)):
            self._timers.set((shard.number, FLOOR_DUE), now + self._config.floor_ms)
