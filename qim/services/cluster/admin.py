"""A command's side of an admin operation: who it is by certificate, and the auditor it asks (decision 0025)."""

import json
from typing import Any, Final

import uvloop

from qim.adapters.loopback import is_wildcard
from qim.adapters.rpc import ProcessRole
from qim.adapters.rpc.admin import ask_auditor
from qim.adapters.start_refused import StartRefused
from qim.adapters.tls.internal_settings import InternalTlsSettings
from qim.core.contract.rpc_admin import AdminDone, AdminOrder
from qim.services.settings import Settings
from qim.services.settings.values import show_address

RID: Final = 1
"""A connection carries one order."""


def auditor_address(settings: Settings) -> str:
    """Where the configuration puts the auditor; one that listens on every interface is looked for on this machine."""
    host, port = settings.auditor_listen
    if is_wildcard(host):
        host = "::1" if ":" in host else "127.0.0.1"
    return show_address((host, port))


def ordered(
    settings: Settings, address: str, order: AdminOrder, seconds_max: float
) -> dict[str, Any]:
    """The auditor's report. Raises StartRefused (its code says which), AuditorUnreachable."""
    told = _told(settings)
    from qim.adapters.tls.internal import InternalTls

    security = InternalTls(told, ProcessRole.ADMIN)

    async def ask() -> AdminDone:
        return await ask_auditor(address, order, security, seconds_max)

    done = uvloop.run(ask())
    refusal = done.refusal
    if refusal is not None:
        raise StartRefused(
            refusal.code,
            refusal.what,
            got=refusal.got,
            expected=refusal.expected,
            command=refusal.command,
        )
    report: dict[str, Any] = json.loads(done.report)
    return report


def proved_here(settings: Settings) -> str:
    """The SHA-256 of the admin's certificate, judged by this command, as no process can be asked. Raises StartRefused."""
    told = _told(settings)
    from qim.adapters.tls.possession import proved

    return proved(told, ProcessRole.ADMIN)


def _told(settings: Settings) -> InternalTlsSettings:
    told = InternalTlsSettings.from_environment(settings.told())
    if told is None:
        raise StartRefused(
            "admin_certificate_missing",
            "the admin's certificate",
            got="not told: QIM_INTERNAL_TLS_CERT, _KEY, _CLIENT_CA and _SERVER_CA are not set",
            expected="the pair of an admin: what changes a cluster needs one, on loopback too",
            command="qim certs dev --out certs  # to try; then: env $(cat certs/admin.env) qim …",
        )
    return told
