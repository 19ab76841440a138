"""The one history of a world that every checker reads: facts as they happen, violations as they are found.

Facts come from the world's own services, never from what a machine says of itself, except observations, which are
facts about what it said. A checker registers for the facts it needs; nobody else is called.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import Struct

from qim.core.contract.invariants import Invariant
from qim.core.contract.sequences import split_mailbox_seq
from qim.core.ports.archive import ArchiveRequest, ExpireArchive, WriteArchive
from qim.core.ports.log import Append, StoredRecord, Topic
from qim.core.ports.network import Send
from qim.core.ports.observe import Count, Observation, StageReached, Violation
from qim.core.ports.store_mailbox import RefreshPresence
from qim.core.ports.store_operator import BumpShard, ShardBumped
from qim.sim.begun import Begun
from qim.sim.oracle import Oracle

if TYPE_CHECKING:
    from qim.sim.localstore import Device
    from qim.sim.log import Log
    from qim.sim.node import Host
    from qim.sim.partition import Partition
    from qim.sim.plan import Compressed
    from qim.sim.scene import Scene

VIOLATIONS_MAX = 200
DETECTED: Final = (Invariant.MAILBOX_SEQ_REGRESSION, "position_mismatch", "outbox_truncated")
"""What says that a log is not the one that was read."""

StoreHearer = Callable[["Host", Any, Any], None]
DispatchHearer = Callable[["Host", int, StoredRecord, Any], None]
SentHearer = Callable[["Host", Send], None]
NoticeHearer = Callable[["Device", Any], None]
LocalHearer = Callable[["Device", Any, Any], None]


class Finding(Struct, frozen=True, kw_only=True, gc=False):
    """A violation: its identity is (check, role), never its text. ``at`` world ms; message_id b"" where none."""

    check: str
    role: str
    at: int
    detail: str
    message_id: bytes = b""


class Checker(Protocol):
    """One file a checker: it registers in ``attach`` and judges at the end in ``finish``."""

    def attach(self, history: "History") -> None: ...

    def finish(self, scene: "Scene") -> None: ...


class History:
    """Facts in, to those who registered; findings out."""

    def __init__(self, shard_count: int, now: Callable[[], int]) -> None:
        self.oracle = Oracle(shard_count)
        self.findings: list[Finding] = []
        self.now = now
        self.on_store: dict[type, list[StoreHearer]] = {}
        self.on_effective: list[Callable[[Any], None]] = []
        self.on_dispatched: list[DispatchHearer] = []
        self.on_sent: dict[type, list[SentHearer]] = {}
        self.on_notice: dict[type, list[NoticeHearer]] = {}
        self.on_local: dict[type, list[LocalHearer]] = {}
        self.counts: dict[str, int] = {}
        self.stages: dict[str, int] = {}
        self.peek: Callable[[Any], Any] = _nothing
        """A look into the message store, outside of time and of every fault."""
        self.peek_mailbox: Callable[[Any], Any] = _nothing
        """Likewise into the mailbox store."""
        self.on_mailbox_lost: list[Callable[[], None]] = []
        """Called once the mailbox store has become another incarnation, with what that has."""
        self.log: Log | None = None
        self.on_act: list[Callable[[Any], None]] = []
        """Called with what an operator's act reports."""
        self.bumped: dict[int, bool] = {}
        """mailbox shard -> whether its log had lost what it had read, when it was last bumped."""
        self.on_bumped: list[Callable[[int], None]] = []
        """Called with a mailbox shard that has begun anew, once the oracle knows."""
        self.unmended: dict[int, None] = {}
        """Outbox partitions that lost what somebody had read, and that nobody has begun to mend."""
        self.on_outbox_lost: list[Callable[[int], None]] = []
        """Called with an outbox partition that ends earlier now, once the oracle knows."""
        self.settled = False
        """Faults and acts are over: whoever misses something now misses it for good."""
        self._told: dict[str, None] = {}
        """Names of logs that lost something that a person mends."""
        self.on_refreshing: list[Callable[[Host, RefreshPresence], None]] = []
        """Called as a gateway orders it, before anything can befall the request."""
        self.incarnation: Callable[[], int] = _first
        """The number of the message store's incarnation."""
        self.ephemeral_ms = 0
        """How long this world keeps ephemeral messages."""
        self.mailbox_day_ms = self.mailbox_retention_ms = self.read_back_ms = 0
        """Likewise its mailboxes, and how far back a new device reads."""
        self.broadcast_max = 0
        """How great a group is whose changes all are sent, 0: nobody said."""
        self.expired_before = 0
        """Up to which wall time the archive was told to let go, by whatever clock."""
        self.landed: dict[bytes, int] = {}
        """message_id -> world ms at which its effective record stood in the outbox."""
        self.archived: dict[bytes, None] = {}
        """message_ids of archive batches that were applied whole."""
        self.projected: dict[int, list[int]] = {}
        """session shard -> [dispatch offset, state offset] as the store has them, -1: none."""
        self.begun = Begun(self.oracle)
        """Where devices without a cursor were let begin."""
        self.begun.attach(self)

    def keep(self, small: "Compressed") -> None:
        """How long the world keeps what, for checkers that judge by it."""
        self.broadcast_max = small.membership_broadcast_max
        self.ephemeral_ms = small.ephemeral_ms
        self.mailbox_day_ms = small.mailbox_day_ms
        self.mailbox_retention_ms = small.mailbox_retention_ms
        self.read_back_ms = small.read_back_ms

    def found(self, check: str, role: str, detail: str, message_id: bytes = b"") -> None:
        """Note a violation."""
        if len(self.findings) < VIOLATIONS_MAX:
            finding = Finding(
                check=check, role=role, at=self.now(), detail=detail, message_id=message_id
            )
            self.findings.append(finding)

    def count(self, name: str, value: int = 1) -> None:
        """For the census: something was met."""
        self.counts[name] = self.counts.get(name, 0) + value

    # ------------------------------------------------------------ facts

    def store(self, host: "Host", request: Any, answer: Any) -> None:
        """A store applied (or refused) a request."""
        if type(answer) is ShardBumped:
            self._bumped(request)
        for hear in self.on_store.get(type(request), ()):
            hear(host, request, answer)

    def _bumped(self, request: BumpShard) -> None:
        shard_epoch, _ = split_mailbox_seq(request.to_watermark + 1)
        if shard_epoch > self.oracle.epoch(request.shard):
            self.bumped[request.shard] = request.shard in self.oracle.lost
            records = self.dispatch_log(request.shard)
            self.oracle.bumped(request.shard, shard_epoch, request.void_from, records)
            self.count("shard_bumped")
            for hear in self.on_bumped:
                hear(request.shard)

    def dispatch_log(self, shard: int) -> list[StoredRecord]:
        """As it stands."""
        return self.log.partitions[Topic.DISPATCH, shard].records if self.log is not None else []

    def acted(self, report: Any) -> None:
        """An operator's act is over."""
        for hear in self.on_act:
            hear(report)

    def dispatch_lost(self, shard: int) -> None:
        """A dispatch log lost what its mailbox had read: until it is bumped, whoever reads it says so."""
        self.oracle.dispatch_lost(shard)
        self._told[f"dispatch/{shard}:"] = None

    def outbox_lost(self, partition: int, end: int) -> None:
        """An outbox ends at ``end`` now; somebody's position is above it, and says so until it is mended."""
        self.oracle.outbox_lost(partition, end)
        self._told |= {f"outbox/{partition}:": None, f"outbox {partition}:": None}
        self.unmended[partition] = None
        for hear in self.on_outbox_lost:
            hear(partition)

    def archive(self, host: "Host", request: ArchiveRequest, answer: Any) -> None:
        """The archive applied a request."""
        if type(request) is WriteArchive:
            self.archived.update(dict.fromkeys(row.message_id for row in request.rows))
        elif type(request) is ExpireArchive:
            self.expired_before = max(self.expired_before, request.before_wall)

    def appended(
        self, partition: "Partition", host: "Host", effect: Append, stored: tuple[StoredRecord, ...]
    ) -> None:
        """A log holds new records."""
        self.landed_in(partition, host, stored, again=host.node.role == "operator")

    def landed_in(
        self,
        partition: "Partition",
        host: "Host",
        stored: tuple[StoredRecord, ...],
        *,
        again: bool = False,
    ) -> None:
        """What a log holds; ``again``: whoever mends it appended them."""
        oracle = self.oracle
        if partition.topic is Topic.OUTBOX:
            if again:
                self.unmended.pop(partition.number, None)
            for record in stored:
                effective = oracle.outboxed(partition.number, record, again=again)
                if effective is not None:
                    self.landed.setdefault(effective.record.message_id, self.now())
                    for hear in self.on_effective:
                        hear(effective)
            return
        if partition.topic is not Topic.DISPATCH:
            return
        for record in stored:
            expected = oracle.dispatched(partition.number, record)
            for listen in self.on_dispatched:
                listen(host, partition.number, record, expected)

    def sent(self, host: "Host", effect: Send) -> None:
        """A process sent a message to another."""
        for hear in self.on_sent.get(type(effect.message), ()):
            hear(host, effect)

    def mailbox_lost(self) -> None:
        """The mailbox store restarted or was emptied."""
        for hear in self.on_mailbox_lost:
            hear()

    def refreshing(self, host: "Host", effect: RefreshPresence) -> None:
        """A gateway keeps entries alive."""
        for hear in self.on_refreshing:
            hear(host, effect)

    def notice(self, device: "Device", effect: Any) -> None:
        """A client told its user something."""
        for hear in self.on_notice.get(type(effect), ()):
            hear(device, effect)

    def local(self, device: "Device", request: Any, answer: Any) -> None:
        """A device's disk took an order."""
        for hear in self.on_local.get(type(request), ()):
            hear(device, request, answer)

    def observed(self, host: "Host", effect: Observation) -> None:
        """A machine said what it saw; a Violation is one of ours to explain."""
        kind = type(effect)
        if kind is Count:
            name = f"{effect.name}.{effect.label}" if effect.label else effect.name  # type: ignore[union-attr]
            self.counts[name] = self.counts.get(name, 0) + effect.value  # type: ignore[union-attr]
        elif kind is StageReached:
            stage = str(effect.stage)  # type: ignore[union-attr]
            self.stages[stage] = self.stages.get(stage, 0) + 1
        elif kind is Violation:
            self._violated(effect.check, host.node.role, effect.detail)  # type: ignore[union-attr]

    def _violated(self, check: str, role: str, detail: str) -> None:
        """What a loss must be told by is no fault, where a person mends it: it is counted."""
        named = any(name in detail for name in self._told)
        amid = check == Invariant.ORPHAN_DISPATCH and self._told and not self.settled
        if (check in DETECTED and named) or amid:
            self.count(f"detected_{check}")
            return
        self.found(check, role, detail)


def _nothing(request: Any) -> None:
    """No store yet."""


def _first() -> int:
    """No store yet."""
    return 1
