"""A session shard's two feeds: what each answer leads to, what is ordered next (pipeline.md §4).

Every request of a shard is kept until it is settled. Failed and Unknown alike: the same request again with back-off, since
each is harmless when it is applied twice and nothing else may be said before it is settled.
"""

from typing import assert_never

from qim.core.contract.entities import GroupDispatch
from qim.core.machine import Ms
from qim.core.ports.log import Appended, AppendRefused, EndsRead, Fetched, OutOfRange
from qim.core.ports.observe import Violation
from qim.core.ports.store_session import (
    ApplyStates,
    DispatchesProjected,
    ProjectDispatches,
    SessionOpened,
    StatesApplied,
)
from qim.core.position import record_digest
from qim.core.session import opening, projecting, states
from qim.core.session.orders import Orders, What
from qim.core.session.projecting import Projecting
from qim.core.session.shard import Feed, FeedStage, Shard
from qim.core.session.states import States
from qim.core.session.vocabulary import STATE_REFUSED, SessionConfig, ShardReply
from qim.core.timers import Timers, back_off
from qim.core.version_shelf import VersionShelf


class Flow:
    """The rules of a shard's feeds, over the books that all shards share."""

    def __init__(
        self,
        config: SessionConfig,
        orders: Orders,
        timers: Timers,
        shelf: VersionShelf,
        user_states: States,
    ) -> None:
        self._config = config
        self._orders = orders
        self._timers = timers
        self._states = user_states
        self._projecting = Projecting(config, orders, shelf)

    # ------------------------------------------------------------ answers

    def on_answer(self, now: Ms, shard: Shard, what: What, event: ShardReply) -> Violation | None:
        """The request is settled. Answers what stops the shard."""
        request = shard.requests.pop(what)
        shard.attempts.pop(what, None)
        feed = shard.dispatch if what in DISPATCH_WORK else shard.state
        match event:
            case SessionOpened():
                opening.on_opened(self._orders, shard, event)
            case EndsRead():
                return opening.on_ends_read(self._orders, shard, feed, event)
            case Fetched() | OutOfRange():
                return self._on_fetch_answer(now, shard, feed, event)
            case DispatchesProjected():
                assert isinstance(request, ProjectDispatches)
                self._projecting.on_projected(shard, request)
            case StatesApplied():
                assert isinstance(request, ApplyStates)
                self._states.on_applied(shard, request, event)
            case Appended():
                return self._states.on_appended(shard, event)
            case AppendRefused():
                detail = f"user_state/{shard.number}: {event.why}"
                return Violation(check=STATE_REFUSED, detail=detail)
            case _:
                assert_never(event)
        return None

    def put_off(self, now: Ms, shard: Shard, what: What) -> None:
        """The same request again, later."""
        config = self._config
        attempts = shard.attempts[what] = shard.attempts.get(what, 0) + 1
        delay = back_off(attempts, config.retry_first_ms, config.retry_most_ms)
        self._timers.set((shard.number, what.name), now + delay)

    def _on_fetch_answer(
        self, now: Ms, shard: Shard, feed: Feed, event: Fetched | OutOfRange
    ) -> Violation | None:
        if feed.stage is FeedStage.CHECKING:
            return opening.on_predecessor(self._orders, shard, feed, event)
        stop = opening.on_running_fetch_strange(shard, feed, event)
        if stop is not None or isinstance(event, OutOfRange):
            return stop
        feed.end_offset = event.end
        for stored in event.records:
            if feed is shard.state:
                record = states.admit(self._orders, shard, stored)
            else:
                record = projecting.admit(self._orders, shard, stored)
            if record is None:
                break
            if isinstance(record.content, GroupDispatch):
                self._projecting.want_version(now, shard, record.content)
        if feed.window and event.records:
            feed.before = record_digest(feed.window[-1].stored)
        return None

    # ------------------------------------------------------------ orders

    def pump(self, now: Ms, shard: Shard, *, draining: bool) -> None:
        """Order all that has become possible."""
        if not shard.running():
            return
        self._projecting.project(now, shard)
        self._states.apply(shard)
        self._states.append(shard)
        if not draining:
            self._fetch_if_room(shard, shard.dispatch, What.DISPATCH_FETCH)
        if not draining or states.owed(shard):
            self._fetch_if_room(shard, shard.state, What.STATE_FETCH)

    def _fetch_if_room(self, shard: Shard, feed: Feed, what: What) -> None:
        config = self._config
        room = config.window_records_max - len(feed.window)
        bytes_room = config.window_bytes_max - feed.bytes
        if what in shard.requests or feed.halted or room <= 0 or bytes_room <= 0:
            return
        opening.fetch(
            self._orders,
            shard,
            feed,
            feed.next_offset,
            limit=min(room, config.fetch_records_max),
            bytes_max=min(bytes_room, config.fetch_bytes_max),
            wait_ms=config.fetch_wait_ms,
        )


DISPATCH_WORK = (What.DISPATCH_ENDS, What.DISPATCH_FETCH, What.PROJECT)
