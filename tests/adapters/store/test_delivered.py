"""Delivered watermarks of devices: only forward, each device its own, bound to the incarnation (docs: pipeline §4)."""

from typing import Any

from qim.core.contract.frame_fields import DEVICES_MAX
from qim.core.ports.completion import StoreReset, StoreRole
from qim.core.ports.store_session import (
    DeliveredNoted,
    DeliveredRead,
    NoteDelivered,
    ReadDelivered,
)
from tests.adapters.store.servers import Store, ask
from tests.adapters.store.test_session_scripts import Sessions

HOSTILE = (
    b"",
    b"\0",
    b"\0\0",
    b"d\0",
    b"d",
    b"\xff" * 64,
    b"dv:",
    b"{x}",
    b"a\r\nb",
    b"-1",
    b"1e9",
)
WIDE = (1 << 64) - 1


def note(store: Sessions, *items: tuple[str, int, bytes, int], **other: Any) -> Any:
    return store.ask(NoteDelivered, items=items, **other)


def read(store: Sessions, user: int = 1, **other: Any) -> Any:
    reply = store.ask(ReadDelivered, user_id=user, **other)
    assert isinstance(reply, DeliveredRead), reply
    return reply.devices


def test_a_watermark_moves_only_forward_in_a_call_and_between_calls(store: Store) -> None:
    one = Sessions(store)
    assert note(one, ("t", 1, b"d", 5), ("t", 1, b"d", 9), ("t", 1, b"d", 7)) == DeliveredNoted(
        op=9
    )
    assert read(one) == ((b"d", 9),)
    for lower in (0, 8, 9):
        note(one, ("t", 1, b"d", lower))
        assert read(one) == ((b"d", 9),)
    for higher in (10, 255, 256, (1 << 53) + 1, (1 << 53) + 2, 1 << 63, WIDE):
        note(one, ("t", 1, b"d", higher))
        assert read(one) == ((b"d", higher),)
    note(one, ("t", 1, b"d", 1 << 63))
    assert read(one) == ((b"d", WIDE),)


def test_hostile_device_ids_stay_apart_and_come_back_as_they_are(store: Store) -> None:
    one = Sessions(store)
    note(one, *(("t", 1, device, 100 + n) for n, device in enumerate(HOSTILE)))
    assert read(one) == tuple(sorted((device, 100 + n) for n, device in enumerate(HOSTILE)))


def test_users_tenants_and_shards_are_apart(store: Store) -> None:
    one, other = Sessions(store, shard=5), Sessions(store, shard=6)
    places = [("t", 1), ("t", 2), ("", 1), ("t\0", 1), ("t", WIDE), ("ü", 1)]
    note(one, *((tenant, user, b"d", 10 + n) for n, (tenant, user) in enumerate(places)))
    for n, (tenant, user) in enumerate(places):
        assert read(one, user, tenant_id=tenant) == ((b"d", 10 + n),)
        assert read(other, user, tenant_id=tenant) == ()
    assert read(one, 3) == ()
    assert note(one) == DeliveredNoted(op=9)


def test_another_incarnation_notes_and_tells_nothing(store: Store) -> None:
    one = Sessions(store)
    note(one, ("t", 1, b"d", 5))
    run_id = one.opened.incarnation.partition(b"/")[0]
    stranger = run_id + b"/another-keyspace"
    reset = StoreReset(op=9, store=StoreRole.MAILBOX)
    assert note(one, ("t", 1, b"d", 6), incarnation=stranger) == reset
    assert one.ask(ReadDelivered, user_id=1, incarnation=stranger) == reset
    assert read(one) == ((b"d", 5),)


def test_no_fence_is_asked_for_and_none_is_moved(store: Store) -> None:
    """A shard nobody opened notes too: the mailbox's owner isn't the session shard's."""
    one = Sessions(store)
    request = NoteDelivered(
        op=9, shard=77, incarnation=one.opened.incarnation, items=(("t", 1, b"d", 3),)
    )
    assert ask(store, request) == DeliveredNoted(op=9)
    assert read(one, shard=77) == ((b"d", 3),)


def test_of_more_devices_than_are_told_those_furthest_behind_go(store: Store) -> None:
    """An app that makes a device_id a login leaves no more of them than a list tells (the session tells the same ones)."""
    one = Sessions(store)
    devices = [b"d%03d" % n for n in range(DEVICES_MAX)]
    note(one, *(("t", 1, device, 100 + n) for n, device in enumerate(devices)))
    assert len(read(one)) == DEVICES_MAX
    note(one, ("t", 1, b"new", 500), ("t", 1, b"newer", 501))
    assert read(one) == (
        *tuple((device, 100 + n) for n, device in enumerate(devices))[2:],
        (b"new", 500),
        (b"newer", 501),
    )
    before = read(one)
    note(one, ("t", 1, b"behind all", 7))
    assert read(one) == before, "it would be the furthest behind"
    note(one, ("t", 1, devices[2], 600))
    assert (devices[2], 600) in read(one), "who is there goes on"


def test_of_devices_at_one_place_those_that_are_told_first_stay(store: Store) -> None:
    """Whatever their width, in the order of bytes: as the session ranks them."""
    one = Sessions(store)
    devices = [b"d" * width for width in range(1, DEVICES_MAX)] + [b"\xff"]
    note(one, *(("t", 1, device, 9) for device in devices))
    note(one, ("t", 1, b"d\0", 9), ("t", 1, b"e" * 64, 9), ("t", 1, b"", 9))
    kept = sorted([*devices, b"d\0", b"e" * 64, b""])[:DEVICES_MAX]
    assert read(one) == tuple((device, 9) for device in kept)
