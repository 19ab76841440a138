"""What a connection has been given and its peer has not yet taken: bounded, else the peer is cut (pipeline.md §6).

The driver reports bytes it could not hand to the kernel (Backlog), whenever that changed much. While none are reported
everything written is taken at once and nothing is counted; from the first report on each frame is remembered by where
it ends in the stream, so that a report tells which frames still wait. Between reports the last one is the truth for all
that earlier steps handed over: a peer that is slow but keeps up is never cut for reports that had no reason to come.
"""

from collections import deque

from qim.core.contract.params import Parameters


class Outbound:
    """Frames of one step, joined into one Write, and the account of what waits. It never drops or reorders a frame."""

    __slots__ = (
        "_handed",
        "_parameters",
        "_parts",
        "_reported",
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
        # (stream offset behind the frame, is it a batch)
        self._waiting: deque[tuple[int, bool]] = deque()
        self._written = 0
        self._taken = 0
        self._handed = 0
        self._reported = 0
        self.batches = 0

    def put(self, data: bytes, *, batch: bool = False, trace: int | None = None) -> None:
        """One frame behind all others. trace: identity of what it carries, for keyed choices; four a step suffice."""
        self._parts.append(data)
        self._written += len(data)
        if trace is not None and len(self._traces) < 4:
            self._traces.append(trace)
        if self._reported:
            self._waiting.append((self._written, batch))
            self.batches += batch

    def report(self, bytes_queued: int) -> None:
        """A Backlog of the driver: all it was handed but the last ``bytes_queued`` bytes has been taken."""
        if bytes_queued and not self._reported:
            # Frames written before anybody counted: one entry stands for them all.
            self._waiting.append((self._written, False))
        self._reported = bytes_queued
        self._take_until(self._handed - bytes_queued)

    def bytes_waiting(self) -> int:
        """Bytes not taken as far as the reports tell; 0 while nothing is blocked."""
        return self._written - self._taken if self._reported else 0

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
        if self._reported:
            self._take_until(self._handed - self._reported)
        self._handed = self._written
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        traces = tuple(self._traces)
        self._parts.clear()
        self._traces.clear()
        return data, traces

    def _take_until(self, offset: int) -> None:
        self._taken = max(self._taken, offset)
        while self._waiting and self._waiting[0][0] <= self._taken:
            self.batches -= self._waiting.popleft()[1]
