"""What the lease keeper has asked and not been answered yet: one record an op."""

from msgspec import Struct

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
