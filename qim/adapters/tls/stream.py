"""TLS between a raw transport and a protocol, transport to the one and protocol to the other.

    SHAKING --> OPEN --> ENDED     handshake good and ALPN agreed: the protocol gets connection_made
    SHAKING --> ENDED              refused or too late: ``on_fault`` is told, the protocol never hears of it

asyncio's own layer swallows why a handshake failed, sends no alert about it, hides unsent bytes in a second buffer and
can't half-close; each of the four matters here. Ciphertext goes to the raw transport as it is made, so its buffer is
the whole backlog.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Any, Final, cast

from qim.adapters.tls.faults import AlpnMissing

READ_BYTES_MAX: Final = 256 << 10
OnFault = Callable[[BaseException], None]


class TlsStream(asyncio.Protocol):
    """One connection. Plaintext calls are those of asyncio.Transport, as far as our protocols use them."""

    def __init__(
        self,
        context: ssl.SSLContext,
        inner: asyncio.Protocol,
        on_fault: OnFault,
        *,
        server_side: bool,
        handshake_seconds: float,
        server_name: str | None = None,
        alpn: str = "",
    ) -> None:
        """``alpn`` "": not asked for. ``on_fault``: once, only when the inner protocol was never connected."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_name
        )
        self._inner = inner
        self._on_fault: OnFault | None = on_fault
        self._seconds = handshake_seconds
        self._alpn = alpn
        self._raw: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._open = False
        self._deaf = False
        """We said close_notify: what still comes is thrown away."""
        self._error: BaseException | None = None

    # ------------------------------------------------------------ protocol of the raw transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface without the base class.
        self._raw = cast("asyncio.Transport", transport)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._seconds, self._too_late)
        self._shake()

    def data_received(self, data: bytes) -> None:
        if self._deaf or self._error is not None:
            return
        self._incoming.write(data)
        if not self._open:
            self._shake()
        if self._open:
            self._read()

    def eof_received(self) -> bool:
        self._incoming.write_eof()
        if not self._open:
            self._fail(ConnectionResetError("closed during the handshake"))
        return False

    def pause_writing(self) -> None:
        if self._open:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._open:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._open:
            self._open = False
            lost = self._error if isinstance(self._error, Exception) else exc
            self._inner.connection_lost(lost)
        else:
            self._fault(exc or ConnectionResetError("closed during the handshake"))

    # ------------------------------------------------------------ the handshake

    def _shake(self) -> None:
        if self._error is not None:
            return
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except (ssl.SSLError, OSError) as error:
            self._flush()  # the alert: the peer hears why, too
            self._fail(error)
            return
        self._flush()
        chosen = self._tls.selected_alpn_protocol()
        if self._alpn and chosen != self._alpn:
            self._fail(
                AlpnMissing(f"no agreement on ALPN {self._alpn} (agreed on: {chosen or 'none'})")
            )
            return
        if self._timer is not None:
            self._timer.cancel()
        self._on_fault = None
        self._open = True
        # The inner protocol takes us for its transport: all it uses of one is below.
        self._inner.connection_made(cast("asyncio.Transport", self))

    def _too_late(self) -> None:
        if not self._open:
            self._fail(TimeoutError(f"no handshake within {self._seconds:g} s"))

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
        if self._raw is not None:
            self._raw.close()
        self._fault(error)

    def _fault(self, error: BaseException) -> None:
        if self._timer is not None:
            self._timer.cancel()
        told, self._on_fault = self._on_fault, None
        if told is not None:
            told(error)

    # ------------------------------------------------------------ plaintext

    def _read(self) -> None:
        parts = []
        ended = False
        try:
            while part := self._tls.read(READ_BYTES_MAX):
                parts.append(part)
            ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            ended = True
        except ssl.SSLError as error:
            self._error = error
        self._flush()
        if parts:
            self._inner.data_received(parts[0] if len(parts) == 1 else b"".join(parts))
        if self._error is not None:
            self.abort()
        elif ended and self._open and not self._inner.eof_received():
            self.close()

    def _flush(self) -> None:
        if self._outgoing.pending and self._raw is not None and not self._raw.is_closing():
            self._raw.write(self._outgoing.read())

    def _goodbye(self) -> None:
        """close_notify, so that the peer can tell our end from a cut."""
        self._deaf = True
        # The peer's own close_notify is not waited for.
        with contextlib.suppress(ssl.SSLError, ValueError, OSError):
            self._tls.unwrap()
        self._flush()

    # ------------------------------------------------------------ transport of the inner protocol

    def write(self, data: bytes) -> None:
        """Encrypt and hand to the raw transport at once."""
        if not data or self._deaf or self._raw is None or self._raw.is_closing():
            return
        self._tls.write(data)
        self._flush()

    def get_write_buffer_size(self) -> int:
        """Ciphertext that the kernel didn't take yet."""
        return 0 if self._raw is None else self._raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Of the raw transport: ours holds nothing."""
        if self._raw is not None:
            self._raw.set_write_buffer_limits(high=high, low=low)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """close_notify and FIN; what still comes is read and thrown away until ``abort`` or the peer's end."""
        if self._raw is None or self._raw.is_closing() or self._deaf:
            return
        self._goodbye()
        self._raw.write_eof()

    def close(self) -> None:
        """What was written goes out, then the connection ends."""
        if self._raw is not None and not self._raw.is_closing():
            if self._open and not self._deaf:
                self._goodbye()
            self._raw.close()

    def abort(self) -> None:
        """Now."""
        if self._raw is not None:
            self._raw.abort()

    def is_closing(self) -> bool:
        return self._raw is None or self._raw.is_closing()

    def is_reading(self) -> bool:
        return self._raw is not None and self._raw.is_reading()

    def pause_reading(self) -> None:
        if self._raw is not None:
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        if self._raw is not None:
            self._raw.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """``ssl_object`` is ours, everything else the raw transport's."""
        if name == "ssl_object":
            return self._tls
        return default if self._raw is None else self._raw.get_extra_info(name, default)
