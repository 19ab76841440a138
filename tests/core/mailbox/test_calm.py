"""The calm path: dispatch, mailbox, pull, push."""

from qim.core.contract.actor import Actor
from qim.core.contract.entities import PresenceEntry, decode_entry
from qim.core.contract.rpc import (
    AskPull,
    AskSync,
    AskWatermark,
    PullAnswer,
    PushBatch,
    SyncAnswer,
    WatermarkAnswer,
)
from qim.core.contract.sequences import before_first, mailbox_seq
from tests.core.mailbox.bench import TENANT, Bench, dispatch, record_of, version


def actor(user: int) -> Actor:
    return Actor(TENANT, user, b"phone")


def sync(bench: Bench, user: int, cursor: bytes | None = None) -> SyncAnswer:
    bench.receive(AskSync(rid=1, actor=actor(user), cursor=cursor))
    answer = bench.last_message()
    assert isinstance(answer, SyncAnswer)
    return answer


def pull(bench: Bench, user: int, cursor: bytes, *, up_to: int = 0, limit: int = 0) -> PullAnswer:
    ask = AskPull(rid=2, actor=actor(user), cursor=cursor, up_to_seq=up_to, limit=limit)
    bench.receive(ask)
    bench.run()
    answer = bench.last_message()
    assert isinstance(answer, PullAnswer), answer
    return answer


def test_messages_reach_their_recipients_and_are_pulled_once() -> None:
    bench = Bench()
    bench.hold()
    bench.run()
    first = sync(bench, 2)
    assert (first.sync_to_seq, first.has_offline) == (before_first(1, 0), False)
    bench.append(dispatch(0, users=(1, 2)), dispatch(1, users=(2, 3), body=b"world"))
    bench.run()
    assert bench.stages("MAILBOXED") == [0, 1]
    assert [decode_entry(row).conversation_seq for row in bench.mailbox(2).values()] == [100, 101]
    assert decode_entry(bench.mailbox(1)[mailbox_seq(1, 0)]).client_message_id == bytes(16)
    assert decode_entry(bench.mailbox(2)[mailbox_seq(1, 0)]).client_message_id is None
    answer = pull(bench, 2, first.cursor)
    assert [entry.body for entry in answer.entries] == [b"hello", b"world"]
    assert (answer.covered_through_seq, answer.has_more) == (mailbox_seq(1, 1), False)
    again = pull(bench, 2, answer.cursor)
    assert (again.entries, again.covered_through_seq) == ((), mailbox_seq(1, 1))
    assert bench.counts("push_task") == 4
    assert not bench.violations()


def test_a_group_is_materialised_from_the_version_it_names() -> None:
    bench = Bench()
    named = bench.know(version(b"g" * 16, 3, tuple(range(1, 200))))
    bench.append(dispatch(0, named=named, body=b"x" * 2000, inline=False))
    bench.hold()
    bench.run()
    assert all(len(bench.mailbox(user)) == 1 for user in range(1, 200))
    item = dispatch(0, named=named, body=b"x" * 2000, inline=False)
    bench.bodies[item.conversation_id, item.conversation_seq, item.message_id] = record_of(
        item, b"x" * 2000
    )
    answer = pull(bench, 7, sync(bench, 7).cursor)
    assert [entry.body for entry in answer.entries] == [b"x" * 2000]
    assert bench.store.finished[item.dispatch_id][0] == 199


def test_online_devices_get_one_push_batch_a_gateway() -> None:
    bench = Bench()
    bench.hold()
    bench.run()
    for user, gateway in ((1, "g1"), (2, "g2"), (3, "g1")):
        entry = PresenceEntry(
            user_id=user,
            device_id=b"phone",
            gateway=gateway,
            conn=user,
            session_epoch=9,
            attempt=1,
            expires_at=1 << 60,
        )
        bench.store.presence[TENANT, user] = (entry,)
    bench.append(dispatch(0, users=(1, 2, 3, 4)))
    bench.run()
    batches = {send.address: send.message for send in bench.sent}
    first, second = batches["g1"], batches["g2"]
    assert isinstance(first, PushBatch)
    assert isinstance(second, PushBatch)
    (push,) = first.pushes
    assert push.entry.body == b"hello"
    assert [(target.user_id, target.own_copy) for target in push.targets] == [(1, True), (3, False)]
    assert len(second.pushes) == 1
    assert bench.counts("push_task") == 1
    assert bench.counts("mailbox_push_hints") == 2
    assert bench.stages("PUSHED") == [], "its gateways count what they hand to a device"


def test_watermarks_are_those_of_the_lanes() -> None:
    bench = Bench()
    bench.append(dispatch(0, users=(1, 2)))
    bench.hold()
    bench.run()
    bench.receive(AskWatermark(rid=5, shard=0, users=(1, 2, 77)))
    assert bench.last_message() == WatermarkAnswer(rid=5, watermarks=(mailbox_seq(1, 0),) * 3)
