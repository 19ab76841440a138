"""What every user is asked once a world has settled: session list, whole histories, the mailbox, page by page.

Generators that yield what they want to know and are sent the answer; who drives them owns time and wires: the simulator's
judge in world time, a chaos run over the real network.
"""

from collections.abc import Generator
from typing import Any, Final, Protocol

from msgspec import Struct

from qim.core.contract.actor import Actor
from qim.core.contract.errors import ErrorCode
from qim.core.contract.kinds import HistoryDirection
from qim.core.contract.routing import shard, writer_shard
from qim.core.contract.rpc import (
    AskHistory,
    AskPull,
    AskSync,
    HistoryAnswer,
    PullAnswer,
    Refused,
    SyncAnswer,
)
from qim.core.contract.rpc_session import AskSessionList, SessionListAnswer
from qim.core.ports.registry import Resource, Role
from qim.sim.cast import TENANT
from qim.sim.plan import Topology
from qim.sim.told import Told
from qim.sim.visible import Clock, Visible, joined

PAGE: Final = 3
PAGES_MAX: Final = 400
WAITS_MAX: Final = 40
"""Answers without an entry: once a world has settled nothing is worth waiting for as long as that."""
LISTS_MAX: Final = 10
END: Final = 2**64 - 1


class Question(Struct, frozen=True, kw_only=True):
    """Ask the holder of ``resource`` until it answers with something else than "not now"; sent: the answer, None for none."""

    resource: Resource
    message: Any


class Projected(Struct, frozen=True, kw_only=True):
    """Sent: the projection's position of a session shard in the store, as projected_through says it."""

    number: int


class StatesEnd(Struct, frozen=True, kw_only=True):
    """Sent: how many user-state records a shard has."""

    number: int


class Later(Struct, frozen=True, kw_only=True):
    """Go on after so long; nothing is sent."""

    ms: int


Wanted = Question | Projected | StatesEnd | Later
Asked = Generator[Wanted, Any, None]


class Clocks(Protocol):
    """What the clocks of those show who may judge retention now."""

    def of(self, *resources: Resource) -> Clock: ...


class Asking:
    """Everything about one user; the first question that nobody answers is the last. ``page``: rows a question."""

    def __init__(self, topology: Topology, clocks: Clocks, *, page: int = PAGE) -> None:
        self._topology = topology
        self._clocks = clocks
        self._page = page

    def about(self, user: int, visible: Visible, told: Told) -> Asked:
        """Fill ``told``."""
        conversations = visible.conversations(user)
        for _ in range(LISTS_MAX):
            told.states_end = yield StatesEnd(number=self._shard(user))
            yield from self._list(user, conversations, told)
            # A mark that was on its way while the list was read: another list is to be judged.
            now = yield StatesEnd(number=self._shard(user))
            if told.unanswered or told.states_end == now:
                break
        for conversation_id in conversations:
            writer = self._writer(conversation_id)
            clock = self._clocks.of(writer)
            for direction in (HistoryDirection.NEWER, HistoryDirection.OLDER):
                if not told.unanswered:
                    yield from self._history(user, conversation_id, direction, told)
            told.clocks[conversation_id] = joined(clock, self._clocks.of(writer))
        if not told.unanswered:
            yield from self._mailbox(user, told)

    def _list(self, user: int, conversations: list[bytes], told: Told) -> Asked:
        actor = Actor(TENANT, user, b"judge")
        resource = Resource(role=Role.SESSION, number=self._shard(user))
        told.rows.clear()
        before = [self._clocks.of(self._writer(one), resource) for one in conversations]
        after, revision = b"", 0
        stood = yield Projected(number=resource.number)
        for _ in range(PAGES_MAX):
            ask = AskSessionList(
                rid=0, actor=actor, revision=revision, after=after, limit=self._page
            )
            answer = yield Question(resource=resource, message=ask)
            if not isinstance(answer, SessionListAnswer):
                told.unanswered.append(f"list of user {user}: {words(answer)}")
                return
            if answer.revision != revision:
                stands = yield Projected(number=resource.number)
                told.projections.append((stood, answer.projected_through, stands))
            if revision and answer.revision != revision:
                # A new one was frozen: what was read so far belongs to another list.
                told.rows.clear()
            told.rows.extend(answer.rows)
            told.badge = answer.badge
            revision, after = answer.revision, answer.after
            if not after:
                break
        else:
            told.unanswered.append(f"list of user {user} has no end")
        for conversation_id, clock in zip(conversations, before, strict=True):
            now = self._clocks.of(self._writer(conversation_id), resource)
            told.listed[conversation_id] = joined(clock, now)

    def _history(self, user: int, conversation_id: bytes, direction: int, told: Told) -> Asked:
        newer = direction == HistoryDirection.NEWER
        anchor = 0 if newer else END
        rows: list[tuple[int, bytes]] = []
        for _ in range(PAGES_MAX):
            ask = AskHistory(
                rid=0,
                actor=Actor(TENANT, user, b"judge"),
                conversation_id=conversation_id,
                anchor=anchor,
                direction=direction,
                limit=self._page,
            )
            answer = yield Question(resource=self._writer(conversation_id), message=ask)
            if not isinstance(answer, HistoryAnswer):
                told.unanswered.append(f"history of user {user}: {words(answer)}")
                return
            page = [(int.from_bytes(stored[:8], "big"), stored) for stored in answer.records]
            told.recalled.setdefault(conversation_id, {}).update(dict.fromkeys(answer.recalled))
            rows = rows + page if newer else page + rows
            if not answer.has_more or not page:
                (told.newer if newer else told.older)[conversation_id] = rows
                return
            anchor = page[-1][0] if newer else page[0][0]
        told.unanswered.append(f"history of user {user} has no end")

    def _mailbox(self, user: int, told: Told) -> Asked:
        """The whole mailbox, as a new device reads it back."""
        actor = Actor(TENANT, user, b"judge")
        resource = Resource(role=Role.MAILBOX, number=self._shard(user))
        message = AskSync(rid=0, actor=actor, cursor=None)
        synced = yield Question(resource=resource, message=message)
        if not isinstance(synced, SyncAnswer):
            told.unanswered.append(f"mailbox of user {user}: {words(synced)}")
            return
        cursor, waits = synced.cursor, 0
        told.first_cursor = cursor
        for _ in range(PAGES_MAX):
            ask = AskPull(rid=0, actor=actor, cursor=cursor, up_to_seq=END, limit=self._page)
            answer = yield Question(resource=resource, message=ask)
            if not isinstance(answer, PullAnswer):
                told.unanswered.append(f"mailbox of user {user}: {words(answer)}")
                return
            told.mailbox.extend(answer.entries)
            cursor = answer.cursor
            if not answer.has_more:
                return
            if not answer.entries:
                waits += 1
                if waits > WAITS_MAX:
                    break
                yield Later(ms=answer.retry_after_ms)
        told.unanswered.append(f"mailbox of user {user} has no end")

    def _shard(self, user: int) -> int:
        return shard(user, self._topology.shards)

    def _writer(self, conversation_id: bytes) -> Resource:
        number = writer_shard(conversation_id, self._topology.outbox_partitions)
        return Resource(role=Role.WRITER, number=number)


def words(answer: Any) -> str:
    """A refusal's, or that nobody answered."""
    return f"{answer.code} {answer.message}" if isinstance(answer, Refused) else "no answer"


def is_not_now(answer: Any) -> bool:
    """Refused for the moment: ask again."""
    codes = (ErrorCode.NOT_OWNER, ErrorCode.UNAVAILABLE, ErrorCode.TIMEOUT_UNKNOWN)
    return isinstance(answer, Refused) and (bool(answer.retry_after_ms) or answer.code in codes)
