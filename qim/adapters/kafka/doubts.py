"""Whose word is in doubt: a broker that slept believes for a moment what it believed before, and of several each may have slept.

    doubted --a look at the cluster, begun afterwards, answered by another broker or by the only one there is--> settled

An address we began with settles nothing: who answers there may be the one, under another name.
"""


class Doubts:
    """At most one a broker; looks are numbered as they begin."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self._newest: tuple[int | None, int] = (None, 0)
        """Who answered the newest look that settles anything, and its number; None where only one broker is there."""
        self._beside = 0
        """The newest that was answered by somebody else than that one."""

    def begin(self, node: int, look: int) -> None:
        """Looks from this one on were begun afterwards."""
        self._open[node] = look

    def answered(self, look: int, who: object, *, alone: bool) -> bool:
        """By a broker's id, or an address; whether a doubt is left."""
        if alone or isinstance(who, int):
            witness = who if isinstance(who, int) and not alone else None
            if witness != self._newest[0]:
                self._beside = self._newest[1]
            self._newest = (witness, look)
        self._open = {n: first for n, first in self._open.items() if not self.settled(n, first)}
        return bool(self._open)

    def settled(self, node: int, look: int) -> bool:
        """Whether another than ``node`` has answered this look or a later one."""
        witness, newest = self._newest
        return (self._beside if witness == node else newest) >= look

    def rank(self, node: object, known: list[int]) -> int:
        """Least first: those of whom nobody doubts anything; where all are doubted, any of them settles the others' doubts."""
        if not self._open or (isinstance(node, int) and node not in self._open):
            return 0
        if isinstance(node, int) and not self._open.keys() >= {*known}:
            return 2
        return 0 if isinstance(node, int) else 1
