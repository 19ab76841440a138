"""mTLS between processes: whom we trust, who we are, and which certificate speaks for which role (issue: internal RPC)."""

import ssl
from collections.abc import Iterable
from hashlib import sha256

from qim.adapters.reporting import SILENT, Reporting
from qim.adapters.rpc.roles import ProcessRole, callers_of
from qim.adapters.tls.contexts import tls13
from qim.adapters.tls.internal_settings import (
    CLIENT_CA_NAME,
    SERVER_CA_NAME,
    InternalTlsSettings,
)
from qim.adapters.tls.pair import CLIENT_AUTH, SERVER_AUTH, Leaf, load_authorities, load_pair
from qim.adapters.tls.reload import Reloadable


class InternalTls:
    """rpc.RpcSecurity of one process."""

    def __init__(
        self, settings: InternalTlsSettings, role: ProcessRole, reporting: Reporting = SILENT
    ) -> None:
        """Raises StartRefused: certificates that can't serve, a role without a name to dial or a list to judge by."""
        for refused in settings.faults(role):
            raise refused
        self._settings = settings
        self._role = role
        self._roles = _roles_by_certificate(settings)
        self._held = Reloadable("internal", self._build, reporting)

    def server_context(self) -> ssl.SSLContext:
        """For the next handshake of who dials us."""
        return self._held.current[0]

    def client_context(self) -> ssl.SSLContext:
        """For the next handshake of ours."""
        return self._held.current[1]

    def server_name(self, role: ProcessRole) -> str:
        """See InternalTlsSettings.name_of."""
        return self._settings.name_of(role)

    def roles_of(self, certificate: bytes) -> frozenset[ProcessRole]:
        """Roles of a leaf certificate (DER); empty: it is in no list."""
        return self._roles.get(sha256(certificate).hexdigest(), frozenset())

    def reload(self) -> bool:
        """See Reloadable. Lists and names are settings and stay."""
        return self._held.reload()

    def gauges(self) -> Iterable[tuple[str, str, float]]:
        """See Reloadable."""
        return self._held.gauges()

    def _build(self) -> tuple[tuple[ssl.SSLContext, ssl.SSLContext], dict[str, Leaf]]:
        settings = self._settings
        leaves = {}
        server = tls13(ssl.PROTOCOL_TLS_SERVER)
        server.verify_mode = ssl.CERT_REQUIRED
        load_authorities(server, settings.client_ca, CLIENT_CA_NAME)
        if callers_of(self._role):
            leaves["server"] = load_pair(server, settings.pair, SERVER_AUTH)
        client = tls13(ssl.PROTOCOL_TLS_CLIENT)
        load_authorities(client, settings.server_ca, SERVER_CA_NAME)
        leaves["client"] = load_pair(client, settings.pair, CLIENT_AUTH)
        return (server, client), leaves


def _roles_by_certificate(
    settings: InternalTlsSettings,
) -> dict[str, frozenset[ProcessRole]]:
    found: dict[str, set[ProcessRole]] = {}
    for role, digests in settings.certificates.items():
        for digest in digests:
            found.setdefault(digest, set()).add(role)
    return {digest: frozenset(roles) for digest, roles in found.items()}
