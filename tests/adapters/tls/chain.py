"""Certificates for tests: a development chain made once, and rogues that no chain would issue."""

import atexit
import functools
import shutil
import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from qim.adapters.rpc import ProcessRole
from qim.adapters.tls.dev_chain import Authority, DevChain, Issued, write_dev_chain
from qim.adapters.tls.internal import InternalTls
from qim.adapters.tls.internal_settings import InternalTlsSettings
from qim.adapters.tls.pair import CLIENT_AUTH

HOUR = timedelta(hours=1)


@functools.cache
def chain() -> DevChain:
    """One a process; the folder lives as long as it."""
    folder = Path(tempfile.mkdtemp(prefix="qim-certs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write_dev_chain(folder, days=2)


def internal(role: ProcessRole, **changed: str) -> InternalTls:
    """What `qim serve` builds from the chain's variables."""
    settings = InternalTlsSettings.from_environment(chain().environment[role.value] | changed)
    assert settings is not None
    return InternalTls(settings, role)


class Rogue:
    """A process that dials with a context of its own making; everything else is as it should be."""

    def __init__(self, role: ProcessRole, context: ssl.SSLContext) -> None:
        self._tls = internal(role)
        self._context = context
        self.server_context = self._tls.server_context
        self.server_name = self._tls.server_name
        self.roles_of = self._tls.roles_of

    def client_context(self) -> ssl.SSLContext:
        return self._context


def dialler(issued: Issued | None, folder: Path, *, version: int | None = None) -> ssl.SSLContext:
    """A client context that trusts the chain's servers and shows ``issued``, or nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(chain().folder / "internal-server-ca.pem")
    if version is not None:
        context.maximum_version = ssl.TLSVersion(version)
    if issued is not None:
        certificate, key = folder / "rogue.pem", folder / "rogue.key"
        certificate.write_bytes(issued.certificate)
        key.write_bytes(issued.key)
        context.load_cert_chain(certificate, key)
    return context


def stranger(name: str = "Q-IM gateway") -> Issued:
    """A good certificate of a CA nobody knows."""
    return Authority("somebody else", 1).issue(
        name, CLIENT_AUTH, valid_until=datetime.now(UTC) + HOUR
    )
