"""SessionProjection's requests to script calls and back: projection, user state, read marks (pure; docs: pipeline §4)."""

from collections.abc import Sequence
from typing import Any, Final

from qim.adapters.redis.layout import (
    INCARNATION_KEY,
    Call,
    marker_of,
    number,
    pack_position,
    small,
    u32,
    u64,
    unpack_position,
)
from qim.core.contract.frame_fields import DEVICE_ID_BYTES_MAX, DEVICES_MAX
from qim.core.contract.sequences import FIRST_SHARD_EPOCH
from qim.core.ports.store_session import (
    ApplyStates,
    DeliveredNoted,
    DeliveredRead,
    DispatchesProjected,
    MarksRead,
    NoteDelivered,
    OpenSession,
    ProjectDispatches,
    ReadDelivered,
    ReadMarks,
    ReadSessions,
    ReadStates,
    SessionOpened,
    SessionRecord,
    SessionsRead,
    StateChange,
    StatesApplied,
    StatesRead,
)

_EMPTY_ID: Final = b"\0" * 16
_ORDER_BYTES: Final = 8 + DEVICE_ID_BYTES_MAX + 1


def _user(shard: int, tenant_id: str, user_id: int) -> bytes:
    """The variable part of a user's keys."""
    return u32(shard) + u64(user_id) + tenant_id.encode()


def pack_state(version: int, device_id: bytes, flags: int, value: bytes) -> bytes:
    """version8 device64 width1 flags4 value: the first three compare as (version, device_id) do."""
    if len(device_id) > DEVICE_ID_BYTES_MAX:
        raise OverflowError(f"device_id of {len(device_id)} bytes")
    device = device_id.ljust(DEVICE_ID_BYTES_MAX, b"\0") + bytes((len(device_id),))
    return u64(version) + device + u32(flags) + value


def unpack_state(packed: bytes) -> tuple[int, bytes, int, bytes]:
    """(version, device_id, flags, value); b"" is no state: version 0."""
    if not packed:
        return 0, b"", 0, b""
    width = packed[_ORDER_BYTES - 1]
    flags_end = _ORDER_BYTES + 4
    return (
        number(packed[:8]),
        packed[8 : 8 + width],
        number(packed[_ORDER_BYTES:flags_end]),
        packed[flags_end:],
    )


def encode_open_session(request: OpenSession) -> Call:
    """One shard's Open."""
    assert request.fresh_key
    return Call(
        "open_session",
        [INCARNATION_KEY, b"ss:" + u32(request.shard)],
        [u64(request.epoch), request.fresh_key, request.opener],
    )


def decode_open_session(request: OpenSession, run_id: bytes, raw: Sequence[Any]) -> SessionOpened:
    """None: start at that log's start."""
    return SessionOpened(
        op=request.op,
        incarnation=run_id + b"/" + raw[1],
        dispatch=unpack_position(raw[2]),
        state=unpack_position(raw[3]),
        shard_epoch=number(raw[4]) or FIRST_SHARD_EPOCH,
    )


def encode_project(request: ProjectDispatches) -> Call:
    """Rows and the dispatch position."""
    keys = [INCARNATION_KEY, b"ss:" + u32(request.shard)]
    args = [
        marker_of(request.incarnation),
        u64(request.epoch),
        u64(request.from_offset),
        pack_position(request.to),
    ]
    for row in request.rows:
        assert len(row.conversation_id) == len(row.last_activity_id) == len(row.touched_id) == 16
        keys.append(b"sc:" + _user(request.shard, row.tenant_id, row.user_id))
        args += (
            row.conversation_id,
            row.last_activity_id,
            u64(row.conversation_seq) + row.touched_id,
        )
    return Call("project_dispatches", keys, args)


def decode_project(
    request: ProjectDispatches, run_id: bytes, raw: Sequence[Any]
) -> DispatchesProjected:
    """Done."""
    return DispatchesProjected(op=request.op)


def encode_apply_states(request: ApplyStates) -> Call:
    """Changes and the user-state position."""
    keys = [INCARNATION_KEY, b"ss:" + u32(request.shard)]
    args = [
        marker_of(request.incarnation),
        u64(request.epoch),
        u64(request.from_offset),
        pack_position(request.to),
    ]
    for change in request.changes:
        assert len(change.conversation_id) == 16
        user = _user(request.shard, change.tenant_id, change.user_id)
        keys += (b"sr:" + user, b"st:" + user, b"sx:" + user)
        args += (change.conversation_id, u64(change.offset))
        if change.version == 0:
            args += (u64(change.read_seq), b"")
        else:
            packed = pack_state(change.version, change.device_id, change.flags, change.value)
            args += (b"", packed)
    return Call("apply_states", keys, args)


def decode_apply_states(request: ApplyStates, run_id: bytes, raw: Sequence[Any]) -> StatesApplied:
    """Losers and, each beside its loser, what stands."""
    losing = tuple(raw[1::2])
    return StatesApplied(
        op=request.op,
        losing=losing,
        winners=tuple(
            [
                _winner(request.changes[index], held)
                for index, held in zip(losing, raw[2::2], strict=True)
            ]
        ),
    )


def _winner(loser: StateChange, held: bytes) -> StateChange:
    mark = loser.version == 0
    version, device_id, flags, value = unpack_state(b"" if mark else held)
    return StateChange(
        offset=0,
        tenant_id=loser.tenant_id,
        user_id=loser.user_id,
        conversation_id=loser.conversation_id,
        read_seq=number(held[:8]) if mark else 0,
        version=version,
        device_id=device_id,
        flags=flags,
        value=value,
    )


def encode_read_sessions(request: ReadSessions) -> Call:
    """All conversations of a user."""
    user = _user(request.shard, request.tenant_id, request.user_id)
    return Call(
        "read_sessions",
        [
            INCARNATION_KEY,
            b"ss:" + u32(request.shard),
            b"sc:" + user,
            b"sr:" + user,
            b"st:" + user,
        ],
        [marker_of(request.incarnation)],
    )


def decode_read_sessions(request: ReadSessions, run_id: bytes, raw: Sequence[Any]) -> SessionsRead:
    """Sorted by conversation_id: a hash has no order of its own."""
    rows, marks, states = [dict(zip(part[::2], part[1::2], strict=True)) for part in raw[3:6]]
    names = sorted(rows.keys() | marks.keys() | states.keys())
    dispatch, state = unpack_position(raw[1]), unpack_position(raw[2])
    return SessionsRead(
        op=request.op,
        records=tuple(
            [
                _record(name, rows.get(name, b""), marks.get(name, b""), states.get(name, b""))
                for name in names
            ]
        ),
        dispatch_offset=dispatch.offset if dispatch is not None else 0,
        state_offset=state.offset if state is not None else 0,
    )


def _record(name: bytes, row: bytes, mark: bytes, state: bytes) -> SessionRecord:
    version, device_id, flags, value = unpack_state(state)
    return SessionRecord(
        conversation_id=name,
        last_activity_id=row[:16] or _EMPTY_ID,
        conversation_seq=number(row[16:24]),
        read_seq=number(mark[:8]),
        version=version,
        device_id=device_id,
        flags=flags,
        value=value,
        touched_id=row[24:] or _EMPTY_ID,
    )


def encode_read_states(request: ReadStates) -> Call:
    """In the order of their last changes, one more than wanted."""
    user = _user(request.shard, request.tenant_id, request.user_id)
    return Call(
        "read_states",
        [INCARNATION_KEY, b"sx:" + user, b"sr:" + user, b"st:" + user],
        [
            marker_of(request.incarnation),
            b"[" + u64(request.since_offset + 1),
            small(request.limit + 1),
        ],
    )


def decode_read_states(request: ReadStates, run_id: bytes, raw: Sequence[Any]) -> StatesRead:
    """The one too many only says that there is more."""
    rows = [
        (number(place[:8]), _record(place[8:], b"", mark, state))
        for place, mark, state in zip(raw[1::3], raw[2::3], raw[3::3], strict=True)
    ]
    return StatesRead(
        op=request.op, rows=tuple(rows[: request.limit]), more=len(rows) > request.limit
    )


def encode_read_marks(request: ReadMarks) -> Call:
    """Of users of any shard."""
    keys = [b"sr:" + _user(shard, tenant, user) for shard, tenant, user in request.users]
    return Call(
        "read_marks",
        [INCARNATION_KEY, *keys],
        [marker_of(request.incarnation), request.conversation_id],
    )


def decode_read_marks(request: ReadMarks, run_id: bytes, raw: Sequence[Any]) -> MarksRead:
    """0: none."""
    return MarksRead(op=request.op, read_seqs=tuple([number(mark[:8]) for mark in raw[1:]]))


def encode_note_delivered(request: NoteDelivered) -> Call:
    """A key and two arguments an item."""
    keys, args = [INCARNATION_KEY], [marker_of(request.incarnation), small(DEVICES_MAX)]
    for tenant_id, user_id, device_id, seq in request.items:
        keys.append(b"dv:" + _user(request.shard, tenant_id, user_id))
        args += (device_id, u64(seq))
    return Call("note_delivered", keys, args)


def decode_note_delivered(
    request: NoteDelivered, run_id: bytes, raw: Sequence[Any]
) -> DeliveredNoted:
    """Done."""
    return DeliveredNoted(op=request.op)


def encode_read_delivered(request: ReadDelivered) -> Call:
    """All devices of a user."""
    user = _user(request.shard, request.tenant_id, request.user_id)
    return Call(
        "read_delivered", [INCARNATION_KEY, b"dv:" + user], [marker_of(request.incarnation)]
    )


def decode_read_delivered(
    request: ReadDelivered, run_id: bytes, raw: Sequence[Any]
) -> DeliveredRead:
    """Sorted by device_id: a hash has no order of its own."""
    pairs = zip(raw[1][::2], raw[1][1::2], strict=True)
    devices = sorted((bytes(device), number(seq)) for device, seq in pairs)
    return DeliveredRead(op=request.op, devices=tuple(devices))
