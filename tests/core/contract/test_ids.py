"""Identities: golden values so that no id ever changes, and the hybrid clock's one promise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim.core.contract import ids
from qim.core.contract.entities import MessageKind
from qim.core.contract.hashing import H, frame_field
from qim.core.contract.ids import HybridClock, pack_message_id, unpack_message_id

U16 = st.integers(0, 2**16 - 1)
U48 = st.integers(0, 2**48 - 1)
U64 = st.integers(0, 2**64 - 1)
WALL = st.integers(0, 2**47)
CMID = bytes.fromhex("c0ffee00112233445566778899aabbcc")
MESSAGE = bytes.fromhex("018cbba6f68072ac0001000700030000")


# ---------------------------------------------------------------- H


def test_h_is_frozen() -> None:
    assert H("qim.test").hex() == "20e76833d8f75f380bb868df87ad8824"
    assert H("qim.test", 1, "a", b"\x00\xff").hex() == "f8c277a0958ecc77cc79355f6ff2f04e"
    assert H("", b"").hex() == "11d2df4e979aa105cf552e9544ebd2b5"
    assert H("sixteen-bytes-ok", 2**64 - 1).hex() == "49fcdc86c9d697547a9acf85b403b03e"


def test_fields_are_framed_as_the_contract_words_it() -> None:
    assert frame_field(5).hex() == "000000080000000000000005"
    assert frame_field("é").hex() == "00000002c3a9"
    assert frame_field(b"").hex() == "00000000"


@given(st.lists(st.binary(max_size=8), max_size=4), st.lists(st.binary(max_size=8), max_size=4))
def test_no_two_field_lists_collide_by_shifting_a_border(
    one: list[bytes], other: list[bytes]
) -> None:
    assert (H("qim.test", *one) == H("qim.test", *other)) == (one == other)


def test_domains_part_equal_fields() -> None:
    assert H("qim.a", 1) != H("qim.b", 1)


@pytest.mark.parametrize("field", [-1, 2**64, "\ud800"])
def test_h_refuses_what_has_no_bytes(field: int | str) -> None:
    with pytest.raises(ValueError):
        H("qim.test", field)


@pytest.mark.parametrize("domain", ["seventeen-bytes!!", "é"])
def test_h_refuses_a_domain_that_does_not_fit(domain: str) -> None:
    with pytest.raises(ValueError):
        H(domain)


# ---------------------------------------------------------------- derived ids


def test_derived_ids_are_frozen() -> None:
    got = {
        "dispatch": ids.dispatch_id(MESSAGE, 3),
        "event": ids.event_id(3, (1 << 48) + 6, 7),
        "single": ids.single_conversation_id("default", 8, 7),
        "self": ids.single_conversation_id("default", 7, 7),
        "group": ids.group_conversation_id("default", 7, CMID),
        "request": ids.request_digest("default", 7, MESSAGE, MessageKind.TEXT, "", b"hello"),
        "control": ids.control_digest("default", 7, 0x51, b"\x90"),
        "membership": ids.membership_digest_next(
            ids.NIL_ID, op=1, users=(7, 8), version=1, control=(MESSAGE, 7, "name", b"meta")
        ),
        "dedupe": ids.dedupe_key("default", 7, CMID),
    }
    assert {name: value.hex() for name, value in got.items()} == {
        "dispatch": "a217c873da4f64a18be2515c49fee99c",
        "event": "2106b6383776e54fc247bec822d0fddc",
        "single": "cc08dccccc8d6ec1f80178dcc8012063",
        "self": "5b3f2ba0488253838022d5e4de24153d",
        "group": "bfd36234bcd4fd9191166d43e393c1f7",
        "request": "50c3fa5ef75defba3d83396d59e1960f",
        "control": "3ec5d69bde873e51c33b0461f8f812f0",
        "membership": "7ec6e54de73cd61886f0cb7153fba2c3",
        "dedupe": "7dab3956ccfcac6e8bd3d247a41db46c",
    }


@given(U64, U64)
def test_a_single_chat_is_the_same_from_both_sides(a: int, b: int) -> None:
    assert ids.single_conversation_id("t", a, b) == ids.single_conversation_id("t", b, a)


@given(st.text(max_size=70), U64, U64, st.binary(min_size=16, max_size=16) | st.binary())
def test_identities_of_a_send_are_h_of_their_fields(
    tenant: str, a: int, b: int, client_message_id: bytes
) -> None:
    low, high = sorted((a, b))
    assert ids.single_conversation_id(tenant, a, b) == H("qim.single", tenant, low, high)
    expected = H("qim.dedupe", tenant, a, client_message_id)
    assert ids.dedupe_key(tenant, a, client_message_id) == expected
    for wrong in (-1, 2**64):
        with pytest.raises(ValueError, match="u64"):
            ids.single_conversation_id(tenant, a, wrong)
        with pytest.raises(ValueError, match="u64"):
            ids.dedupe_key(tenant, wrong, client_message_id)


@given(U16, U64, U64)
def test_event_id_is_h_of_its_three_integers(shard: int, seq: int, user: int) -> None:
    assert ids.event_id(shard, seq, user) == H("qim.event", shard, seq, user)


def test_what_a_request_digest_covers() -> None:
    base: tuple[str, int, bytes, int, str, bytes] = ("t", 1, MESSAGE, 1, "x", b"b")
    others = [
        ("u", *base[1:]), ("t", 2, *base[2:]), ("t", 1, CMID, *base[3:]), (*base[:3], 2, *base[4:]),
        (*base[:4], "y", b"b"), (*base[:5], b"c"), (*base[:4], "", b"xb"),
    ]  # fmt: skip
    digests = [ids.request_digest(*fields) for fields in (base, *others)]
    assert len(set(digests)) == len(digests)


def test_a_control_digest_knows_its_frame() -> None:
    assert ids.control_digest("t", 1, 0x51, b"\x90") != ids.control_digest("t", 1, 0x52, b"\x90")


def test_membership_digests_chain() -> None:
    def after(previous: bytes, users: tuple[int, ...], version: int) -> bytes:
        return ids.membership_digest_next(previous, op=2, users=users, version=version, control=())

    first = after(ids.NIL_ID, (1, 2), 1)
    assert after(first, (3,), 2) != after(after(ids.NIL_ID, (1,), 1), (3,), 2)
    assert after(first, (3, 4), 2) != after(first, (4, 3), 2)
    # users and version are both integers: the count keeps their border
    assert after(first, (3, 4), 2) != ids.membership_digest_next(
        first, op=2, users=(3,), version=4, control=(2,)
    )


@pytest.mark.parametrize(
    ("tenant", "valid"),
    [("default", True), ("x" * 64, True), ("é" * 32, True), ("", False), ("x" * 65, False), ("é" * 33, False),
     ("\ud800", False)],
)  # fmt: skip
def test_tenant_ids(tenant: str, valid: bool) -> None:
    assert ids.tenant_id_is_valid(tenant) is valid


# ---------------------------------------------------------------- message_id


def test_message_id_layout() -> None:
    assert pack_message_id(0x018CBBA6F680, 0x72AC, 1, 7).hex() == "018cbba6f68072ac0001000700000000"


@given(U48, U16, U16, U16)
def test_message_id_parts(physical: int, logical: int, instance: int, epoch: int) -> None:
    assert unpack_message_id(pack_message_id(physical, logical, instance, epoch)) == (
        physical, logical, instance, epoch,
    )  # fmt: skip


@given(st.tuples(U48, U16, U16, U16), st.tuples(U48, U16, U16, U16))
def test_message_ids_compare_as_their_parts(
    one: tuple[int, int, int, int], other: tuple[int, int, int, int]
) -> None:
    assert (pack_message_id(*one) < pack_message_id(*other)) == (one < other)


@pytest.mark.parametrize(
    "parts", [(-1, 0, 0, 0), (2**48, 0, 0, 0), (0, 2**16, 0, 0), (0, 0, -1, 0), (0, 0, 0, 2**16)]
)
def test_message_id_bounds(parts: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError):
        pack_message_id(*parts)


def test_unpack_needs_sixteen_bytes() -> None:
    with pytest.raises(ValueError):
        unpack_message_id(bytes(15))


# ---------------------------------------------------------------- the clock


def test_the_clock_follows_the_wall_and_counts_where_it_stands() -> None:
    clock = HybridClock(instance=1, epoch=0x10007)
    got = [unpack_message_id(clock.next(wall)) for wall in (1000, 1000, 999, 5, 1001)]
    assert [(parts.physical_ms, parts.logical) for parts in got] == [
        (1000, 0), (1000, 1), (1000, 2), (1000, 3), (1001, 0),
    ]  # fmt: skip
    assert {(parts.instance, parts.epoch_low) for parts in got} == {(1, 7)}
    assert clock.ahead_ms(1001) == 0
    assert clock.ahead_ms(900) == 101
    assert clock.ahead_ms(2000) == 0


@given(st.lists(WALL, min_size=1, max_size=50), U16, U64)
def test_ids_rise_whatever_the_wall_does(walls: list[int], instance: int, epoch: int) -> None:
    clock = HybridClock(instance, epoch)
    made = [clock.next(wall) for wall in walls]
    assert made == sorted(set(made))
    assert clock.ahead_ms(walls[-1]) <= max(walls) - walls[-1] + 1
    assert all(
        unpack_message_id(one).physical_ms >= wall for one, wall in zip(made, walls, strict=True)
    )


def test_an_overrun_logical_part_borrows_from_the_next_millisecond() -> None:
    clock = HybridClock(instance=1, epoch=1)
    clock.raise_above(pack_message_id(1000, 0xFFFF, 9, 9))
    assert unpack_message_id(clock.next(1000))[:2] == (1001, 0)
    assert clock.ahead_ms(1000) == 1


@given(
    st.lists(WALL, max_size=10), st.lists(WALL, min_size=1, max_size=10),
    st.tuples(st.integers(0, 2**47), U16, U16, U16), U16, U16,
)  # fmt: skip
def test_a_restart_stays_above_what_the_outbox_holds(
    before: list[int],
    after: list[int],
    foreign: tuple[int, int, int, int],
    instance: int,
    epoch: int,
) -> None:
    old = HybridClock(instance, epoch)
    outbox = [old.next(wall) for wall in before] + [pack_message_id(*foreign)]
    reborn = HybridClock(instance, epoch)
    reborn.next(0)
    reborn.raise_above(max(outbox))
    assert reborn.next(after[0]) > max(outbox)
    reborn.raise_above(min(outbox))  # never lowers
    assert all(reborn.next(wall) > max(outbox) for wall in after)


def test_the_end_of_time_is_an_error_and_no_wrap() -> None:
    clock = HybridClock(instance=1, epoch=1)
    clock.raise_above(pack_message_id(2**48 - 1, 0xFFFF, 0, 0))
    with pytest.raises(ValueError):
        clock.next(0)
    with pytest.raises(ValueError):
        HybridClock(instance=2**16, epoch=1)
