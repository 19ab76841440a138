"""Sequences: their bits, their borders, and forms that compare as the numbers do."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim.core.contract import sequences as s

U16 = st.integers(0, 2**16 - 1)
U48 = st.integers(0, 2**48 - 1)
U64 = st.integers(0, 2**64 - 1)
U128 = st.integers(0, 2**128 - 1)
NEAR = st.sampled_from([2**31, 2**48, 2**53, 2**63]).flatmap(lambda n: st.integers(n - 2, n + 2))


@given(U16, U48)
def test_mailbox_and_room_seq_parts(epoch: int, offset: int) -> None:
    assert s.split_mailbox_seq(s.mailbox_seq(epoch, offset)) == (epoch, offset)
    assert s.split_room_seq(s.room_seq(epoch, offset)) == (epoch, offset)
    assert s.mailbox_seq(epoch, offset) == (epoch << 48) + offset


@given(st.tuples(U16, U48), st.tuples(U16, U48))
def test_mailbox_seq_orders_by_epoch_then_offset(
    one: tuple[int, int], other: tuple[int, int]
) -> None:
    assert (s.mailbox_seq(*one) < s.mailbox_seq(*other)) == (one < other)


def test_before_the_first_record() -> None:
    assert (
        s.before_first(1, 0) == (1 << 48) - 1
    )  # its top bits say epoch 0: why a cursor carries its own
    assert s.split_mailbox_seq(s.before_first(1, 0)) == (0, 2**48 - 1)
    assert s.before_first(7, 5) == s.mailbox_seq(7, 4)
    with pytest.raises(ValueError, match="starts at 1"):
        s.before_first(0, 5)


@pytest.mark.parametrize(
    ("form", "arguments"),
    [
        (s.mailbox_seq, (2**16, 0)), (s.mailbox_seq, (-1, 0)), (s.mailbox_seq, (0, 2**48)),
        (s.room_seq, (2**16, 0)), (s.room_seq, (0, -1)),
        (s.split_mailbox_seq, (2**64,)), (s.split_room_seq, (-1,)),
        (s.u64_bytes, (2**64,)), (s.u64_bytes, (-1,)), (s.u64_int, (bytes(7),)),
        (s.u128_bytes, (2**128,)), (s.u128_int, (bytes(17),)),
        (s.successor, (b"\xff" * 16,)),
    ],
    ids=lambda value: value.__name__ if callable(value) else repr(value),
)  # fmt: skip
def test_values_outside_their_bounds(
    form: Callable[..., object], arguments: tuple[object, ...]
) -> None:
    with pytest.raises(ValueError):
        form(*arguments)


@given(st.one_of(U64, NEAR), st.one_of(U64, NEAR))
def test_u64_forms_are_fixed_width_and_compare_as_numbers(one: int, other: int) -> None:
    a, b = s.u64_bytes(one), s.u64_bytes(other)
    assert (a < b) == (one < other)
    assert len(a) == len(b) == 8
    assert s.u64_int(a) == one


@given(U128, U128)
def test_u128_forms_are_fixed_width_and_compare_as_numbers(one: int, other: int) -> None:
    a, b = s.u128_bytes(one), s.u128_bytes(other)
    assert (a < b) == (one < other)
    assert len(a) == len(b) == 16
    assert s.u128_int(a) == one


@given(st.integers(0, 2**128 - 2))
def test_successor_adds_one(value: int) -> None:
    assert s.u128_int(s.successor(s.u128_bytes(value))) == value + 1


@given(U128, st.integers(0, 2**128 - 2))
def test_activity_rises_above_the_previous_and_never_below_the_message(
    message: int, previous: int
) -> None:
    got = s.u128_int(s.next_activity(s.u128_bytes(message), s.u128_bytes(previous)))
    assert got == max(message, previous + 1)


def test_first_activity_is_the_message_id() -> None:
    assert s.next_activity(s.u128_bytes(9), s.NIL_U128) == s.u128_bytes(9)
