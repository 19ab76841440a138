"""Mutants: the same world with one rule of the product broken, to see whether the checkers see anything.

An override exchanges the code of one function (or one script's text) for the length of a run, found by name and by the
text it replaces: a rename or a rewrite of the rule breaks the build, not the score. ``checks`` is the SET of right kills:
a world that ends in other violations only has not caught the mutant, it has tripped over it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import Any, Final

from msgspec import Struct

PROFILE: Final = "swarm"


class Override(Struct, frozen=True, kw_only=True):
    """``function`` runs ``code`` instead of its own, wherever it was imported to."""

    function: Any
    code: CodeType


class Mutant(Struct, frozen=True, kw_only=True):
    """One broken rule. ``scripts``: name -> whole text of scripts that differ; ``rule``: where the rule stands.

    ``profile``: where it is hunted; another than the generic one only where that has no such worlds at all.
    """

    name: str
    rule: str
    checks: frozenset[str]
    overrides: tuple[Override, ...] = ()
    scripts: Mapping[str, str] = {}
    profile: str = PROFILE


class Kill(Struct, frozen=True, kw_only=True):
    """How a hunt ended: ``checks`` are the right ones that fired ((): it survived), after ``seeds`` and ``events``.

    ``wrong``: what fired in worlds where none of the right checks did.
    """

    mutant: str
    checks: tuple[str, ...]
    seeds: int
    events: int
    wrong: tuple[str, ...] = ()

    @property
    def killed(self) -> bool:
        """By a right check."""
        return bool(self.checks)


@contextmanager
def applied(overrides: Sequence[Override]) -> Iterator[None]:
    """While this is open, the overrides run."""
    before = [override.function.__code__ for override in overrides]
    try:
        for override in overrides:
            override.function.__code__ = override.code
        yield
    finally:
        for override, code in zip(overrides, before, strict=True):
            override.function.__code__ = code
