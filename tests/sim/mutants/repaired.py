"""Mutants of what a repair of an outbox must bring back and must not bring twice (pipeline §§1.7, 7, decision 0021)."""

from qim.sim.mutants import Mutant
from tests.sim.mutants.making import LOST, mutant
from tests.sim.mutants.rewriting import rescript, rewrite

PROFILE = "repaired"
UNTOLD = {"mailbox", "audit_not_clean", "audit_blind", "audit_ledger"}
"""Something is in no mailbox, whoever says so."""
UNARCHIVED = {"archived", "archive_watermark", "archiver_at_end"}
MEANS_NOTHING = {"ineffective_applied", "mark_effective", "ack_without_append"}
"""What stands behind a higher barrier was taken for a record."""


def repaired() -> list[Mutant]:
    """All of them; raises Unbound where a rule has moved."""
    return [*_published(), *_told()]


def _published() -> list[Mutant]:
    outbox = "qim.core.mending.outbox:OutboxRepair"
    return [
        mutant(
            "repair_publishes_nothing",
            "decision 0021: what is lost is known from the facts, and published again",
            LOST | UNTOLD | UNARCHIVED | {"history"},
            rewrite(
                f"{outbox}._do",
                ("before = [bodies[one] for one in lost if one in receipts]", "before = []"),
                ("after = [bodies[one] for one in lost if one not in receipts]", "after = []"),
            ),
            profile=PROFILE,
        ),
        mutant(
            "repair_fills_nothing_up",
            "decision 0021: barriers up to where positions had been; offsets never mean two things",
            {"claims", "receipts", "effective_once"} | LOST | UNTOLD,
            rewrite(
                f"{outbox}._plan", ("padding=max(0, found.stood() - found.log.end)", "padding=0")
            ),
            profile=PROFILE,
        ),
        mutant(
            "repair_leaves_fanout_before_what_comes_again",
            "decision 0021: what was dispatched is published before fanout is put behind it",
            {"claims"} | UNTOLD,
            rewrite(
                f"{outbox}._do",
                ("if passed:\n        redispatched", "if False:\n        redispatched"),
            ),
            profile=PROFILE,
        ),
        mutant(
            "repair_forgets_what_was_written_over",
            "decision 0021: what its writer appended last, where others had stood, is published again",
            LOST | UNTOLD | UNARCHIVED | {"effective_once"},
            rewrite(f"{outbox}._do", ("again = yield from found.written_over()", "again = []")),
            profile=PROFILE,
        ),
        mutant(
            "repair_leaves_the_archiver",
            "decision 0021: the archiver is put to where it stood, in the log as it is now",
            UNARCHIVED,
            rewrite(f"{outbox}._do", ("if self._tiered:", "if False:")),
            profile=PROFILE,
        ),
    ]


def _told() -> list[Mutant]:
    return [
        mutant(
            "repair_tells_the_store_the_filter_it_had",
            "pipeline §1.7: the filter is a function of the log prefix, as it stands after a repair",
            MEANS_NOTHING,
            rescript(
                "apply_outbox",
                (
                    "'f', ARGV[6], 'd', ARGV[5] .. ARGV[8])\n  end",
                    "'d', ARGV[5] .. ARGV[8])\n  end",
                ),
            ),
            profile=PROFILE,
        ),
        mutant(
            "any_outbox_is_the_one",
            "pipeline §7: a position names the record before it, and is judged by it",
            {"loss_unnoticed"} | LOST,
            rewrite(
                "qim.core.mending.looking:verdict",
                (
                    "found = judge_ends(position, log.topic_id, log.start, log.end)",
                    "found = Verdict.TRUSTED",
                ),
            ),
            profile=PROFILE,
        ),
    ]
