"""What the walks of one run share: the run's findings, the queue of reads, and what was read of logs and stores."""

from typing import Any

from qim.core.audit.log_lookup import LogLookup
from qim.core.audit.mailboxes import Mailboxes
from qim.core.audit.reads import (
    EndNow,
    MailboxPage,
    OffsetsOf,
    Purpose,
    Reads,
    StillThere,
    VersionsOf,
)
from qim.core.audit.run import AuditRun, PartitionCut
from qim.core.audit.tenure import Tenure
from qim.core.audit.versions import Versions
from qim.core.audit.vocabulary import AuditConfig
from qim.core.ports.log import Fetch, ReadEnds, Topic


class Evidence:
    """Of one run; nothing in it survives the run."""

    def __init__(self, run: AuditRun, config: AuditConfig, reads: Reads, tenure: Tenure) -> None:
        self.run = run
        self.tenure = tenure
        self.config = config
        self.reads = reads
        self.lookup = LogLookup(reads, config)
        self.versions = Versions(reads, config)
        self.mailboxes = Mailboxes(reads, config, run)
        self.walked: dict[int, bytes] = {}
        """The digest of the last record that was walked of an outbox partition."""
        self._ends: dict[int, int] = {}

    def take(self, purpose: Purpose, reply: Any) -> bool:
        """An answer for one of the shared readers; False where it is the walk's own."""
        match purpose:
            case OffsetsOf():
                self.lookup.take(purpose, reply)
            case VersionsOf():
                self.versions.take(reply)
            case MailboxPage():
                self.mailboxes.take(purpose, reply)
            case EndNow():
                self._ends[purpose.number] = reply.end
            case _:
                return False
        return True

    def ask_end(self, number: int, offset: int) -> None:
        """Something that was just read names ``offset`` of this outbox partition: ask for its end, unless that is known to be above."""
        if offset >= self._ends.get(number, 0):
            request = ReadEnds(op=0, topic=Topic.OUTBOX, partition=number)
            self.reads.ask(request, EndNow(number))

    def lost_from(self, number: int, offset: int) -> int | None:
        """The end of the partition, where it is not above ``offset``: a record that stood there has been lost."""
        end = self._ends.get(number)
        return end if end is not None and end <= offset else None

    def ask_whether_walked_stands(self, cut: PartitionCut) -> None:
        """A log that lost its tail and grew again meanwhile has records that nobody walked (decision 0029)."""
        if cut.number not in self.walked:
            return
        request = Fetch(
            op=0,
            topic=Topic.OUTBOX,
            partition=cut.number,
            offset=cut.walked_to,
            limit=1,
            bytes_max=1,
            wait_ms=0,
            before=self.walked[cut.number],
        )
        self.reads.ask(request, StillThere(cut.number))

    def window(self, topic: Topic, number: int, low: int, end: int) -> Fetch:
        """The request for a window of [low, end)."""
        return Fetch(
            op=0,
            topic=topic,
            partition=number,
            offset=low,
            limit=min(self.config.window_records_max, end - low),
            bytes_max=self.config.fetch_bytes_max,
            wait_ms=0,
        )
