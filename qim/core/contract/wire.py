"""Frame header and framing, the same bytes on TCP/TLS and WebSocket (contract.md, Frames; protocol `qim/1`).

Header, 16 bytes big-endian: length:u32 (body bytes) · opcode:u16 · flags:u16 · stream:u32 · request:u32.
This file knows no opcode; what a body means stands in frames.py.
"""

import struct
from enum import IntFlag
from typing import Final

import msgspec

from qim.core.contract.errors import ErrorCode, ProtocolError

ALPN: Final = "qim/1"
HEADER_BYTES: Final = 16
FRAME_BYTES_BEFORE_AUTH_MAX: Final = 4 * 1024
FRAME_BYTES_MAX: Final = 512 * 1024

STREAM_CONTROL: Final = 0
STREAM_SENDS: Final = 1
STREAM_MAILBOX: Final = 2
STREAM_QUERIES: Final = 3
STREAM_ROOMS: Final = 16
"""Rooms and signals use this stream and all above it."""

HEADER: Final = struct.Struct(">IHHII")


class Flag(IntFlag):
    """Bits of the header's flags; the others are reserved and must be 0."""

    COMPRESSED = 1
    MORE_FRAGMENTS = 2
    RESPONSE = 4
    ERROR = 8


_KNOWN_FLAGS: Final = int(Flag.RESPONSE | Flag.ERROR)


class RawFrame(msgspec.Struct, frozen=True, gc=False):
    """One frame as it stood on the wire, body not looked at yet."""

    opcode: int
    flags: int
    stream: int
    request: int
    body: bytes


class FramingError(ProtocolError):
    """The byte stream is lost from here on; `frames` are the good ones that stood before it in the same chunk."""

    def __init__(self, error: ProtocolError, frames: tuple[RawFrame, ...]) -> None:
        super().__init__(error.code, error.message, stream=error.stream, request=error.request)
        self.frames = frames


def encode_raw(
    opcode: int, body: bytes, *, flags: int = 0, stream: int = 0, request: int = 0
) -> bytes:
    """Header and body. Sizes are the sender's duty: struct.error on a field beyond its bits is our own bug."""
    return HEADER.pack(len(body), opcode, flags, stream, request) + body


def refuse_unsupported_flags(raw: RawFrame) -> None:
    """UNSUPPORTED for compression, fragments and reserved bits; the frame's own request is at fault, not the stream."""
    unknown = raw.flags & ~_KNOWN_FLAGS
    if unknown:
        raise ProtocolError(
            ErrorCode.UNSUPPORTED,
            f"flags {unknown:#06x} are not supported: send frames whole and uncompressed",
            stream=raw.stream,
            request=raw.request,
        )


class FrameDecoder:
    """Cuts a byte stream into frames. Holds at most one unfinished frame: header plus `limit_bytes`.

    A length is judged as soon as its header is there, so an oversized frame is refused before it is buffered.
    """

    def __init__(self, limit_bytes: int = FRAME_BYTES_BEFORE_AUTH_MAX) -> None:
        """limit_bytes: greatest body length accepted; see `set_limit`."""
        self._limit_bytes = limit_bytes
        self._pending = bytearray()
        self._wanted_bytes = HEADER_BYTES  # size `_pending` must reach before a look at it pays
        self._failure: ProtocolError | None = None

    def set_limit(self, limit_bytes: int) -> None:
        """Switch the limit, e.g. to FRAME_BYTES_MAX as AUTH_OK goes out; holds from the next header on."""
        self._limit_bytes = limit_bytes

    @property
    def pending_bytes(self) -> int:
        """Bytes of the unfinished frame."""
        return len(self._pending)

    def feed(self, chunk: bytes) -> list[RawFrame]:
        """All frames that `chunk` completes, in order.

        Raises FramingError (a ProtocolError): FRAME_TOO_LARGE, now and on every later call.
        """
        if self._failure is not None:
            raise FramingError(self._failure, ())
        pending = self._pending
        if pending:
            pending += chunk
            if len(pending) < self._wanted_bytes:
                return []
            chunk = bytes(pending)
            pending.clear()
        frames: list[RawFrame] = []
        at = self._cut(chunk, frames)
        if self._failure is not None:
            raise FramingError(self._failure, tuple(frames))
        if at < len(chunk):
            pending += chunk[at:]
        return frames

    def _cut(self, data: bytes, frames: list[RawFrame]) -> int:
        """Append whole frames of `data` and return where the unfinished rest begins."""
        unpack, limit, size, at = HEADER.unpack_from, self._limit_bytes, len(data), 0
        while size - at >= HEADER_BYTES:
            length, opcode, flags, stream, request = unpack(data, at)
            if length > limit:
                self._failure = ProtocolError(
                    ErrorCode.FRAME_TOO_LARGE,
                    f"a frame body of {length} bytes, at most {limit} here",
                    stream=stream,
                    request=request,
                )
                return at
            end = at + HEADER_BYTES + length
            if end > size:
                self._wanted_bytes = end - at
                return at
            frames.append(RawFrame(opcode, flags, stream, request, data[at + HEADER_BYTES : end]))
            at = end
        self._wanted_bytes = HEADER_BYTES
        return at
