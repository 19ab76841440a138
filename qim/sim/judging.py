"""What the services answer each user once a world has settled: session lists and whole histories, page by page.

A process of its own asks as a gateway would, over the network, and repeats what is refused for the moment.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from qim.core.contract.kinds import HistoryDirection
from qim.core.contract.routing import shard, writer_shard
from qim.core.contract.rpc import (
    Actor,
    AskHistory,
    AskSessionList,
    HistoryAnswer,
    Refused,
    SessionListAnswer,
)
from qim.core.ports.local import Started
from qim.core.ports.network import Received, Send
from qim.core.ports.registry import Resource, Role
from qim.sim.cast import TENANT
from qim.sim.choice import choose
from qim.sim.node import Host
from qim.sim.told import Told
from qim.sim.visible import Visible

if TYPE_CHECKING:
    from qim.sim.scene import Scene

PAGE: Final = 3
ASK_AGAIN_MS: Final = 400
PATIENCE_MS: Final = 60_000
LOOK_MS: Final = 20
PAGES_MAX: Final = 400
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
        scene.network.addresses[node.name] = self._host
        node.start([self._host])

    def told(self, user: int, visible: Visible) -> Told:
        """Everything about one user."""
        told = Told()
        self._list(user, told)
        for conversation_id in visible.conversations(user):
            for direction in (HistoryDirection.NEWER, HistoryDirection.OLDER):
                self._history(user, conversation_id, direction, told)
        return told

    def _list(self, user: int, told: Told) -> None:
        actor = Actor(TENANT, user, b"judge")
        resource = Resource(role=Role.SESSION, number=shard(user, self._scene.plan.topology.shards))
        after, revision = b"", 0
        for _ in range(PAGES_MAX):
            ask = AskSessionList(rid=0, actor=actor, revision=revision, after=after, limit=PAGE)
            answer = self._answer(resource, ask)
            if not isinstance(answer, SessionListAnswer):
                told.unanswered.append(f"list of user {user}: {_words(answer)}")
                return
            if revision and answer.revision != revision:
                # A new one was frozen: what was read so far belongs to another list.
                told.rows.clear()
            told.rows.extend(answer.rows)
            revision, after = answer.revision, answer.after
            if not after:
                return
        told.unanswered.append(f"list of user {user} has no end")

    def _history(self, user: int, conversation_id: bytes, direction: int, told: Told) -> None:
        partitions = self._scene.plan.topology.outbox_partitions
        resource = Resource(role=Role.WRITER, number=writer_shard(conversation_id, partitions))
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
            answer = self._answer(resource, ask)
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

    def _answer(self, resource: Resource, message: Any) -> Any:
        """Ask until it is answered with something else than «not now»."""
        scene, world = self._scene, self._scene.world
        until = world.now + PATIENCE_MS
        answer: Any = None
        while world.now < until and not world.stopped:
            leased = scene.registry.leases.get(resource)
            if leased is not None and leased.address:
                self._judge.ask(leased.address, message)
                self._host.take(Started(address="judge-1", wall=0))
            again = world.now + ASK_AGAIN_MS
            while self._judge.answer is None and world.now < again and not world.stopped:
                world.run(world.now + LOOK_MS)
            answer = self._judge.answer
            if answer is not None and not (isinstance(answer, Refused) and answer.retry_after_ms):
                return answer
        return answer


def _words(answer: Any) -> str:
    return f"{answer.code} {answer.message}" if isinstance(answer, Refused) else "no answer"


def judge(scene: "Scene") -> None:
    """Ask for every user whose device is there to be judged."""
    judging = Judging(scene)
    visible = Visible(scene.history.oracle)
    for user in scene.plan.users:
        if scene.world.stopped:
            return
        scene.told[user] = judging.told(user, visible)
