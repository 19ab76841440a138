"""What happens to the logs."""

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from qim.core.contract.invariants import Invariant
from qim.core.ports.log import Topic
from qim.sim.faults.kind import FaultBase, open_window

if TYPE_CHECKING:
    from qim.sim.scene import Scene


class LogRates(FaultBase, frozen=True, kw_only=True, gc=False, tag="log_rates"):
    """Appends Unknown (appended, not, or LATER), dispatch batches doubled, short and failing fetches, slow."""

    reply_lost: int = 0
    not_appended: int = 0
    late: int = 0
    refused: int = 0
    doubled: int = 0
    short: int = 0
    fetch_failed: int = 0
    extra_ms: int = 0

    def begin(self, scene: "Scene") -> Callable[[], None]:
        return open_window(scene.log, self)


class LeaderChange(FaultBase, frozen=True, kw_only=True, gc=False, tag="leader_change"):
    """A partition has no leader until ``until_ms``: appends and reads fail."""

    topic: Topic
    partition: int

    def begin(self, scene: "Scene") -> None:
        partition = scene.log.partitions[self.topic, self.partition]
        partition.leaderless_until = max(partition.leaderless_until, self.until_ms)
        scene.count("log.leader_change")


class LogStall(FaultBase, frozen=True, kw_only=True, gc=False, tag="log_stall"):
    """A partition answers nothing until ``until_ms``; appends then land, long after their callers gave up."""

    topic: Topic
    partition: int

    def begin(self, scene: "Scene") -> None:
        partition = scene.log.partitions[self.topic, self.partition]
        partition.stalled_until = max(partition.stalled_until, self.until_ms)
        scene.count("log.stall")


class TopicRecreated(FaultBase, frozen=True, kw_only=True, gc=False, tag="topic_recreated"):
    """A partition of the dispatch topic is another topic's now: detected at the position, nothing reset by itself."""

    topic: Topic
    partition: int
    tolerated: ClassVar[bool] = False

    def expected(self) -> str:
        """The same shard_epoch over another topic is a counter that went back (contract.md, The five invariants)."""
        if self.topic is Topic.DISPATCH:
            return Invariant.MAILBOX_SEQ_REGRESSION
        return "position_mismatch"

    def begin(self, scene: "Scene") -> None:
        scene.log.recreate(scene.log.partitions[self.topic, self.partition], 2)


class RetentionPasses(FaultBase, frozen=True, kw_only=True, gc=False, tag="retention"):
    """Retention takes everything a stopped consumer has not read: detected, stopped, nothing skipped in silence."""

    topic: Topic
    partition: int
    tolerated: ClassVar[bool] = False

    def expected(self) -> str:
        """A position below the log's start (pipeline.md §7)."""
        return "position_mismatch"

    def begin(self, scene: "Scene") -> None:
        partition = scene.log.partitions[self.topic, self.partition]
        scene.log.retain(partition, partition.end)


class TailLost(FaultBase, frozen=True, kw_only=True, gc=False, tag="tail_lost"):
    """A partition ends ``records`` earlier: acknowledged ones are gone, read ones too, and others come in their places.

    A broker's power cut (it doesn't fsync), or an in-sync set that had shrunk to a leader which then died.
    """

    topic: Topic
    partition: int
    records: int = 1
    refilled: bool = False
    """Others stand there at once, one more than were lost, so that nobody ever meets an end below its position."""
    tolerated: ClassVar[bool] = False

    def expected(self) -> str:
        """What was read is no longer before the position (pipeline.md §7); a mailbox's position is its counter."""
        if self.topic is Topic.DISPATCH:
            return Invariant.MAILBOX_SEQ_REGRESSION
        return "position_mismatch"

    def begin(self, scene: "Scene") -> None:
        partition = scene.log.partitions[self.topic, self.partition]
        scene.log.lose_tail(partition, self.records, refill=self.refilled)
