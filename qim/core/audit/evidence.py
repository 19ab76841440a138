"""What the walks of one run share: the run's findings, the queue of reads, and what was read of logs and stores."""

from typing import Any

from qim.core.audit.log_lookup import LogLookup
from qim.core.audit.mailboxes import Mailboxes
from qim.core.audit.reads import MailboxPage, OffsetsOf, Purpose, Reads, VersionsOf
from qim.core.audit.run import AuditRun
from qim.core.audit.tenure import Tenure
from qim.core.audit.versions import Versions
from qim.core.audit.vocabulary import AuditConfig
from qim.core.ports.log import Fetch, Topic


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

    def take(self, purpose: Purpose, reply: Any) -> bool:
        """An answer for one of the shared readers; False where it is the walk's own."""
        match purpose:
            case OffsetsOf():
                self.lookup.take(purpose, reply)
            case VersionsOf():
                self.versions.take(reply)
            case MailboxPage():
                self.mailboxes.take(purpose, reply)
            case _:
                return False
        return True

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
