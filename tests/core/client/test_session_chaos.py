"""Ill fortune on lists, marks, states and overlays: after a heal every device counts and shows what the session owner does."""

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from qim.core.client.vocabulary import (
    ClientState,
    MarkReadRequested,
    OverlayRequested,
    SessionsReady,
    StateKept,
    StateRequested,
    StateSettled,
    SyncRequested,
)
from qim.core.contract.entities import MessageKind, decode_stored_record
from qim.core.contract.errors import ErrorCode
from qim.core.contract.ids import single_conversation_id
from qim.core.contract.rpc import (
    AskHistory,
    AskPull,
    AskSync,
    HistoryAnswer,
    PullAnswer,
    PushBatch,
    SendDone,
    SubmitOverlay,
    SubmitSend,
)
from qim.core.contract.rpc_session import (
    AskSessionList,
    AskStates,
    SessionListAnswer,
    StateDone,
    StatesAnswer,
    SubmitRead,
    SubmitState,
)
from qim.core.ports.local_sessions import (
    ReadUnfilled,
    ReadUnsent,
    SaveRead,
    SaveSessions,
    SaveStates,
    SaveStateSent,
    SaveUserState,
)
from qim.core.ports.local_store import LocalState, SaveBatch, SaveHistory, SavePush
from tests.core.client.toy_world import ToyClient, ToyWorld

CHAT = single_conversation_id("default", 1, 2)
DEVICES = ((1, b"phone"), (1, b"laptop"), (2, b"phone"))
RPCS = (
    SendDone,
    SubmitOverlay,
    SubmitRead,
    SubmitState,
    StateDone,
    AskSessionList,
    SessionListAnswer,
    AskStates,
    StatesAnswer,
    HistoryAnswer,
    PullAnswer,
    PushBatch,
)
QUESTIONS = (
    SubmitSend,
    SubmitOverlay,
    SubmitRead,
    SubmitState,
    AskSessionList,
    AskStates,
    AskHistory,
)
RETRIED = (ErrorCode.RATE_LIMITED, ErrorCode.UNAVAILABLE, ErrorCode.TIMEOUT_UNKNOWN)
SAVES = (
    SaveBatch,
    SaveHistory,
    SavePush,
    SaveSessions,
    SaveStates,
    SaveStateSent,
    SaveRead,
    SaveUserState,
    ReadUnsent,
    ReadUnfilled,
)

which = st.integers(0, len(DEVICES) - 1)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("send"), which, st.integers(1, 5)),
        st.tuples(st.just("read"), which, st.integers(1, 12)),
        st.tuples(st.just("state"), which, st.integers(0, 7)),
        st.tuples(st.just("recall"), which, st.integers(1, 12)),
        st.tuples(st.just("delete"), which, st.integers(1, 12)),
        st.tuples(st.just("run")),
        st.tuples(st.just("some"), st.integers(1, 12)),
        st.tuples(st.just("cut"), which),
        st.tuples(st.just("crash"), which),
        st.tuples(st.just("advance"), st.sampled_from([50, 3_000, 100_000])),
        st.tuples(st.just("drop"), st.sampled_from(RPCS)),
        st.tuples(st.just("refuse"), st.sampled_from(QUESTIONS), st.sampled_from(RETRIED)),
        st.tuples(
            st.just("refuse"),
            st.sampled_from([AskPull, AskSync]),
            st.just(ErrorCode.CURSOR_EXPIRED),
        ),
        st.tuples(st.just("fail"), which, st.sampled_from(SAVES)),
        st.tuples(st.just("trim")),
    ),
    max_size=30,
)


class SessionChaos:
    """Two devices of one user, one of the other."""

    def __init__(self) -> None:
        self.world = ToyWorld()
        self.world.drop = self.misfortune
        self.clients = [self.world.client(user, device) for user, device in DEVICES]
        self.number = 0
        self.drops: list[type] = []
        for client in self.clients:
            client.online()

    def misfortune(self, target: str, event: Any) -> bool:
        kind = type(getattr(event, "message", None))
        if kind in self.drops:
            self.drops.remove(kind)
            return True
        return False

    def act(self, action: tuple[Any, ...]) -> None:
        world = self.world
        match action:
            case ("run",):
                world.run()
            case ("some", count):
                for _ in range(min(count, len(world.queue))):
                    world._deliver(*world.queue.popleft())
            case ("advance", ms):
                world.advance(ms)
            case ("drop", kind):
                self.drops.append(kind)
            case ("refuse", question, code):
                world.services.refuse(question, code)
            case ("trim",):
                world.services.trim = world.services.watermark
            case (what, at, *rest):
                self.number += 1
                self.act_on(what, self.clients[at], *rest)
            case _:
                raise AssertionError(action)

    def act_on(self, what: str, client: ToyClient, *rest: Any) -> None:
        world, number = self.world, self.number
        match what:
            case "send":
                for step in range(rest[0]):
                    key = number * 100 + step
                    client.send(key, peer=3 - client.config.user_id, body=b"%d" % key)
            case "read":
                seq = MarkReadRequested(ticket=number, conversation_id=CHAT, read_seq=rest[0])
                world.give(client.name, seq)
            case "state":
                change = StateRequested(
                    ticket=number,
                    conversation_id=CHAT,
                    flags=rest[0],
                    value=b"%d" % number,
                    wall=world.wall(),
                )
                world.give(client.name, change)
            case "recall" | "delete":
                kind = MessageKind.RECALL if what == "recall" else MessageKind.DELETE_FOR_ME
                overlay = OverlayRequested(
                    client_message_id=(number * 100).to_bytes(16, "big"),
                    kind=kind,
                    conversation_id=CHAT,
                    target_seq=rest[0],
                    wall=world.wall(),
                )
                world.give(client.name, overlay)
            case "cut":
                world.cut(client)
            case "crash":
                client.crash()
                client.start()
                client.online()
            case "fail":
                client.store.fail_next.append(rest[0])

    def heal(self) -> None:
        world = self.world
        world.drop = lambda target, event: False
        world.services.refusals.clear()
        for client in self.clients:
            client.store.fail_next.clear()
            client.online()
        world.advance(200_000)
        for client in self.clients:
            world.give(client.name, SyncRequested())
        world.advance(100_000)


@settings(max_examples=200, deadline=None)
@given(actions)
@example(
    [
        ("refuse", AskSync, ErrorCode.CURSOR_EXPIRED),
        ("send", 1, 1),
        ("run",),
        ("trim",),
        ("read", 0, 1),
    ]
)
@example(
    [
        ("refuse", AskSync, ErrorCode.CURSOR_EXPIRED),
        ("send", 0, 1),
        ("send", 1, 3),
        ("run",),
        ("read", 0, 3),
        ("trim",),
        ("recall", 0, 4),
    ]
)
def test_after_the_heal_devices_agree_with_the_session_owner(script: list[tuple[Any, ...]]) -> None:
    chaos = SessionChaos()
    for action in script:
        chaos.act(action)
    chaos.heal()
    services = chaos.world.services
    for client in chaos.clients:
        assert client.state is ClientState.ONLINE
        assert client.store.state is LocalState.ONLINE
        assert client.told(SessionsReady)
        assert not client.store.pending
        if services.records.get(CHAT):
            judge(client, services)
        settled = [notice.ticket for notice in client.told(StateSettled)]
        assert len(settled) == len(set(settled)), "settled twice"
        assert {n.ticket for n in client.told(StateKept)} >= {
            n.ticket for n in client.told(StateSettled) if not n.code
        }


def judge(client: ToyClient, services: Any) -> None:
    user = client.config.user_id
    row = services.sessions.row(user, CHAT)
    held = client.store.rows
    assert held.conversation(CHAT).read_seq == row.read_seq
    assert held.unread(CHAT, user, 200) == (row.unread, row.unread_exact)
    assert held.conversation(CHAT).flags == row.state_flags
    assert held.conversation(CHAT).value == row.state_value
    preview = held.preview(CHAT)
    if row.head:
        assert preview is not None
        assert preview.message_id == decode_stored_record(row.head).message_id
    else:
        assert preview is None
    began = services.began[user, client.config.device_id]
    before = {e.message_id for e in services.mailboxes[user] if e.mailbox_seq <= began}
    for seq, record, _ in services.visible(user, CHAT):
        recalled = (CHAT, seq) in services.recalled
        deleted = (user, CHAT, seq) in services.deleted
        message = held.messages.get(record.message_id)
        if message is None:
            # A new device over a trimmed mailbox gets what is unread; what was read before it is in the history.
            elsewhere = record.message_id in before and seq <= row.read_seq
            assert deleted or elsewhere, "a visible message is missing on the device"
        elif recalled:
            assert message.body is None, "the body of a recalled message stayed"
        elif not deleted:
            assert message.body == record.body
