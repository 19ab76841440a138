"""PresenceEntry: who replaces whom, refreshing after a loss, stale closes (docs: pipeline §3.6)."""

from typing import Any

from qim.core.contract.entities import PresenceEntry
from qim.core.ports.store_mailbox import (
    EnterPresence,
    LeavePresence,
    PresenceEntered,
    PresenceHold,
    PresenceLeft,
    PresenceRead,
    PresenceRefreshed,
    ReadPresence,
    RefreshPresence,
)
from tests.adapters.store.requests import HOUR, NOW, Box
from tests.adapters.store.servers import Store, ask

TTL = 90_000


def enter(store: Store, **other: Any) -> Any:
    fields = {
        "tenant_id": "t",
        "user_id": 1,
        "device_id": b"phone",
        "gateway": "gw:1",
        "conn": 11,
        "attempt": 5,
        "now_wall": NOW,
        "ttl_ms": TTL,
    } | other
    return ask(store, EnterPresence(op=4, **fields))


def read(store: Store, now: int = NOW, user: int = 1, tenant: str = "t") -> Any:
    return ask(store, ReadPresence(op=5, now_wall=now, users=((tenant, user),))).entries[0]


def refresh(store: Store, *holds: PresenceHold, now: int = NOW) -> tuple[int, ...]:
    reply = ask(store, RefreshPresence(op=6, gateway="gw:1", now_wall=now, ttl_ms=TTL, holds=holds))
    assert isinstance(reply, PresenceRefreshed)
    return reply.lost


def test_the_first_entry(store: Store) -> None:
    Box(store)
    epoch = NOW << 16
    assert enter(store) == PresenceEntered(op=4, refused=False, session_epoch=epoch, replaced=None)
    entry = PresenceEntry(
        user_id=1,
        device_id=b"phone",
        gateway="gw:1",
        conn=11,
        session_epoch=epoch,
        attempt=5,
        expires_at=NOW + TTL,
    )
    assert read(store) == (entry,)
    assert read(store, NOW + TTL) == ()
    assert read(store, user=2) == read(store, tenant="u") == ()


def test_a_later_connection_replaces_and_learns_whom(store: Store) -> None:
    Box(store)
    first = enter(store)
    second = enter(store, gateway="gw:2", conn=3)
    assert second.session_epoch == first.session_epoch + 1
    assert (second.replaced.gateway, second.replaced.conn) == ("gw:1", 11)
    assert second.replaced.session_epoch == first.session_epoch
    earlier_clock = enter(store, gateway="gw:3", attempt=6, now_wall=NOW - 50)
    assert earlier_clock.session_epoch == second.session_epoch + 1
    later = enter(store, gateway="gw:4", attempt=7, now_wall=NOW + 1)
    assert later.session_epoch == NOW + 1 << 16
    assert [e.gateway for e in read(store)] == ["gw:4"]


def test_its_own_earlier_try_is_nobody_to_kick(store: Store) -> None:
    Box(store)
    enter(store)
    again = enter(store)
    assert (again.replaced, again.session_epoch) == (None, (NOW << 16) + 1)


def test_a_lower_attempt_than_a_live_entrys_is_refused(store: Store) -> None:
    Box(store)
    enter(store, attempt=1 << 60)
    before = store.dump()
    refused = enter(store, attempt=(1 << 60) - 1, conn=12)
    assert refused == PresenceEntered(op=4, refused=True, session_epoch=0, replaced=None)
    assert store.dump() == before
    dead = enter(store, attempt=3, conn=12, now_wall=NOW + TTL)
    assert not dead.refused
    assert dead.replaced.conn == 11


def test_devices_are_apart_and_sorted(store: Store) -> None:
    Box(store)
    for device in (b"b", b"\x00", b"\xff\xfe", b"a"):
        assert enter(store, device_id=device).replaced is None
    assert [e.device_id for e in read(store)] == [b"\x00", b"a", b"b", b"\xff\xfe"]
    later = NOW + 25 * HOUR
    enter(store, device_id=b"new", now_wall=later)
    (entries,) = [value for k, value in store.dump().items() if k.startswith(b"pr:")]
    assert [device for device, _ in entries[1]] == [b"new"]  # type: ignore[attr-defined]


def test_refreshing_writes_unless_a_newer_one_stands(store: Store) -> None:
    Box(store)
    mine = enter(store).session_epoch
    hold = PresenceHold("t", 1, b"phone", 11, mine, 5)
    other = PresenceHold("t", 2, b"phone", 12, mine, 5)
    assert refresh(store, hold, other, now=NOW + 1000) == ()
    assert read(store)[0].expires_at == NOW + 1000 + TTL
    assert read(store, user=2)[0].conn == 12, "written again after the store lost it"
    newer = enter(store, gateway="gw:2").session_epoch
    assert refresh(store, other, hold) == (1,)
    assert read(store)[0].session_epoch == newer
    assert refresh(store, PresenceHold("t", 1, b"phone", 11, newer + 5, 5)) == ()
    assert read(store)[0].session_epoch == newer + 5


def test_a_stale_close_touches_nothing(store: Store) -> None:
    Box(store)
    first = enter(store).session_epoch
    enter(store, gateway="gw:2")

    def leave(epoch: int) -> Any:
        return ask(
            store,
            LeavePresence(op=7, tenant_id="t", user_id=1, device_id=b"phone", session_epoch=epoch),
        )

    assert leave(first) == PresenceLeft(op=7)
    assert len(read(store)) == 1
    leave(first + 1)
    assert read(store) == ()
    assert ask(store, ReadPresence(op=5, now_wall=NOW, users=())) == PresenceRead(op=5, entries=())


def test_a_lost_tail_that_brings_an_earlier_attempt_back_replaces_nobody(store: Store) -> None:
    """Found by the simulator: the earlier gateway's clock was ahead, so the entry that came back has a higher epoch."""
    Box(store)
    earlier = enter(store, gateway="gw:2", attempt=5, now_wall=NOW + 30_000).session_epoch
    mine = PresenceHold("t", 1, b"phone", 12, (NOW << 16) + 1, 6)
    assert mine.session_epoch < earlier
    assert refresh(store, mine) == ()
    (entry,) = read(store)
    assert (entry.gateway, entry.attempt) == ("gw:1", 6)
    assert refresh(store, PresenceHold("t", 1, b"phone", 3, earlier, 5)) == (0,)
