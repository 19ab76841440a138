"""Facts and orders between machines of ONE process: the lease keeper and the machines whose resources it holds.

The driver hands these over in order and loses none (a crash loses the whole process).
"""

from msgspec import Struct

from qim.core.ports.registry import Resource


class Started(Struct, frozen=True, kw_only=True, gc=False):
    """A new instance begins. ``address`` is this process's name on the network; ``wall`` its wall clock in ms."""

    address: str
    wall: int


class LeaseHeld(Struct, frozen=True, kw_only=True, gc=False):
    """The resource is ours under a FRESH epoch; barrier_* is the greatest registered barrier (offset -1: none)."""

    resource: Resource
    epoch: int
    barrier_epoch: int
    barrier_offset: int
    wall: int


class LeaseGone(Struct, frozen=True, kw_only=True, gc=False):
    """Not ours (lost, expired, given back): stop working on it; nothing in flight may be trusted or retried.

    Told as well of what was not ours before, when the registry notices who holds it: ``owner_address`` is what a NOT_OWNER
    names then, "" where it is not known. A hint, and it may be stale.
    """

    resource: Resource
    owner_address: str = ""


class FreshEpochWanted(Struct, frozen=True, kw_only=True, gc=False):
    """A machine orders a fresh epoch for a resource it holds (StoreReset, Unknown append). Answer: LeaseHeld or LeaseGone.

    ``above``: the registry is first raised so that the grant exceeds it (an epoch seen in a fence or barrier).
    """

    resource: Resource
    above: int = 0


class DrainRequested(Struct, frozen=True, kw_only=True, gc=False):
    """Graceful stop: take no new work, finish what is in flight; the driver waits until ``idle()`` or its own limit."""
