"""A client that speaks frames and bytes and does nothing by itself: what a test says goes out, what comes back is shown.

The SDK would repair what these tests provoke; so nothing here reconnects, pulls or keeps a cursor. Only what the server
had no time for is said again, word for word, where a test wants its answer (``ask``): any machine is slow for a moment.
"""

import asyncio
import itertools
import socket
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from qim.core.contract.entities import MessageKind
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import (
    Auth,
    AuthOk,
    CreateGroup,
    Error,
    GroupOk,
    HistoryBatch,
    HistoryDirection,
    HistoryRecord,
    MailboxBatch,
    MailboxEntry,
    OnlineReady,
    PullHistory,
    PullMailbox,
    SendAck,
    SendMessage,
    ServerFrame,
    SyncComplete,
    WireFrame,
    decode_server_frame,
    encode_frame,
)
from qim.core.contract.tokens import AccessToken, sign_token
from qim.core.contract.wire import FRAME_BYTES_MAX, FrameDecoder

PATIENCE_SECONDS = 60.0
"""A guard against waiting for ever, never a judgement of speed."""
NEVER = 2**45
CHUNK_BYTES = 256 * 1024
NO_TIME = frozenset({ErrorCode.UNAVAILABLE, ErrorCode.TIMEOUT_UNKNOWN})
"""Some process was not in time (a gateway waits 5 s): the same frame again is the contract's own advice."""
AGAIN_SECONDS = 0.05
AUTHS_MAX = 3
"""Of one connection, whoever is to blame: the server ends it then."""

F = TypeVar("F", bound=WireFrame)
T = TypeVar("T")

_attempts = itertools.count(time.time_ns() // 1_000_000)
_keys = itertools.count(1)


class Target(NamedTuple):
    """Where to connect and what signs tokens there."""

    tcp: str
    secret: bytes


class Heard(NamedTuple):
    """One frame of the server with the request it answers (0: unasked)."""

    request: int
    frame: ServerFrame


def target_of(tcp: str, data: Path) -> Target:
    """The target of an embedded server."""
    return Target(tcp, (data / "secret").read_bytes())


def token(secret: bytes, user: int, **changes: Any) -> str:
    """A good token of ``user``, with other fields where the test wants them."""
    fields: dict[str, Any] = {
        "tenant_id": "default",
        "user_id": user,
        "device_id": None,
        "expires_at": NEVER,
    }
    return sign_token(AccessToken(**(fields | changes)), secret)


def next_attempt() -> int:
    """Above every attempt this process ever made."""
    return next(_attempts)


def new_key() -> bytes:
    """A client_message_id that no other call of this process gave."""
    return b"raw\0" + next(_keys).to_bytes(12, "big")


def soon() -> int:
    """A not_after half an hour ahead."""
    return time.time_ns() // 1_000_000 + 1_800_000


def message(body: bytes = b"hello", **changes: Any) -> SendMessage:
    """A SEND_MESSAGE to ``peer_user_id`` or ``conversation_id``, with a key of its own."""
    fields: dict[str, Any] = {
        "client_message_id": new_key(),
        "conversation_id": None,
        "peer_user_id": None,
        "kind": MessageKind.TEXT,
        "custom_type": "",
        "body": body,
        "retention_class": 0,
        "not_after": soon(),
    }
    return SendMessage(**(fields | changes))


async def patient(what: Awaitable[T]) -> T:
    """Await, but not for ever."""
    return await asyncio.wait_for(what, PATIENCE_SECONDS)


class NoTime(Exception):
    """The server had no time for this connection's AUTHs, and has ended it."""


class RawClient:
    """One connection. ``heard`` keeps frames that came while another was awaited; ``reset``: the end was a RST."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder(FRAME_BYTES_MAX)
        self._frames: list[Heard] = []
        self._requests = itertools.count(1)
        self._ended = False
        self.reset = False
        self.heard: list[Heard] = []
        self.user = 0
        self.cursor = b""

    @classmethod
    async def connect(cls, tcp: str, *, receive_buffer_bytes: int | None = None) -> "RawClient":
        """A fresh connection; a small receive buffer makes a slow reader felt early."""
        host, _, port = tcp.rpartition(":")
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        limit = receive_buffer_bytes or CHUNK_BYTES
        reader, writer = await asyncio.open_connection(sock=sock, limit=limit)
        return cls(reader, writer)

    @classmethod
    async def log_in(
        cls, target: Target, user: int, *, device: bytes = b"raw", cursor: bytes | None = None
    ) -> "RawClient":
        """Connect, AUTH, pull nothing, ONLINE_READY."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                client = await cls.connect(target.tcp)
                try:
                    await client.authenticate(target, user, device=device, cursor=cursor)
                    await client.go_online()
                except NoTime:
                    await client.cut()
                    continue
                return client

    async def authenticate(
        self,
        target: Target,
        user: int,
        *,
        device: bytes = b"raw",
        cursor: bytes | None = None,
        attempt: int | None = None,
    ) -> AuthOk:
        """AUTH that must be accepted."""
        auth = Auth(
            access_token=token(target.secret, user),
            device_id=device,
            attempt=next_attempt() if attempt is None else attempt,
            cursor=cursor,
        )
        self.auth_ok = await self.ask(auth, AuthOk)
        self.user = user
        self.cursor = self.auth_ok.cursor
        return self.auth_ok

    async def go_online(self) -> OnlineReady:
        """SYNC_COMPLETE, without a pull: it is the test's affair whether anything was missed."""
        return await self.ask(SyncComplete(sync_to_seq=self.auth_ok.sync_to_seq), OnlineReady)

    # ------------------------------------------------------------ saying

    def say(self, frame: WireFrame, *, request: int | None = None, **header: Any) -> int:
        """Write a frame; its request id."""
        number = next(self._requests) if request is None else request
        self.say_bytes(encode_frame(frame, request=number, **header))
        return number

    def say_bytes(self, data: bytes) -> None:
        """Write bytes as they are."""
        self._writer.write(data)

    async def flush(self) -> None:
        """Wait until the kernel has taken what was said; a cut connection is seen by reading."""
        try:
            await patient(self._writer.drain())
        except (ConnectionError, BrokenPipeError):
            self.reset = True

    # ------------------------------------------------------------ hearing

    async def hear(self) -> Heard | None:
        """The next frame as it came, None at the end of the connection."""
        while not self._frames and not self._ended:
            try:
                chunk = await patient(self._reader.read(CHUNK_BYTES))
            except ConnectionError:
                self.reset = True
                chunk = b""
            self._ended = not chunk
            for raw in self._decoder.feed(chunk):
                self._frames.append(Heard(raw.request, decode_server_frame(raw)))
        return self._frames.pop(0) if self._frames else None

    async def answer(self, request: int) -> ServerFrame:
        """The frame that answers ``request``; what comes before it is kept in ``heard``."""
        for at, earlier in enumerate(self.heard):
            if earlier.request == request:
                return self.heard.pop(at).frame
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                got = await self.hear()
                assert got is not None, f"the connection ended before {request} was answered"
                if got.request == request:
                    return got.frame
                self.heard.append(got)

    async def ask(self, frame: WireFrame, kind: type[F], **header: Any) -> F:
        """Say a frame and return its answer, which must be a ``kind``."""
        return await self.answered(frame, self.say(frame, **header), kind, **header)

    async def answered(self, frame: WireFrame, request: int, kind: type[F], **header: Any) -> F:
        """The answer to ``frame``, which was said as ``request``; said again for as long as nobody has time for it."""
        said = 1
        async with asyncio.timeout(PATIENCE_SECONDS):
            while isinstance(got := await self.answer(request), Error) and got.code in NO_TIME:
                if isinstance(frame, Auth) and said == AUTHS_MAX:
                    raise NoTime(got)
                await asyncio.sleep(max(AGAIN_SECONDS, got.retry_after_ms / 1000))
                request = self.say(frame, **header)
                said += 1
        assert isinstance(got, kind), f"{frame!r} was answered by {got!r}"
        return got

    async def refused(self, frame: WireFrame, **header: Any) -> Error:
        """Say a frame that must be answered by an ERROR with the same request id."""
        return await self.ask(frame, Error, **header)

    async def until(self, kind: type[F]) -> F:
        """The next ``kind``, whoever it was for."""
        for at, earlier in enumerate(self.heard):
            if isinstance(earlier.frame, kind):
                self.heard.pop(at)
                return earlier.frame
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                got = await self.hear()
                assert got is not None, f"the connection ended before a {kind.__name__}"
                if isinstance(got.frame, kind):
                    return got.frame
                self.heard.append(got)

    async def rest(self) -> list[Heard]:
        """Everything up to the end of the connection, which must come."""
        got = self.heard
        self.heard = []
        while (one := await self.hear()) is not None:
            got.append(one)
        return got

    # ------------------------------------------------------------ whole exchanges

    async def send(self, body: bytes = b"hello", **changes: Any) -> SendAck:
        """Send a message that must be acked."""
        return await self.ask(message(body, **changes), SendAck)

    async def create_group(self, members: tuple[int, ...], name: str = "") -> GroupOk:
        """Create a group that must be allowed."""
        return await self.ask(
            CreateGroup(client_message_id=new_key(), not_after=soon(), members=members, name=name),
            GroupOk,
        )

    async def pull(self) -> list[MailboxEntry]:
        """Everything after the cursor that is materialised now, and the cursor moved."""
        entries: list[MailboxEntry] = []
        while True:
            batch = await self.ask(PullMailbox(cursor=self.cursor), MailboxBatch)
            entries += batch.entries
            self.cursor = batch.cursor
            if not batch.has_more:
                return entries

    async def pull_until(self, *message_ids: bytes) -> list[MailboxEntry]:
        """Pull until all of ``message_ids`` have come."""
        entries: list[MailboxEntry] = []
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                entries += await self.pull()
                if {entry.message_id for entry in entries}.issuperset(message_ids):
                    return entries
                # Fanout is asynchronous and a push may have been lost: ask again shortly.
                await asyncio.sleep(AGAIN_SECONDS / 10)

    async def history(self, conversation_id: bytes) -> list[HistoryRecord]:
        """The whole visible history, oldest first."""
        records: list[HistoryRecord] = []
        while True:
            anchor = records[-1].conversation_seq if records else 0
            batch = await self.ask(
                PullHistory(
                    conversation_id=conversation_id,
                    anchor=anchor,
                    direction=HistoryDirection.NEWER,
                    limit=500,
                ),
                HistoryBatch,
            )
            records += batch.records
            if not batch.has_more:
                return records

    # ------------------------------------------------------------ leaving

    def finish(self) -> None:
        """Half-close: nothing more will be said."""
        self._writer.write_eof()

    async def cut(self) -> None:
        """RST: unread and unsent bytes are gone, as when a machine dies."""
        self._writer.transport.abort()
        await self._closed()

    async def close(self) -> None:
        """FIN, and wait until the socket is gone."""
        self._writer.close()
        await self._closed()

    async def _closed(self) -> None:
        try:
            await patient(self._writer.wait_closed())
        except ConnectionError:
            self.reset = True

    async def __aenter__(self) -> "RawClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Bystanders:
    """Two healthy users: while others misbehave, what one sends is acked and the other pulls it."""

    def __init__(self, writer: RawClient, reader: RawClient) -> None:
        self.writer = writer
        self.reader = reader

    @classmethod
    @asynccontextmanager
    async def of(cls, target: Target, first_user: int = 900_001) -> AsyncIterator["Bystanders"]:
        """Both online."""
        async with (
            await RawClient.log_in(target, first_user) as writer,
            await RawClient.log_in(target, first_user + 1) as reader,
        ):
            yield cls(writer, reader)

    async def go_on(self) -> None:
        """One message from end to end."""
        ack = await self.writer.send(b"still here", peer_user_id=self.reader.user)
        got = await self.reader.pull_until(ack.message_id)
        assert got[-1].conversation_seq == ack.conversation_seq
        assert got[-1].body == b"still here"
