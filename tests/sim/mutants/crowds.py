"""Mutants of groups greater than a broadcast: whom a change is sent to, and what history shows to all others."""

from qim.sim.mutants import Mutant
from tests.sim.mutants.making import LOST, mutant
from tests.sim.mutants.rewriting import rewrite

PROFILE = "crowd"


def crowds() -> list[Mutant]:
    """All of them; raises Unbound where a rule has moved."""
    grown = "qim.core.writer.membership:_grown"
    return [
        mutant(
            "everybody_is_told_everything",
            "pipeline §1.9: beyond the broadcast a change is sent to the changed users and the actor",
            {"change_audience"},
            rewrite(grown, ("if len(members) <= limits.broadcast_max:", "if True:")),
            profile=PROFILE,
        ),
        mutant(
            "the_actor_is_not_told",
            "pipeline §1.9: the actor is among the few whom a change of a great group is sent to",
            {"change_audience"},
            rewrite(grown, ("tuple(sorted({*users, user_id}))", "tuple(sorted(users))")),
            profile=PROFILE,
        ),
        mutant(
            "the_removed_are_not_told",
            "pipeline §1.9: a broadcast goes to the members of both versions",
            {"change_audience"} | LOST,
            rewrite(grown, ("tuple(sorted({*before.members, *members}))", "members")),
            profile=PROFILE,
        ),
        mutant(
            "history_from_the_beginning",
            "contract, Entities: history gives what lies in (joined_at, left_at]",
            {"visibility", "history"},
            rewrite(
                "qim.core.writer.scan:ranges_of",
                ("max(low, joined_at), min(high, left_at + 1)", "low, min(high, left_at + 1)"),
            ),
            profile=PROFILE,
        ),
    ]
