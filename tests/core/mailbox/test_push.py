"""Hints: bounded, lossy, one batch a gateway."""

import pytest

from qim.core.contract.entities import PresenceEntry, RetentionClass
from qim.core.contract.rpc import PushBatch
from qim.core.ports.store_history import ReadOverlays
from qim.core.ports.store_mailbox import ReadPresence
from tests.core.mailbox.bench import CONFIG, TENANT, WALL, Bench, dispatch, replace


def online(bench: Bench, user: int, *gateways: str) -> None:
    bench.store.presence[TENANT, user] = tuple(
        PresenceEntry(
            user_id=user,
            device_id=gateway.encode(),
            gateway=gateway,
            conn=user,
            session_epoch=1,
            attempt=1,
            expires_at=1 << 60,
        )
        for gateway in gateways
    )


def batches(bench: Bench) -> list[tuple[str, PushBatch]]:
    return [(s.address, s.message) for s in bench.sent if isinstance(s.message, PushBatch)]


def test_messages_of_one_moment_share_a_batch() -> None:
    bench = Bench()
    online(bench, 1, "g1")
    online(bench, 2, "g1", "g2")
    bench.append(dispatch(0, users=(1, 2)), dispatch(1, users=(2,), inline=False))
    bench.hold()
    bench.run()
    found = dict(batches(bench))
    assert [len(push.targets) for push in found["g1"].pushes] == [2, 1]
    assert [len(push.targets) for push in found["g2"].pushes] == [1, 1]
    assert [push.entry.body for push in found["g1"].pushes] == [b"hello", None]
    assert len(batches(bench)) == 2
    assert bench.counts("mailbox_push_hints") == 4


def test_a_queue_that_is_full_drops_and_counts() -> None:
    bench = Bench(replace(CONFIG, push_users_max=3))
    bench.append(dispatch(0, users=(1, 2)), dispatch(1, users=(1, 2)))
    bench.hold()
    bench.run()
    assert bench.counts("mailbox_push_dropped") == 2
    assert bench.counts("push_task") == 2
    assert len(bench.mailbox(1)) == 2


def test_presence_is_asked_in_bounded_reads_one_at_a_time() -> None:
    bench = Bench(replace(CONFIG, presence_users_max=3))
    for user in range(1, 9):
        online(bench, user, "g1")
    bench.append(dispatch(0, users=tuple(range(1, 9))))
    bench.hold()
    sizes: list[int] = []
    while ready := [effect for effect in bench.waiting if not bench.parked(effect)]:
        reads = [effect for effect in ready if isinstance(effect, ReadPresence)]
        assert len(reads) <= 1
        if isinstance(ready[0], ReadPresence):
            sizes.append(len(ready[0].users))
        bench.answer(ready[0], "done")
    assert sizes == [3, 3, 2]
    pushed = sorted(t.user_id for _, b in batches(bench) for p in b.pushes for t in p.targets)
    assert pushed == list(range(1, 9))


def test_presence_that_does_not_answer_loses_the_hints_and_nothing_else() -> None:
    bench = Bench()
    online(bench, 1, "g1")
    bench.append(dispatch(0, users=(1,)))
    bench.hold()
    while not any(isinstance(effect, ReadPresence) for effect in bench.waiting):
        bench.answer(next(e for e in bench.waiting if not bench.parked(e)), "done")
    bench.answer(next(e for e in bench.waiting if isinstance(e, ReadPresence)), "unknown_lost")
    bench.run()
    assert bench.counts("mailbox_push_dropped") == 1
    assert not batches(bench)
    bench.append(dispatch(1, users=(1,)))
    bench.run()
    assert len(batches(bench)) == 1


def test_a_body_that_was_recalled_meanwhile_is_left_to_be_pulled() -> None:
    bench = Bench()
    online(bench, 1, "g1")
    said = [dispatch(n, users=(1,)) for n in range(3)]
    bench.recalls[said[0].conversation_id, said[0].conversation_seq] = 7
    bench.recalls[said[1].conversation_id, said[1].conversation_seq] = None
    bench.append(*said)
    bench.hold()
    bench.run()
    pushed = [push.entry for _, batch in batches(bench) for push in batch.pushes]
    assert [(entry.body, entry.tombstone) for entry in pushed] == [
        (None, 0),
        (None, 0),
        (b"hello", 0),
    ]


@pytest.mark.parametrize("fault", ["failed", "unknown_lost"])
def test_where_nobody_tells_of_recalls_hints_go_without_bodies(fault: str) -> None:
    bench = Bench()
    online(bench, 1, "g1")
    bench.append(dispatch(0, users=(1,)))
    bench.hold()
    while not any(isinstance(effect, ReadOverlays) for effect in bench.waiting):
        bench.answer(next(e for e in bench.waiting if not bench.parked(e)), "done")
    bench.answer(next(e for e in bench.waiting if isinstance(e, ReadOverlays)), fault)
    bench.run()
    assert [push.entry.body for _, batch in batches(bench) for push in batch.pushes] == [None]
    bench.append(dispatch(1, users=(1,)))
    bench.run()
    assert [push.entry.body for push in batches(bench)[-1][1].pushes] == [b"hello"]


def test_what_ran_out_before_it_is_pushed_goes_without_its_body() -> None:
    bench = Bench()
    online(bench, 1, "g1")
    long_ago = WALL - CONFIG.retention.ephemeral_ms
    kept = replace(
        dispatch(0, users=(1,), sent_at=long_ago), retention_class=RetentionClass.EPHEMERAL
    )
    bench.append(kept)
    bench.hold()
    bench.run()
    assert [push.entry.body for _, batch in batches(bench) for push in batch.pushes] == [None]
