"""Who opens a leased resource, and the key with which a try of it would mark an empty keyspace (pipeline.md §0).

A registry that was put back from an older copy grants an epoch twice. The fence keeps who raised it to that epoch, so that
an owner's own retry is told apart from a second owner, who is Fenced and takes an epoch above.
"""

from qim.core.contract.hashing import H
from qim.core.machine import Choose
from qim.core.ports.registry import Role


class Opener:
    """One machine of one process. ``name``: 16 bytes that no other machine has, and none of a later life."""

    __slots__ = ("_choose", "_role", "name")

    def __init__(self, choose: Choose, role: Role) -> None:
        self._choose = choose
        self._role = role
        entropy = [choose(f"{role}.opener", (half,)) for half in (0, 1)]
        self.name = H("qim.opener", role, *entropy)

    def fresh_key(self, number: int, epoch: int, op: int) -> bytes:
        """What would mark an empty keyspace; another one for each try.

        A key that an earlier try brought could be written again, late, after FLUSHALL, and an emptied keyspace would pass
        for the incarnation that was lost.
        """
        place = (number, epoch, op)
        entropy = [self._choose(f"{self._role}.fresh_key", (*place, half)) for half in (0, 1)]
        return H("qim.incarnation", self._role, *place, *entropy)
