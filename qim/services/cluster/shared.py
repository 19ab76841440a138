"""The numbers that every process of a deployment must share, as the registry keeps them (contract.md, Routing).

Whoever starts first writes them, whoever comes with others is refused. Windows and retention may be changed by an operator
while no process holds a lease; what data was laid out by may not.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import uvloop
from msgspec import Struct

from qim.adapters.start_refused import StartRefused
from qim.core.contract.params import DAY_MS, SHARED
from qim.core.ports.registry import LeaseRead, ReadLease, Resource
from qim.core.retention import RetentionPolicy
from qim.services.hosting import Deployment
from qim.services.roles import LEASED, resources
from qim.services.settings import Settings, parameter_faults, registry_faults
from qim.services.settings.model import VARIABLE_OF

DIGEST: Final = "shared_digest"
TENANTS: Final = "tenant_retention"
VARIABLES: Final[Mapping[str, str]] = {
    **{name: VARIABLE_OF[name] for name in SHARED if name in VARIABLE_OF},
    TENANTS: "QIM_TENANT_RETENTION_DAYS",
}
"""By which variable a shared number is told."""
OF_THE_VERSION: Final = "qim --version  # as the others': this number comes with the software"
IN_DAYS: Final = frozenset({"default_retention_ms"})
MAY_CHANGE: Final = frozenset(
    {
        "hot_window_ms",
        "default_retention_ms",
        TENANTS,
        "outbox_recovery_window_ms",
        "dispatch_recovery_window_ms",
        DIGEST,
    }
)


def shared_numbers(deployment: Deployment) -> dict[str, str]:
    """By name, so that a refusal says which one differs; the digest of all of them last."""
    parameters = deployment.parameters
    numbers = {name: _told(getattr(parameters, name)) for name in SHARED}
    numbers[TENANTS] = _tenants(deployment.retention)
    numbers[DIGEST] = parameters.shared_digest().hex()
    return numbers


def remedies(stored: Mapping[str, str]) -> dict[str, str]:
    """For each stored number the command that makes a process come with it; "" for the digest, which follows the others."""
    found = dict.fromkeys(stored, OF_THE_VERSION)
    found |= {DIGEST: ""} if DIGEST in stored else {}
    found |= {
        name: "qim doctor  # says what to do about a topic made anew"
        for name in stored
        if name.startswith("topic_id_")
    }
    for name, variable in VARIABLES.items():
        if name in stored:
            found[name] = f"export {variable}={as_variable(name, stored[name])}"
    return found


def as_variable(name: str, value: str) -> str:
    """A stored number as its variable takes it."""
    if name in IN_DAYS and value.isdigit():
        return str(int(value) // DAY_MS)
    if name == TENANTS and value:
        pairs = [one.rpartition("=") for one in value.split(",")]
        return ",".join(f"{tenant}={int(ms) // DAY_MS}" for tenant, _, ms in pairs)
    return value


class Sharing(Struct, frozen=True, kw_only=True):
    """What `qim config share` found: (stored, told) by name, and whether the registry has the told ones now."""

    differences: dict[str, tuple[str, str]]
    applied: bool


def share(settings: Settings, *, apply: bool) -> Sharing:
    """Compare, and with ``apply`` write. Raises StartRefused: what may not stand, may not change, or is at work."""
    for refused in (*parameter_faults(settings), *registry_faults(settings)):
        raise refused
    return uvloop.run(_share(settings, apply=apply))


async def _share(settings: Settings, *, apply: bool) -> Sharing:
    from qim.services.cluster.adapters import Opened, open_registry

    opened, loop = Opened(), asyncio.get_running_loop()
    try:
        registry = await open_registry(settings, loop, opened)
        deployment = Deployment(parameters=settings.parameters(), retention=settings.retention())
        numbers = shared_numbers(deployment)
        stored = await registry.read_shared()
        differences = {
            name: (stored.get(name, ""), told)
            for name, told in numbers.items()
            if stored.get(name) != told
        }
        fixed = [name for name in differences if name in stored and name not in MAY_CHANGE]
        if fixed:
            raise _fixed(fixed, differences)
        if apply and differences:
            if stored:
                await _require_rest(registry, settings, loop)
            await registry.replace_shared({name: told for name, (_, told) in differences.items()})
        return Sharing(differences=differences, applied=apply)
    finally:
        await opened.close()


async def _require_rest(registry: Any, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
    """Raises StartRefused while anybody holds a lease: it would go on by the old numbers."""
    parameters = settings.parameters()
    for role, lease in LEASED.items():
        for number in range(resources(role, parameters)):
            answered: asyncio.Future[Any] = loop.create_future()
            request = ReadLease(op=1, resource=Resource(role=lease, number=number))
            registry.submit(request, answered.set_result)
            answer = await answered
            if not isinstance(answer, LeaseRead) or answer.owner:
                owner = answer.owner if isinstance(answer, LeaseRead) else "nobody knows whom"
                raise StartRefused(
                    "cluster_at_work",
                    f"the lease of {role} {number}",
                    got=f"held by {owner}",
                    expected="no process at work: it would go on by the old numbers",
                    command="stop every qim serve, then run this again",
                )


def _fixed(names: list[str], differences: Mapping[str, tuple[str, str]]) -> StartRefused:
    stored = {name: differences[name][0] for name in names}
    return StartRefused(
        "shared_parameters_fixed",
        "of the parameters that all processes share " + ", ".join(names),
        got=", ".join(f"{name}={differences[name][1]}" for name in names),
        expected=", ".join(f"{name}={value}" for name, value in stored.items())
        + ": stored data is laid out by it",
        command="; ".join(filter(None, dict.fromkeys(remedies(stored).values()))),
    )


def _told(value: object) -> str:
    return "" if value is None else str(value)


def _tenants(retention: RetentionPolicy) -> str:
    return ",".join(f"{tenant}={ms}" for tenant, ms in sorted(retention.tenants))
