"""Mutants of what an operator's act must keep and bring back (pipeline §7, decisions 0021 and 0032)."""

from qim.sim.mutants import Mutant
from tests.sim.mutants.making import LOST, mutant
from tests.sim.mutants.rewriting import rescript, rewrite

PROFILE = "mended"
UNTOLD = {"mailbox", "watermarks", "covered_through_gap", "audit_not_clean", "audit_blind"}
"""Something is in no mailbox, whoever says so."""


def mended() -> list[Mutant]:
    """All of them; raises Unbound where a rule has moved."""
    bump = "qim.core.mending.bump:Bump"
    return [
        mutant(
            "bump_redoes_nothing",
            "pipeline §7: fanout goes again from the smallest offset whose receipt names one above the old W",
            LOST | UNTOLD,
            rewrite(f"{bump}._do", ("if first < checkpoint:", "if False:")),
            profile=PROFILE,
        ),
        mutant(
            "bump_voids_no_claim",
            "pipeline §7: a bump voids claims above the old W",
            LOST | UNTOLD,
            rescript("bump_shard", ("or below(offset, ARGV[5])", "or true")),
            profile=PROFILE,
        ),
        mutant(
            "bump_voids_every_claim",
            "decision 0032: what a mailbox had materialised is a duplicate after the bump",
            {"claims"},
            rescript(
                "bump_shard",
                ("if offset == EARLIER or below(offset, ARGV[5]) then", "if false then"),
            ),
            profile=PROFILE,
        ),
        mutant(
            "bump_leaves_the_projection",
            "decision 0032: a bump is over when the projection's epoch is the mailbox's",
            LOST | {"session_at_end", "unanswered", "projected_through"},
            rewrite(
                f"{bump}._restart",
                ("yield from ask(request, ProjectionRestarted)", "yield from ()"),
            ),
            profile=PROFILE,
        ),
        mutant(
            "any_log_is_the_one",
            "pipeline §7: a position names the record before it, and is judged by it",
            {"loss_unnoticed"},
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
