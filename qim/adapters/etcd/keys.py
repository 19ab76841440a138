"""The keys under one prefix, and their values as JSON or decimal, so that `etcdctl get --prefix` can be read.

    <prefix>epoch/<role>/<number>                       the highest epoch ever granted or raised; never leased
    <prefix>lease/<role>/<number>                       who holds it: `Holder`; on an etcd lease of this grant alone
    <prefix>barrier/<role>/<number>/<epoch>/<offset>    nothing; sorted by epoch, then offset
    <prefix>peer/<role>/<owner>                         the address of a live instance; on an etcd lease of its own
    <prefix>shared                                      one JSON object of the numbers every process must share

The numbers in a barrier's key have 20 digits each, so that keys sort as they do.
"""

from typing import Final

import msgspec
from msgspec import Struct

from qim.core.ports.registry import Resource, Role

DIGITS: Final = 20
ROLES: Final = frozenset(role.value for role in Role)


class Holder(Struct, frozen=True, kw_only=True, gc=False):
    """The value of a lease key. ``epoch``: of this grant; the epoch key may have been raised since."""

    owner: str
    address: str
    epoch: int
    ttl_ms: int


class Keys:
    """Builds keys and takes them apart; ``prefix`` ends in a slash."""

    def __init__(self, prefix: str) -> None:
        assert prefix.endswith("/"), prefix
        self.prefix = prefix.encode()
        self.shared = self.prefix + b"shared"
        self.leases = self.prefix + b"lease/"
        self.all_peers = self.prefix + b"peer/"

    def epoch(self, resource: Resource) -> bytes:
        return self.prefix + f"epoch/{resource.role.value}/{resource.number}".encode()

    def lease(self, resource: Resource) -> bytes:
        return self.leases + f"{resource.role.value}/{resource.number}".encode()

    def leases_of(self, role: Role) -> bytes:
        """What the keys of all leases of a role begin with."""
        return self.leases + f"{role.value}/".encode()

    def barriers(self, resource: Resource) -> bytes:
        """What the keys of all barriers of the resource begin with."""
        return self.prefix + f"barrier/{resource.role.value}/{resource.number}/".encode()

    def barrier(self, resource: Resource, epoch: int, offset: int) -> bytes:
        return self.barriers(resource) + f"{epoch:0{DIGITS}}/{offset:0{DIGITS}}".encode()

    def peers(self, role: Role) -> bytes:
        """What the keys of all instances of the role begin with."""
        return self.all_peers + f"{role.value}/".encode()

    def peer(self, role: Role, owner: str) -> bytes:
        return self.peers(role) + owner.encode()

    def resource(self, key: bytes) -> Resource | None:
        """Of a lease's key; None for other keys, and for those of a role that this version doesn't know."""
        role, _, number = key.removeprefix(self.leases).decode("utf-8", "replace").partition("/")
        if not key.startswith(self.leases) or role not in ROLES or not number.isdecimal():
            return None
        return Resource(role=Role(role), number=int(number))

    def role_of_peer(self, key: bytes) -> Role | None:
        """Of an instance's key; None as for ``resource``."""
        role = key.removeprefix(self.all_peers).split(b"/", 1)[0].decode("utf-8", "replace")
        return Role(role) if key.startswith(self.all_peers) and role in ROLES else None


def barrier_place(key: bytes) -> tuple[int, int]:
    """(epoch, offset) in the key of a barrier."""
    _, epoch, offset = key.rsplit(b"/", 2)
    return int(epoch), int(offset)


def range_end(begin: bytes) -> bytes:
    """The first key behind all that begin with ``begin``; its last byte is a slash and has a successor."""
    return begin[:-1] + bytes([begin[-1] + 1])


def name_in(key: bytes, begin: bytes) -> str | None:
    """What follows ``begin``; None where it is no text, and so of nobody of ours."""
    try:
        return key[len(begin) :].decode()
    except UnicodeDecodeError:
        return None


def decode_epoch(value: bytes) -> int:
    """Raises msgspec.DecodeError on what is no number."""
    return msgspec.json.decode(value, type=int)


def encode_holder(holder: Holder) -> bytes:
    return msgspec.json.encode(holder)


def decode_holder(value: bytes) -> Holder:
    """Raises msgspec.DecodeError on what is no holder."""
    return msgspec.json.decode(value, type=Holder)
