"""SessionProjection: the conversation list, read marks and user state of the users of a mailbox shard (pipeline.md §4).

It owns session shards by lease: its own fence, its own checkpoints over the dispatch log and the user-state log, rows of its
own. Unread, previews and history come from the writer's owner alone (docs/decisions/0012): the projection asks. It does NOT
deliver, push or notify: a read mark makes no dispatch, no push and no unread for anybody. It reads no bodies but those of
heads, and decides no membership.

    LeaseHeld --> shard opened, both positions judged (opening.py)
    dispatch --> rows and position in one script (projecting.py)
    MARK_READ, SET_STATE --> user-state log --> applied --> answered (states.py)
    PULL_SESSION_LIST --> rows, summaries of what is dirty, frozen under a revision, paged (listing.py)

The delivered watermark of a device is the mailbox cursor it last pulled from: MailboxNode notes it, this machine tells it.
"""

from collections.abc import Sequence
from typing import Final

from qim.core.contract import routing
from qim.core.contract.rpc import MembersAnswer, Refused
from qim.core.contract.rpc_session import (
    AskReadBy,
    AskSessionList,
    AskStates,
    SubmitRead,
    SubmitState,
    SummariesAnswer,
)
from qim.core.machine import Choose, Ms, kinds
from qim.core.opener import Opener
from qim.core.ports.completion import Failed, Fenced, StoreReset, StoreRole, Unknown
from qim.core.ports.local import DrainRequested, FreshEpochWanted, LeaseGone, LeaseHeld, Started
from qim.core.ports.network import Received
from qim.core.ports.observe import Count, Gauge, Violation, queue
from qim.core.ports.registry import LeaseRead, Resource, Role
from qim.core.ports.store_reads import ReadVersions, VersionsRead
from qim.core.ports.store_session import DeliveredRead, MarksRead, SessionsRead, StatesRead
from qim.core.session import opening
from qim.core.session.asking import Writers
from qim.core.session.flow import Flow
from qim.core.session.known import Known
from qim.core.session.listing import Clock, Listing
from qim.core.session.orders import FETCHES, Orders, Pending, What
from qim.core.session.questions import Questions
from qim.core.session.shard import Shard, Stage
from qim.core.session.states import States
from qim.core.session.vocabulary import (
    VERSION_UNKNOWN,
    SessionCompletion,
    SessionConfig,
    SessionEffect,
    SessionEvent,
    ShardReply,
)
from qim.core.timers import Timers, earliest
from qim.core.version_shelf import VersionShelf

_ANSWERS: Final = kinds(SessionCompletion) - {StoreReset}
"""What always answers an op."""
_SHARD_REPLIES: Final = kinds(ShardReply)


class SessionProjection:
    """The machine: LeaseHeld --> a Shard (states in shard.py) --> positions that never run ahead of rows."""

    def __init__(self, config: SessionConfig, *, choose: Choose) -> None:
        self._config = config
        self._opener = Opener(choose, Role.SESSION)
        self._orders = Orders()
        self._shards: dict[int, Shard] = {}
        self._timers = Timers()
        self._clock = Clock()
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
        self._known = Known(config.known_max)
        self._states = States(config, self._orders, self._known)
        self._flow = Flow(config, self._orders, self._timers, self._shelf, self._states)
        self._writers = Writers(config, self._orders)
        self._listing = Listing(config, self._orders, self._writers, self._known, self._clock)
        self._questions = Questions(
            config,
            self._orders,
            self._writers,
            self._known,
            self._states,
            self._listing,
            self._clock,
        )

    # ------------------------------------------------------------ the shape

    def step(self, now: Ms, events: Sequence[SessionEvent]) -> list[SessionEffect]:
        """Take facts, then order what they make possible, shard by shard."""
        self._touched.clear()
        self._at(now)
        for event in events:
            self._take(now, event)
        for number, what in self._timers.due(now):
            self._touched[number] = None
            self._again(self._shards[number], What[what])
        self._writers.expire(now)
        self._listing.expire()
        self._questions.expire()
        for number in self._touched:
            if number in self._shards:
                self._flow.pump(now, self._shards[number], draining=self._draining)
        names = self._shelf.next_names(now)
        if names:
            self._orders.give(ReadVersions(op=self._orders.op(What.VERSIONS), names=names))
        return self._orders.taken()

    def deadline(self) -> Ms | None:
        """The earliest retry, or the end of the earliest wait."""
        return earliest(
            self._timers.next(),
            self._shelf.deadline(),
            self._writers.deadline(),
            self._listing.deadline(),
            self._questions.deadline(),
        )

    def idle(self) -> bool:
        """Nobody waits for an answer, nothing is half stored (a parked Fetch doesn't count)."""
        return self._questions.idle() and not any(
            shard.dispatch.window
            or shard.state.window
            or any(what not in FETCHES for what in shard.requests)
            for shard in self._shards.values()
        )

    def serving(self) -> int:
        """How many shards are open: both positions are trusted and questions are answered."""
        return sum(shard.running() for shard in self._shards.values())

    def gauges(self, now: Ms) -> list[Gauge]:
        """Bounded structures and the lag of each shard's lists, by a driver that is asked for them."""
        config, shards = self._config, self._shards.values()
        feeds = [feed for shard in shards for feed in shard.feeds()]
        snapshots = self._listing.snapshots
        out = [
            *queue(
                "session.window",
                sum(len(feed.window) for feed in feeds),
                config.window_records_max * len(feeds),
            ),
            *queue(
                "session.window_bytes",
                sum(feed.bytes for feed in feeds),
                config.window_bytes_max * len(feeds),
            ),
            *queue(
                "session.submissions",
                sum(len(shard.queue) + len(shard.batch) for shard in shards),
                config.submissions_max * len(shards),
            ),
            *queue("session.questions", self._questions.in_hand(), config.questions_max),
            *queue("session.writer_asks", self._writers.in_flight(), config.asks_max),
            *queue("session.snapshots_cached_bytes", snapshots.bytes, config.snapshot_bytes_max),
            Gauge(name="session_snapshot_users", value=snapshots.users()),
            Gauge(name="session_versions_wanted", value=self._shelf.waiting()),
            Gauge(name="shards_serving", value=self.serving(), label="session"),
        ]
        for shard in shards:
            if shard.running():
                label = str(shard.number)
                lag = shard.dispatch.lag()
                out.append(Gauge(name="session_lag_records", value=lag, label=label))
                lag = shard.state.lag()
                out.append(Gauge(name="session_state_lag_records", value=lag, label=label))
                halts = sum(feed.halted for feed in shard.feeds())
                out.append(Gauge(name="session_halted", value=halts, label=label))
        return out

    def projected_below(self, number: int) -> int | None:
        """The dispatch offset below which everything is in the lists of a shard; None: not known here and now."""
        shard = self._shards.get(number)
        if shard is None or not shard.running():
            return None
        return shard.dispatch.stands_at()

    def check(self) -> None:
        """Feeds, questions, lists and shelf keep their books. Only shards of the last step can have changed."""
        for number in self._touched:
            if number in self._shards:
                shard = self._shards[number]
                shard.check()
                most = self._config.window_records_max
                for feed in shard.feeds():
                    assert len(feed.window) <= most
        self._shelf.check()
        self._writers.check()
        self._known.check()
        self._listing.snapshots.check()

    # ------------------------------------------------------------ events

    def _take(self, now: Ms, event: SessionEvent) -> None:
        if type(event) in _ANSWERS:
            self._on_completion(now, event)  # type: ignore[arg-type]
            return
        match event:
            case Received():
                self._wall_ahead = event.wall - now
                self._at(now)
                self._on_received(now, event)
            case LeaseHeld():
                self._wall_ahead = event.wall - now
                self._at(now)
                self._on_lease_held(event)
            case LeaseGone():
                if event.resource.role is Role.SESSION:
                    self._orders.elsewhere[event.resource.number] = event.owner_address
                    self._forget(event.resource.number)
            case DrainRequested():
                self._draining = True
            case Started():
                self._wall_ahead = event.wall - now
                self._at(now)
                self._writers.started(event.wall)
            case StoreReset(op=None):
                self._on_store_reset(event.store)
            case _:
                self._on_completion(now, event)

    def _at(self, now: Ms) -> None:
        self._clock.now = now
        self._clock.wall = now + self._wall_ahead

    def _on_received(self, now: Ms, event: Received) -> None:
        message = event.message
        if isinstance(message, SummariesAnswer | MembersAnswer | Refused):
            if not self._writers.on_answer(now, message):
                self._orders.give(Count(name="session_answer_late"))
            self._touched.update(dict.fromkeys(self._shards))
        elif isinstance(message, SubmitRead | SubmitState | AskSessionList | AskStates | AskReadBy):
            number = routing.shard(message.actor.user_id, self._config.shard_count)
            shard = None if self._draining else self._shards.get(number)
            if self._questions.ask(event.source, message, shard, number) is not None:
                self._touched[number] = None
        else:
            self._orders.give(Count(name="session_message_ignored"))

    def _on_completion(self, now: Ms, event: SessionCompletion) -> None:
        assert event.op is not None
        pending = self._orders.pending.pop(event.op)
        if pending.on_read is not None:
            self._on_read(pending, event)
        elif pending.what is What.LEASE:
            if isinstance(event, LeaseRead):
                self._writers.on_lease(now, event)
            else:
                self._writers.on_lookup_failed(now, pending.number)
            self._touched.update(dict.fromkeys(self._shards))
        elif pending.what is What.VERSIONS:
            self._on_versions(now, event)
        elif pending.shard is not None and pending.shard.live:
            self._touched[pending.shard.number] = None
            self._on_shard_answer(now, pending.shard, pending.what, event)

    def _on_read(self, pending: Pending, event: SessionCompletion) -> None:
        """Reads are harmless: all but an answer is a failure of the read."""
        assert pending.on_read is not None and pending.shard is not None
        if isinstance(event, SessionsRead | StatesRead | MarksRead | DeliveredRead):
            pending.on_read(event)
            return
        pending.on_read(None)
        if isinstance(event, StoreReset) and pending.shard.live:
            # Nobody else may notice for long: the shard's own requests rest in parked fetches.
            self._want_fresh_epoch(pending.shard, 0)

    def _on_versions(self, now: Ms, event: SessionCompletion) -> None:
        if not isinstance(event, VersionsRead):
            self._shelf.failed(now)
            return
        shelf = self._shelf.answered(now, event)
        self._touched.update(dict.fromkeys(self._shards))
        if shelf.not_yet:
            count = Count(name="version_not_yet", value=shelf.not_yet, label="session")
            self._orders.give(count)
        for conversation_id, version, digest in shelf.unknown:
            name = f"{conversation_id.hex()} V{version} {digest.hex()}"
            self._orders.give(Violation(check=VERSION_UNKNOWN, detail=f"session waits for {name}"))

    def _on_shard_answer(self, now: Ms, shard: Shard, what: What, event: SessionCompletion) -> None:
        if type(event) in _SHARD_REPLIES:
            self._on_shard_reply(now, shard, what, event)  # type: ignore[arg-type]
            return
        match event:
            case Failed() | Unknown():
                self._flow.put_off(now, shard, what)
            case Fenced():
                self._want_fresh_epoch(shard, event.epoch)
            case StoreReset():
                self._want_fresh_epoch(shard, 0)
            case (
                SessionsRead()
                | StatesRead()
                | MarksRead()
                | DeliveredRead()
                | VersionsRead()
                | LeaseRead()
            ):
                raise AssertionError(f"{type(event).__name__} answers no op of a shard")
            case _:
                self._on_shard_reply(now, shard, what, event)

    def _on_shard_reply(self, now: Ms, shard: Shard, what: What, event: ShardReply) -> None:
        stop = self._flow.on_answer(now, shard, what, event)
        if stop is not None:
            self._stop(shard, stop)

    def _again(self, shard: Shard, what: What) -> None:
        """The same request, but for an Open: that one brings another key."""
        if what is What.OPEN:
            del shard.requests[what]
            opening.open_session(self._orders, shard, self._opener)
        else:
            self._orders.repeat(what, shard)

    # ------------------------------------------------------------ leases

    def _on_lease_held(self, event: LeaseHeld) -> None:
        if event.resource.role is not Role.SESSION:
            return
        number = event.resource.number
        self._orders.elsewhere.pop(number, None)
        self._forget(number)
        shard = self._shards[number] = Shard(number, event.epoch)
        opening.open_session(self._orders, shard, self._opener)

    def _forget(self, number: int) -> None:
        shard = self._shards.pop(number, None)
        if shard is not None:
            self._retire(shard)

    def _retire(self, shard: Shard) -> None:
        self._states.abandon(shard)
        shard.retire()
        self._shelf.forget(shard.number)
        self._timers.clear_number(shard.number)
        self._listing.snapshots.forget(shard.number)

    def _on_store_reset(self, store: StoreRole) -> None:
        """The adapter noticed another incarnation by itself: nothing learnt in the old one justifies a request."""
        self._listing.snapshots.clear()
        self._known.clear()
        if store is StoreRole.MESSAGE:
            self._shelf.clear()
            return
        for number in list(self._shards):
            self._want_fresh_epoch(self._shards[number], 0)

    def _want_fresh_epoch(self, shard: Shard, above: int) -> None:
        """What this epoch learnt is void; a new object begins with the next LeaseHeld (pipeline.md §0)."""
        if shard.stage in (Stage.AWAITING_EPOCH, Stage.STOPPED):
            return
        self._retire(shard)
        self._known.clear()
        shard.stage = Stage.AWAITING_EPOCH
        resource = Resource(role=Role.SESSION, number=shard.number)
        self._orders.give(FreshEpochWanted(resource=resource, above=above))

    def _stop(self, shard: Shard, violation: Violation) -> None:
        """There is no automatic reset: the shard stands until somebody looked at it (pipeline.md §7)."""
        self._retire(shard)
        shard.stage = Stage.STOPPED
        self._orders.give(violation)
