"""Questions to writer shards' owners: found in the registry, asked, answered or ended (contract.md, Routing).

    wanted --owner known--> sent --answer with its rid--> done
       |--lookup--> owner, or nobody: done with nothing
    sent --NOT_OWNER--> the owner it names, or a lookup (ask_attempts_max in all)
    any --its time is up--> done with nothing, and the owner is looked up the next time

A cached address is a guess that costs one refused question when it is wrong. "Nobody" is never cached.
"""

import heapq
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from qim.core.contract.errors import ErrorCode
from qim.core.contract.rpc import AskMembers, MembersAnswer, Refused
from qim.core.contract.rpc_session import AskSummaries, SummariesAnswer
from qim.core.machine import Ms
from qim.core.ports.network import Send
from qim.core.ports.registry import LeaseRead, ReadLease, Resource, Role
from qim.core.session.orders import Orders, What
from qim.core.session.vocabulary import SessionConfig

WriterAsk = AskSummaries | AskMembers
WriterAnswer = SummariesAnswer | MembersAnswer | Refused
OnAnswer = Callable[[Ms, WriterAnswer | None], None]
RID_SHIFT = 20
"""rids start at wall << 20: an answer to a question of this process's last life finds no question of this one."""


class Asked(Struct, eq=False):
    """One question on its way. ``ask.rid`` is new with every attempt."""

    ask: WriterAsk
    partition: int
    due: Ms
    on_answer: OnAnswer
    attempts: int = 0
    address: str = ""


class Writers:
    """All questions to writers, bounded by ``asks_max``, and the owners known lately."""

    def __init__(self, config: SessionConfig, orders: Orders) -> None:
        self._config = config
        self._orders = orders
        self._owners: dict[int, tuple[str, Ms]] = {}
        self._lookups: dict[int, list[Asked]] = {}
        self._sent: dict[int, Asked] = {}
        self._dues: list[tuple[Ms, int, Asked]] = []
        self._count = 0
        self._rid = 0
        self._order = 0

    def started(self, wall: int) -> None:
        """A new life begins at this wall clock."""
        self._rid = max(self._rid, wall << RID_SHIFT)

    def in_flight(self) -> int:
        """Questions not yet done."""
        return self._count

    def ask(self, now: Ms, partition: int, ask: WriterAsk, on_answer: OnAnswer) -> bool:
        """Ask the owner of ``partition``; ``on_answer`` is called once, later. False: too many are in flight."""
        if self._count >= self._config.asks_max:
            return False
        self._count += 1
        asked = Asked(
            ask=ask, partition=partition, due=now + self._config.ask_ms, on_answer=on_answer
        )
        self._order += 1
        heapq.heappush(self._dues, (asked.due, self._order, asked))
        self._go(now, asked)
        return True

    def _go(self, now: Ms, asked: Asked) -> None:
        known = self._owners.get(asked.partition)
        if known is not None and now < known[1]:
            self._send(asked, known[0])
            return
        waiting = self._lookups.get(asked.partition)
        if waiting is not None:
            waiting.append(asked)
            return
        self._lookups[asked.partition] = [asked]
        resource = Resource(role=Role.WRITER, number=asked.partition)
        op = self._orders.op(What.LEASE, number=asked.partition)
        self._orders.give(ReadLease(op=op, resource=resource))

    def _send(self, asked: Asked, address: str) -> None:
        self._rid += 1
        asked.attempts += 1
        asked.address = address
        asked.ask = replace(asked.ask, rid=self._rid)
        self._sent[self._rid] = asked
        self._orders.give(Send(address=address, message=asked.ask))

    def on_lease(self, now: Ms, event: LeaseRead) -> None:
        """The owner, or nobody."""
        partition = event.resource.number
        if event.address:
            self._learn(now, partition, event.address)
        for asked in self._lookups.pop(partition, ()):
            if asked.due <= now:
                continue
            if event.address:
                self._send(asked, event.address)
            else:
                self._done(now, asked, None)

    def on_lookup_failed(self, now: Ms, partition: int) -> None:
        """The registry didn't answer: nobody is known."""
        for asked in self._lookups.pop(partition, ()):
            if asked.due > now:
                self._done(now, asked, None)

    def on_answer(self, now: Ms, answer: WriterAnswer) -> bool:
        """An answer from the network; False where it answers nothing that is asked."""
        asked = self._sent.pop(answer.rid, None)
        if asked is None:
            return False
        if isinstance(answer, Refused) and answer.code == ErrorCode.NOT_OWNER:
            self._forget(asked)
            if asked.attempts < self._config.ask_attempts_max:
                if answer.owner_address:
                    self._learn(now, asked.partition, answer.owner_address)
                self._go(now, asked)
                return True
        self._done(now, asked, answer)
        return True

    def expire(self, now: Ms) -> None:
        """End what has waited long enough."""
        while self._dues and self._dues[0][0] <= now:
            asked = heapq.heappop(self._dues)[2]
            if asked.due < 0:
                continue
            if self._sent.pop(asked.ask.rid, None) is not None:
                self._forget(asked)
            self._done(now, asked, None)

    def deadline(self) -> Ms | None:
        """When ``expire`` may have something to end."""
        return self._dues[0][0] if self._dues else None

    def check(self) -> None:
        """What is counted is on its way or waits for a lookup; both are bounded."""
        waiting = sum([a.due >= 0 for asks in self._lookups.values() for a in asks])
        assert self._count == len(self._sent) + waiting
        assert self._count <= self._config.asks_max
        assert len(self._owners) <= self._config.owners_max

    def _done(self, now: Ms, asked: Asked, answer: WriterAnswer | None) -> None:
        asked.due = -1
        self._count -= 1
        asked.on_answer(now, answer)

    def _learn(self, now: Ms, partition: int, address: str) -> None:
        self._owners.pop(partition, None)
        if len(self._owners) >= self._config.owners_max:
            del self._owners[next(iter(self._owners))]
        self._owners[partition] = (address, now + self._config.owner_ttl_ms)

    def _forget(self, asked: Asked) -> None:
        known = self._owners.get(asked.partition)
        if known is not None and known[0] == asked.address:
            del self._owners[asked.partition]
