"""Presence requests to script calls and back (pure; docs: pipeline §3.6)."""

from collections.abc import Sequence
from typing import Any, Final

from qim.adapters.redis.layout import INCARNATION_KEY, Call, number, u64
from qim.core.contract.entities import PresenceEntry
from qim.core.ports.store_mailbox import (
    EnterPresence,
    LeavePresence,
    PresenceEntered,
    PresenceLeft,
    PresenceRead,
    PresenceRefreshed,
    ReadPresence,
    RefreshPresence,
)

PRESENCE_STALE_MS: Final = 24 * 3_600_000
"""An entry of another device of the user that expired so long ago is dropped when one of them enters."""


def _presence_key(tenant_id: str, user_id: int) -> bytes:
    return b"pr:" + u64(user_id) + tenant_id.encode()


def _entry(user_id: int, device_id: bytes, held: bytes) -> PresenceEntry:
    return PresenceEntry(
        user_id=user_id,
        device_id=device_id,
        gateway=held[32:].decode(),
        conn=number(held[24:32]),
        session_epoch=number(held[:8]),
        attempt=number(held[8:16]),
        expires_at=number(held[16:24]),
    )


def encode_enter(request: EnterPresence) -> Call:
    """A device comes online."""
    now = request.now_wall
    return Call(
        "enter_presence",
        [INCARNATION_KEY, _presence_key(request.tenant_id, request.user_id)],
        [
            b"",
            request.device_id,
            u64(request.attempt),
            u64(now + request.ttl_ms),
            u64(request.conn) + request.gateway.encode(),
            u64(now << 16),
            u64(now),
            u64(max(0, now - PRESENCE_STALE_MS)),
        ],
    )


def decode_enter(request: EnterPresence, run_id: bytes, raw: Sequence[Any]) -> PresenceEntered:
    """The epoch given, and whom it replaced."""
    return PresenceEntered(
        op=request.op,
        refused=False,
        session_epoch=number(raw[1]),
        replaced=_entry(request.user_id, request.device_id, raw[2]) if raw[2] else None,
    )


def refused(request: EnterPresence) -> PresenceEntered:
    """A live entry holds a higher attempt."""
    return PresenceEntered(op=request.op, refused=True, session_epoch=0, replaced=None)


def encode_refresh(request: RefreshPresence) -> Call:
    """A holder's entries."""
    keys, args = [INCARNATION_KEY], [b""]
    expires, gateway = u64(request.now_wall + request.ttl_ms), request.gateway.encode()
    for hold in request.holds:
        keys.append(_presence_key(hold.tenant_id, hold.user_id))
        args += (
            hold.device_id,
            u64(hold.session_epoch) + u64(hold.attempt) + expires + u64(hold.conn) + gateway,
        )
    return Call("refresh_presence", keys, args)


def decode_refresh(
    request: RefreshPresence, run_id: bytes, raw: Sequence[Any]
) -> PresenceRefreshed:
    """Indexes of connections to be closed."""
    return PresenceRefreshed(
        op=request.op, lost=tuple([i for i, lost in enumerate(raw[1:]) if lost == b"1"])
    )


def encode_leave(request: LeavePresence) -> Call:
    """A connection ended."""
    return Call(
        "leave_presence",
        [INCARNATION_KEY, _presence_key(request.tenant_id, request.user_id)],
        [b"", request.device_id, u64(request.session_epoch)],
    )


def decode_leave(request: LeavePresence, run_id: bytes, raw: Sequence[Any]) -> PresenceLeft:
    """Done."""
    return PresenceLeft(op=request.op)


def encode_presence(request: ReadPresence) -> Call:
    """Where users are online."""
    return Call(
        "read_presence",
        [INCARNATION_KEY, *[_presence_key(tenant, user) for tenant, user in request.users]],
        [b""],
    )


def decode_presence(request: ReadPresence, run_id: bytes, raw: Sequence[Any]) -> PresenceRead:
    """Live ones, by the asker's clock."""
    entries: list[tuple[PresenceEntry, ...]] = []
    for (_, user_id), flat in zip(request.users, raw[1:], strict=True):
        found = [_entry(user_id, flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]
        live = [entry for entry in found if entry.expires_at > request.now_wall]
        live.sort(key=lambda entry: entry.device_id)
        entries.append(tuple(live))
    return PresenceRead(op=request.op, entries=tuple(entries))
