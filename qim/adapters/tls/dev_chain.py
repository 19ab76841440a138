"""A chain for development and tests: three CAs that know nothing of each other, and a leaf for each side of every role.

Clients, those who dial internal listeners and those listeners are each certified by a CA of their own, so that a
certificate of one kind is no good for another. A real deployment issues its own by the same pattern.
"""

import json
import os
import re
import shlex
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from msgspec import Struct

from qim.adapters.rpc.roles import ProcessRole, callers_of, dialled_by
from qim.adapters.tls.client_facing import PAIR_NAMES as CLIENT_FACING_NAMES
from qim.adapters.tls.internal_settings import (
    CLIENT_CA_NAME,
    PAIR_NAMES,
    SERVER_CA_NAME,
    SERVER_NAME_NAME,
    certificates_name,
)
from qim.adapters.tls.pair import CLIENT_AUTH, SERVER_AUTH

LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")
DNS_NAME: Final = re.compile(r"(\*\.)?([A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}")
CLOCK_SLACK: Final = timedelta(minutes=5)
"""Certificates are valid a little earlier than now: the other machine's clock may lag."""


class Issued(Struct, frozen=True, kw_only=True):
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the DER, as the role lists want it."""
        leaf = x509.load_pem_x509_certificate(self.certificate)
        return sha256(leaf.public_bytes(Encoding.DER)).hexdigest()


class Authority:
    """One CA with its key in memory."""

    def __init__(self, name: str, days: int) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _name(name)
        now = datetime.now(UTC)
        builder = (
            _builder(self._subject, self._subject, self._key.public_key(), now - CLOCK_SLACK)
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
        )
        self.certificate = builder.sign(self._key, SHA256()).public_bytes(Encoding.PEM)

    def issue(
        self,
        name: str,
        purpose: x509.ObjectIdentifier,
        *,
        names: tuple[str, ...] = (),
        valid_from: datetime | None = None,
        valid_until: datetime,
        key: ec.EllipticCurvePrivateKey | None = None,
    ) -> Issued:
        """A leaf for one side of TLS; ``names``: DNS names and IP addresses it answers to; ``key`` None: one of its own."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        began = valid_from or datetime.now(UTC) - CLOCK_SLACK
        public = self._key.public_key()
        builder = (
            _builder(_name(name), self._subject, key.public_key(), began)
            .not_valid_after(valid_until)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False
            )
        )
        if names:
            alternatives = x509.SubjectAlternativeName([_general(one) for one in names])
            builder = builder.add_extension(alternatives, critical=False)
        return Issued(
            certificate=builder.sign(self._key, SHA256()).public_bytes(Encoding.PEM),
            key=key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        )


class DevChain(Struct, frozen=True, kw_only=True):
    """What was written. ``shared``: variables of every process; ``environment``: all by who needs them, a role or "client"."""

    folder: Path
    fingerprints: dict[str, str]
    shared: dict[str, str]
    environment: dict[str, dict[str, str]]
    not_after: datetime


def write_dev_chain(folder: Path, *, days: int, names: tuple[str, ...] = ()) -> DevChain:
    """Make a chain in ``folder``, new or empty. Raises FileExistsError, OSError, ValueError (a name that is none).

    ``names``: what clients call the gateway besides this machine's own loopback names.
    """
    for name in names:
        _general(name)
    folder = folder.absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty, and keys are never written over")
    until = datetime.now(UTC) + timedelta(days=days)
    facing = Authority("Q-IM development client-facing CA", days)
    clients = Authority("Q-IM development internal client CA", days)
    servers = Authority("Q-IM development internal server CA", days)
    authorities = {
        "client-facing-ca": facing,
        "internal-client-ca": clients,
        "internal-server-ca": servers,
    }
    for name, authority in authorities.items():
        _write(folder / f"{name}.pem", authority.certificate, 0o644)
    shown = facing.issue(
        "Q-IM gateway", SERVER_AUTH, names=(*LOCAL_NAMES, *names), valid_until=until
    )
    _write_pair(folder, "gateway", shown)
    fingerprints: dict[str, str] = {}
    for role in ProcessRole:
        issued = _issue_internal(role, clients, servers, until)
        fingerprints[role.value] = issued.fingerprint
        _write_pair(folder, f"{role}-internal", issued)
    shared = _shared(folder, fingerprints)
    environment = _environment(folder, shared)
    for owner, variables in environment.items():
        # Quoted where the path needs it: a shell, systemd and compose read that, while `env $(cat …)` would not.
        lines = "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items())
        _write(folder / f"{owner}.env", lines.encode(), 0o644)
    for role in ProcessRole:
        keys = {name.removeprefix("QIM_").lower(): text for name, text in environment[role].items()}
        lines = "".join(f"{key} = {json.dumps(text)}\n" for key, text in keys.items())
        _write(folder / f"{role}.toml", lines.encode(), 0o644)
    return DevChain(
        folder=folder,
        fingerprints=fingerprints,
        shared=shared,
        environment=environment,
        not_after=until,
    )


def _issue_internal(
    role: ProcessRole, clients: Authority, servers: Authority, until: datetime
) -> Issued:
    """One key with a leaf for dialling, and behind it one for listening where the role does; the first is its fingerprint."""
    key = ec.generate_private_key(ec.SECP256R1())
    dialler = clients.issue(f"Q-IM {role}", CLIENT_AUTH, valid_until=until, key=key)
    if role is ProcessRole.ADMIN:
        return dialler
    listener = servers.issue(
        f"Q-IM {role}", SERVER_AUTH, names=(server_name(role),), valid_until=until, key=key
    )
    return Issued(certificate=dialler.certificate + listener.certificate, key=dialler.key)


def server_name(role: ProcessRole) -> str:
    """What a role's internal listener is called in a chain of ours."""
    return f"{role}.qim.internal"


def _shared(folder: Path, fingerprints: dict[str, str]) -> dict[str, str]:
    found = {
        CLIENT_CA_NAME: str(folder / "internal-client-ca.pem"),
        SERVER_CA_NAME: str(folder / "internal-server-ca.pem"),
    }
    for role in ProcessRole:
        if callers_of(role):
            found[f"{SERVER_NAME_NAME}_{role.upper()}"] = server_name(role)
    for role in ProcessRole:
        if dialled_by(role):
            found[certificates_name(role)] = fingerprints[role.value]
    return found


def _environment(folder: Path, shared: dict[str, str]) -> dict[str, dict[str, str]]:
    found = {}
    for role in ProcessRole:
        own = dict(zip(PAIR_NAMES, _pair(folder, f"{role}-internal"), strict=True))
        if role is ProcessRole.GATEWAY:
            own |= dict(zip(CLIENT_FACING_NAMES, _pair(folder, "gateway"), strict=True))
        found[role.value] = own | shared
    found["client"] = {"QIM_TLS_CA": str(folder / "client-facing-ca.pem")}
    return found


def _pair(folder: Path, name: str) -> tuple[str, str]:
    return str(folder / f"{name}.pem"), str(folder / f"{name}.key")


def _write_pair(folder: Path, name: str, issued: Issued) -> None:
    _write(folder / f"{name}.pem", issued.certificate, 0o644)
    _write(folder / f"{name}.key", issued.key, 0o600)


def _write(path: Path, data: bytes, mode: int) -> None:
    # Made with its mode, not given it afterwards: a key must not be readable for a moment.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general(name: str) -> x509.GeneralName:
    """Raises ValueError."""
    try:
        address: IPv4Address | IPv6Address = ip_address(name)
    except ValueError:
        if not DNS_NAME.fullmatch(host := name.encode("idna").decode("ascii")):
            raise ValueError(f"{name!r} is neither an IP address nor a DNS name") from None
        return x509.DNSName(host)
    return x509.IPAddress(address)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, valid_from: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(valid_from)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
