"""A connection that another process made: who it is, what it may say, and every message handed on as it comes.

STRANGER --> WELCOME --> CLOSED     HELLO judged by certificate and table; silent, hostile, wrong role, or gone
STRANGER --> CLOSED                 no HELLO in time, or one that is refused
"""

import asyncio
from hashlib import sha256
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import Struct

from qim.adapters.loopback import is_wildcard
from qim.adapters.rpc.frames import (
    HELLO_BYTES_MAX,
    RPC_VERSION,
    Control,
    FrameReader,
    Hello,
    HostileBytes,
    clock_frame,
    control_kind,
    hello_frame,
    read_clock,
    read_hello,
    read_message,
    sorry_frame,
)
from qim.adapters.rpc.roles import ProcessRole, may_say
from qim.adapters.rpc.wiring import Wiring

if TYPE_CHECKING:
    from qim.adapters.rpc.listener import Listener

SORRY_LINGER_SECONDS: Final = 1.0
ANSWER_BYTES_MAX: Final = 16 << 20
"""Unsent answers on an accepted connection: PONGs, and what ADMIN alone is answered there."""


class Refusal(Exception):
    """This peer may not say this, or not be here at all; ``code`` for metric and script."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Caller(Struct, frozen=True, kw_only=True, gc=False):
    """Who made a connection; ``certificate_sha256`` "": nobody proved anything."""

    peer: str
    certificate_sha256: str


class Incoming(asyncio.Protocol):
    """One accepted stream; where there is a handshake, it is behind us when the stream is made."""

    def __init__(self, number: int, listener: "Listener", wiring: Wiring) -> None:
        self.number = number
        self.source = f"@{number}"
        self.role: ProcessRole | None = None
        self._peer = "?"
        self._listener = listener
        self._wiring = wiring
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(HELLO_BYTES_MAX)
        self._allowed: frozenset[type] = frozenset()
        self._certificate: bytes | None = None
        self._ending = False
        self._began = self._heard = monotonic()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface without the base class.
        self._transport = cast("asyncio.Transport", transport)
        secured: Any = transport.get_extra_info("ssl_object")
        if secured is not None:
            self._certificate = secured.getpeercert(binary_form=True)
        name = transport.get_extra_info("peername")
        self._peer = f"{name[0]}:{name[1]}" if name else "?"
        self._arm(self._wiring.limits.hello_seconds_max)

    def answer(self, framed: bytes, kind: str) -> None:
        """Say something on a connection that has no address; dropped where its reader lags too far."""
        transport = self._transport
        if transport is None or self._ending:
            self._wiring.dropped("closed", kind)
        elif transport.get_write_buffer_size() > ANSWER_BYTES_MAX:
            self._wiring.dropped("full", kind)
        else:
            transport.write(framed)
            self._wiring.messages_out += 1
            self._wiring.bytes_out += len(framed)

    def data_received(self, data: bytes) -> None:
        if self._ending:
            return
        self._wiring.read_gap.read()
        self._wiring.bytes_in += len(data)
        self._heard = monotonic()
        try:
            for payload in self._reader.feed(data):
                self._understood(payload)
        except HostileBytes as error:
            self._refuse(error.code, error.detail, "hostile bytes")
        except Refusal as error:
            self._refuse(error.code, error.reason, "refused")

    def _understood(self, payload: bytes) -> None:
        kind = control_kind(payload)
        if self.role is None:
            if kind is not Control.HELLO:
                raise HostileBytes("no_hello", "something else than HELLO came first")
            self._greet(read_hello(payload))
        elif kind is None:
            self._message(payload)
        elif kind is Control.PING:
            assert self._transport is not None
            if self._transport.get_write_buffer_size() > ANSWER_BYTES_MAX:
                raise HostileBytes("deaf", "it asks on and on and takes no answer")
            self._transport.write(clock_frame(Control.PONG, read_clock(payload)))
        else:
            raise HostileBytes("unexpected", f"a dialler said {kind.name}")

    def _message(self, payload: bytes) -> None:
        message = read_message(payload)
        if type(message) not in self._allowed:
            raise Refusal(
                "wrong_role",
                f"a {self.role} may not send {type(message).__name__} to a {self._wiring.role}",
            )
        self._wiring.messages_in += 1
        self._wiring.received(self.source, message)

    def _greet(self, hello: Hello) -> None:
        if hello.version != RPC_VERSION:
            raise Refusal("version", f"version {hello.version} of qim-rpc, not {RPC_VERSION}")
        try:
            role = ProcessRole(hello.role)
        except ValueError:
            raise Refusal("wrong_role", f"there is no role {hello.role[:32]!r}") from None
        self._judge(role)
        self._allowed = may_say(role, self._wiring.role)
        if not self._allowed:
            raise Refusal("wrong_role", f"a {role} has nothing to say to a {self._wiring.role}")
        if hello.address:
            if not dialable(hello.address):
                raise HostileBytes("bad_hello", "the address is no host:port")
            self.source = hello.address
        elif role is not ProcessRole.ADMIN:
            raise HostileBytes("bad_hello", f"a {role} without an address")
        self.role = role
        self._reader.limit = self._wiring.limits.frame_bytes_max
        self._arm(self._wiring.limits.silent_seconds_max)
        assert self._transport is not None
        self._transport.write(
            hello_frame(Control.WELCOME, self._wiring.role.value, self._wiring.address)
        )
        self._listener.welcomed(self)

    def _judge(self, role: ProcessRole) -> None:
        """Is it what it says? Raises Refusal."""
        security = self._wiring.security
        if security is None:
            if role is ProcessRole.ADMIN:
                raise Refusal("admin_plaintext", "admin operations need mTLS, on loopback too")
            return
        if self._certificate is None:
            raise Refusal("certificate_missing", "no client certificate")
        roles = security.roles_of(self._certificate)
        if role not in roles:
            known = ", ".join(sorted(roles)) or "in no list"
            raise Refusal(
                "wrong_role",
                f"it says {role}, its certificate {self._fingerprint()} is {known}",
            )

    @property
    def caller(self) -> Caller:
        """For who must know by whom an order came."""
        return Caller(peer=self._peer, certificate_sha256=self._fingerprint())

    def _fingerprint(self) -> str:
        return "" if self._certificate is None else sha256(self._certificate).hexdigest()

    def _refuse(self, code: str, reason: str, event: str) -> None:
        told: dict[str, object] = {"peer": self._peer, "code": code, "why": reason}
        if self.role is not None:
            told |= {"peer_role": self.role.value, "address": self.source}
        if self._certificate is not None:
            told["certificate_sha256"] = self._fingerprint()
        self._wiring.reporting.count("rpc_refused", 1, code)
        self._wiring.reporting.log("warning", event, told)
        self.end(code, reason)

    def end(self, code: str, reason: str) -> None:
        """Say why, then close; the peer's last bytes are read and thrown away so that it can hear it."""
        transport = self._transport
        self._ending = True
        self._arm(SORRY_LINGER_SECONDS)
        if transport is not None and not transport.is_closing():
            transport.write(sorry_frame(code, reason))
            if transport.can_write_eof():
                transport.write_eof()
            else:
                transport.close()

    def _arm(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._wiring.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """Silent for too long: gone without a word, stopped, or never anybody."""
        limits = self._wiring.limits
        now = monotonic()
        if self._ending:
            self.abort()
        elif self.role is None:
            self._refuse("no_hello", f"no HELLO within {limits.hello_seconds_max:g} s", "refused")
        elif now - self._heard >= limits.silent_seconds_max:
            self._wiring.reporting.log("warning", "peer silent", {"address": self.source})
            self.abort()
        else:
            self._arm(self._heard + limits.silent_seconds_max - now)

    def abort(self) -> None:
        """End now."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ending = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._listener.closed(self)


def dialable(address: str) -> bool:
    """host:port or [host]:port with a port above 0, and no address of every interface: who dialled that would meet itself."""
    host, colon, port = address.rpartition(":")
    bare = host.strip("[]")
    return (
        bool(colon and bare)
        and not is_wildcard(bare)
        and (":" not in bare or host.startswith("["))
        and all(33 <= ord(letter) < 127 for letter in address)
        and port.isascii()
        and port.isdigit()
        and 0 < int(port) <= 65_535
    )
