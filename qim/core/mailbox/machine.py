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
from typing import Final

from qim.core.contract.rpc import AskPull, AskSync, AskWatermark
from qim.core.machine import Choose, Ms, kinds
from qim.core.mailbox import opening
from qim.core.mailbox.bodies import BodyCache
from qim.core.mailbox.delivered import Delivered
from qim.core.mailbox.flow import Clock, Flow
from qim.core.mailbox.orders import Orders, Pending, What
from qim.core.mailbox.pull import Pulls, shard_asked
from qim.core.mailbox.push import Pushes
from qim.core.mailbox.shard import Shard, Stage
from qim.core.mailbox.vocabulary import (
    MailboxCompletion,
    MailboxConfig,
    MailboxEffect,
    MailboxEvent,
    ShardReply,
)
from qim.core.opener import Opener
from qim.core.ports.archive import ArchiveBodiesRead
from qim.core.ports.completion import Failed, Fenced, StoreReset, StoreRole, Unknown
from qim.core.ports.local import DrainRequested, FreshEpochWanted, LeaseGone, LeaseHeld, Started
from qim.core.ports.log import Fetched
from qim.core.ports.network import Received
from qim.core.ports.observe import Count, Gauge, Violation, queue
from qim.core.ports.registry import Resource, Role
from qim.core.ports.store_history import OverlaysRead
from qim.core.ports.store_mailbox import MailboxesRead, PresenceRead, Trimmed
from qim.core.ports.store_reads import BodiesRead, ReadVersions, VersionsRead
from qim.core.ports.store_session import DeliveredNoted
from qim.core.timers import Timers, earliest
from qim.core.version_shelf import VersionShelf

_ANSWERS: Final = kinds(MailboxCompletion) - {StoreReset}
"""What always answers an op."""
_SHARD_REPLIES: Final = kinds(ShardReply)


class MailboxNode:
    """The machine: LeaseHeld --> a Shard (states in shard.py) --> W that never passes what isn't stored."""

    def __init__(self, config: MailboxConfig, *, choose: Choose) -> None:
        self._config = config
        self._orders = Orders()
        self._shards: dict[int, Shard] = {}
        self._timers = Timers()
        self._cache = BodyCache(config.body_cache_bytes_max)
        self._delivered = Delivered(config, self._orders)
        self._pulls = Pulls(config, self._orders, self._cache, self._delivered)
        self._pushes = Pushes(config, self._orders)
        self._wall_ahead = 0
        """Wall clock minus monotonic clock, as of the last event that carried both."""
        self._draining = False
        self._touched: dict[int, None] = {}
        """Shards for which something happened in this step: the others have nothing new to order."""
        self._shelf = VersionShelf(
            shard_count=config.shard_count,
            names_max=config.version_names_max,
            members_max=config.version_members_max,
            retry_first_ms=config.retry_first_ms,
            retry_most_ms=config.retry_most_ms,
        )
        self._flow = Flow(
            config,
            self._orders,
            self._timers,
            self._shelf,
            self._cache,
            self._pushes,
            Opener(choose, Role.MAILBOX),
        )

    # ------------------------------------------------------------ the shape

    def step(self, now: Ms, events: Sequence[MailboxEvent]) -> list[MailboxEffect]:
        """Take facts, then order what they make possible, shard by shard; reads and hints of all shards last."""
        self._touched.clear()
        for event in events:
            self._take(now, event)
        for number, what in self._timers.due(now):
            self._touched[number] = None
            self._flow.on_due(self._clock(now), self._shards[number], what)
        for number in self._touched:
            if number in self._shards:
                self._flow.pump(now, self._shards[number], draining=self._draining)
        names = self._shelf.next_names(now)
        if names:
            self._orders.give(ReadVersions(op=self._orders.op(What.VERSIONS), names=names))
        self._pulls.flush()
        self._delivered.flush(now)
        self._pushes.flush(self._wall(now))
        return self._orders.taken()

    def deadline(self) -> Ms | None:
        """The earliest retry, floor, trim or note of what is delivered."""
        return earliest(self._timers.next(), self._shelf.deadline(), self._delivered.deadline())

    def idle(self) -> bool:
        """No record is half written, no mark or pull in flight (a parked Fetch doesn't count, nor do hints)."""
        return not self._pulls.in_flight() and not any(
            shard.window or shard.finishing or any(what != What.FETCH for what in shard.requests)
            for shard in self._shards.values()
        )

    def serving(self) -> int:
        """How many shards are open: their position is trusted and pulls are served."""
        return sum(shard.running() for shard in self._shards.values())

    def gauges(self, now: Ms) -> list[Gauge]:
        """Bounded structures, lag and age of each shard's watermark, by a driver that is asked for them."""
        config, shards = self._config, self._shards.values()
        out = [
            *queue(
                "mailbox.window",
                sum(len(shard.window) for shard in shards),
                config.window_records_max * len(shards),
            ),
            *queue(
                "mailbox.window_bytes",
                sum(shard.bytes for shard in shards),
                config.window_bytes_max * len(shards),
            ),
            *queue(
                "mailbox.finish",
                sum(len(shard.finishing) for shard in shards),
                config.finish_queue_max * len(shards),
            ),
            *queue("mailbox.pulls", self._pulls.in_flight(), config.pulls_inflight_max),
            *queue("mailbox.push_users", self._pushes.queued(), config.push_users_max),
            *queue("mailbox.body_cache_bytes", self._cache.held(), config.body_cache_bytes_max),
            Gauge(name="mailbox_versions_wanted", value=self._shelf.waiting()),
            Gauge(name="shards_serving", value=self.serving(), label="mailbox"),
        ]
        for shard in shards:
            if shard.running():
                label = str(shard.number)
                lag = shard.end_seq() - shard.lanes.minimum()
                out.append(Gauge(name="mailbox_lag_records", value=max(0, lag), label=label))
                out.append(Gauge(name="mailbox_halted", value=shard.halted, label=label))
                age = shard.watermark_age(self._wall(now))
                out.append(Gauge(name="mailbox_watermark_age_ms", value=age, label=label))
        return out

    def check(self) -> None:
        """Windows, lanes, cache, queue and shelf keep their books. Only shards of the last step can have changed."""
        for number in self._touched:
            if number in self._shards:
                self._shards[number].check()
                assert len(self._shards[number].window) <= self._config.window_records_max
        self._cache.check()
        self._pulls.check()
        self._delivered.check()
        self._pushes.check()
        self._shelf.check()

    # ------------------------------------------------------------ events

    def _take(self, now: Ms, event: MailboxEvent) -> None:
        if type(event) in _ANSWERS:
            self._on_completion(now, event)  # type: ignore[arg-type]
            return
        match event:
            case Received():
                self._wall_ahead = event.wall - now
                self._on_received(now, event)
            case LeaseHeld():
                self._wall_ahead = event.wall - now
                self._on_lease_held(event)
            case LeaseGone():
                if event.resource.role is Role.MAILBOX:
                    self._orders.elsewhere[event.resource.number] = event.owner_address
                    self._forget(event.resource.number)
            case DrainRequested():
                self._draining = True
            case Started():
                self._wall_ahead = event.wall - now
            case StoreReset(op=None):
                self._on_store_reset(event.store)
            case _:
                self._on_completion(now, event)

    def _on_received(self, now: Ms, event: Received) -> None:
        message = event.message
        if not isinstance(message, AskPull | AskSync | AskWatermark):
            # Late answers and strangers: nothing here asks a question over the network.
            self._orders.give(Count(name="mailbox_message_ignored"))
            return
        shard = self._shards.get(shard_asked(message, self._config))
        self._pulls.on_ask(now, event.source, event.wall, message, shard)

    def _on_completion(self, now: Ms, event: MailboxCompletion) -> None:
        assert event.op is not None
        pending = self._orders.pending.pop(event.op)
        if pending.shard is not None:
            if pending.shard.live:
                self._touched[pending.shard.number] = None
                self._on_shard_answer(now, pending.shard, pending.what, event)
        else:
            self._on_shared_answer(now, pending, event.op, event)

    def _on_shared_answer(
        self, now: Ms, pending: Pending, op: int, event: MailboxCompletion
    ) -> None:
        """Reads of pull, push and shelf: harmless, so everything but an answer is a failure of the read."""
        self._pulls.at(self._wall(now))
        match event:
            case MailboxesRead():
                self._pulls.on_rows(event)
            case _ if pending.what is What.PUSHED_OVERLAYS:
                recalled = event.recalled if isinstance(event, OverlaysRead) else None
                self._pushes.on_overlays(recalled)
            case OverlaysRead():
                self._pulls.on_overlays(event)
            case BodiesRead():
                self._pulls.on_bodies(event)
            case ArchiveBodiesRead():
                self._pulls.on_archived(event)
            case PresenceRead():
                self._pushes.on_presence(event, self._wall(now))
            case _ if pending.what is What.DELIVERED:
                self._delivered.on_answer(op, noted=isinstance(event, DeliveredNoted))
            case VersionsRead():
                self._flow.on_versions(now, event)
                self._touched.update(dict.fromkeys(self._shards))
            case Failed() | Unknown() if pending.what is What.DISPATCH:
                self._pulls.on_dispatch_failed(op)
            case _ if pending.what is What.READ:
                shard = self._pulls.on_read_failed(op)
                if isinstance(event, StoreReset) and shard.live:
                    # Nobody else may notice for long: the shard's own requests rest in a parked fetch.
                    self._want_fresh_epoch(shard, 0)
            case _ if pending.what is What.OVERLAYS:
                self._pulls.on_overlays_failed(op)
            case _ if pending.what is What.ARCHIVE:
                self._pulls.on_archive_failed(op)
            case _ if pending.what is What.BODIES:
                self._pulls.on_bodies_failed(op)
            case _ if pending.what is What.DISPATCH:
                fetched = event if isinstance(event, Fetched) else None
                self._pulls.on_dispatch(op, fetched)
            case _ if pending.what is What.PRESENCE:
                self._pushes.on_failed()
            case _:
                assert pending.what is What.VERSIONS
                self._shelf.failed(now)

    def _on_shard_answer(self, now: Ms, shard: Shard, what: What, event: MailboxCompletion) -> None:
        if type(event) in _SHARD_REPLIES:
            self._on_shard_reply(now, shard, what, event)  # type: ignore[arg-type]
            return
        match event:
            case Failed():
                self._flow.on_failed(now, shard, what, event)
            case Unknown():
                self._flow.on_unknown(now, shard, what)
            case Fenced():
                self._want_fresh_epoch(shard, event.epoch)
            case StoreReset() | Trimmed():
                # Trim never passes min W: if it did, another owner trimmed and this one is a thing of the past.
                self._want_fresh_epoch(shard, 0)
            case (
                MailboxesRead()
                | OverlaysRead()
                | BodiesRead()
                | ArchiveBodiesRead()
                | PresenceRead()
                | DeliveredNoted()
                | VersionsRead()
            ):
                raise AssertionError(f"{type(event).__name__} answers no op of a shard")
            case _:
                self._on_shard_reply(now, shard, what, event)

    def _on_shard_reply(self, now: Ms, shard: Shard, what: What, event: ShardReply) -> None:
        stop = self._flow.on_answer(self._clock(now), shard, what, event)
        if stop is not None:
            self._stop(shard, stop)

    # ------------------------------------------------------------ leases

    def _on_lease_held(self, event: LeaseHeld) -> None:
        if event.resource.role is not Role.MAILBOX:
            return
        number = event.resource.number
        self._orders.elsewhere.pop(number, None)
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
        self._delivered.forget(shard.number)

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

    # ------------------------------------------------------------ books

    def _wall(self, now: Ms) -> int:
        return now + self._wall_ahead

    def _clock(self, now: Ms) -> Clock:
        return Clock(now=now, wall=self._wall(now))
