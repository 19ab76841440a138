"""Mutants of what a mailbox forgets, what it passes over for a device without a cursor, and how that device is made whole."""

from qim.sim.mutants import Mutant
from tests.sim.mutants.making import LOST, mutant
from tests.sim.mutants.rewriting import rescript, rewrite

TRIM = "qim.core.mailbox.trim"


def windows() -> list[Mutant]:
    """All of them; raises Unbound where a rule has moved."""
    return [*_trims(), *_cursors(), *_rebuilds()]


def _trims() -> list[Mutant]:
    return [
        mutant(
            "trim_passes_w",
            "pipeline §3.4: trim never exceeds min W",
            {"trim_beyond_w"},
            rewrite(
                f"{TRIM}:trim",
                ("shard.seq_of(first) - 1", "shard.seq_of(shard.next_offset) - 1"),
                (" or end > shard.lanes.minimum()", ""),
            ),
            rescript("trim_mailbox", (" or below(least_watermark(shard[2]), to)", "")),
            rewrite(
                "qim.core.mailbox.shard:Shard.check",
                ('assert self.trim <= minimum, "trim passed a lane"', "pass"),
            ),
        ),
        mutant(
            "trim_within_retention",
            "pipeline §3.4: a day range goes when all of it is older than retention",
            {"trim_too_young"},
            rewrite(f"{TRIM}:trim", ("config.mailbox_retention_ms > wall", "0 > wall")),
        ),
    ]


def _cursors() -> list[Mutant]:
    return [
        mutant(
            "read_back_from_w",
            "pipeline §6: AUTH with no cursor answers the read-back position, never sync_to_seq",
            {"read_back"},
            rewrite(
                f"{TRIM}:read_back_seq",
                ("max(min(seq, shard.watermark(lane)), shard.trim)", "shard.watermark(lane)"),
            ),
        ),
        mutant(
            "trimmed_cursor_reads_on",
            "contract, cursor judgement: before the effective trim is CURSOR_EXPIRED, and leads to REBUILD",
            {"covered_through_gap"} | LOST,
            rewrite(
                "qim.core.contract.cursor:judge",
                ("CursorVerdict.EXPIRED if cursor.seq < shard.trim_seq else ", ""),
            ),
            rewrite(
                "qim.core.mailbox.pull:Pulls._take_rows",
                ("if pull.cursor.seq < rows.trim:", "if False:"),
            ),
        ),
    ]


def _rebuilds() -> list[Mutant]:
    return [
        mutant(
            "rebuild_trusts_the_mailbox",
            "pipeline §6: while REBUILDING only HISTORY_BATCH moves an anchor",
            {"delivered", "ledger"},
            rewrite(
                "qim.core.client.hearing:hear",
                ("moves_anchors=parts.rebuilding.is_done()", "moves_anchors=True"),
            ),
        ),
        mutant(
            "rebuild_ends_with_the_mailbox",
            "pipeline §6: a rebuild pulls history newer from every anchor before it is done",
            {"delivered", "ledger"},
            rewrite(
                "qim.core.client.sessions:Sessions._begin_walk",
                ("self.walk.begin(WalkKind.REBUILD)", "self._rebuilding.finish()"),
            ),
        ),
    ]
