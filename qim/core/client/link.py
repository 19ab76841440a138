"""The way to a gateway and back: dial, AUTH, heartbeat, kicks, reconnects (pipeline.md §6).

One stream at a time. AUTH is sent when the stream is open AND the attempt's number is on disk, so that no two AUTHs of
the device ever carry the same claim in the wrong order. A final KICKED (REPLACED, REVOKED) or a refused token waits for
the user; everything else comes back by itself, slower each time.
"""

from qim.core.client.context import AttemptSaving, ClientContext, WaitKind
from qim.core.client.vocabulary import ClientState
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import (
    Auth,
    AuthOk,
    Kicked,
    KickReason,
    Ping,
    Pong,
    Redirect,
    SyncComplete,
)
from qim.core.contract.wire import FRAME_BYTES_MAX, FrameDecoder
from qim.core.machine import Ms
from qim.core.ports.local_store import SaveAttempt
from qim.core.ports.sockets import Dial

_FINAL = (KickReason.REPLACED, KickReason.REVOKED)
_TOKEN_REFUSALS = (ErrorCode.UNAUTHENTICATED, ErrorCode.TOKEN_EXPIRED, ErrorCode.FORBIDDEN)
_AUTH_REFUSALS = (
    ErrorCode.INVALID_ARGUMENT,
    ErrorCode.UNSUPPORTED,
    ErrorCode.MALFORMED_FRAME,
    ErrorCode.FRAME_TOO_LARGE,
)
"""The same AUTH gets them again: coming back by itself would never end."""


class Link:
    """Owns the stream and its state; it knows neither messages nor cursors but the one AUTH carries."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self.wanted = False
        self.access_token = context.config.access_token
        self.last_attempt = 0
        self.decoder = FrameDecoder(FRAME_BYTES_MAX)
        self._conn = 0
        self._address = 0
        self._redirect = ""
        self._redirects = 0
        self._attempt = 0
        self._token = ""
        self._open = False
        self._failures = 0
        self._due: Ms | None = None
        self._last_heard: Ms = 0

    # ---------------------------------------------------------------- the user's wishes

    def go_online(self) -> None:
        """Connect, whatever ended the last connection."""
        self.wanted = True
        if self._context.state in (ClientState.OFFLINE, ClientState.STOPPED, ClientState.WAITING):
            self._failures = 0
            self._dial()

    def go_offline(self) -> None:
        """No connection, until wanted again."""
        self.wanted = False
        self._context.drop_stream()
        self._due = None
        self._context.move(ClientState.OFFLINE)

    def renew_token(self, access_token: str) -> None:
        """A connection refused for its token is tried again."""
        self.access_token = access_token
        if self.wanted and self._context.state is ClientState.STOPPED:
            self.go_online()

    # ---------------------------------------------------------------- from stream to AUTH_OK

    def dialed(self) -> None:
        """The stream is open."""
        self._open = True
        self._last_heard = self._context.now

    def attempt_saved(self, saving: AttemptSaving) -> None:
        """The attempt's number is on disk."""
        self.last_attempt = max(self.last_attempt, saving.attempt)
        if saving.conn == self._context.conn:
            self._attempt = saving.attempt

    def may_authenticate(self) -> bool:
        """Open, numbered, and not yet asked."""
        return self._context.state is ClientState.DIALING and self._open and self._attempt > 0

    def authenticate(self, cursor: bytes | None) -> None:
        """Say who we are; cursor None: a new device, or a rebuild."""
        context = self._context
        context.move(ClientState.AUTHENTICATING)
        self._due = None
        self._token = self.access_token
        frame = Auth(
            access_token=self.access_token,
            device_id=context.config.device_id,
            attempt=self._attempt,
            cursor=cursor,
            client_info=context.config.client_info,
        )
        context.ask(frame, WaitKind.AUTH)

    def is_for_another(self, frame: AuthOk) -> bool:
        """Is the token another user's: his messages don't belong here, nor ours to him."""
        return frame.user_id != self._context.config.user_id

    def authenticated(self, frame: AuthOk) -> None:
        """AUTH_OK: the server's clock, and the heart begins to beat."""
        context = self._context
        context.server_ahead = frame.server_time - context.now
        context.move(ClientState.SYNCING)
        self._due = context.now + context.config.parameters.heartbeat_ms

    def refused(self, code: int, retry_after_ms: int, message: str = "") -> None:
        """AUTH got an ERROR that no rebuild cures; a token renewed meanwhile is still to be tried."""
        renewed = code in _TOKEN_REFUSALS and self.access_token != self._token
        if code in _TOKEN_REFUSALS + _AUTH_REFUSALS and not renewed:
            self.stop(code, refused=True, detail=message)
        else:
            self.lose(at_least_ms=retry_after_ms, code=code, detail=message)

    def sync_complete(self, sync_to_seq: int) -> None:
        """Everything up to sync_to_seq is in the local store."""
        self._context.ask(SyncComplete(sync_to_seq=sync_to_seq), WaitKind.SYNC_COMPLETE)

    def ready(self) -> None:
        """ONLINE_READY: this connection is good, the next failure is a first one again."""
        self._failures = 0
        self._redirects = 0
        self._context.move(ClientState.ONLINE)

    # ---------------------------------------------------------------- while it lives

    def heard(self) -> None:
        """Bytes came."""
        self._last_heard = self._context.now

    def ping(self, frame: Ping) -> None:
        """The server's PING."""
        context = self._context
        pong = Pong(
            client_time=frame.client_time, server_time=context.clock.read(context.now), watermark=0
        )
        context.say(pong)

    def pong(self, frame: Pong) -> None:
        """The server's clock again."""
        self._context.server_ahead = frame.server_time - self._context.now

    def kicked(self, frame: Kicked) -> None:
        """The server's last frame: final for REPLACED and REVOKED, else as it says."""
        if frame.reason in _FINAL or not frame.reconnect:
            self.stop(frame.reason)
        else:
            self.lose()

    def redirected(self, frame: Redirect) -> None:
        """Go there instead; a ring of redirects turns into ordinary back-off."""
        self._redirect = frame.address
        self._redirects += 1
        if self._redirects > self._context.config.redirects_max:
            self.lose()
            return
        self._context.drop_stream()
        self._dial()

    # ---------------------------------------------------------------- ends

    def stop(self, reason: int, *, refused: bool = False, detail: str = "") -> None:
        """The connection ends, and only the user's act brings another."""
        self._context.drop_stream()
        self._due = None
        self._context.move(ClientState.STOPPED, reason, refused=refused, detail=detail)

    def lose(self, at_least_ms: Ms = 0, *, code: int = 0, detail: str = "") -> None:
        """The connection is of no more use: end it and come back later. ``code``: AUTH was refused with it."""
        context = self._context
        assert self.wanted, "who isn't wanted online has no connection to lose"
        context.drop_stream()
        delay = context.backoff("client.reconnect", self._failures, self.last_attempt)
        self._failures += 1
        self._due = context.now + max(delay, at_least_ms)
        context.move(ClientState.WAITING, code, refused=code != 0, detail=detail)

    def deadline(self) -> Ms | None:
        """When to dial, give up dialing, or beat; dead_peer_ms is looked at with each beat."""
        return self._due

    def tick(self) -> bool:
        """Do what is due. True: the connection is of no more use, and every part must hear of it."""
        context = self._context
        if self._due is None or context.now < self._due:
            return False
        if context.state is ClientState.WAITING:
            self._dial()
            return False
        if context.state is ClientState.DIALING:
            context.count("dial_timeouts")
            return True
        return self._beat()

    def _beat(self) -> bool:
        context = self._context
        assert context.is_live(), f"a heart beats in {context.state!r}"
        if context.now - self._last_heard >= context.config.dead_peer_ms:
            context.count("dead_peers")
            return True
        context.say(Ping(client_time=context.clock.read(context.now)))
        self._due = context.now + context.config.parameters.heartbeat_ms
        return False

    def _dial(self) -> None:
        context = self._context
        self._conn += 1
        context.conn = self._conn
        self.decoder = FrameDecoder(FRAME_BYTES_MAX)
        self._open = False
        self._attempt = 0
        self._due = context.now + context.config.dial_timeout_ms
        address = self._redirect
        if not address:
            addresses = context.config.addresses
            address = addresses[self._address % len(addresses)]
            self._address += 1
        self._redirect = ""
        context.move(ClientState.DIALING)
        context.order(Dial(conn=self._conn, address=address))
        attempt = max(self.last_attempt + 1, context.clock.read(context.now))
        self.last_attempt = attempt
        op = context.expect(AttemptSaving(conn=self._conn, attempt=attempt))
        context.order(SaveAttempt(op=op, attempt=attempt))
