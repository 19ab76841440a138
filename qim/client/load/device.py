"""One device of the load: a connection that heals itself, sends that are repeated until settled, pulls that follow pushes.

dialling ──AUTH_OK──► online ──closed, kicked──► waiting ──► dialling
   │                    │  unsettled sends again under their own client_message_id
   └──refused for good──► ``refusal``: the run is not begun
"""

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any, Final

from qim.client.load.tally import ACKED, REFUSED, Stream, Tally
from qim.client.tls import ClientTls, agreed
from qim.core.contract.errors import ERROR_MEANINGS, ErrorCode
from qim.core.contract.frames import (
    Auth,
    AuthOk,
    CreateGroup,
    Error,
    GroupOk,
    Kicked,
    KickReason,
    MailboxBatch,
    Ping,
    Pong,
    PullMailbox,
    PushEvents,
    SendAck,
    SendMessage,
    SyncComplete,
    decode_server_frame,
    encode_frame,
)
from qim.core.contract.wire import FRAME_BYTES_MAX, FrameDecoder

REDIAL_SECONDS: Final = 0.25
RETRY_MS_MIN: Final = 50
ANSWER_US_MAX: Final = 6_000_000
UNSETTLED_MAX: Final = 20_000
"""Sends of one device that wait for an outcome; one more is counted as not offered, never queued without bound."""
PULL_LIMIT: Final = 500
GROUP_ANSWER_SECONDS: Final = 5.0
CURSOR_CODES: Final = (
    ErrorCode.CURSOR_EXPIRED,
    ErrorCode.CURSOR_INVALID,
    ErrorCode.CURSOR_REBASED,
)


class GroupRefused(Exception):
    """CREATE_GROUP was refused for good; the text is the code's name."""


def now_us() -> int:
    """The run's clock."""
    return time.monotonic_ns() // 1000


class LoadDevice(asyncio.Protocol):
    """``number`` stands for the device in the tally; ``address`` host:port."""

    def __init__(
        self,
        number: int,
        user: int,
        token: str,
        address: str,
        tally: Tally,
        *,
        tls: ClientTls | None,
    ) -> None:
        self.number = number
        self.user = user
        self.tally = tally
        self.online = asyncio.Event()
        self.decided = asyncio.Event()
        """It was online once, or ``refusal`` says why it never will be."""
        self.refusal = ""
        self.read_through = asyncio.Event()
        """A pull that was begun after ``read_again`` has found the mailbox's end."""
        self.unsettled: dict[bytes, SendMessage] = {}
        self._token = token
        self._address = address
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder(FRAME_BYTES_MAX)
        self._cursor: bytes | None = None
        self._pulling = False
        self._pulled_at = 0
        self._written_at: dict[bytes, int] = {}
        self._dirty = False
        self._request = 1
        self._not_after_ms = 0
        """The latest that the server takes, less ms of the run's clock: a long run is offered as a short one is."""
        self._stopped = False
        self._dialling: asyncio.Task[None] | None = None
        self._groups: dict[bytes, asyncio.Future[GroupOk]] = {}

    # ---------------------------------------------------------------- connection

    def start(self) -> None:
        """Dial, and again whenever the stream ends."""
        self._dialling = self._loop.create_task(self._dial())

    def stop(self) -> None:
        """No more dialling; the stream is closed."""
        self._stopped = True
        if self._dialling is not None:
            self._dialling.cancel()
        if self._transport is not None:
            self._transport.close()

    def drop(self) -> None:
        """End the stream as a lost network does."""
        if self._transport is not None:
            self._transport.abort()

    def hold_reading(self, seconds: float) -> None:
        """A slow reader: nothing is taken from the socket for so long."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.pause_reading()

        def resume() -> None:
            if not transport.is_closing():
                transport.resume_reading()

        self._loop.call_later(seconds, resume)

    async def _dial(self) -> None:
        host, _, port = self._address.rpartition(":")
        while not self._stopped:
            try:
                await self._loop.create_connection(
                    lambda: self,
                    host.strip("[]"),
                    int(port),
                    ssl=self._tls.context if self._tls else None,
                    server_hostname=(self._tls.server_name or host) if self._tls else None,
                )
                return
            except OSError as error:
                self.tally.errors[f"dial {type(error).__name__}"] += 1
                await asyncio.sleep(REDIAL_SECONDS)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        secured = transport.get_extra_info("ssl_object")
        if secured is not None and not agreed(secured):
            self.tally.errors["no ALPN qim/1"] += 1
            transport.abort()
            return
        self._transport = transport
        self._decoder = FrameDecoder(FRAME_BYTES_MAX)
        self._pulling = self._dirty = False
        attempt = time.time_ns() // 1_000_000
        device = b"load-%d" % self.number
        auth = Auth(
            access_token=self._token, device_id=device, attempt=attempt, cursor=self._cursor
        )
        self._write(auth)

    def connection_lost(self, exc: Exception | None) -> None:
        self.online.clear()
        self._transport = None
        if not self._stopped:
            self.tally.counts["connections_lost"] += 1
            self._loop.call_later(REDIAL_SECONDS, self.start)

    # ---------------------------------------------------------------- sends

    def send(self, stream: Stream, due_us: int, size: int) -> None:
        """Offer one message; it is repeated until it is settled."""
        if len(self.unsettled) >= UNSETTLED_MAX:
            self.tally.counts["not_offered"] += 1
            return
        body = self.tally.body(stream, due_us, size)
        frame = SendMessage(
            client_message_id=os.urandom(16),
            conversation_id=stream.conversation_id,
            peer_user_id=stream.peer,
            kind=1,
            custom_type="",
            body=body,
            retention_class=0,
            not_after=self._not_after(),
        )
        self.unsettled[frame.client_message_id] = frame
        self._offer(frame)
        self.tally.record("generator", now_us() - due_us)

    def nurse(self) -> None:
        """Once a second: what got no answer is asked again, as a client's time-outs do."""
        late = now_us() - ANSWER_US_MAX
        for sent in list(self.unsettled.values()):
            if self._written_at.get(sent.client_message_id, 0) < late:
                self.tally.counts["sent_again"] += 1
                self._offer(sent)
        if self._pulling and self._pulled_at < late:
            self._pulling = False
        self._pull()

    def _offer(self, frame: SendMessage) -> None:
        if self.online.is_set():
            self._written_at[frame.client_message_id] = now_us()
            self._write(frame)

    def ping(self) -> None:
        """The control group: a gateway, and the lane's W from the memory of its mailbox owner; no store, no log."""
        if self.online.is_set():
            self._write(Ping(client_time=now_us()))

    async def create_group(self, frame_of: Callable[[int], CreateGroup]) -> GroupOk:
        """``frame_of(not_after)``; repeated until it is answered, which the caller bounds. Raises GroupRefused."""
        frame = frame_of(self._not_after())
        while True:
            answered = self._groups[frame.client_message_id] = self._loop.create_future()
            await self.online.wait()
            self._write(frame)
            try:
                async with asyncio.timeout(GROUP_ANSWER_SECONDS):
                    done: GroupOk = await answered
                    return done
            except TimeoutError:
                continue

    def read_again(self) -> None:
        """Pull to the mailbox's end once more, whatever is under way; ``read_through`` tells when."""
        self.read_through.clear()
        self._pull()

    def _not_after(self) -> int:
        return self._not_after_ms + now_us() // 1000

    # ---------------------------------------------------------------- frames

    def data_received(self, data: bytes) -> None:
        now = now_us()
        for raw in self._decoder.feed(data):
            self._take(decode_server_frame(raw), now)

    def _take(self, frame: Any, now: int) -> None:
        kind = type(frame)
        if kind is SendAck:
            sent = self.unsettled.pop(frame.client_message_id, None)
            if sent is not None:
                self._written_at.pop(frame.client_message_id, None)
                self.tally.settled(sent.body, ACKED, now)
        elif kind is MailboxBatch:
            self._pulled(frame, now)
        elif kind is PushEvents:
            for entry in frame.entries:
                self.tally.pushed(entry.body, now)
            self._pull()
        elif kind is Pong:
            self.tally.record("ping", now - frame.client_time)
        elif kind is Error:
            self._refused(frame)
        elif kind is AuthOk:
            self._welcomed(frame)
        elif kind is GroupOk:
            answered = self._groups.pop(frame.client_message_id, None)
            if answered is not None and not answered.done():
                answered.set_result(frame)
        elif kind is Kicked:
            self.tally.errors[f"kicked {KickReason(frame.reason).name}"] += 1

    def _welcomed(self, frame: AuthOk) -> None:
        self._cursor = self._cursor or frame.cursor
        self._not_after_ms = frame.server_time + frame.limits.not_after_ms - now_us() // 1000
        self._write(SyncComplete(sync_to_seq=frame.sync_to_seq))
        self.online.set()
        self.decided.set()
        for sent in list(self.unsettled.values()):
            self._offer(sent)
        self._pull()

    def _refused(self, frame: Error) -> None:
        code = ErrorCode(frame.code)
        self.tally.errors[code.name] += 1
        for_good = not ERROR_MEANINGS[code].retry
        wait_ms = max(frame.retry_after_ms, RETRY_MS_MIN)
        key = frame.client_message_id or b""
        if (sent := self.unsettled.get(key)) is not None:
            if not for_good:
                self._loop.call_later(wait_ms / 1000, self._again, key)
                return
            del self.unsettled[key]
            self._written_at.pop(key, None)
            self.tally.settled(sent.body, REFUSED, now_us())
        elif (asked := self._groups.get(key)) is not None:
            if for_good and not asked.done():
                asked.set_exception(GroupRefused(code.name))
        elif code in CURSOR_CODES:
            self._cursor = None
            self.drop()
        elif for_good and not self.decided.is_set():
            self.refusal = code.name
            self.decided.set()
        elif self._pulling:
            self._pulling = False
            self._loop.call_later(wait_ms / 1000, self._pull)

    def _again(self, client_message_id: bytes) -> None:
        sent = self.unsettled.get(client_message_id)
        if sent is not None:
            self._offer(sent)

    def _pulled(self, frame: MailboxBatch, now: int) -> None:
        self._cursor = frame.cursor
        for entry in frame.entries:
            self.tally.delivered(self.number, entry, now)
        self._pulling = False
        if not frame.has_more and not self._dirty:
            self.read_through.set()
        else:
            self._dirty = False
            if frame.retry_after_ms:
                self._loop.call_later(frame.retry_after_ms / 1000, self._pull)
            else:
                self._pull()

    def _pull(self) -> None:
        if self._pulling or not self.online.is_set() or self._cursor is None:
            self._dirty = True
            return
        self._pulling = True
        self._pulled_at = now_us()
        self._write(PullMailbox(cursor=self._cursor, up_to_seq=0, limit=PULL_LIMIT))

    def _write(self, frame: Any) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_frame(frame, request=self._request))
            self._request += 1
