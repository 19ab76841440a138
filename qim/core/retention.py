"""How long a message is kept, in one place for writer, archiver and mailbox (contract.md, Parameters: retention).

A row is visible while the judge's wall clock is below ``retained_until``. A change of policy reaches what was written
before it: nothing but the class, the tenant and the time of sending is stored with a message.
"""

from typing import Final

from msgspec import Struct

from qim.core.contract.entities import RetentionClass
from qim.core.contract.params import DEFAULT

FOREVER_MS: Final = 2**63 - 1
"""retained_until of a compliance hold: nothing deletes it."""


class RetentionPolicy(Struct, frozen=True, kw_only=True):
    """Milliseconds after sent_at by class; ``tenants``: (tenant_id, ms) of TENANT_CUSTOM, others fall to the default."""

    default_ms: int = DEFAULT.default_retention_ms
    ephemeral_ms: int = DEFAULT.ephemeral_retention_ms
    tenants: tuple[tuple[str, int], ...] = ()


def retained_until(
    policy: RetentionPolicy, tenant_id: str, retention_class: int, sent_at: int
) -> int:
    """Wall ms at which the message is gone; FOREVER_MS for a hold. An unknown class is kept like the default one."""
    if retention_class == RetentionClass.COMPLIANCE_HOLD:
        return FOREVER_MS
    if retention_class == RetentionClass.EPHEMERAL:
        return sent_at + policy.ephemeral_ms
    if retention_class == RetentionClass.TENANT_CUSTOM:
        for name, kept_ms in policy.tenants:
            if name == tenant_id:
                return sent_at + kept_ms
    return sent_at + policy.default_ms
