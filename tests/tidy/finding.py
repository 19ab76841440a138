"""What a house rule says about a place in the tree."""

import re
from typing import NamedTuple


class Finding(NamedTuple):
    """One broken rule: `path` from the project's root, `line` from 1, `rule` the checker's name."""

    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: [{self.rule}] {self.text}"


def line_of(source: str, match: re.Match[str]) -> int:
    """The line, from 1, in which a match begins."""
    return source.count("\n", 0, match.start()) + 1
