"""Where a store is: parsed from what an operator writes, dialled by the connection, shown without its password.

    host:port   [::1]:6379   redis://[user[:password]@]host[:port]
    rediss://host[:port][?ca=FILE&cert=FILE&key=FILE]      TLS; a certificate of our own only where the server wants one
    unix:/path  unix://[user[:password]@]/path

Reserved letters of a user name, password or path are percent-encoded, as in every URL.
"""

import shlex
import ssl
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from qim.adapters.loopback import is_loopback
from qim.adapters.start_refused import StartRefused

if TYPE_CHECKING:
    from qim.adapters.tls.outgoing import OutgoingFiles, OutgoingTls

PORT: Final = 6379
_TLS_FILES: Final = ("ca", "cert", "key")
_FORMS: Final = (
    "host:port, redis://[user:password@]host:port, rediss://host:port?ca=FILE or unix:/path"
)


class StoreAddress(Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """One server. ``unix_path`` or ``host`` and ``port``; paths of PEM files where ``tls``, "" for the system's authorities."""

    unix_path: str = ""
    host: str = ""
    port: int = PORT
    username: str = ""
    password: str = ""
    tls: bool = False
    ca_path: str = ""
    certificate_path: str = ""
    key_path: str = ""
    renewed: "OutgoingTls | None" = None
    """Who reads the files again; None: they are read once, by ``tls_context``."""

    @classmethod
    def parse(cls, text: str) -> "StoreAddress":
        """Raises StartRefused, which repeats no password."""
        if text.startswith("/"):
            return cls(unix_path=text)
        try:
            return _parsed(text)
        except ValueError as error:
            raise _refused(text, str(error)) from None

    def __str__(self) -> str:
        """Without user, password and files: fit for logs."""
        if self.unix_path:
            return f"unix:{self.unix_path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"rediss://{host}:{self.port}" if self.tls else f"{host}:{self.port}"

    def __repr__(self) -> str:
        return f"StoreAddress({self})"

    @property
    def on_this_machine(self) -> bool:
        """A Unix socket, a literal loopback address or ``localhost``; a name that merely resolves there is not."""
        return bool(self.unix_path) or is_loopback(self.host)

    @property
    def redis_cli(self) -> str:
        """What an operator types to speak to it; a password is asked for, never shown."""
        if self.unix_path:
            words = ["redis-cli", "-s", self.unix_path]
        else:
            named = [] if self.host in ("127.0.0.1", "localhost") else ["-h", self.host]
            words = ["redis-cli", *named, "-p", str(self.port)]
        if self.tls:
            words.append("--tls")
            for option, path in (
                ("--cacert", self.ca_path),
                ("--cert", self.certificate_path),
                ("--key", self.key_path),
            ):
                words += [option, path] if path else []
        if self.username:
            words += ["--user", self.username]
        if self.password:
            words.append("--askpass")
        return shlex.join(words)

    @property
    def operators_cli(self) -> str:
        """The same as the server's default user: the one that processes log in as may change nothing of it."""
        return replace(self, username="").redis_cli

    def tls_context(self) -> ssl.SSLContext | None:
        """None without TLS. Reads the files. Raises StartRefused when one is missing, broken or without its other half."""
        if not self.tls:
            return None
        if self.renewed is not None:
            return self.renewed.context
        # Here: certificates are read by a library of the extra `cluster`, and a store on a Unix socket does without.
        from qim.adapters.tls.outgoing import read_outgoing

        return read_outgoing(self.tls_files())[0].context

    def tls_files(self) -> "OutgoingFiles":
        """As they stand in the address."""
        from qim.adapters.tls.outgoing import OutgoingFiles

        return OutgoingFiles(
            ca=self.ca_path,
            certificate=self.certificate_path,
            key=self.key_path,
            names=(f"ca= of {self}", f"cert= of {self}", f"key= of {self}"),
        )


def _parsed(text: str) -> StoreAddress:
    try:
        url = urlsplit(text if "://" in text or text.startswith("unix:") else f"redis://{text}")
    except ValueError:
        raise ValueError("not a URL") from None  # the library's message may repeat a password
    if url.fragment:
        raise ValueError("a # that is not percent-encoded")
    username, password = unquote(url.username or ""), unquote(url.password or "")
    if url.scheme == "unix":
        if url.hostname:
            raise ValueError("a socket's path begins with /")
        if not url.path.startswith("/"):
            raise ValueError("no absolute path")
        return StoreAddress(unix_path=unquote(url.path), username=username, password=password)
    if url.scheme not in ("redis", "rediss"):
        raise ValueError(f"an unknown scheme, {url.scheme}")
    if not url.hostname:
        raise ValueError("no host")
    if url.path not in ("", "/", "/0"):
        # The scripts reach every key of the server they run on, and DBSIZE tells an empty one.
        raise ValueError("a database number, which is not supported: a store has its server alone")
    tls = url.scheme == "rediss"
    files = _tls_files(url, tls)
    return StoreAddress(
        host=url.hostname,
        port=_port(url),
        username=username,
        password=password,
        tls=tls,
        ca_path=files["ca"],
        certificate_path=files["cert"],
        key_path=files["key"],
    )


def _port(url: SplitResult) -> int:
    try:
        port = PORT if url.port is None else url.port
    except ValueError:
        port = 0  # the library's message repeats the text, which may be half a password
    if not 0 < port < 1 << 16:
        raise ValueError("a port outside 1..65535, or a password that is not percent-encoded")
    return port


def _tls_files(url: SplitResult, tls: bool) -> dict[str, str]:
    files = dict.fromkeys(_TLS_FILES, "")
    for name, value in parse_qsl(url.query, keep_blank_values=True, strict_parsing=bool(url.query)):
        if not tls or name not in _TLS_FILES:
            raise ValueError("a parameter that is not one of rediss://…?ca=&cert=&key=")
        files[name] = value
    return files


def _refused(text: str, why: str) -> StartRefused:
    shown = text.rpartition("@")[2]
    if "://:" in shown:
        shown = "…"  # a password, and no host behind it
    return StartRefused(
        "redis_address",
        "a store's address",
        got=f"{shown!r} ({why})",
        expected=_FORMS,
        command="name it in one of these forms, for example 127.0.0.1:6379",
    )
