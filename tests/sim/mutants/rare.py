"""Mutants that fresh worlds meet too rarely to hunt: each is killed in a saved world that once showed its rule broken."""

from qim.sim.mutants import Mutant
from tests.sim.mutants.making import LOST, mutant
from tests.sim.mutants.rewriting import rewrite

UNFENCED = ("yield from source.fenced(partition, self._fresh_key)", "yield from ()")


def rare() -> dict[str, Mutant]:
    """Saved world -> its mutant; raises Unbound where a rule has moved."""
    return {
        "recalled-after-one-has-left": mutant(
            "summary_of_a_former_member_kept",
            "pipeline §4: no dispatch tells who has left of a recall, so nothing of his is kept",
            {"unread", "preview"},
            rewrite(
                "qim.core.writer.query:Tally.summary",
                ("valid_until=self.until if present else 0", "valid_until=self.until"),
            ),
        ),
        "ids-of-a-last-life": mutant(
            "ids_before_the_instance_lease",
            "contract, message_id: instance and the epoch of its lease make ids of two lives differ",
            {"effective_once", "commit_once", "ack_coordinates"},
            rewrite(
                "qim.core.writer.machine:Writer._on_lease_held",
                ("if self._nameless:", "if False:"),
            ),
        ),
        "cursor-lost-and-anchors-kept": mutant(
            "lost_cursor_reads_on",
            "pipeline §6: anchors without a cursor: the disk has lost it, and the device rebuilds",
            {"delivered"},
            rewrite(
                "qim.core.client.rebuilding:Rebuilding.load",
                ("loaded.cursor is None and loaded.anchored", "False"),
            ),
        ),
        "gone-by-another-clock": mutant(
            "gone_is_waited_for",
            "pipeline §3.3: a miss that retention explains is a tombstone, whoever's clock let it go",
            {"unanswered", "mailbox"} | LOST,
            rewrite(
                "qim.core.mailbox.joining:Joining._explains",
                ("max(self.wall, pull.let_go - 1)", "self.wall"),
            ),
        ),
        **_bumped(),
    }


def _bumped() -> dict[str, Mutant]:
    return {
        "dispatches-lost-again-before-a-bump": mutant(
            "displaced_taken_for_had",
            "decision 0032: what is named below W and is gone is dispatched again, claims tell",
            {"mailbox", "audit_not_clean"} | LOST,
            rewrite(
                "qim.core.mending.bump:Bump._wanted",
                ("late = _late(placed, counts)", "late = {}"),
            ),
        ),
        "two-shards-bumped-one-after-the-other": mutant(
            "floor_lowered_for_a_copy",
            "decision 0032: what a mailbox had is a duplicate, wherever it is dispatched again",
            {"claims"},
            rewrite(
                "qim.core.mending.bump:Bump._wanted",
                ("for at, one in lost if at >= offset", "for at, one in placed if at >= offset"),
            ),
        ),
        "bump-left-before-fanout-was-woken": mutant(
            "fanout_left_asleep",
            "decision 0021: a procedure can be run again after any stop",
            LOST,
            rewrite("qim.core.mending.bump:Bump._judged", UNFENCED),
        ),
        "commit-that-came-after-a-bump": mutant(
            "commit_under_way_comes_late",
            "decision 0032: fanout's fence is raised before its receipts are read",
            {"mailbox", "audit_not_clean"} | LOST,
            rewrite("qim.core.mending.bump:Bump._judged", UNFENCED),
        ),
        "rebuilt-before-fanout-had-come-again": mutant(
            "lists_left_to_fanout",
            "decision 0032: what the projection had not read goes into the lists by the bump itself",
            LOST,
            rewrite(
                "qim.core.mending.bump:Bump._do",
                ("yield from put_in_lists(rows,", "yield from put_in_lists((),"),
            ),
        ),
    }
