"""A keyspace forgets exactly a tail: what stands after a rollback is what stood after that call."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim.sim.keyspace import Keyspace, Reply
from tests.sim.keyspace_commands import RUNTIME, Command, any_command, simulated


def run_batch(keyspace: Keyspace, batch: list[Command]) -> None:
    """One script call of several commands; what it wrote before an error stays."""
    flat = [piece for command in batch for piece in (b"%d" % len(command), *command)]
    simulated(keyspace, "batch", *flat)


batches = st.lists(st.lists(any_command, min_size=1, max_size=5), min_size=1, max_size=12)


@given(batches, st.data())
def test_a_rollback_restores_the_state_after_that_call(
    history: list[list[Command]], data: st.DataObject
) -> None:
    keyspace = Keyspace(RUNTIME)
    states = [(keyspace.dump(), keyspace.digest())]
    for batch in history:
        before = keyspace.mark()
        run_batch(keyspace, batch)
        assert keyspace.mark() - before in (0, 1)
        now = (keyspace.dump(), keyspace.digest())
        if keyspace.mark() == before:
            assert now == states[-1]
        else:
            states.append(now)
    for _ in range(3):
        forget = data.draw(st.integers(keyspace.forgotten(), keyspace.mark()))
        keyspace.forget_before(forget)
        position = data.draw(st.integers(keyspace.forgotten(), keyspace.mark()))
        keyspace.rollback_to(position)
        assert (keyspace.dump(), keyspace.digest()) == states[position]
        assert keyspace.mark() == position
        size = keyspace.call("any", [], [b"DBSIZE"])
        assert size == len(states[position][0])
        del states[position + 1 :]
        run_batch(keyspace, data.draw(batches)[0])
        if keyspace.mark() > position:
            states.append((keyspace.dump(), keyspace.digest()))


def test_a_forgotten_position_is_refused() -> None:
    keyspace = Keyspace(RUNTIME)
    for value in (b"1", b"2", b"3"):
        keyspace.call("any", [], [b"SET", b"k", value])
    keyspace.forget_before(2)
    for position in (1, 4):
        with pytest.raises(ValueError, match="outside"):
            keyspace.rollback_to(position)
    keyspace.rollback_to(2)
    assert keyspace.dump() == {b"k": ("string", b"2")}


def test_the_undo_log_is_bounded() -> None:
    keyspace = Keyspace(RUNTIME, undo_writes_max=100)
    for n in range(5_000):
        keyspace.call("any", [], [b"SET", b"k", b"%d" % n])
        assert keyspace.mark() - keyspace.forgotten() <= 101
    assert keyspace.mark() == 5_000
    keyspace.rollback_to(keyspace.forgotten())
    expected = keyspace.forgotten() - 1
    assert keyspace.dump() == {b"k": ("string", b"%d" % expected)}


def test_a_long_life_with_trimming_restores_exactly() -> None:
    keyspace = Keyspace(RUNTIME)
    for n in range(6_000):
        keyspace.call("any", [], [b"HSET", b"h", b"%d" % (n % 7), b"%d" % n])
        if n % 100 == 50:
            keyspace.forget_before(keyspace.mark() - 10)
    assert keyspace.mark() - keyspace.forgotten() < 120
    state = keyspace.dump()
    keyspace.call("any", [], [b"DEL", b"h"])
    keyspace.call("any", [], [b"SET", b"h", b"string now"])
    keyspace.rollback_to(6_000)
    assert keyspace.dump() == state


def test_a_flush_is_beyond_recall_and_siblings_are_apart() -> None:
    one, other = Keyspace(RUNTIME), Keyspace(RUNTIME)
    for keyspace in (one, other):
        keyspace.call("any", [], [b"SET", b"k", b"v"])
    before = one.mark()
    one.flush()
    assert (one.dump(), other.dump()) == ({}, {b"k": ("string", b"v")})
    assert one.mark() > before
    with pytest.raises(ValueError, match="outside"):
        one.rollback_to(before)
    reply: Reply = one.call("any", [], [b"SET", b"k", b"w", b"NX"])
    assert reply == b"OK"
