"""Where partitions start and end: what is asked in one turn of the loop is one request a broker.

The ends of a partition with several copies are told only once the cluster, asked afterwards, names the same leader under the
same epoch: a broker that was paused believes to lead for a moment after it wakes, and from an end that is too low a writer
would conclude that its outbox was truncated, and stop.
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from qim.adapters.kafka.cluster import BrokerGone, Cluster, Lane, Leader
from qim.adapters.kafka.pump import Pump
from qim.adapters.kafka.settings import KafkaSettings
from qim.adapters.kafka.wire import EARLIEST, LATEST, NO_TOPIC_ID, AskOffsets
from qim.core.ports.completion import FailReason

NO_ERROR: Final = 0


class Ends(Struct, frozen=True, kw_only=True):
    """Of one creation of the topic."""

    topic_id: bytes
    start: int
    end: int


EndsDone = Callable[[Ends | FailReason], None]


class _Asked(Struct):
    key: tuple[str, int]
    deadline: float
    done: EndsDone
    sure: bool
    ready_at: float = 0.0
    seen: tuple[Ends, Leader, int] | None = None
    """What was answered, by whom, and the look at the cluster that settles whether it led."""


class EndsReader:
    """``ask`` calls ``done`` once, on the loop, within its patience and one request more."""

    def __init__(self, settings: KafkaSettings, loop: AbstractEventLoop, cluster: Cluster) -> None:
        self._settings = settings
        self._loop = loop
        self._cluster = cluster
        self._asked: list[_Asked] = []
        self._flying = 0
        self._pump = Pump(
            loop,
            pause_ms=settings.backoff_ms,
            what="the asking for ends",
            look=self._send_ready,
        )
        cluster.on_refreshed.append(self._pump.soon)

    @property
    def waiting(self) -> int:
        """Questions not yet answered."""
        return len(self._asked) + self._flying

    def ask(
        self,
        key: tuple[str, int],
        done: EndsDone,
        *,
        sure: bool = True,
        deadline: float | None = None,
    ) -> None:
        """Start and end of (topic name, partition). ``sure``: by who still led afterwards; else at once, and maybe too low.

        ``deadline``: loop time, where it isn't that of a question asked now.
        """
        if deadline is None:
            deadline = self._loop.time() + self._settings.fetch_patience_ms / 1000
        self._asked.append(_Asked(key, deadline, done, sure))
        self._pump.soon()

    async def close(self) -> None:
        """What waits is answered CANCELLED."""
        await self._pump.close()
        asked, self._asked = self._asked, []
        for one in asked:
            one.done(FailReason.CANCELLED)

    def _send_ready(self) -> bool:
        now = self._loop.time()
        asked: dict[int, list[_Asked]] = {}
        rest: list[_Asked] = []
        for one in self._asked:
            leader = self._cluster.leader(*one.key)
            if one.deadline <= now:
                self._loop.call_soon(one.done, FailReason.UNREACHABLE)
            elif leader is None or one.ready_at > now or self._unsettled(one):
                if leader is None:
                    self._cluster.want_refresh()
                rest.append(one)
            elif one.seen is not None and one.seen[1] == leader:
                self._loop.call_soon(one.done, one.seen[0])
            else:
                one.seen = None
                asked.setdefault(leader.node, []).append(one)
        self._asked = rest
        for node, chosen in asked.items():
            self._pump.begin(self._ask(node, chosen))
        return bool(self._asked)

    def _unsettled(self, one: _Asked) -> bool:
        return one.seen is not None and not self._cluster.settled(one.seen[1].node, one.seen[2])

    async def _ask(self, node: int, asked: list[_Asked]) -> None:
        """One request of each kind; whoever the answers don't settle is asked again."""
        self._flying += len(asked)
        ids = {one.key[0]: self._cluster.topic_id(one.key[0]) for one in asked}
        leaders = {one.key: self._cluster.leader(*one.key) for one in asked}
        found: dict[tuple[str, int], Ends] = {}
        try:
            found = await self._ends_of(node, list(dict.fromkeys(one.key for one in asked)), ids)
        except BrokerGone:
            pass
        finally:
            self._flying -= len(asked)
            settled = [one for one in asked if one.key in found]
            for one in asked:
                if one.key not in found:
                    one.ready_at = self._loop.time() + self._settings.backoff_ms / 1000
                    self._asked.append(one)
            self._pump.soon()
        for one in settled:
            leader = leaders[one.key]
            if not one.sure or leader is None or leader.copies == 1:
                one.done(found[one.key])
            else:
                one.seen = found[one.key], leader, self._cluster.doubt(leader.node)
                self._asked.append(one)

    async def _ends_of(
        self, node: int, keys: list[tuple[str, int]], ids: dict[str, bytes]
    ) -> dict[tuple[str, int], Ends]:
        """The start first: retention between the two questions then leaves no end below a start."""
        asked = []
        for key in keys:
            leader = self._cluster.leader(*key)
            asked.append((*key, leader.epoch if leader is not None else -1))
        offsets: dict[int, dict[tuple[str, int], int]] = {EARLIEST: {}, LATEST: {}}
        for timestamp, into in offsets.items():
            answer = await self._cluster.ask(node, Lane.ASK, AskOffsets(asked, timestamp))
            for name, parts in answer.topics:
                for number, error, _, offset, _ in parts:
                    if error == NO_ERROR and offset >= 0:
                        into[name, number] = offset
                    else:
                        self._cluster.want_refresh()
        return {
            key: Ends(topic_id=ids[key[0]], start=start, end=max(start, offsets[LATEST][key]))
            for key, start in offsets[EARLIEST].items()
            if key in offsets[LATEST]
            and ids[key[0]] == self._cluster.topic_id(key[0])
            and ids[key[0]] != NO_TOPIC_ID
        }
