"""What the variables of mTLS between processes say, judged before any file of theirs is read (issue: internal RPC).

A server trusts QIM_INTERNAL_TLS_CLIENT_CA for those who dial it, a client QIM_INTERNAL_TLS_SERVER_CA for those it dials,
and neither the roots of the system. A role is a list of SHA-256 of client leaf certificates (DER).
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from qim.adapters.rpc.roles import ProcessRole, callers_of, dialled_by
from qim.adapters.start_refused import StartRefused
from qim.adapters.tls.files import TlsPair

PAIR_NAMES: Final = ("QIM_INTERNAL_TLS_CERT", "QIM_INTERNAL_TLS_KEY")
CLIENT_CA_NAME: Final = "QIM_INTERNAL_TLS_CLIENT_CA"
SERVER_CA_NAME: Final = "QIM_INTERNAL_TLS_SERVER_CA"
SERVER_NAME_NAME: Final = "QIM_INTERNAL_TLS_SERVER_NAME"
_FILE_NAMES: Final = (*PAIR_NAMES, CLIENT_CA_NAME, SERVER_CA_NAME)
_DIGEST_DIGITS: Final = 64


def certificates_name(role: ProcessRole) -> str:
    """QIM_INTERNAL_<ROLE>_CERT_SHA256."""
    return f"QIM_INTERNAL_{role.upper()}_CERT_SHA256"


class InternalTlsSettings(Struct, frozen=True, kw_only=True):
    """``pair`` serves both sides, by one leaf or two (see pair.py)."""

    pair: TlsPair
    client_ca: Path
    server_ca: Path
    server_name: str
    server_names: dict[ProcessRole, str]
    certificates: dict[ProcessRole, tuple[str, ...]]

    @staticmethod
    def from_environment(values: Mapping[str, str]) -> "InternalTlsSettings | None":
        """None: nothing of it is set. Raises StartRefused: some of the four files, a fingerprint that is none."""
        files = [values.get(name, "") for name in _FILE_NAMES]
        if not any(files):
            return None
        if not all(files):
            raise _incomplete([name for name in _FILE_NAMES if not values.get(name)])
        certificate, key, client_ca, server_ca = map(Path, files)
        return InternalTlsSettings(
            pair=TlsPair(certificate=certificate, key=key, names=PAIR_NAMES),
            client_ca=client_ca,
            server_ca=server_ca,
            server_name=values.get(SERVER_NAME_NAME, ""),
            server_names={
                role: name
                for role in ProcessRole
                if (name := values.get(f"{SERVER_NAME_NAME}_{role.upper()}", ""))
            },
            certificates={
                role: _listed(certificates_name(role), values[certificates_name(role)])
                for role in ProcessRole
                if values.get(certificates_name(role))
            },
        )

    def name_of(self, role: ProcessRole) -> str:
        """What a peer of this role must be called by its certificate; SNI."""
        return self.server_names.get(role) or self.server_name

    def faults(self, role: ProcessRole) -> Iterator[StartRefused]:
        """Why a process of this role can't do with it: whom it dials it knows by name, who dials it by certificate."""
        for target in dialled_by(role):
            if not self.name_of(target):
                own = f"{SERVER_NAME_NAME}_{target.upper()}"
                yield StartRefused(
                    "internal_server_name_missing",
                    f"the name expected of a {target}",
                    got=f"neither {SERVER_NAME_NAME} nor {own}",
                    expected="one of them, as any certificate of the CA would do otherwise",
                    command=f"export {own}={target}.qim.internal",
                )
        for caller in callers_of(role):
            # Without an admin's an auditor serves all the same; it takes no order.
            if caller is not ProcessRole.ADMIN and not self.certificates.get(caller):
                name = certificates_name(caller)
                yield StartRefused(
                    "internal_role_list_missing",
                    name,
                    got="not set",
                    expected=f"the SHA-256 of each {caller}'s leaf certificate: without it none may speak",
                    command=f"export {name}=$(openssl x509 -in {caller}.pem -outform DER"
                    " | openssl dgst -sha256 -r | cut -d' ' -f1)",
                )


def fingerprints(text: str) -> tuple[str, ...]:
    """SHA-256 as openssl prints it, with commas between: case and colons don't matter. Raises ValueError."""
    found = [part.strip().replace(":", "").lower() for part in text.split(",")]
    digests = tuple([digest for digest in found if digest])
    for digest in digests:
        if len(digest) != _DIGEST_DIGITS or set(digest) - set("0123456789abcdef"):
            raise ValueError(digest)
    return digests


def _listed(name: str, text: str) -> tuple[str, ...]:
    try:
        return fingerprints(text)
    except ValueError:
        raise StartRefused(
            "internal_fingerprint_invalid",
            name,
            got=repr(text[:80]),
            expected=f"{_DIGEST_DIGITS} hexadecimal digits, several with commas between",
            command="openssl x509 -in cert.pem -outform DER | openssl dgst -sha256 -r",
        ) from None


def _incomplete(absent: list[str]) -> StartRefused:
    return StartRefused(
        "internal_tls_incomplete",
        "mTLS between processes",
        got=f"set up without {', '.join(absent)}",
        expected=f"all four of {', '.join(_FILE_NAMES)}, or none",
        command=f"export {absent[0]}=…  # `qim certs dev` makes a chain",
    )
