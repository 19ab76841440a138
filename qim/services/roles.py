"""The parts a process can play, and what each holds leases on (architecture.md, the table of stages)."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from qim.core.contract.params import Parameters
from qim.core.ports.registry import Role


class ServiceRole(StrEnum):
    """What `qim serve` can be; the value names the hosted machine in metrics and logs."""

    GATEWAY = "gateway"
    WRITER = "writer"
    FANOUT = "fanout"
    MAILBOX = "mailbox"
    SESSION = "session"
    ARCHIVER = "archiver"
    AUDITOR = "auditor"


LEASED: Final[Mapping[ServiceRole, Role]] = {
    ServiceRole.WRITER: Role.WRITER,
    ServiceRole.FANOUT: Role.FANOUT,
    ServiceRole.MAILBOX: Role.MAILBOX,
    ServiceRole.SESSION: Role.SESSION,
    ServiceRole.ARCHIVER: Role.ARCHIVER,
    ServiceRole.AUDITOR: Role.AUDITOR,
}
"""Roles that share numbered resources by leases; of auditors one owns all coverage. A gateway owns its sockets alone."""
SERVES: Final[Mapping[ServiceRole, str]] = {
    ServiceRole.WRITER: "writer shards",
    ServiceRole.FANOUT: "fanout partitions",
    ServiceRole.MAILBOX: "mailbox shards",
    ServiceRole.SESSION: "session shards",
    ServiceRole.ARCHIVER: "archiver partitions",
    ServiceRole.AUDITOR: "coverages",
}
DRAIN_ORDER: Final = (
    ServiceRole.GATEWAY,
    ServiceRole.SESSION,
    ServiceRole.WRITER,
    ServiceRole.FANOUT,
    ServiceRole.MAILBOX,
    ServiceRole.ARCHIVER,
)
"""Gateways first, so that acks in flight still go out."""


def resources(role: ServiceRole, parameters: Parameters) -> int:
    """How many leases of the role there are: one a mailbox shard or one an outbox partition; one of the auditor."""
    if role is ServiceRole.AUDITOR:
        return 1
    if role in (ServiceRole.MAILBOX, ServiceRole.SESSION):
        return parameters.shard_count
    return parameters.outbox_partition_count
