"""A certificate and its key as files: read, and refused before anything listens if they can't serve.

One file may hold two leaves of one key, one for each side of TLS: a process that listens and dials has one pair of files,
and its two sides may be certified by CAs that know nothing of each other.
"""

import ssl
import tempfile
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from msgspec import Struct

from qim.adapters.start_refused import StartRefused
from qim.adapters.tls.files import TlsPair

SERVER_AUTH: Final = ExtendedKeyUsageOID.SERVER_AUTH
CLIENT_AUTH: Final = ExtendedKeyUsageOID.CLIENT_AUTH


class Leaf(Struct, frozen=True, kw_only=True):
    """What is said about a certificate in use."""

    subject: str
    sha256: str
    not_after: datetime

    def seconds_left(self) -> float:
        """Until it expires; negative once it has."""
        return (self.not_after - datetime.now(UTC)).total_seconds()


def load_pair(context: ssl.SSLContext, pair: TlsPair, purpose: x509.ObjectIdentifier) -> Leaf:
    """Read, judge and load. Raises StartRefused: unreadable, not PEM, key of another, expired, not for ``purpose``."""
    name = pair.names[0]
    chain = read_certificates(pair.certificate, name)
    leaves = [found for found in chain if not _is_authority(found)]
    usable = [found for found in leaves if _usable_for(found, purpose)]
    if not usable:
        side = "server" if purpose == SERVER_AUTH else "client"
        raise _refused(
            "tls_purpose", pair, got=f"not for a TLS {side}", expected=f"one with {side}Auth"
        )
    leaf = usable[0]
    _judge_dates(pair, leaf)
    _load(context, pair, (leaf, *(found for found in chain if _is_authority(found))))
    return _told(leaf)


def load_own(context: ssl.SSLContext, pair: TlsPair) -> Leaf:
    """Ours towards a server that is not: the chain as it stands, leaf first; what it may be used for is that server's to judge.

    Raises StartRefused: unreadable, not PEM, key of another, expired.
    """
    chain = read_certificates(pair.certificate, pair.names[0])
    _judge_dates(pair, chain[0])
    _load(context, pair, tuple(chain))
    return _told(chain[0])


def _told(leaf: x509.Certificate) -> Leaf:
    return Leaf(
        subject=leaf.subject.rfc4514_string(),
        sha256=sha256(leaf.public_bytes(Encoding.DER)).hexdigest(),
        not_after=leaf.not_valid_after_utc,
    )


def _judge_dates(pair: TlsPair, leaf: x509.Certificate) -> None:
    now = datetime.now(UTC)
    if leaf.not_valid_after_utc <= now:
        got = f"expired at {leaf.not_valid_after_utc.isoformat()}"
        raise _refused("tls_expired", pair, got=got, expected="valid now")
    if leaf.not_valid_before_utc > now:
        got = f"not valid before {leaf.not_valid_before_utc.isoformat()}"
        raise _refused("tls_not_yet_valid", pair, got=got, expected="valid now")


def _load(context: ssl.SSLContext, pair: TlsPair, chain: tuple[x509.Certificate, ...]) -> None:
    # The library takes a file, and would show a peer all that is in it; certificates are no secret.
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        file.write(b"".join(found.public_bytes(Encoding.PEM) for found in chain))
        file.flush()
        try:
            context.load_cert_chain(file.name, pair.key, password=_no_password)
        except ssl.SSLError as error:
            raise _refused(
                "tls_key_mismatch" if error.reason == "KEY_VALUES_MISMATCH" else "tls_key_unusable",
                pair,
                got=f"with the key {pair.key}: {error.reason or error}",
                expected="the unencrypted key it was made for",
            ) from None
        except (OSError, _Encrypted) as error:
            raise unreadable(pair.key, pair.names[1], str(error)) from None


def load_authorities(context: ssl.SSLContext, path: Path, name: str) -> None:
    """Trust these CAs and no others. Raises StartRefused."""
    read_certificates(path, name)
    try:
        context.load_verify_locations(cafile=path)
    except (OSError, ssl.SSLError) as error:
        raise unreadable(path, name, str(error)) from None


def read_certificates(path: Path, name: str) -> list[x509.Certificate]:
    """All certificates of a PEM file, at least one. Raises StartRefused."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        raise unreadable(path, name, error.strerror or str(error)) from None
    except ValueError as error:
        raise unreadable(path, name, f"no PEM certificate: {error}") from None


class _Encrypted(Exception):
    pass


def _no_password() -> str:
    # OpenSSL would ask the terminal, and a service would hang there.
    raise _Encrypted("the key is encrypted, and nobody is here to type its password")


def _is_authority(found: x509.Certificate) -> bool:
    try:
        return found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _usable_for(leaf: x509.Certificate, purpose: x509.ObjectIdentifier) -> bool:
    try:
        usage = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return True
    return purpose in usage or ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE in usage


def _refused(code: str, pair: TlsPair, *, got: str, expected: str) -> StartRefused:
    return StartRefused(
        code,
        f"{pair.names[0]} ({pair.certificate})",
        got=got,
        expected=expected,
        command=f"openssl x509 -in {pair.certificate} -noout -subject -dates -purpose",
    )


def unreadable(path: Path, name: str, why: str) -> StartRefused:
    """A file that can't be used at all."""
    return StartRefused(
        "tls_file_unreadable",
        f"{name} ({path})",
        got=why,
        expected="a PEM file this process can read",
        command=f"ls -l {path}",
    )
