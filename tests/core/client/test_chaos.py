"""Random ill fortune on client and gateway back to back, then a heal: nothing lost, nothing twice, order kept."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from qim.core.client.vocabulary import ClientState, MessageApplied, OfflineWanted, SyncRequested
from qim.core.contract.errors import ErrorCode
from qim.core.contract.ids import single_conversation_id
from qim.core.contract.rpc import (
    AskHistory,
    AskPull,
    AskSync,
    AskWatermark,
    Kick,
    PullAnswer,
    PushBatch,
    SendDone,
    SubmitSend,
    SyncAnswer,
    WatermarkAnswer,
)
from qim.core.gateway import ConnectionNode
from qim.core.ports.completion import StoreReset, StoreRole
from qim.core.ports.local import DrainRequested, Started
from qim.core.ports.local_store import (
    LocalState,
    ReadAnchors,
    SaveAck,
    SaveAttempt,
    SaveBatch,
    SaveFailed,
    SaveHistory,
    SaveNotAfter,
    SavePush,
    SaveState,
)
from qim.core.ports.network import Received
from tests.core.client.toy_world import ToyClient, ToyWorld, benign

RPCS = (
    SubmitSend,
    SendDone,
    AskPull,
    PullAnswer,
    AskSync,
    SyncAnswer,
    AskWatermark,
    WatermarkAnswer,
    PushBatch,
    Kick,
)
RETRIED = (
    ErrorCode.RATE_LIMITED,
    ErrorCode.UNAVAILABLE,
    ErrorCode.TIMEOUT_UNKNOWN,
    ErrorCode.MEMBERSHIP_CHANGED,
    ErrorCode.NOT_OWNER,
    ErrorCode.INTERNAL,
)
CURSOR_CODES = (ErrorCode.CURSOR_EXPIRED, ErrorCode.CURSOR_INVALID, ErrorCode.CURSOR_REBASED)
SAVES = (
    SaveAck,
    SaveAttempt,
    SaveBatch,
    SaveFailed,
    SaveHistory,
    SaveNotAfter,
    SavePush,
    SaveState,
    ReadAnchors,
)

who = st.sampled_from([1, 2])
actions = st.lists(
    st.one_of(
        st.tuples(st.just("send"), who, st.integers(1, 4)),
        st.tuples(st.just("run")),
        st.tuples(st.just("some"), st.integers(1, 12)),
        st.tuples(st.just("cut"), who),
        st.tuples(st.just("advance"), st.sampled_from([50, 400, 3_000, 20_000, 100_000])),
        st.tuples(st.just("drop"), st.sampled_from(RPCS), st.integers(1, 3)),
        st.tuples(st.just("double"), st.sampled_from(RPCS), st.integers(1, 3)),
        st.tuples(st.just("late"), st.sampled_from(RPCS)),
        st.tuples(st.just("refuse"), st.sampled_from([SubmitSend, AskPull, AskSync, AskWatermark, AskHistory]), st.sampled_from(RETRIED)),
        st.tuples(st.just("refuse"), st.sampled_from([AskPull, AskSync]), st.sampled_from(CURSOR_CODES)),
        st.tuples(st.just("trim")),
        st.tuples(st.just("crash"), who),
        st.tuples(st.just("fail"), who, st.sampled_from(SAVES)),
        st.tuples(st.just("sleep"), who),
        st.tuples(st.just("offline"), who),
        st.tuples(st.just("sync"), who),
        st.tuples(st.just("gateway"), st.sampled_from(["gw-1", "gw-2"])),
        st.tuples(st.just("drain"), st.sampled_from(["gw-1", "gw-2"])),
        st.tuples(st.just("reset"), st.sampled_from(["gw-1", "gw-2"])),
    ),
    max_size=40,
)  # fmt: skip


class Chaos:
    """The world, the list of misfortunes pending, and what was promised to whom."""

    def __init__(self) -> None:
        self.world = ToyWorld(gateways=2)
        self.world.drop = self.misfortune
        self.clients = {user: self.world.client(user) for user in (1, 2)}
        self.number = 0
        self.sent: dict[int, list[bytes]] = {1: [], 2: []}
        self.drops: list[type] = []
        self.doubles: list[type] = []
        self.lates: list[type] = []
        self.kept: list[tuple[str, Any]] = []
        for client in self.clients.values():
            client.online()

    def misfortune(self, target: str, event: Any) -> bool:
        if not isinstance(event, Received):
            return False
        kind = type(event.message)
        if kind in self.drops:
            self.drops.remove(kind)
            return True
        if kind in self.lates:
            self.lates.remove(kind)
            self.kept.append((target, event))
            return True
        if kind in self.doubles:
            self.doubles.remove(kind)
            self.world.give(target, event)
        return False

    def restart_gateway(self, name: str) -> None:
        world = self.world
        for end, other in list(world.streams.items()):
            if end[0] == name:
                world._close(end, other)
        config = world.gateways[name]._context.config
        world.gateways[name] = ConnectionNode(config, choose=benign)
        world.queue = type(world.queue)(item for item in world.queue if item[0] != name)
        world.give(name, Started(address=name, wall=world.wall()))

    def act(self, action: tuple[Any, ...]) -> None:
        world = self.world
        match action:
            case ("send", user, count):
                for _ in range(count):
                    self.number += 1
                    body = b"%d" % self.number
                    self.clients[user].send(self.number, peer=3 - user, body=body)
                    self.sent[user].append(body)
            case ("run",):
                world.run()
            case ("some", count):
                for _ in range(min(count, len(world.queue))):
                    world._deliver(*world.queue.popleft())
            case ("cut", user):
                world.cut(self.clients[user])
            case ("advance", ms):
                world.advance(ms)
            case ("drop", kind, count):
                self.drops += [kind] * count
            case ("double", kind, count):
                self.doubles += [kind] * count
            case ("late", kind):
                self.lates.append(kind)
            case ("refuse", question, code):
                world.services.refuse(question, code)
            case ("fail", user, effect):
                self.clients[user].store.fail_next.append(effect)
            case ("trim",):
                world.services.trim = world.services.watermark
            case _:
                self.act_on_process(action)

    def act_on_process(self, action: tuple[Any, ...]) -> None:
        world = self.world
        match action:
            case ("crash", user):
                self.restart(self.clients[user])
            case ("sleep", user):
                name = self.clients[user].name
                world.down.add(name)
                asleep = [item for item in world.queue if item[0] == name]
                world.queue = type(world.queue)(i for i in world.queue if i[0] != name)
                world.now += 100_000
                world.down.discard(name)
                world.queue.extend(asleep)
            case ("offline", user):
                world.give(self.clients[user].name, OfflineWanted())
            case ("sync", user):
                world.give(self.clients[user].name, SyncRequested())
            case ("gateway", name):
                self.restart_gateway(name)
            case ("drain", name):
                world.give(name, DrainRequested())
            case ("reset", name):
                world.give(name, StoreReset(op=None, store=StoreRole.MAILBOX))

    def restart(self, client: ToyClient) -> None:
        """A crash loses commands that were never stored: they were never promised."""
        client.crash()
        stored = {*client.store.pending, *client.store.sent, *client.store.failed}
        user = client.config.user_id
        self.sent[user] = [
            body for body in self.sent[user] if int(body).to_bytes(16, "big") in stored
        ]
        client.start()
        client.online()

    def heal(self) -> None:
        world = self.world
        world.drop = lambda target, event: False
        world.services.refusals.clear()
        for item in self.kept:  # late, and to whoever lives there now
            world.give(*item)
        for name in world.gateways:
            self.restart_gateway(name)
        for client in self.clients.values():
            client.store.fail_next.clear()
            client.online()
        world.advance(200_000)


@settings(max_examples=150)
@given(actions)
def test_after_the_heal_nothing_is_lost_doubled_or_out_of_order(
    script: list[tuple[Any, ...]],
) -> None:
    chaos = Chaos()
    for action in script:
        chaos.act(action)
    chaos.heal()
    rows = chaos.world.services.records.get(single_conversation_id("default", 1, 2), [])
    committed = [row.body for row in rows]
    assert len(set(committed)) == len(committed), "a send was committed twice"
    for user, client in chaos.clients.items():
        judge_device(chaos, user, client, rows, committed)


def judge_device(
    chaos: Chaos, user: int, client: ToyClient, rows: list[Any], committed: list[bytes]
) -> None:
    assert client.state is ClientState.ONLINE
    assert not client.store.pending, "a row is neither sent nor failed"
    assert not client.store.failed, "nothing here gives reason to fail"
    mine = [row.body for row in rows if row.sender_id == user]
    assert mine == chaos.sent[user], "order of sending is the order of seqs"
    assert client.store.state is LocalState.ONLINE
    assert client.store.covered == chaos.world.services.watermark
    stored = sorted(client.store.messages.values(), key=lambda m: m.conversation_seq)
    trimmed = chaos.world.services.trim > 0
    bodies = [message.body for message in stored]
    if not trimmed:
        assert bodies == committed
    else:
        # A device that was new after a trim begins there; nobody has a hole.
        assert bodies == committed[len(committed) - len(bodies) :]
    applied = [notice.message.message_id for notice in client.told(MessageApplied)]
    assert len(set(applied)) == len(applied), "applied twice"
