"""The numbers that every process of a deployment must share, as the registry keeps them (contract.md, Routing)."""

from qim.core.contract.params import SHARED
from qim.core.retention import RetentionPolicy
from qim.services.hosting import Deployment


def shared_numbers(deployment: Deployment) -> dict[str, str]:
    """By name, so that a refusal says which one differs; the digest of all of them last."""
    parameters = deployment.parameters
    numbers = {name: _told(getattr(parameters, name)) for name in SHARED}
    numbers["tenant_retention"] = _tenants(deployment.retention)
    numbers["shared_digest"] = parameters.shared_digest().hex()
    return numbers


def _told(value: object) -> str:
    return "" if value is None else str(value)


def _tenants(retention: RetentionPolicy) -> str:
    return ",".join(f"{tenant}={ms}" for tenant, ms in sorted(retention.tenants))
