"""Wall time inside a machine: read off the latest stamp that an edge put on an event, carried on by monotonic time."""

from qim.core.machine import Ms


class WallClock:
    """The wall clock of this node as the machine may know it; before the first stamp it stands at 0."""

    def __init__(self) -> None:
        self._wall: Ms = 0
        self._at: Ms = 0

    def stamp(self, now: Ms, wall: Ms) -> None:
        """An event said that at monotonic ``now`` the wall clock stood at ``wall``."""
        self._wall = wall
        self._at = now

    def read(self, now: Ms) -> Ms:
        """Wall ms at monotonic ``now``, never negative."""
        return max(0, self._wall + now - self._at)
