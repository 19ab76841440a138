"""Wall time as a machine without a clock knows it, and how far it runs ahead of the log's (contract.md, message_id)."""

from typing import Final

from qim.core.contract.ids import NIL_ID, HybridClock


class WriterClock:
    """The newest wall stamp carried on by monotonic time, the HLC, and the last comparison with the log's append time."""

    def __init__(self, instance: int, instance_epoch: int, ahead_max_ms: int) -> None:
        self._hybrid = HybridClock(instance, instance_epoch)
        self._greatest = NIL_ID
        self._ahead_max_ms: Final = ahead_max_ms
        self._offset = 0  # wall - now
        self.ahead_ms = 0

    def observe(self, wall: int, now: int) -> None:
        """An edge stamped ``wall`` on an event that is handled at ``now``."""
        self._offset = wall - now

    def wall(self, now: int) -> int:
        """Estimated wall ms at ``now``."""
        return max(0, now + self._offset)

    def message_id(self, now: int) -> bytes:
        """The next HLC id."""
        made = self._hybrid.next(self.wall(now))
        self._greatest = max(self._greatest, made)
        return made

    def raise_above(self, message_id: bytes) -> None:
        """OPEN: every later id is greater than this one of the outbox partition."""
        self._hybrid.raise_above(message_id)
        self._greatest = max(self._greatest, message_id)

    def take_instance(self, instance: int, epoch: int) -> None:
        """Another instance lease: other low bits, and still greater than every id made before."""
        self._hybrid = HybridClock(instance, epoch)
        self._hybrid.raise_above(self._greatest)

    def compare(self, wall_at_send: int, append_time: int) -> None:
        """The log stamped ``append_time`` on an append that was ordered at our ``wall_at_send``.

        Compared with the order, not with the answer: a slow answer or a paused process must not look like a fast clock.
        """
        self.ahead_ms = max(0, wall_at_send - append_time)

    @property
    def refuses(self) -> bool:
        """True while our clock ran too far ahead at the last append."""
        return self.ahead_ms > self._ahead_max_ms
