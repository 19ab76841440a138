"""mTLS between processes: whom we trust, who we are, and which certificate speaks for which role (issue: internal RPC).

A server trusts QIM_INTERNAL_TLS_CLIENT_CA for those who dial it, a client QIM_INTERNAL_TLS_SERVER_CA for those it dials,
and neither the roots of the system. A role is a list of SHA-256 of client leaf certificates (DER).
"""

import ssl
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from msgspec import Struct

from qim.adapters.reporting import SILENT, Reporting
from qim.adapters.rpc.roles import ProcessRole, callers_of, dialled_by
from qim.adapters.start_refused import StartRefused
from qim.adapters.tls.contexts import tls13
from qim.adapters.tls.pair import (
    CLIENT_AUTH,
    SERVER_AUTH,
    Leaf,
    TlsPair,
    load_authorities,
    load_pair,
    pair_of,
)
from qim.adapters.tls.reload import Reloadable

PAIR_NAMES: Final = ("QIM_INTERNAL_TLS_CERT", "QIM_INTERNAL_TLS_KEY")
CLIENT_CA_NAME: Final = "QIM_INTERNAL_TLS_CLIENT_CA"
SERVER_CA_NAME: Final = "QIM_INTERNAL_TLS_SERVER_CA"
SERVER_NAME_NAME: Final = "QIM_INTERNAL_TLS_SERVER_NAME"
_DIGEST_DIGITS: Final = 64


def certificates_name(role: ProcessRole) -> str:
    """QIM_INTERNAL_<ROLE>_CERT_SHA256."""
    return f"QIM_INTERNAL_{role.upper()}_CERT_SHA256"


class InternalTlsSettings(Struct, frozen=True, kw_only=True):
    """What the variables say; ``pair`` serves both sides, by one leaf or two (see pair.py)."""

    pair: TlsPair
    client_ca: Path
    server_ca: Path
    server_name: str
    server_names: dict[ProcessRole, str]
    certificates: dict[ProcessRole, tuple[str, ...]]

    @staticmethod
    def from_environment(values: Mapping[str, str]) -> "InternalTlsSettings | None":
        """None: nothing of it is set. Raises StartRefused: half a pair, a CA missing, a fingerprint that is none."""
        pair = pair_of(values.get(PAIR_NAMES[0], ""), values.get(PAIR_NAMES[1], ""), PAIR_NAMES)
        authorities = {name: values.get(name, "") for name in (CLIENT_CA_NAME, SERVER_CA_NAME)}
        if pair is None and not any(authorities.values()):
            return None
        if pair is None:
            raise _missing(PAIR_NAMES[0])
        for name, value in authorities.items():
            if not value:
                raise _missing(name)
        return InternalTlsSettings(
            pair=pair,
            client_ca=Path(authorities[CLIENT_CA_NAME]),
            server_ca=Path(authorities[SERVER_CA_NAME]),
            server_name=values.get(SERVER_NAME_NAME, ""),
            server_names={
                role: name
                for role in ProcessRole
                if (name := values.get(f"{SERVER_NAME_NAME}_{role.upper()}", ""))
            },
            certificates={
                role: _fingerprints(certificates_name(role), values[certificates_name(role)])
                for role in ProcessRole
                if values.get(certificates_name(role))
            },
        )


class InternalTls:
    """rpc.RpcSecurity of one process."""

    def __init__(
        self, settings: InternalTlsSettings, role: ProcessRole, reporting: Reporting = SILENT
    ) -> None:
        """Raises StartRefused: certificates that can't serve, a role without a name to dial or a list to judge by."""
        self._settings = settings
        self._role = role
        self._roles = _roles_by_certificate(settings)
        self._check_names()
        self._check_lists()
        self._held = Reloadable("internal", self._build, reporting)

    def server_context(self) -> ssl.SSLContext:
        """For the next handshake of who dials us."""
        return self._held.current[0]

    def client_context(self) -> ssl.SSLContext:
        """For the next handshake of ours."""
        return self._held.current[1]

    def server_name(self, role: ProcessRole) -> str:
        """What a peer of this role must be called by its certificate; SNI."""
        return self._settings.server_names.get(role) or self._settings.server_name

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

    def _check_names(self) -> None:
        for role in dialled_by(self._role):
            if not self.server_name(role):
                name = f"{SERVER_NAME_NAME}_{role.upper()}"
                raise StartRefused(
                    "internal_server_name_missing",
                    f"the name a {role}'s certificate must have",
                    got=f"neither {name} nor {SERVER_NAME_NAME}",
                    expected="one of them",
                    command=f"export {name}={role}.qim.internal",
                )

    def _check_lists(self) -> None:
        for role in callers_of(self._role):
            if role is not ProcessRole.ADMIN and not self._settings.certificates.get(role):
                name = certificates_name(role)
                raise StartRefused(
                    "internal_role_list_missing",
                    name,
                    got="not set",
                    expected=f"the SHA-256 of each {role}'s client certificate, with commas between",
                    command=f"export {name}=$(openssl x509 -in {role}-client.pem -outform DER"
                    " | openssl dgst -sha256 -r | cut -d' ' -f1)",
                )


def _roles_by_certificate(
    settings: InternalTlsSettings,
) -> dict[str, frozenset[ProcessRole]]:
    found: dict[str, set[ProcessRole]] = {}
    for role, digests in settings.certificates.items():
        for digest in digests:
            found.setdefault(digest, set()).add(role)
    return {digest: frozenset(roles) for digest, roles in found.items()}


def _fingerprints(name: str, text: str) -> tuple[str, ...]:
    """Comma separated, in either case, with or without colons."""
    found = []
    for part in text.split(","):
        digest = part.strip().replace(":", "").lower()
        if not digest:
            continue
        if len(digest) != _DIGEST_DIGITS or set(digest) - set("0123456789abcdef"):
            raise StartRefused(
                "internal_fingerprint_invalid",
                name,
                got=repr(part.strip()[:80]),
                expected=f"{_DIGEST_DIGITS} hexadecimal digits, several with commas between",
                command="openssl x509 -in cert.pem -outform DER | openssl dgst -sha256 -r",
            )
        found.append(digest)
    return tuple(found)


def _missing(name: str) -> StartRefused:
    return StartRefused(
        "internal_tls_incomplete",
        name,
        got="not set while other internal TLS variables are",
        expected=f"{PAIR_NAMES[0]}, {PAIR_NAMES[1]}, {CLIENT_CA_NAME} and {SERVER_CA_NAME} together",
        command="qim certs dev --out certs",
    )
