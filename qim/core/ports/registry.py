"""The registry port: leases with epochs, barriers beside them, and the numbers every process must share (pipeline.md §0).

A lease is for liveness only. Every grant carries an epoch greater than every epoch ever granted or raised for the
resource; ``Acquire`` by the present holder is a FRESH epoch too. Validity is ``sent + ttl - margin`` from when the
request was SENT, kept by the asker (core/lease).
"""

from enum import StrEnum

from msgspec import Struct


class Role(StrEnum):
    """Kinds of leased resources; WRITER n is outbox partition n, MAILBOX n is mailbox shard n."""

    WRITER = "writer"
    FANOUT = "fanout"
    MAILBOX = "mailbox"
    SESSION = "session"
    ARCHIVER = "archiver"
    AUDITOR = "auditor"
    INSTANCE = "instance"


class Resource(Struct, frozen=True, kw_only=True, gc=False, order=True):
    """One leased thing."""

    role: Role
    number: int


class Acquire(Struct, frozen=True, kw_only=True, gc=False):
    """Take or re-take a lease. Answers: Granted, Denied, Failed, Unknown."""

    op: int
    resource: Resource
    owner: str
    address: str
    ttl_ms: int


class Granted(Struct, frozen=True, kw_only=True, gc=False):
    """A fresh epoch; ``barrier_epoch``/``barrier_offset`` are the greatest registered barrier (-1 offset: none)."""

    op: int
    resource: Resource
    epoch: int
    barrier_epoch: int
    barrier_offset: int


class Denied(Struct, frozen=True, kw_only=True, gc=False):
    """Another owner holds it for at most ``remaining_ms`` more."""

    op: int
    resource: Resource
    owner: str
    remaining_ms: int


class Renew(Struct, frozen=True, kw_only=True, gc=False):
    """Extend leases held under these epochs. Answers: Renewed, Failed, Unknown."""

    op: int
    owner: str
    leases: tuple[tuple[Resource, int], ...]
    ttl_ms: int


class Renewed(Struct, frozen=True, kw_only=True, gc=False):
    """``lost`` are those no longer ours: expired, taken by nobody or somebody, or under a fresher epoch."""

    op: int
    lost: tuple[Resource, ...]


class Release(Struct, frozen=True, kw_only=True, gc=False):
    """Give leases back at a graceful stop. Answers: Released, Failed, Unknown."""

    op: int
    owner: str
    leases: tuple[tuple[Resource, int], ...]


class Released(Struct, frozen=True, kw_only=True, gc=False):
    """Given back."""

    op: int


class RaiseEpoch(Struct, frozen=True, kw_only=True, gc=False):
    """Make every later grant exceed ``above``. Answers: EpochRaised, Failed, Unknown."""

    op: int
    resource: Resource
    above: int


class EpochRaised(Struct, frozen=True, kw_only=True, gc=False):
    """The registry's last epoch is now at least the one asked for."""

    op: int


class ReadLease(Struct, frozen=True, kw_only=True, gc=False):
    """Who owns it, the highest epoch ever granted or raised, and the greatest barrier with offset < ``barriers_below``.

    A consumer that starts at the log's start needs the barrier retention took (pipeline.md §1.7). Answers: LeaseRead, Failed.
    """

    op: int
    resource: Resource
    barriers_below: int = 2**63 - 1


class LeaseRead(Struct, frozen=True, kw_only=True, gc=False):
    """``address`` is empty when nobody holds it now."""

    op: int
    resource: Resource
    epoch: int
    owner: str
    address: str
    barrier_epoch: int
    barrier_offset: int


BARRIERS_KEPT = 64
"""More OPENs than fit between a consumer's look at the log's start and its question for the barrier below."""


class RegisterBarrier(Struct, frozen=True, kw_only=True, gc=False):
    """Add (epoch, offset) of a barrier beside the lease. Answers: BarrierRegistered, Failed, Unknown.

    ``log_start``: of the log it stands in. Whoever begins at the log's start needs the greatest barrier below it and no other
    (pipeline.md §1.7), so of those below the greatest BARRIERS_KEPT stay and what is less than these may go.
    """

    op: int
    resource: Resource
    epoch: int
    offset: int
    log_start: int = 0


class BarrierRegistered(Struct, frozen=True, kw_only=True, gc=False):
    """Written (again)."""

    op: int


class Announce(Struct, frozen=True, kw_only=True, gc=False):
    """Say that an instance of a role lives (TTL; 0: it goes), and learn who else does. Answers: Peers, Failed, Unknown."""

    op: int
    role: Role
    owner: str
    address: str
    ttl_ms: int


class Peers(Struct, frozen=True, kw_only=True, gc=False):
    """Live instances of the role, sorted by name. ``op`` 0: the registry noticed that somebody came or went."""

    op: int
    role: Role
    owners: tuple[str, ...]


class LeaseTaken(Struct, frozen=True, kw_only=True, gc=False):
    """The registry noticed who holds it now. A hint: it may come late, twice or never."""

    resource: Resource
    owner: str
    address: str


class LeaseFreed(Struct, frozen=True, kw_only=True, gc=False):
    """The registry noticed that nobody holds it any more. A hint: it may come late, twice or never."""

    resource: Resource


RegistryRequest = Acquire | Renew | Release | RaiseEpoch | ReadLease | RegisterBarrier | Announce
RegistryReply = (
    Granted | Denied | Renewed | Released | EpochRaised | LeaseRead | BarrierRegistered | Peers
)
