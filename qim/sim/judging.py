"""What the services answer each user once a world has settled: session lists and whole histories, page by page.

A process of its own asks as a gateway would, over the network, and repeats what is refused for the moment.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from qim.core.contract.errors import ErrorCode
from qim.core.contract.kinds import HistoryDirection
from qim.core.contract.routing import shard, writer_shard
from qim.core.contract.rpc import (
    Actor,
    AskHistory,
    AskPull,
    AskSessionList,
    AskSync,
    HistoryAnswer,
    PullAnswer,
    Refused,
    SessionListAnswer,
    SyncAnswer,
)
from qim.core.contract.sequences import before_first
from qim.core.ports.local import Started
from qim.core.ports.log import Topic
from qim.core.ports.network import Received, Send
from qim.core.ports.registry import Resource, Role
from qim.core.retention import RetentionPolicy
from qim.sim.cast import TENANT
from qim.sim.choice import choose
from qim.sim.node import Host
from qim.sim.told import Told
from qim.sim.visible import Clock, Visible

if TYPE_CHECKING:
    from qim.sim.scene import Scene

PAGE: Final = 3
ASK_AGAIN_MS: Final = 5_000
"""Longer than any service takes over a question that it answers or ends."""
PATIENCE_MS: Final = 30_000
LOOK_MS: Final = 20
PAGES_MAX: Final = 400
LISTS_MAX: Final = 10
EVENTS_MAX: Final = 100_000
"""Of the whole judging: more means that machines keep each other busy."""
END: Final = 2**64 - 1


class Judge:
    """Sends one question at a time and keeps its answer; a machine only in its shape."""

    def __init__(self) -> None:
        self._rid = 1 << 60
        self._asked: Send | None = None
        self._out: list[Send] = []
        self.answer: Any = None

    def ask(self, address: str, message: Any) -> None:
        """The next question; what may still come for an older one is not heard."""
        self._rid += 1
        named = type(message)(
            **{f: getattr(message, f) for f in message.__struct_fields__} | {"rid": self._rid}
        )
        self._out.append(Send(address=address, message=named))
        self.answer = None

    def step(self, now: int, events: Sequence[Any]) -> list[Send]:
        """Hear answers of the question asked last, hand out what is to be asked."""
        for event in events:
            if isinstance(event, Received) and getattr(event.message, "rid", 0) == self._rid:
                self.answer = event.message
        out, self._out = self._out, []
        return out

    def deadline(self) -> None:
        """Nothing by itself."""

    def check(self) -> None:
        """Nothing of its own."""

    def idle(self) -> bool:
        """Always."""
        return True


class Judging:
    """One judging of one world."""

    def __init__(self, scene: "Scene") -> None:
        self._scene = scene
        self._judge = Judge()
        node = scene.make_node("judge-1", "judge")
        self._host = Host(
            node,
            "judge-1/judge",
            self._judge,
            scene.routes,
            identity=choose(scene.plan.seed, "process", ("judge-1", 0, "judge")),
            observe=scene.observe,
        )
        self._events_max = scene.world.events + EVENTS_MAX
        scene.network.addresses[node.name] = self._host
        node.start([self._host])

    def told(self, user: int, visible: Visible) -> Told:
        """Everything about one user; the first question that nobody answers is the last."""
        told = Told()
        conversations = visible.conversations(user)
        for _ in range(LISTS_MAX):
            told.states_end = self._states_end(user)
            self._list(user, conversations, told)
            # A mark that was on its way while the list was read: another list is to be judged.
            if told.unanswered or told.states_end == self._states_end(user):
                break
        for conversation_id in conversations:
            clock = self._clock(conversation_id)
            for direction in (HistoryDirection.NEWER, HistoryDirection.OLDER):
                if not told.unanswered:
                    self._history(user, conversation_id, direction, told)
            told.clocks[conversation_id] = _joined(clock, self._clock(conversation_id))
        if not told.unanswered:
            self._mailbox(user, told)
        return told

    def _list(self, user: int, conversations: list[bytes], told: Told) -> None:
        actor = Actor(TENANT, user, b"judge")
        resource = Resource(role=Role.SESSION, number=shard(user, self._scene.plan.topology.shards))
        told.rows.clear()
        before = [self._clock(one, resource) for one in conversations]
        after, revision, stood = b"", 0, self._projected(resource)
        for _ in range(PAGES_MAX):
            ask = AskSessionList(rid=0, actor=actor, revision=revision, after=after, limit=PAGE)
            answer = self._answer(resource, ask)
            if not isinstance(answer, SessionListAnswer):
                told.unanswered.append(f"list of user {user}: {_words(answer)}")
                return
            if answer.revision != revision:
                facts = (stood, answer.projected_through, self._projected(resource))
                told.projections.append(facts)
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
            met = _joined(clock, self._clock(conversation_id, resource))
            told.listed[conversation_id] = met

    def _history(self, user: int, conversation_id: bytes, direction: int, told: Told) -> None:
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
                limit=PAGE,
            )
            answer = self._answer(self._writer(conversation_id), ask)
            if not isinstance(answer, HistoryAnswer):
                told.unanswered.append(f"history of user {user}: {_words(answer)}")
                return
            page = [(int.from_bytes(stored[:8], "big"), stored) for stored in answer.records]
            told.recalled.setdefault(conversation_id, {}).update(dict.fromkeys(answer.recalled))
            rows = rows + page if newer else page + rows
            if not answer.has_more or not page:
                (told.newer if newer else told.older)[conversation_id] = rows
                return
            anchor = page[-1][0] if newer else page[0][0]
        told.unanswered.append(f"history of user {user} has no end")

    def _mailbox(self, user: int, told: Told) -> None:
        """The whole mailbox, as a new device reads it back."""
        actor = Actor(TENANT, user, b"judge")
        resource = Resource(role=Role.MAILBOX, number=shard(user, self._scene.plan.topology.shards))
        synced = self._answer(resource, AskSync(rid=0, actor=actor, cursor=None))
        if not isinstance(synced, SyncAnswer):
            told.unanswered.append(f"mailbox of user {user}: {_words(synced)}")
            return
        cursor = synced.cursor
        for _ in range(PAGES_MAX):
            ask = AskPull(rid=0, actor=actor, cursor=cursor, up_to_seq=END, limit=PAGE)
            answer = self._answer(resource, ask)
            if not isinstance(answer, PullAnswer):
                told.unanswered.append(f"mailbox of user {user}: {_words(answer)}")
                return
            told.mailbox.extend(answer.entries)
            cursor = answer.cursor
            if not answer.has_more:
                return
            if not answer.entries:
                if self._behind_the_archive(resource):
                    told.mailbox_waits = True
                    return
                self._scene.world.run(self._scene.world.now + answer.retry_after_ms)
        told.unanswered.append(f"mailbox of user {user} has no end")

    def _behind_the_archive(self, resource: Resource) -> bool:
        """The archive let go, by a clock ahead, what this owner's clock has yet to take for expired: it waits till then."""
        leased = self._scene.registry.leases.get(resource)
        if leased is None or not leased.address:
            return False
        wall = self._scene.nodes[leased.address].wall.read(self._scene.world.now)
        return wall <= self._scene.history.expired_before

    # ------------------------------------------------------------ whom to ask, and their clocks

    def _writer(self, conversation_id: bytes) -> Resource:
        partitions = self._scene.plan.topology.outbox_partitions
        return Resource(role=Role.WRITER, number=writer_shard(conversation_id, partitions))

    def _projected(self, resource: Resource) -> int:
        """The projection's position in the store, as projected_through says it."""
        reached = self._scene.history.projected.get(resource.number, [-1])
        return before_first(1, max(reached[0], 0))

    def _states_end(self, user: int) -> int:
        """How many user-state records the user's shard has."""
        number = shard(user, self._scene.plan.topology.shards)
        return len(self._scene.log.partitions[Topic.USER_STATE, number].records)

    def _clock(self, conversation_id: bytes, *others: Resource) -> Clock:
        """What the clocks of those show who may judge this conversation's retention now."""
        scene = self._scene
        walls: list[int] = []
        for resource in (self._writer(conversation_id), *others):
            leased = scene.registry.leases.get(resource)
            if leased is not None and leased.address:
                walls.append(scene.nodes[leased.address].wall.read(scene.world.now))
        # What the archive let go is gone, though its owner's clock may be behind.
        walls.append(max([scene.history.expired_before, *walls]))
        policy = RetentionPolicy(ephemeral_ms=scene.plan.parameters.ephemeral_ms)
        return Clock(earliest=min(walls, default=0), latest=max(walls, default=0), policy=policy)

    def _answer(self, resource: Resource, message: Any) -> Any:
        """Ask until it is answered with something else than «not now»."""
        scene, world = self._scene, self._scene.world
        until = world.now + PATIENCE_MS
        answer: Any = None
        while world.now < until and not world.stopped:
            # While nobody holds the lease nothing is asked, and an older question's answer is none to this one.
            self._judge.answer = None
            leased = scene.registry.leases.get(resource)
            if leased is not None and leased.address:
                self._judge.ask(leased.address, message)
                self._host.take(Started(address="judge-1", wall=0))
            again = world.now + ASK_AGAIN_MS
            while self._judge.answer is None and world.now < again and not world.stopped:
                world.run(world.now + LOOK_MS)
                if world.events > self._events_max:
                    scene.history.found("runaway", "world", f"judging: {world.events} events")
                    world.stopped = True
            answer = self._judge.answer
            if answer is not None and not (isinstance(answer, Refused) and _not_now(answer)):
                return answer
            world.run(world.now + LOOK_MS)
        return answer


def _not_now(refused: Refused) -> bool:
    codes = (ErrorCode.NOT_OWNER, ErrorCode.UNAVAILABLE, ErrorCode.TIMEOUT_UNKNOWN)
    return bool(refused.retry_after_ms) or refused.code in codes


def _joined(first: Clock, second: Clock) -> Clock:
    return replace(
        first,
        earliest=min(first.earliest, second.earliest),
        latest=max(first.latest, second.latest),
    )


def _words(answer: Any) -> str:
    return f"{answer.code} {answer.message}" if isinstance(answer, Refused) else "no answer"


def judge(scene: "Scene") -> None:
    """Ask for every user; a service that answers one user nothing is not asked for all the others."""
    judging = Judging(scene)
    visible = Visible(scene.history.oracle)
    for user in scene.plan.users:
        if scene.world.stopped:
            return
        scene.told[user] = judging.told(user, visible)
        if scene.told[user].unanswered:
            return
