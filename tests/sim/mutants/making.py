"""What the boards share: how a mutant is put together, and the checks that see a loss."""

from qim.sim.mutants import PROFILE, Mutant

LOST = {"delivered", "fanout_at_end", "mailbox_at_end", "intent_settled"}
"""Something never arrives: the end of the world sees it."""


def mutant(
    name: str, rule: str, checks: set[str], *parts: object, profile: str = PROFILE
) -> Mutant:
    """``parts``: overrides, and dicts of whole scripts."""
    overrides = tuple(part for part in parts if not isinstance(part, dict))
    scripts: dict[str, str] = {}
    for part in parts:
        if isinstance(part, dict):
            scripts |= part
    return Mutant(
        name=name,
        rule=rule,
        checks=frozenset(checks),
        overrides=overrides,  # type: ignore[arg-type]
        scripts=scripts,
        profile=profile,
    )
