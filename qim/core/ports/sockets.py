"""The byte-stream port between clients and gateways: the same vocabulary for both ends.

``conn`` is the driver's number for a stream, never used twice in a process. Bytes of one stream keep their order; a
stream may end at any byte. The driver reports every write it could not hand to the kernel yet, so that the machine
bounds what it has queued (a slow reader is cut, pipeline.md §6).
"""

from msgspec import Struct


class Accepted(Struct, frozen=True, kw_only=True, gc=False):
    """Gateway side: a new stream from ``peer`` (for logs only)."""

    conn: int
    peer: str


class Dial(Struct, frozen=True, kw_only=True, gc=False):
    """Client side: open a stream to ``address``; answered by Dialed or SocketClosed."""

    conn: int
    address: str


class Dialed(Struct, frozen=True, kw_only=True, gc=False):
    """Client side: the stream is open."""

    conn: int


class BytesReceived(Struct, frozen=True, kw_only=True, gc=False):
    """A chunk as it came; ``wall`` is this node's wall clock in ms."""

    conn: int
    wall: int
    data: bytes


class SocketClosed(Struct, frozen=True, kw_only=True, gc=False):
    """The stream is gone, for whatever reason; nothing more comes for ``conn``."""

    conn: int


class Backlog(Struct, frozen=True, kw_only=True, gc=False):
    """Bytes of ``conn`` handed over by Write and not yet taken by the kernel, whenever that changed much."""

    conn: int
    bytes_queued: int


class Write(Struct, frozen=True, kw_only=True, gc=False):
    """Send bytes; one Write a stream a step."""

    conn: int
    data: bytes
    traces: tuple[int, ...] = ()


class CloseSocket(Struct, frozen=True, kw_only=True, gc=False):
    """Send what was written (bounded by the driver's time-out), then close; answered by SocketClosed."""

    conn: int


class PauseReading(Struct, frozen=True, kw_only=True, gc=False):
    """Flow control: stop reading this stream until ResumeReading."""

    conn: int


class ResumeReading(Struct, frozen=True, kw_only=True, gc=False):
    """Flow control: read this stream again."""

    conn: int


SocketEvent = Accepted | Dialed | BytesReceived | SocketClosed | Backlog
SocketEffect = Dial | Write | CloseSocket | PauseReading | ResumeReading
