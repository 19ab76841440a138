"""TLS towards servers that are not ours: Redis, Kafka, etcd, the archive, hooks. The one place where such a context is made.

Whoever dials is given a context once and keeps it; a handshake always uses what was read last. So SIGHUP is heard by client
libraries that know nothing of it, and connections that stand keep what they began with.
"""

import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct

from qim.adapters.reporting import SILENT, Reporting
from qim.adapters.tls.files import pair_of
from qim.adapters.tls.pair import Leaf, load_own, unreadable
from qim.adapters.tls.reload import Reloadable


class OutgoingFiles(Struct, frozen=True, kw_only=True):
    """Paths of PEM files. ``ca`` "": the system's roots; ``certificate`` and ``key``: ours, both or neither.

    ``names``: how an operator names the three, for what is told about them.
    """

    ca: str = ""
    certificate: str = ""
    key: str = ""
    names: tuple[str, str, str] = ("the CA", "the certificate", "its key")


class Outgoing(Struct, frozen=True, kw_only=True):
    """One reading of the files; the bytes, b"" where there is no file, are for a library that wants no context."""

    context: ssl.SSLContext
    ca: bytes
    certificate: bytes
    key: bytes


class RenewedContext(ssl.SSLContext):
    """A client's context whose handshakes are those of ``latest``; settings made on this one itself mean nothing."""

    def __new__(cls, latest: Callable[[], ssl.SSLContext]) -> "RenewedContext":
        """What a context is made of; ``latest`` is __init__'s."""
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, latest: Callable[[], ssl.SSLContext]) -> None:
        self._latest = latest

    def wrap_socket(self, *args: Any, **more: Any) -> ssl.SSLSocket:
        """Of the latest."""
        return self._latest().wrap_socket(*args, **more)

    def wrap_bio(self, *args: Any, **more: Any) -> ssl.SSLObject:
        """Of the latest."""
        return self._latest().wrap_bio(*args, **more)


class OutgoingTls:
    """``context`` for good, ``current`` for one handshake; ``name`` is told with a reload: "etcd"."""

    def __init__(self, name: str, files: OutgoingFiles, reporting: Reporting = SILENT) -> None:
        """Raises StartRefused."""
        self._held = Reloadable(name, lambda: read_outgoing(files), reporting)
        self.context = RenewedContext(lambda: self._held.current.context)

    @property
    def current(self) -> Outgoing:
        """Another object after each reload that succeeded."""
        return self._held.current

    def reload(self) -> bool:
        """See Reloadable."""
        return self._held.reload()

    def gauges(self) -> Iterable[tuple[str, str, float]]:
        """See Reloadable."""
        return self._held.gauges()


def read_outgoing(files: OutgoingFiles) -> tuple[Outgoing, dict[str, Leaf]]:
    """TLS 1.2 or later; servers are known by CA and name. Raises StartRefused: unreadable, half a pair, expired, another's key."""
    ca_name, certificate_name, key_name = files.names
    pair = pair_of(files.certificate, files.key, (certificate_name, key_name))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.ca:
        _trust(context, files.ca, ca_name)
    else:
        context.load_default_certs()
    leaves = {} if pair is None else {"client": load_own(context, pair)}
    found = (_bytes_of(path) for path in (files.ca, files.certificate, files.key))
    ca, certificate, key = found
    return Outgoing(context=context, ca=ca, certificate=certificate, key=key), leaves


def _trust(context: ssl.SSLContext, path: str, name: str) -> None:
    # Not read by the library for our own: a system's bundle may hold what that finds unlawful.
    try:
        context.load_verify_locations(cafile=path)
    except OSError as error:  # ssl.SSLError is one
        raise unreadable(Path(path), name, error.strerror or str(error)) from None


def _bytes_of(path: str) -> bytes:
    return Path(path).read_bytes() if path else b""
