"""Bytes between processes: frames of u32 length (big endian) and payload, and the few words connections say themselves.

A payload is a MessagePack message of contract/rpc.py, or a control frame: 0xC1, which begins no MessagePack value, one
byte that says which, and its body. The dialler begins with HELLO and says nothing more until WELCOME; SORRY ends.
"""

import struct
from enum import IntEnum
from typing import Final

import msgspec

from qim.core.contract.rpc import Message, decode_message

RPC_VERSION: Final = 1
CONTROL: Final = 0xC1
HELLO_BYTES_MAX: Final = 1024
"""No frame of a peer that has not been welcomed is longer; SORRY is cut to it."""
ADDRESS_CHARS_MAX: Final = 255
REASON_CHARS_MAX: Final = 400
_LENGTH: Final = struct.Struct(">I")
_CLOCK: Final = struct.Struct(">Q")


class Control(IntEnum):
    """The second byte of a control frame."""

    PING = 0
    PONG = 1
    HELLO = 2
    WELCOME = 3
    SORRY = 4


class HostileBytes(Exception):
    """The peer does not speak this protocol, or lies about lengths; ``code`` is a stable word for metric and log."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{detail} [{code}]")
        self.code = code
        self.detail = detail


class Hello(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="qim-rpc"):
    """Who is there. ``address``: the listener where the sender can be answered; "" (ADMIN alone): on this connection."""

    version: int
    role: str
    address: str


class Sorry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why the connection is about to be closed."""

    code: str
    reason: str


_encoder: Final = msgspec.msgpack.Encoder()
_hellos: Final = msgspec.msgpack.Decoder(Hello)
_sorries: Final = msgspec.msgpack.Decoder(Sorry)


def frame(payload: bytes) -> bytes:
    """One payload as it stands on the wire."""
    return _LENGTH.pack(len(payload)) + payload


def hello_frame(kind: Control, role: str, address: str) -> bytes:
    """HELLO or WELCOME of this version."""
    words = Hello(version=RPC_VERSION, role=role, address=address)
    return frame(bytes((CONTROL, kind)) + _encoder.encode(words))


def sorry_frame(code: str, reason: str) -> bytes:
    """SORRY, cut to a length that anybody reads."""
    words = Sorry(code=code, reason=reason[:REASON_CHARS_MAX].encode(errors="replace").decode())
    return frame(bytes((CONTROL, Control.SORRY)) + _encoder.encode(words))


def clock_frame(kind: Control, nanoseconds: int) -> bytes:
    """PING with the dialler's clock, or PONG with the same number."""
    return frame(bytes((CONTROL, kind)) + _CLOCK.pack(nanoseconds))


def control_kind(payload: bytes) -> Control | None:
    """Which control frame this is; None: a message. Raises HostileBytes on an unknown one."""
    if payload[0] != CONTROL:
        return None
    try:
        return Control(payload[1])
    except (IndexError, ValueError):
        raise HostileBytes("unknown_control", f"control frame {payload[:2].hex()}") from None


def read_hello(payload: bytes) -> Hello:
    """HELLO or WELCOME. Raises HostileBytes."""
    try:
        found = _hellos.decode(payload[2:])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HostileBytes("bad_hello", f"unreadable hello: {error}") from None
    if len(found.address) > ADDRESS_CHARS_MAX:
        raise HostileBytes("bad_hello", f"an address of {len(found.address)} characters")
    return found


def read_sorry(payload: bytes) -> Sorry:
    """SORRY. Raises HostileBytes."""
    try:
        return _sorries.decode(payload[2:])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HostileBytes("bad_sorry", f"unreadable: {error}") from None


def read_message(payload: bytes) -> Message:
    """A message of contract/rpc.py. Raises HostileBytes."""
    try:
        return decode_message(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HostileBytes("bad_message", f"unreadable message: {error}") from None


def read_clock(payload: bytes) -> int:
    """The number of a PING or PONG. Raises HostileBytes."""
    if len(payload) != 2 + _CLOCK.size:
        raise HostileBytes("bad_clock", f"a ping of {len(payload)} bytes")
    found: int = _CLOCK.unpack_from(payload, 2)[0]
    return found


class FrameReader:
    """Chunks to payloads; ``limit``: bytes a payload may have, judged as soon as its length is there.

    What waits is less than one frame, so memory is bounded by ``limit``; a long frame is put together once, not a chunk.
    """

    __slots__ = ("_needed", "_rest", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._rest = bytearray()
        self._needed = _LENGTH.size

    def feed(self, chunk: bytes) -> list[bytes]:
        """Payloads completed by ``chunk``, in order. Raises HostileBytes; the reader is of no use then."""
        rest = self._rest
        if rest:
            rest += chunk
            if len(rest) < self._needed:
                return []
            chunk = bytes(rest)
            rest.clear()
        found = []
        at, end = 0, len(chunk)
        needed = _LENGTH.size
        while end - at >= needed:
            length = _LENGTH.unpack_from(chunk, at)[0]
            if not 0 < length <= self.limit:
                raise HostileBytes(
                    "frame_length", f"a frame of {length} bytes, at most {self.limit}"
                )
            if end - at - _LENGTH.size < length:
                needed = _LENGTH.size + length
                break
            at += _LENGTH.size
            found.append(chunk[at : at + length])
            at += length
        if at < end:
            rest += memoryview(chunk)[at:]
        self._needed = needed
        return found
