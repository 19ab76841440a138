"""What was sent, acked and delivered, each exactly; latencies in HDR histograms, from when a send was DUE.

A message's body says whose stream it is of, its place there and when it was due; so nothing is kept a message but one
byte a sender and one a recipient. Latency counts from the due time: a generator that waits for a slow server would
otherwise leave out just the slow part (coordinated omission).
"""

import struct
from collections import Counter
from typing import Final

from hdrh.histogram import HdrHistogram
from msgspec import Struct, field

from qim.core.contract.frames import MailboxEntry

HEADER: Final = struct.Struct(">4sIIQ")
"""salt of the run · stream · place in it · due time in us of the run's clock."""
LATENCY_US_MAX: Final = 600_000_000
STAGES: Final = ("ack", "push", "end_to_end", "ping", "generator")
PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9, 100.0)
OPEN: Final = 0
ACKED: Final = 1
REFUSED: Final = 2


class Stream(Struct):
    """Messages of one device to one conversation; ``recipients`` are the devices that must get each acked one, its own too."""

    number: int
    sender: int
    peer: int | None
    group: int | None
    recipients: tuple[int, ...]
    conversation_id: bytes | None = None
    outcome: bytearray = field(default_factory=bytearray)


class Verdict(Struct, frozen=True, kw_only=True):
    """``lost``: acked and not delivered to a recipient. ``unsettled``: neither acked nor refused when time was up."""

    sent: int
    acked: int
    refused: int
    unsettled: int
    delivered: int
    expected: int
    lost: int
    doubled: int
    reordered: int
    foreign: int

    def holds(self) -> bool:
        """Nothing acked was lost, nothing came twice or out of order."""
        return not (self.lost or self.doubled or self.reordered or self.foreign)


class Tally:
    """Counts of one run; ``measuring`` is False in the warm-up, when latencies are not kept."""

    def __init__(self, streams: list[Stream], salt: bytes) -> None:
        self.streams = streams
        self.salt = salt
        self.measuring = False
        self.latency = {stage: HdrHistogram(1, LATENCY_US_MAX, 3) for stage in STAGES}
        self.errors: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self._arrived: dict[tuple[int, int], bytearray] = {}
        self._newest: dict[tuple[int, bytes], int] = {}

    def body(self, stream: Stream, due_us: int, size: int) -> bytes:
        """The next message of the stream, ``size`` bytes but never less than its header."""
        head = HEADER.pack(self.salt, stream.number, len(stream.outcome), due_us)
        stream.outcome.append(OPEN)
        self.counts["sent"] += 1
        return head.ljust(size, b".")

    def record(self, stage: str, micros: int) -> None:
        """One latency."""
        if self.measuring:
            self.latency[stage].record_value(min(max(micros, 1), LATENCY_US_MAX))

    def settled(self, body: bytes, outcome: int, now_us: int) -> None:
        """SEND_ACK, or a refusal that no repetition changes."""
        _, number, place, due_us = HEADER.unpack_from(body)
        stream = self.streams[number]
        if stream.outcome[place] != OPEN:
            return
        stream.outcome[place] = outcome
        if outcome == ACKED:
            self.counts["acked"] += 1
            self.record("ack", now_us - due_us)
        else:
            self.counts["refused"] += 1

    def pushed(self, body: bytes | None, now_us: int) -> None:
        """A hint that brought the message whole."""
        if body is not None and len(body) >= HEADER.size and body.startswith(self.salt):
            self.record("push", now_us - HEADER.unpack_from(body)[3])

    def delivered(self, device: int, entry: MailboxEntry, now_us: int) -> None:
        """PULL_MAILBOX brought it to this device."""
        body = entry.body
        if body is None or len(body) < HEADER.size or not body.startswith(self.salt):
            return
        _, number, place, due_us = HEADER.unpack_from(body)
        stream = self.streams[number]
        if device not in stream.recipients:
            self.counts["foreign"] += 1
            return
        arrived = self._arrived.setdefault((device, number), bytearray())
        if len(arrived) <= place:
            arrived.extend(bytes(place + 1 - len(arrived)))
        if arrived[place]:
            self.counts["doubled"] += 1
            return
        arrived[place] = 1
        self.counts["delivered"] += 1
        at = (device, entry.conversation_id)
        if entry.conversation_seq <= self._newest.get(at, 0):
            self.counts["reordered"] += 1
        self._newest[at] = max(entry.conversation_seq, self._newest.get(at, 0))
        if device != stream.sender:
            self.record("end_to_end", now_us - due_us)

    def open_sends(self) -> int:
        """Neither acked nor refused."""
        return self.counts["sent"] - self.counts["acked"] - self.counts["refused"]

    def missing(self) -> int:
        """Deliveries of acked messages that are still to come."""
        return sum(
            1
            for stream in self.streams
            for device in stream.recipients
            for place in self._gaps(stream, device)
            if stream.outcome[place] == ACKED
        )

    def expected(self) -> int:
        """Deliveries that acked messages promise."""
        return sum(s.outcome.count(ACKED) * len(s.recipients) for s in self.streams)

    def verdict(self) -> Verdict:
        """Exact, over every message of the run, the warm-up too."""
        counts = self.counts
        return Verdict(
            sent=counts["sent"],
            acked=counts["acked"],
            refused=counts["refused"],
            unsettled=self.open_sends(),
            delivered=counts["delivered"],
            expected=self.expected(),
            lost=self.missing(),
            doubled=counts["doubled"],
            reordered=counts["reordered"],
            foreign=counts["foreign"],
        )

    def quantiles_ms(self) -> dict[str, dict[str, float]]:
        """P50, P90, P99, P99.9, maximum of each stage in milliseconds, with the count behind them."""
        shown: dict[str, dict[str, float]] = {}
        for stage, histogram in self.latency.items():
            row: dict[str, float] = {"count": histogram.get_total_count()}
            for percentile in PERCENTILES:
                name = "max" if percentile == 100.0 else f"p{percentile:g}"
                row[name] = histogram.get_value_at_percentile(percentile) / 1000
            shown[stage] = row
        return shown

    def _gaps(self, stream: Stream, device: int) -> list[int]:
        arrived = self._arrived.get((device, stream.number), bytearray())
        missing = [place for place in range(len(arrived)) if not arrived[place]]
        return missing + list(range(len(arrived), len(stream.outcome)))
