"""What the lease keeper has asked and not been answered yet, one record an op; and the effects of the present step."""

from msgspec import Struct

from qim.core.lease.vocabulary import LeaseEffect
from qim.core.machine import Ms
from qim.core.ports.registry import Resource, Role


class AcquireSent(Struct, frozen=True, kw_only=True, gc=False):
    """A grant is awaited; ``sent`` is when its validity began to run."""

    resource: Resource
    sent: Ms
    only_to_release: bool = False
    """An unanswered one may have been granted though nobody wants it any more: asked again to give that back."""


class RaiseSent(Struct, frozen=True, kw_only=True, gc=False):
    """The registry is to be raised above an epoch that was seen."""

    resource: Resource
    above: int


class RenewSent(Struct, frozen=True, kw_only=True):
    """These leases, under these epochs, were to be extended."""

    leases: tuple[tuple[Resource, int], ...]
    sent: Ms


class AnnounceSent(Struct, frozen=True, kw_only=True, gc=False):
    """Who else lives is to be told."""

    role: Role


class ReleaseSent(Struct, frozen=True, kw_only=True, gc=False):
    """So many leases were given back."""

    count: int


LeasePending = AcquireSent | RaiseSent | RenewSent | AnnounceSent | ReleaseSent


class Orders:
    """The counter of ops, what each is about, how many grants are awaited, and the effects so far."""

    __slots__ = ("acquiring", "last_op", "out", "pending")

    def __init__(self) -> None:
        self.acquiring = 0
        self.last_op = 0
        self.pending: dict[int, LeasePending] = {}
        self.out: list[LeaseEffect] = []

    def op(self, sent: LeasePending) -> int:
        """A new op; its completion will find what it was about."""
        self.last_op += 1
        self.pending[self.last_op] = sent
        self.acquiring += isinstance(sent, AcquireSent)
        return self.last_op

    def settled(self, op: int) -> LeasePending | None:
        """What it was about; None: nothing waits for it (any more)."""
        sent = self.pending.pop(op, None)
        self.acquiring -= isinstance(sent, AcquireSent)
        return sent

    def give(self, effect: LeaseEffect) -> None:
        """One more effect of this step."""
        self.out.append(effect)

    def taken(self) -> list[LeaseEffect]:
        """The effects of this step, and a new list for the next."""
        out, self.out = self.out, []
        return out
