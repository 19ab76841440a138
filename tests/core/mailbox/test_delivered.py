"""What pulls prove is noted now and then, only when new, and lost without harm (docs: pipeline §4)."""

import pytest

from qim.core.contract import routing
from qim.core.contract.actor import Actor
from qim.core.contract.cursor import Cursor, encode_cursor
from qim.core.contract.errors import ErrorCode
from qim.core.contract.rpc import AskPull, AskSync, PullAnswer, Refused
from qim.core.contract.sequences import before_first
from qim.core.ports.completion import StoreReset, StoreRole
from qim.core.ports.local import LeaseGone
from qim.core.ports.store_session import NoteDelivered
from tests.core.mailbox.bench import (
    CONFIG,
    RESOURCE,
    SECRET,
    TENANT,
    Bench,
    dispatch,
    replace,
)

START = before_first(1, 0)
QUICK = replace(CONFIG, delivered_ms=100)
NAMES = ("phone", "tablet", "desk")


def running(config: object = QUICK, messages: int = 5) -> Bench:
    bench = Bench(config)  # type: ignore[arg-type]
    bench.append(*(dispatch(n, users=(1, 2)) for n in range(messages)))
    bench.hold()
    bench.run()
    return bench


def pull(bench: Bench, seq: int, device: bytes = b"phone", user: int = 1) -> None:
    cursor = Cursor(
        tenant_id=TENANT,
        user_id=user,
        device_id=device,
        shard=0,
        shard_epoch=1,
        lane=routing.lane(user),
        seq=seq,
    )
    actor = Actor(TENANT, user, device)
    bench.receive(
        AskPull(rid=2, actor=actor, cursor=encode_cursor(cursor, SECRET), up_to_seq=0, limit=0)
    )


def answer_reads(bench: Bench) -> None:
    """All but the notes."""
    while ready := [
        e for e in bench.waiting if not bench.parked(e) and not isinstance(e, NoteDelivered)
    ]:
        bench.answer(ready[0], "done")


def wait(bench: Bench, ms: int = 100) -> tuple[NoteDelivered, ...]:
    """Time passes; the notes in flight then."""
    answer_reads(bench)
    bench.now += ms
    bench.step()
    answer_reads(bench)
    return tuple(e for e in bench.waiting if isinstance(e, NoteDelivered))


def test_many_pulls_are_one_note_of_the_greatest_cursor_of_each_device() -> None:
    bench = running()
    for seq in (START + 2, START + 3, START + 1):
        pull(bench, seq)
    pull(bench, START + 1, b"tablet")
    pull(bench, START, b"phone", user=2)
    assert wait(bench, 99) == ()
    assert bench.node.deadline() == bench.now + 1
    (note,) = wait(bench, 1)
    assert (note.shard, note.incarnation) == (0, bench.store.marker)
    assert note.items == (
        (TENANT, 1, b"phone", START + 3),
        (TENANT, 1, b"tablet", START + 1),
        (TENANT, 2, b"phone", START),
    )
    assert bench.node.idle(), "a note keeps nobody waiting"


def test_what_is_noted_is_not_noted_again_until_it_moves() -> None:
    bench = running()
    pull(bench, START + 2)
    (note,) = wait(bench)
    bench.answer(note, "done")
    assert bench.store.delivered == {(TENANT, 1, b"phone"): START + 2}
    pull(bench, START + 2)
    pull(bench, START + 1)
    assert wait(bench, 1_000) == ()
    pull(bench, START + 3)
    (note,) = wait(bench)
    assert [item[3] for item in note.items] == [START + 3]


@pytest.mark.parametrize("fault", ["failed", "too_large", "unknown_applied", "unknown_lost"])
def test_a_lost_note_is_dropped_and_the_next_pull_repeats_it(fault: str) -> None:
    bench = running()
    pull(bench, START + 2)
    (note,) = wait(bench)
    bench.answer(note, fault)
    assert wait(bench, 10_000) == (), "nobody repeats it by himself"
    assert bench.wanted == []
    pull(bench, START + 2)
    (again,) = wait(bench)
    assert again.items == note.items


def test_one_note_a_shard_is_in_flight_and_pulls_are_answered_meanwhile() -> None:
    bench = running()
    pull(bench, START + 1)
    (first,) = wait(bench)
    pull(bench, START + 2)
    assert wait(bench, 5_000) == (first,)
    assert isinstance(bench.last_message(), PullAnswer)
    bench.answer(first, "done")
    (second,) = wait(bench, 0)
    assert [item[3] for item in second.items] == [START + 2]


def test_items_and_memory_are_bounded() -> None:
    bench = running(replace(QUICK, delivered_items_max=2, delivered_known_max=1))
    for name in NAMES:
        pull(bench, START + 1, name.encode())
    (note,) = wait(bench)
    assert [item[2] for item in note.items] == [b"phone", b"tablet"]
    assert bench.counts("mailbox_delivered_dropped") == 1
    bench.answer(note, "done")
    pull(bench, START + 1, b"tablet")
    assert wait(bench) == ()
    pull(bench, START + 1, b"phone")
    (forgotten,) = wait(bench)
    assert [item[2] for item in forgotten.items] == [b"phone"]


def test_a_refused_cursor_and_a_sync_prove_nothing() -> None:
    bench = running()
    pull(bench, START + 100)
    assert isinstance(bench.last_message(), Refused)
    actor = Actor(TENANT, 1, b"phone")
    bench.receive(AskPull(rid=2, actor=actor, cursor=b"forged", up_to_seq=0, limit=0))
    answer = bench.last_message()
    assert isinstance(answer, Refused)
    assert answer.code != ErrorCode.UNAVAILABLE
    bench.receive(AskSync(rid=3, actor=actor, cursor=None))
    assert wait(bench, 10_000) == ()


def test_a_shard_that_goes_takes_its_notes_along_and_late_answers_change_nothing() -> None:
    for way in ("gone", "reset"):
        bench = running()
        pull(bench, START + 1)
        (note,) = wait(bench)
        pull(bench, START + 2)
        answer_reads(bench)
        if way == "gone":
            bench.step(LeaseGone(resource=RESOURCE))
        else:
            bench.step(StoreReset(op=None, store=StoreRole.MAILBOX))
        assert wait(bench, 10_000) == (note,)
        bench.hold()
        answer_reads(bench)
        bench.answer(note, "done")
        pull(bench, START + 1)
        (again,) = wait(bench)
        assert [item[3] for item in again.items] == [START + 1]


def test_a_reset_answer_to_a_note_is_only_a_lost_note() -> None:
    bench = running()
    pull(bench, START + 1)
    (note,) = wait(bench)
    bench.waiting.remove(note)
    bench.step(StoreReset(op=note.op, store=StoreRole.MAILBOX))
    assert bench.wanted == []
    pull(bench, START + 1)
    assert len(wait(bench)) == 1
