"""Checkers: one history in, verdicts out; one question a file (simulator.md, "Checkers")."""

from qim.sim.checkers.ack_after_mark import AckAfterMark
from qim.sim.checkers.acts import Acts
from qim.sim.checkers.apply_once import ApplyOnce
from qim.sim.checkers.archives import Archives
from qim.sim.checkers.audit_judged import AuditJudged
from qim.sim.checkers.claims import Claims
from qim.sim.checkers.commit_once import CommitOnce
from qim.sim.checkers.contiguous_batches import ContiguousBatches
from qim.sim.checkers.delivered import DeliveredNeverLeads
from qim.sim.checkers.fences import Fences
from qim.sim.checkers.history_pages import HistoryPages
from qim.sim.checkers.liveness import Liveness
from qim.sim.checkers.mailbox_windows import MailboxWindows
from qim.sim.checkers.presence import Presence
from qim.sim.checkers.projections import Projections
from qim.sim.checkers.recalled_bodies import RecalledBodies
from qim.sim.checkers.receipts import ReceiptsBeforeCheckpoint
from qim.sim.checkers.sessions import Sessions
from qim.sim.checkers.visibility import Visibility
from qim.sim.checkers.watermarks import Watermarks
from qim.sim.history import Checker


def all_checkers() -> list[Checker]:
    """A fresh one of each."""
    return [
        CommitOnce(),
        AckAfterMark(),
        Fences(),
        Claims(),
        ReceiptsBeforeCheckpoint(),
        Watermarks(),
        MailboxWindows(),
        ContiguousBatches(),
        Visibility(),
        ApplyOnce(),
        Archives(),
        HistoryPages(),
        RecalledBodies(),
        DeliveredNeverLeads(),
        Presence(),
        Acts(),
        Projections(),
        Liveness(),
        Sessions(),
        AuditJudged(),
    ]


__all__ = ["all_checkers"]
