"""Presence: entered, refreshed, left by its epoch; and who replaces whom."""

from typing import Any

import pytest

from qim.core.contract.entities import PresenceEntry
from qim.core.contract.frames import AuthOk, KickReason
from qim.core.contract.params import DEFAULT
from qim.core.contract.rpc import Kick
from qim.core.ports.completion import Failed, FailReason, StoreReset, StoreRole, Unknown
from qim.core.ports.store_mailbox import LeavePresence, PresenceRefreshed, RefreshPresence
from tests.core.gateway.gate import WALL, Gate


def entry(gateway: str, conn: int, epoch: int, attempt: int = 1) -> PresenceEntry:
    return PresenceEntry(
        user_id=1,
        device_id=b"phone",
        gateway=gateway,
        conn=conn,
        session_epoch=epoch,
        attempt=attempt,
        expires_at=WALL,
    )


def test_presence_is_left_by_epoch_when_the_stream_ends() -> None:
    gate = Gate()
    epoch = gate.online(5)
    gate.hang_up(5)
    (leave,) = gate.take(LeavePresence)
    assert (leave.session_epoch, leave.device_id) == (epoch, b"phone")
    gate.step(Unknown(op=leave.op))
    assert gate.node.idle()


def test_presence_is_refreshed_in_batches_well_before_it_ends() -> None:
    gate = Gate(refresh_batch_max=2)
    for conn in range(1, 6):
        gate.online(conn, user=conn)
    gate.now += DEFAULT.presence_refresh_ms
    assert gate.node.deadline() is not None
    gate.step()
    refreshes = gate.take(RefreshPresence)
    assert [len(r.holds) for r in refreshes] == [2, 2, 1]
    assert [h.conn for r in refreshes for h in r.holds] == [1, 2, 3, 4, 5]
    assert {r.gateway for r in refreshes} == {"gw-1"}
    gate.step(PresenceRefreshed(op=refreshes[0].op, lost=(1,)))
    assert gate.kick(2) == (KickReason.REPLACED, False)
    gate.step(Failed(op=refreshes[1].op, why=FailReason.UNREACHABLE))
    gate.step(Unknown(op=refreshes[2].op))
    assert gate.closed == [2]
    assert gate.counts["gateway_presence_refresh_failed"] == 2


def test_refreshes_in_flight_are_bounded() -> None:
    gate = Gate(refresh_batch_max=1)
    for conn in range(1, 8):
        gate.online(conn, user=conn)
    gate.now += DEFAULT.presence_refresh_ms
    gate.step()
    first = gate.take(RefreshPresence)
    assert len(first) == 4
    gate.step(PresenceRefreshed(op=first[0].op, lost=()))
    assert len(gate.take(RefreshPresence)) == 1


def test_lost_entry_of_a_connection_that_entered_again_is_not_its_end() -> None:
    gate = Gate()
    gate.online(5)
    gate.now += DEFAULT.presence_refresh_ms
    gate.step()
    (refresh,) = gate.take(RefreshPresence)
    gate.hang_up(5)
    gate.online(6)
    gate.step(PresenceRefreshed(op=refresh.op, lost=(0,)))
    assert gate.closed == []


@pytest.mark.parametrize("told_by", ["adapter", "op"])
def test_store_reset_refreshes_everybody_at_once(told_by: str) -> None:
    gate = Gate()
    gate.online(5, user=1)
    gate.online(6, user=2)
    gate.take(LeavePresence)
    op = None
    if told_by == "op":
        gate.hang_up(6)
        (leave,) = gate.take(LeavePresence)
        op = leave.op
    gate.step(StoreReset(op=op, store=StoreRole.MAILBOX))
    (refresh,) = gate.take(RefreshPresence)
    assert [h.conn for h in refresh.holds] == ([5, 6] if op is None else [5])


def test_replaced_here_reads_why_before_the_close() -> None:
    gate = Gate()
    old = gate.online(5)
    gate.entering(6, attempt=2)
    gate.presence(replaced=entry("gw-1", 5, old))
    assert gate.kick(5) == (KickReason.REPLACED, False)
    gate.synced()
    assert [type(frame) for frame in gate.frames(6)] == [AuthOk]
    assert gate.closed == [5]


def test_replaced_elsewhere_gets_a_kick_at_its_address() -> None:
    gate = Gate()
    gate.entering(6, attempt=2)
    gate.presence(replaced=entry("gw-2", 5, 40))
    (kick,) = gate.asked(Kick)
    assert (kick.conn, kick.session_epoch, kick.reason) == (5, 40, KickReason.REPLACED)
    assert (kick.user_id, kick.device_id) == (1, b"phone")


@pytest.mark.parametrize("gateway", ["gw-1", "gw-2"])
def test_a_later_attempt_taken_for_expired_is_not_ended(gateway: str) -> None:
    """By our clock alone: REPLACED is final, and it was not replaced. Whose attempt is lower hears it at the next refresh."""
    gate = Gate()
    later = gate.online(5)
    gate.entering(6, attempt=2)
    gate.presence(replaced=entry(gateway, 5, later, attempt=3))
    gate.synced()
    assert [type(frame) for frame in gate.frames(6)] == [AuthOk]
    assert not gate.asked(Kick)
    assert gate.closed == []


def test_the_own_older_entry_is_no_reason_to_end() -> None:
    gate = Gate()
    gate.entering(6)
    gate.presence(replaced=entry("gw-1", 6, 40))
    gate.synced()
    assert [type(frame) for frame in gate.frames(6)] == [AuthOk]


def test_lower_attempt_than_the_live_entrys_is_refused_as_replaced() -> None:
    gate = Gate()
    gate.entering(5)
    gate.presence(refused=True)
    assert gate.kick(5) == (KickReason.REPLACED, False)
    assert not gate.take(LeavePresence), "a stale close never touches a newer entry"


@pytest.mark.parametrize(
    "wrong",
    [
        {"session_epoch": 99},
        {"user_id": 2},
        {"device_id": b"laptop"},
        {"conn": 6},
    ],
)
def test_a_kick_means_exactly_one_session(wrong: dict[str, Any]) -> None:
    gate = Gate()
    epoch = gate.online(5)
    gate.online(6, user=3)
    exact = {"conn": 5, "user_id": 1, "device_id": b"phone", "session_epoch": epoch, "reason": 1}
    gate.tell(Kick(**(exact | wrong)))
    assert gate.closed == []
    gate.tell(Kick(**exact))
    assert gate.kick(5) == (KickReason.REPLACED, False)


def test_revoked_is_final_and_an_unknown_reason_too() -> None:
    gate = Gate()
    for conn, reason, told in ((5, KickReason.REVOKED, 2), (6, 200, KickReason.REPLACED)):
        epoch = gate.online(conn, user=conn)
        gate.tell(
            Kick(conn=conn, user_id=conn, device_id=b"phone", session_epoch=epoch, reason=reason)
        )
        assert gate.kick(conn) == (told, False)


def test_two_devices_of_a_user_stand_beside_each_other() -> None:
    gate = Gate()
    gate.online(5, device=b"phone")
    gate.online(6, device=b"laptop")
    assert gate.closed == []
