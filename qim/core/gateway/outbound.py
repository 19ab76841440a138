"""What a connection has been given and its peer has not yet taken: bounded, else the peer is cut (pipeline.md §6).

The driver reports bytes it could not hand to the kernel (Backlog). While none are reported everything written is taken
at once and nothing is counted; from the first report on each frame is remembered by where it ends in the stream, so
that a later report tells exactly how many frames and batches still wait.
"""

from collections import deque

from qim.core.contract.params import Parameters


class Outbound:
    """Frames of one step, joined into one Write, and the account of what waits. It never drops or reorders a frame."""

    __slots__ = (
        "_blocked",
        "_parameters",
        "_parts",
        "_taken",
        "_traces",
        "_waiting",
        "_written",
        "batches",
    )

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._parts: list[bytes] = []
        self._traces: list[int] = []
        self._waiting: deque[tuple[int, bool]] = (
            deque()
        )  # (stream offset behind the frame, is a batch)
        self._written = 0
        self._taken = 0
        self._blocked = False
        self.batches = 0

    def put(self, data: bytes, *, batch: bool = False, trace: int | None = None) -> None:
        """One frame behind all others. trace: identity of what it carries, for keyed choices; four a step suffice."""
        self._parts.append(data)
        self._written += len(data)
        if trace is not None and len(self._traces) < 4:
            self._traces.append(trace)
        if self._blocked:
            self._waiting.append((self._written, batch))
            self.batches += batch

    def report(self, bytes_queued: int) -> None:
        """A Backlog of the driver: everything but the last ``bytes_queued`` bytes written has been taken."""
        if bytes_queued and not self._blocked:
            # Frames written before anybody counted: one entry stands for them all.
            self._waiting.append((self._written, False))
        self._blocked = bytes_queued > 0
        self._taken = max(self._taken, self._written - bytes_queued)
        while self._waiting and self._waiting[0][0] <= self._taken:
            self.batches -= self._waiting.popleft()[1]

    def bytes_waiting(self) -> int:
        """Bytes not taken as far as the reports tell; 0 while nothing is blocked."""
        return self._written - self._taken if self._blocked else 0

    def has_room_for_batch(self, promised: int) -> bool:
        """May one more batch be asked for, with ``promised`` ones still to come."""
        return self.batches + promised < self._parameters.outbound_batches_max

    def overflows(self) -> bool:
        """Too much waits: more than 256 frames, or more than 4 batches + 256 KiB. Nothing waits where nothing blocks."""
        p = self._parameters
        bytes_max = p.outbound_batches_max * p.batch_bytes_max + p.outbound_bytes_max
        return len(self._waiting) > p.outbound_frames_max or self.bytes_waiting() > bytes_max

    def take(self) -> tuple[bytes, tuple[int, ...]]:
        """What this step wrote (b"": nothing) and its traces; the parts are gone from here."""
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        traces = tuple(self._traces)
        self._parts.clear()
        self._traces.clear()
        return data, traces
