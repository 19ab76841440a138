"""docs/protocol.md, drawn from the code: `python -m qim.cli.protocol_doc` writes it, a test compares it.

The text a client's author needs: header, frames, fields with their bounds, enumerations, errors, parameters. Nothing
is said here that the contract's modules don't say.
"""

import inspect
import sys
from collections.abc import Iterator, Sequence
from enum import IntEnum, IntFlag
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from qim.core.contract import wire
from qim.core.contract.errors import ERROR_MEANINGS
from qim.core.contract.frame_fields import DEVICE_ID_BYTES_MAX
from qim.core.contract.frames import (
    FRAMES,
    ConversationKind,
    ConversationState,
    DeviceDelivered,
    HistoryDirection,
    HistoryRecord,
    KickReason,
    MailboxEntry,
    MessageKind,
    RetentionClass,
    RoomMessage,
    ServerLimits,
    SessionEntry,
    StateFlag,
    Tombstone,
    WritePolicy,
)
from qim.core.contract.invariants import INVARIANT_MEANINGS
from qim.core.contract.params import DEFAULT, ORDER, RANGES, SHARED, Parameters
from qim.core.gateway import GatewayConfig

_GATEWAY = GatewayConfig(token_secrets=())
DEFAULT_TARGET = Path("docs/protocol.md")

ARRAYS: tuple[type[msgspec.Struct], ...] = (
    ServerLimits,
    MailboxEntry,
    HistoryRecord,
    SessionEntry,
    ConversationState,
    DeviceDelivered,
    RoomMessage,
)
ENUMERATIONS: tuple[type[IntEnum] | type[IntFlag], ...] = (
    ConversationKind,
    MessageKind,
    RetentionClass,
    Tombstone,
    KickReason,
    HistoryDirection,
    WritePolicy,
    StateFlag,
)

INTRODUCTION = f"""\
# Protocol `{wire.ALPN}`

<!-- Written by `python -m qim.cli.protocol_doc`; a test compares it with the code. Edit the code. -->

The same bytes travel over TCP/TLS (ALPN `{wire.ALPN}`) and are made for WebSocket, which no server listens for yet. A connection
carries frames; a frame is a header of {wire.HEADER_BYTES} bytes, big-endian, and a body.

| offset | field | type | meaning |
|---|---|---|---|
| 0 | length | u32 | bytes of the body |
| 4 | opcode | u16 | which frame |
| 6 | flags | u16 | bits below; all others must be 0 |
| 8 | stream | u32 | which of the parallel conversations of one connection |
| 12 | request | u32 | chosen by the asker, repeated in the answer; 0 where nobody asked |

Flags: {{flags}}. Compressed and fragmented frames are not spoken yet: they are refused with UNSUPPORTED.

Streams: {wire.STREAM_CONTROL} connection control · {wire.STREAM_SENDS} sends · {wire.STREAM_MAILBOX} mailbox ·
{wire.STREAM_QUERIES} queries · {wire.STREAM_ROOMS} and above rooms and signals. An answer travels on the stream of its
question.

The body is a MessagePack array of the frame's fields in the order declared here. New fields go to the end and have
defaults: a reader ignores trailing fields it doesn't know, and a field with a default may be missing. A body has at most
{wire.FRAME_BYTES_BEFORE_AUTH_MAX:,} bytes before AUTH_OK and {wire.FRAME_BYTES_MAX:,} after it. Ids are 16 bytes, `u64`
goes up to 2^64 − 1: in JSON write both as strings.

Bytes that are no frame of this protocol get one ERROR and the connection closes. A field outside its bounds, an unknown
opcode or an unsupported flag is the fault of that one request: it gets an ERROR with its request number and, where it has
one, its client_message_id."""

CONNECTION = f"""\
## A connection

1. The client says AUTH, within {DEFAULT.unauthenticated_max_ms // 1000} s of connecting, and is answered AUTH_OK or ERROR. Another
   AUTH may follow a refused one, {_GATEWAY.auth_attempts_max} in all. After CURSOR_INVALID, CURSOR_EXPIRED or CURSOR_REBASED it
   carries no cursor, and the device rebuilds.
2. From AUTH_OK on it may send and ask. It pulls from its cursor until covered_through_seq has reached sync_to_seq, committing
   messages and cursor together each time, and says SYNC_COMPLETE.
3. ONLINE_READY: from now on it is pushed. A push is a hint; whenever a watermark (ONLINE_READY, PONG) or a pushed mailbox_seq is
   above what it has covered, it pulls.
4. What got no answer in time, or TIMEOUT_UNKNOWN, may have been done: it is repeated under the same client_message_id with the
   same not_after, on a new connection too, until it is answered; after SEND_EXPIRED the conversation's history says whether it
   was committed.

The server ends a connection that it has not heard for {DEFAULT.idle_kill_ms // 1000} s (PING every {DEFAULT.heartbeat_ms // 1000} s
prevents that), that does not read what it is sent, that is replaced by a newer one of the same device, and whose access token
expires: then ERROR TOKEN_EXPIRED with request 0 is its last frame, else KICKED with the reason.

Of one connection at most {DEFAULT.pulls_inflight_max} of PULL_MAILBOX, PULL_HISTORY, PULL_SESSION_LIST and STATE_SYNC wait for
their answers at once, {_GATEWAY.connection_requests_max} requests in all, and {_GATEWAY.admission_per_second:,} frames a second are
taken ({_GATEWAY.admission_burst:,} at once): more is RATE_LIMITED.

## Access tokens

`qim1.` + base64url(payload) + `.` + base64url(HMAC-SHA256(secret, `qim.token.v1` + a zero byte + payload)), both without padding.
The payload is a MessagePack array: tenant_id (text, 1..64 bytes), user_id (u64, at least 1), device_id (1..{DEVICE_ID_BYTES_MAX}
bytes, or nil: every device), expires_at (u64, wall ms at which it is good no longer). The secret is
the file `secret` in the data directory of `qim up`, or the UTF-8 bytes of QIM_AUTH_SECRET."""


def render() -> str:
    """The whole of docs/protocol.md."""
    flags = " · ".join(f"{flag.value} {flag.name}" for flag in wire.Flag)
    parts = [INTRODUCTION.replace("{flags}", flags), CONNECTION, *_frames(), *_arrays()]
    parts += [*_enumerations(), _errors(), *_parameters(), _invariants()]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Write the page: to the path given, else to docs/protocol.md below the present directory."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_TARGET
    target.write_text(render(), encoding="utf-8")


# ---------------------------------------------------------------- sections


def _frames() -> Iterator[str]:
    yield "## Frames"
    rows = [
        (f"0x{kind.OPCODE:04X}", kind.NAME, kind.DIRECTION, str(kind.STREAM), _signature(kind))
        for kind in FRAMES
    ]
    yield _table(("opcode", "frame", "direction", "stream", "fields"), rows)
    for kind in FRAMES:
        flags = " | ".join(str(flag.name) for flag in wire.Flag if kind.FLAGS & flag) or "none"
        where = f"`0x{kind.OPCODE:04X}` · {kind.DIRECTION} · stream {kind.STREAM} · flags {flags}"
        yield f"### {kind.NAME}"
        yield f"{where}\n\n{_doc(kind)}"
        if kind.__struct_fields__:
            yield _fields(kind)


def _arrays() -> Iterator[str]:
    yield "## Arrays inside frames"
    for kind in ARRAYS:
        yield f"### {kind.__name__}"
        yield _doc(kind)
        yield _fields(kind)


def _enumerations() -> Iterator[str]:
    yield "## Enumerations"
    for kind in ENUMERATIONS:
        members = " · ".join(f"{member.value} {member.name}" for member in kind)
        yield f"**{kind.__name__}**: {members}. {_doc(kind)}"


def _errors() -> str:
    rows = [
        (str(int(code)), code.name, entry.meaning, _yes(entry.retry), _yes(entry.closes))
        for code, entry in ERROR_MEANINGS.items()
    ]
    intro = "`retry`: repeating the same request, with the same client_message_id, can help."
    return f"## Errors\n\n{intro}\n\n{_table(('code', 'name', 'meaning', 'retry', 'closes'), rows)}"


def _parameters() -> Iterator[str]:
    ranges = {name: f"{least}..{greatest}" for name, least, greatest in RANGES}
    rows = []
    for field in msgspec.structs.fields(Parameters):
        value = getattr(DEFAULT, field.name)
        shown = "must be configured" if value is None else str(value)
        rows.append((field.name, shown, ranges.get(field.name, ""), _yes(field.name in SHARED)))
    yield "## Parameters"
    yield "All processes must agree on the shared ones: the registry keeps their digest."
    yield _table(("parameter", "default", "range", "shared"), rows)
    orders = [
        (f"{rule.smaller} {'≤' if rule.may_equal else '<'} {rule.greater}", rule.why)
        for rule in ORDER
    ]
    yield "Legal order, checked at start:"
    yield _table(("order", "because"), orders)


def _invariants() -> str:
    rows = [
        (name.value, entry.meaning, entry.evidence) for name, entry in INVARIANT_MEANINGS.items()
    ]
    intro = "Always zero; anything else turns /healthz and /readyz to 503, /livez stays green."
    return f"## Invariants\n\n{intro}\n\n{_table(('counter', 'non-zero means', 'evidence'), rows)}"


# ---------------------------------------------------------------- cells


def _signature(kind: type[msgspec.Struct]) -> str:
    names = [field.name + ("" if field.required else "?") for field in msgspec.structs.fields(kind)]
    return ", ".join(names) or "–"


def _fields(kind: type[msgspec.Struct]) -> str:
    rows = []
    for at, field in enumerate(msgspec.structs.fields(kind)):
        default = "required" if field.required else f"default {_literal(field.default)}"
        rows.append((str(at), field.name, _type(field.type), default))
    return _table(("#", "field", "type", ""), rows)


def _literal(value: object) -> str:
    return {"None": "nil", "()": "empty", "''": "empty", "b''": "empty"}.get(
        repr(value), str(value).lower()
    )


def _type(field_type: Any) -> str:
    """A field's type in the words of a client's author, bounds included."""
    if get_origin(field_type) is Annotated:
        base, *metas = get_args(field_type)
        return _bounded(base, metas[0])
    if get_origin(field_type) in (Union, UnionType):
        return " or ".join(_type(member) for member in get_args(field_type))
    names = {bool: "boolean", type(None): "nil"}
    return names.get(field_type) or str(field_type.__name__)


def _bounded(base: Any, meta: msgspec.Meta) -> str:
    if base is int:
        return _integer(int(meta.ge or 0), None if meta.le is None else int(meta.le))
    if get_origin(base) is tuple:
        return f"array of {_type(get_args(base)[0])}, at most {meta.max_length:,}"
    unit = "bytes" if base is bytes else "text"
    of = "" if base is bytes else " characters"
    if meta.min_length == meta.max_length:
        return f"{meta.max_length} {unit}"
    least = f"{meta.min_length}" if meta.min_length else "0"
    return f"{unit}, {least}..{meta.max_length:,}{of}"


def _integer(least: int, greatest: int | None) -> str:
    widths = {None: "u64", 255: "u8", (1 << 16) - 1: "u16", (1 << 32) - 1: "u32"}
    if greatest not in widths:
        return f"{least}..{greatest}"
    return widths[greatest] + (f", at least {least}" if least else "")


def _doc(kind: type) -> str:
    return " ".join((inspect.getdoc(kind) or "").split())


def _yes(value: bool) -> str:
    return "yes" if value else ""


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


if __name__ == "__main__":
    main()
