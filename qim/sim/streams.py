"""Byte streams between clients and gateways: ordered, cut into chunks anywhere, ended at any byte.

A stream has two ends. What an end writes is in flight, then read by the other host at once, unless that host said
PauseReading or its process is stopped: then it stays unread, the writer's kernel buffer fills, and the writer is told its
backlog (ports/sockets.py).
"""

from typing import TYPE_CHECKING, Final

from qim.core.ports.sockets import (
    Accepted,
    Backlog,
    BytesReceived,
    CloseSocket,
    Dial,
    Dialed,
    PauseReading,
    ResumeReading,
    SocketClosed,
    Write,
)
from qim.sim.choice import DETAIL_MASK, DETAIL_SHIFT, TIEBREAK_SHIFT, Way, fault_level
from qim.sim.network import Network
from qim.sim.node import Host
from qim.sim.sites import SOCKET, SOCKET_DIAL

if TYPE_CHECKING:
    from qim.sim.world import World

KERNEL_BUFFER_BYTES: Final = 65_536
BACKLOG_STEP_BYTES: Final = 16_384


class End:
    """One end of a stream, and what is on its way TO it."""

    __slots__ = (
        "closed", "conn", "eof", "host", "last", "other", "queued", "reading", "streams",
        "told_backlog", "unread",
    )  # fmt: skip

    def __init__(self, streams: "Streams", host: Host, conn: int) -> None:
        self.streams = streams
        self.host = host
        self.conn = conn
        self.other: End = self
        self.closed = False
        self.reading = True
        self.eof = False
        self.unread: list[bytes] = []
        self.queued = 0
        """Bytes written to this end's host and not read by it: in flight, or in a kernel's buffers."""
        self.told_backlog = 0
        self.last = (0, 0)

    def arrive(self, data: bytes | None) -> None:
        """Bytes, or None for the end of the stream, reach this end's kernel."""
        if self.closed:
            return
        if self.unread or not self.reading or self.host.node.paused or self.streams.held(self):
            self._keep(data)
            return
        if data is None:
            self.finish()
            return
        self._read(data)

    def _keep(self, data: bytes | None) -> None:
        if data is None:
            self.eof = True
        else:
            self.unread.append(data)
            self.other.backlog(self.queued)
        if self.host.node.paused and not self.host.dead:
            self.host.node.unread.append((self.wake, None))

    def wake(self, _: object = None) -> None:
        """Read what waited: the process was resumed, the host asked for more, or a partition healed."""
        if self.closed or not self.reading or self.host.node.paused or self.streams.held(self):
            return
        if self.unread:
            data, self.unread = b"".join(self.unread), []
            self._read(data)
        if self.eof:
            self.finish()

    def _read(self, data: bytes) -> None:
        self.queued -= len(data)
        self.other.backlog(self.queued)
        host = self.host
        wall = host.node.wall.read(host.world.now)
        host.take(BytesReceived(conn=self.conn, wall=wall, data=data))

    def backlog(self, queued: int) -> None:
        """Tell this end's host what its kernel doesn't take, when that changed much."""
        over = max(0, queued - KERNEL_BUFFER_BYTES)
        told = self.told_backlog
        if abs(over - told) >= BACKLOG_STEP_BYTES or (over == 0) != (told == 0):
            self.told_backlog = over
            if not self.closed:
                self.host.take(Backlog(conn=self.conn, bytes_queued=over))

    def finish(self) -> None:
        """The stream is gone for this end's host."""
        if self.closed:
            return
        self.closed = True
        self.unread = []
        self.host.conns.pop(self.conn, None)
        self.host.take(SocketClosed(conn=self.conn))

    def host_died(self) -> None:
        """The process is gone: the other end sees a reset after the way there."""
        self.closed = True
        self.streams.reset_later(self.other)


class Streams:
    """Routes the socket effects; ``listeners`` are the gateways' hosts by address."""

    def __init__(self, world: "World", network: Network, *, base_ms: int, spread_ms: int) -> None:
        self.world = world
        self.network = network
        self.way = Way(base_ms, spread_ms)
        self.reset_odds = 0
        self.split_odds = 0
        self.ends: list[End] = []
        self.listeners: dict[str, Host] = {}
        self._accepted: dict[tuple[str, int], int] = {}

    # ------------------------------------------------------------ routes

    def dial(self, host: Host, effect: Dial) -> None:
        """Open a stream; SocketClosed if nobody listens there."""
        draw = self.world.dice.draw(SOCKET_DIAL, host.identity)
        arrival = self.world.now + self.way.there(draw)
        self.world.at(arrival, draw >> TIEBREAK_SHIFT, self._dialed, (host, effect))

    def write(self, host: Host, effect: Write) -> None:
        """Bytes to the other end, in order; a drawn chunk may be cut in two, or the stream reset inside it."""
        end = host.conns.get(effect.conn)
        if end is None or end.closed:
            return
        world = self.world
        traces = effect.traces
        draw = world.dice.draw(SOCKET, traces[0] if traces else host.identity)
        data = effect.data
        world.trace.entries.append((world.now, host.name, effect.conn, data))
        other: End = end.other
        other.queued += len(data)
        if other.queued > KERNEL_BUFFER_BYTES:
            end.backlog(other.queued)
        level = fault_level(draw)
        if level < self.reset_odds:
            cut = (draw >> DETAIL_SHIFT & DETAIL_MASK) % (len(data) + 1)
            self._count("socket.reset")
            if cut:
                self._travel(other, data[:cut], draw)
            self._travel(other, None, draw)
            self.reset_later(end)
            return
        if 0 <= level - self.reset_odds < self.split_odds and len(data) > 1:
            cut = 1 + (draw >> DETAIL_SHIFT & DETAIL_MASK) % (len(data) - 1)
            self._count("socket.split")
            self._travel(other, data[:cut], draw)
            self._travel(other, data[cut:], draw, later_ms=1)
            return
        self._travel(other, data, draw)

    def close(self, host: Host, effect: CloseSocket) -> None:
        """What was written still arrives; then the other end sees the end of the stream."""
        end = host.conns.get(effect.conn)
        if end is None or end.closed:
            return
        self._travel(end.other, None, 0)
        self.world.at(self.world.now + 1, 0, _finish, end)

    def pause_reading(self, host: Host, effect: PauseReading) -> None:
        end = host.conns.get(effect.conn)
        if end is not None:
            end.reading = False

    def resume_reading(self, host: Host, effect: ResumeReading) -> None:
        end = host.conns.get(effect.conn)
        if end is not None:
            end.reading = True
            self.world.at(self.world.now + 1, 0, end.wake, None)

    # ------------------------------------------------------------ what faults do

    def reset_later(self, end: End) -> None:
        """A reset on its way to ``end``; a partition swallows it until it heals."""
        self._travel(end, None, 0)

    def reset(self, end: End) -> None:
        """Both ends lose the stream now; bytes in flight are gone."""
        for side in (end, end.other):
            if not side.host.dead:
                side.finish()
            side.closed = True

    def held(self, end: End) -> bool:
        """Whether a partition keeps bytes from this end now: TCP retransmits, so they come when it heals."""
        cuts = self.network.cuts
        return bool(cuts) and cuts.between(end.other.host.node.name, end.host.node.name)

    def healed(self) -> None:
        """A partition ended: what it held is read now."""
        self.ends = [end for end in self.ends if not end.closed]
        for end in self.ends:
            end.wake()

    # ------------------------------------------------------------ inside

    def _travel(self, end: End, data: bytes | None, draw: int, *, later_ms: int = 0) -> None:
        arrival = self.world.now + self.way.there(draw) + later_ms
        place = max(end.last, (arrival, draw >> TIEBREAK_SHIFT))
        end.last = place
        self.world.at(place[0], place[1], end.arrive, data)

    def _dialed(self, payload: tuple[Host, Dial]) -> None:
        host, effect = payload
        if host.dead:
            return
        source, address = host.node.name, effect.address
        cuts = self.network.cuts
        if cuts and (cuts.between(source, address) or cuts.between(address, source)):
            return  # the dialer's own time-out ends it
        listener = self.listeners.get(address)
        if listener is None or listener.dead:
            host.take(SocketClosed(conn=effect.conn))
            return
        # Numbers begin again with every process: what names an old one must be told by more than its number.
        process = (address, listener.node.generation)
        number = self._accepted.get(process, 0) + 1
        self._accepted[process] = number
        near, far = End(self, host, effect.conn), End(self, listener, number)
        near.other, far.other = far, near
        host.conns[effect.conn] = near
        listener.conns[number] = far
        self.ends += (near, far)
        listener.take(Accepted(conn=number, peer=source))
        host.take(Dialed(conn=effect.conn))

    def _count(self, name: str) -> None:
        counts = self.network.counts
        counts[name] = counts.get(name, 0) + 1


def _finish(end: End) -> None:
    end.finish()
