"""Fetches that wait: one long poll a broker over all partitions that are read from, with a small window ahead of each.

Why not a long poll a fetch: a broker serves one request of a connection at a time, so 64 shards that wait would need 64
connections, or wait for each other. Why a window ahead: the poll in flight can't be changed, so a partition that is out
of it while its reader digests would miss what comes until the next one. A partition joins by a direct read at the
position its reader names (see reader.py), and every position comes from a reader: nothing is committed, nothing reset. It
joins so again under another leader, under the same one elected anew, and after a connection was lost: a log may have lost its
tail meanwhile and grown again, and would seem to go on where it does not.

A partition whose end is ahead of us and that delivers nothing for stall_ms gets new connections and a new session,
counted: a consumer that lives but stands still is what is left of a broker's restart now and then.
"""

import asyncio
import logging
from asyncio import AbstractEventLoop
from functools import partial
from typing import Final

from msgspec import structs

from qim.adapters import breakage
from qim.adapters.kafka.cluster import BrokerGone, Cluster, Lane
from qim.adapters.kafka.ends import NO_ERROR, Ends, EndsReader
from qim.adapters.kafka.fetch_session import FetchSession
from qim.adapters.kafka.fetch_wire import AskFetch, FetchedPart, FetchPart
from qim.adapters.kafka.reader import OUT_OF_RANGE, Outside, Reader, Span
from qim.adapters.kafka.record_batches import BatchesBroken, BatchPacked, decode, within
from qim.adapters.kafka.settings import KIB, KafkaSettings
from qim.adapters.kafka.tail import Answer, Tail, Waiter, fetched, outside
from qim.core.ports.completion import Completion, Failed, FailReason
from qim.core.ports.log import Fetch, LogReply

LOG: Final = logging.getLogger(__name__)
POLL_BYTES_MAX: Final = 512 * KIB
"""The share of one partition in a poll."""
LOOKS: Final = 4
"""The watchdog looks so often within stall_ms."""
PACKED_MS: Final = 5_000
"""Before what can't be unpacked is fetched again: nobody here can read it, and its partition has others beside it."""


class Consumer:
    """``fetch`` answers within the fetch's own wait, fetch_patience_ms and one request."""

    def __init__(
        self,
        settings: KafkaSettings,
        loop: AbstractEventLoop,
        cluster: Cluster,
        reader: Reader,
        ends: EndsReader,
    ) -> None:
        self._settings = settings
        self._loop = loop
        self._cluster = cluster
        self._reader = reader
        self._ends = ends
        self._tails: dict[tuple[str, int], Tail] = {}
        self._polls: dict[int, asyncio.Task[None]] = {}
        self._wakes: dict[int, asyncio.Event] = {}
        self._sessions: dict[int, FetchSession] = {}
        self._heard: dict[int, float] = {}
        self._watch_task: asyncio.Task[None] | None = None
        self._closed = False
        self.recreated = 0
        """How often the watchdog found a partition standing still."""
        self.polls = 0
        self.answers_dropped = 0
        """Answers for an offset that was not (or no longer) the one asked for: dropped, asked again."""
        cluster.on_refreshed.append(self._wake_all)

    def start(self) -> None:
        """The watchdog."""
        self._watch_task = breakage.begin(self._loop, self._watch(), "the log's watchdog")

    async def close(self) -> None:
        """What waits is answered with nothing."""
        self._closed = True
        tasks = [task for task in (*self._polls.values(), self._watch_task) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for tail in self._tails.values():
            for waiter in [*tail.waiters]:
                self._leave(tail, waiter)
                waiter.answer(self._nothing(tail, waiter))

    @property
    def waiting(self) -> int:
        """Fetches that wait for records."""
        return sum(len(tail.waiters) for tail in self._tails.values())

    def lags(self) -> list[tuple[str, int, int]]:
        """(topic name, partition, records between what was asked for last and the end) of what is read from."""
        now = self._loop.time()
        return [
            (*tail.key, tail.lag)
            for tail in self._tails.values()
            if tail.seated and (tail.waiters or tail.asked_until > now)
        ]

    @property
    def bytes_ahead(self) -> int:
        """In all windows."""
        return sum(tail.bytes for tail in self._tails.values())

    def fetch(self, fetch: Fetch, key: tuple[str, int], answer: Answer) -> None:
        """See ports/log.py; ``wait_ms`` > 0."""
        tail = self._tails.get(key)
        if tail is None:
            tail = self._tails[key] = Tail(key)
        now = self._loop.time()
        waiter = Waiter(fetch, answer, now + fetch.wait_ms / 1000)
        tail.asked_at = fetch.offset
        tail.asked_until = now + self._settings.read_ahead_ms / 1000
        if tail.ends is not None and tail.ends.topic_id != self._cluster.topic_id(key[0]):
            self._unseat(tail)
        if self._closed:
            answer(Failed(op=fetch.op, why=FailReason.CANCELLED))
        elif tail.covers(fetch):
            if not tail.waiters:
                tail.passed(fetch)
            self._serve_or_wait(tail, waiter)
            self._wake(key)
        else:
            self._read(tail, waiter)

    # ---------------------------------------------------------------- one fetch

    def _serve_or_wait(self, tail: Tail, waiter: Waiter) -> None:
        records = tail.take(waiter.fetch) if tail.covers(waiter.fetch) else []
        if records:
            waiter.answer(tail.fetched(waiter.fetch, records))
            return
        waits = max(0.0, waiter.deadline - self._loop.time())
        waiter.timer = self._loop.call_later(waits, self._expired, tail, waiter)
        tail.waiters.append(waiter)

    def _read(self, tail: Tail, waiter: Waiter) -> None:
        fetch = waiter.fetch
        self._reader.read(
            tail.key,
            fetch.offset,
            max(fetch.bytes_max, POLL_BYTES_MAX),
            partial(self._have_read, tail, waiter),
            fetch.before,
        )

    def _have_read(self, tail: Tail, waiter: Waiter, result: Span | Outside | FailReason) -> None:
        fetch = waiter.fetch
        match result:
            case Span():
                self._have_span(tail, waiter, result)
            case Outside():
                waiter.answer(outside(fetch, result))
            case FailReason():
                waiter.answer(Failed(op=fetch.op, why=result))

    def _have_span(self, tail: Tail, waiter: Waiter, span: Span) -> None:
        fetch = waiter.fetch
        if span.epoch > tail.epoch:
            # What waits here waits behind what another leadership told.
            self._unseat(tail)
        if not tail.waiters:
            # Nobody else reads here: the window goes where this reader is.
            tail.seat(span, fetch.offset, fetch.before)
        if span.records:
            records = within(span.records, 0, fetch.limit, fetch.bytes_max)
            waiter.answer(fetched(fetch, span.ends, records))
        elif self._closed or waiter.deadline <= self._loop.time():
            waiter.answer(fetched(fetch, span.ends, []))
        else:
            self._serve_or_wait(tail, waiter)
        self._wake(tail.key)

    def _expired(self, tail: Tail, waiter: Waiter) -> None:
        tail.waiters.remove(waiter)
        waiter.answer(self._nothing(tail, waiter))

    def _leave(self, tail: Tail, waiter: Waiter) -> None:
        tail.waiters.remove(waiter)
        if waiter.timer is not None:
            waiter.timer.cancel()

    def _nothing(self, tail: Tail, waiter: Waiter) -> LogReply | Completion:
        """No records; Failed where no broker has told us so for a while."""
        op = waiter.fetch.op
        if tail.ends is None:
            return Failed(op=op, why=FailReason.UNREACHABLE)
        leader = self._cluster.leader(*tail.key)
        patience = self._settings.fetch_patience_ms / 1000
        heard = self._heard.get(leader.node, 0.0) if leader is not None else 0.0
        if not self._closed and heard < self._loop.time() - patience:
            return Failed(op=op, why=FailReason.UNREACHABLE)
        return tail.fetched(waiter.fetch, [])

    def _unseat(self, tail: Tail) -> None:
        """Whoever waits asks anew where it is."""
        tail.empty()
        for waiter in [*tail.waiters]:
            self._leave(tail, waiter)
            self._read(tail, waiter)

    # ---------------------------------------------------------------- polling

    def _wake(self, key: tuple[str, int]) -> None:
        leader = self._cluster.leader(*key)
        if leader is None:
            self._cluster.want_refresh()
        elif not self._closed:
            self._wake_node(leader.node)

    def _wake_node(self, node: int) -> None:
        if node not in self._polls:
            self._wakes[node] = asyncio.Event()
            self._heard[node] = self._loop.time()
            self._polls[node] = self._loop.create_task(self._poll_for_ever(node))
        self._wakes[node].set()

    def _wake_all(self) -> None:
        """Leaders may have changed."""
        if not self._closed:
            for tail in [*self._tails.values()]:
                if tail.waiters:
                    self._wake(tail.key)

    async def _poll_for_ever(self, node: int) -> None:
        wake = self._wakes[node]
        self._sessions[node] = FetchSession()
        while True:
            wake.clear()
            try:
                wanted = self._wanted(node)
                if not wanted:
                    await wake.wait()
                    continue
                served = await self._poll(node, wanted)
            except Exception:
                # All readers of this broker would stand still, unseen, if this task ended.
                LOG.exception("a poll of broker %d failed", node)
                self._sessions[node] = FetchSession()
                served = False
            if not served:
                await asyncio.sleep(self._settings.backoff_ms / 1000)

    def _wanted(self, node: int) -> dict[tuple[str, int], FetchPart]:
        """What the next poll asks for."""
        now = self._loop.time()
        wanted: dict[tuple[str, int], FetchPart] = {}
        for key, tail in self._tails.items():
            if tail.ends is None or tail.ready_at > now:
                continue
            ahead = tail.bytes < self._settings.read_ahead_bytes and tail.asked_until > now
            if not (tail.waiters or ahead):
                continue
            leader = self._cluster.leader(*key)
            if leader is None or leader.node != node:
                continue
            other_topic = tail.ends.topic_id != self._cluster.topic_id(key[0])
            if other_topic or tail.epoch != leader.epoch:
                self._unseat(tail)
                continue
            size = self._settings.request_bytes_max if tail.hungry else POLL_BYTES_MAX
            wanted[key] = self._reader.part(key, tail.next, size)
        return wanted

    async def _poll(self, node: int, wanted: dict[tuple[str, int], FetchPart]) -> bool:
        """One request and what it brought; False where a pause is due before the next."""
        session = self._sessions[node]
        forgotten = session.forgotten(wanted)
        request = AskFetch(
            session.changes(wanted),
            wait_ms=self._settings.poll_wait_ms,
            bytes_max=self._settings.request_bytes_max,
            session_id=session.id,
            session_epoch=session.epoch,
            forgotten=forgotten,
        )
        try:
            answer = await self._cluster.ask(node, Lane.POLL, request)
        except BrokerGone:
            self._sessions[node] = FetchSession()
            for key in wanted:
                self._unseat(self._tails[key])
            return False
        self.polls += 1
        if answer.error != NO_ERROR:
            # The broker dropped or never knew the session: everything is named again.
            self._sessions[node] = FetchSession()
            self._cluster.want_refresh()
            return False
        self._heard[node] = self._loop.time()
        session.answered(answer.session_id)
        names = {part.topic_id: part.topic for part in session.sent.values()}
        for part in answer.parts:
            name = part.topic if isinstance(part.topic, str) else names.get(part.topic, "")
            self._feed(session, (name, part.partition), part)
        return True

    def _feed(self, session: FetchSession, key: tuple[str, int], part: FetchedPart) -> None:
        asked, tail = session.sent.get(key), self._tails.get(key)
        if asked is None or tail is None or tail.ends is None or asked.offset != tail.next:
            self.answers_dropped += 1
            return
        if asked.leader_epoch != tail.epoch or asked.topic_id != tail.ends.topic_id:
            self.answers_dropped += 1
            return
        if part.error == OUT_OF_RANGE:
            session.sent.pop(key)
            self._unseat(tail)
        elif part.error != NO_ERROR:
            self._feed_again(session, tail, self._settings.backoff_ms)
            self._cluster.want_refresh()
        else:
            try:
                decoded = decode(part.data, asked.offset)
            except BatchesBroken as error:
                self._reader.unread.met(key, asked.offset, error)
                # How far behind its reader is shows all the same.
                tail.ends = structs.replace(tail.ends, end=max(tail.ends.end, part.high_watermark))
                packed = isinstance(error, BatchPacked)
                self._feed_again(session, tail, PACKED_MS if packed else self._settings.backoff_ms)
                return
            self._reader.unread.passed(key)
            ends = Ends(
                topic_id=asked.topic_id,
                start=max(0, part.log_start),
                end=max(part.high_watermark, decoded.next),
            )
            tail.grew(ends, decoded.records, decoded.next)
            tail.hungry = bool(part.data) and not decoded.whole
            self._serve_waiters(tail)

    def _feed_again(self, session: FetchSession, tail: Tail, pause_ms: int) -> None:
        session.sent.pop(tail.key)
        tail.ready_at = self._loop.time() + pause_ms / 1000
        # A little later: a timer may be early by the clock's resolution, and would find nothing to do.
        self._loop.call_later(pause_ms / 1000 + 0.01, self._wake, tail.key)

    def _serve_waiters(self, tail: Tail) -> None:
        for waiter in [*tail.waiters]:
            if not tail.covers(waiter.fetch):
                self._leave(tail, waiter)
                self._read(tail, waiter)
                continue
            records = tail.take(waiter.fetch)
            if records:
                self._leave(tail, waiter)
                waiter.answer(tail.fetched(waiter.fetch, records))

    # ---------------------------------------------------------------- the watchdog

    async def _watch(self) -> None:
        """Ends are asked over another lane than records come: what hangs the one must not blind the other."""
        while True:
            await asyncio.sleep(self._settings.stall_ms / LOOKS / 1000)
            for tail in self._tails.values():
                # What can't be read comes no sooner over another connection.
                unread = self._reader.unread.stands(tail.key, tail.next)
                if tail.waiters and tail.seated and not unread:
                    self._ends.ask(tail.key, partial(self._compare, tail, tail.next), sure=False)

    def _compare(self, tail: Tail, position: int, ends: Ends | FailReason) -> None:
        if isinstance(ends, FailReason) or tail.ends is None or self._closed:
            return
        if not tail.waiters or tail.next != position or ends.end <= position:
            tail.behind_since = None
            return
        now = self._loop.time()
        if tail.behind_since is None:
            tail.behind_since = now
        elif now - tail.behind_since >= self._settings.stall_ms / 1000:
            self._recreate(tail, ends)

    def _recreate(self, tail: Tail, ends: Ends) -> None:
        self.recreated += 1
        LOG.warning(
            "%s/%d stands still at %d, its end is %d: connected anew",
            *tail.key,
            tail.next,
            ends.end,
        )
        leader = self._cluster.leader(*tail.key)
        self._cluster.want_refresh()
        for other in self._tails.values():
            # One remedy for all that stand still there; whoever still does is seen again.
            other.behind_since = None
        if leader is None:
            return
        self._cluster.renew(leader.node, Lane.POLL, Lane.READ)
        task = self._polls.pop(leader.node, None)
        if task is not None:
            task.cancel()
        self._wake_node(leader.node)
