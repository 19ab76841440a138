"""One raw connection of `qim/1`, for checks that say what no well-behaved client would say."""

import asyncio
import itertools
import time
from typing import Final, TypeVar

from qim.client import ClientTls
from qim.core.contract.errors import ErrorCode, ProtocolError
from qim.core.contract.frames import (
    Auth,
    AuthOk,
    Error,
    Frame,
    MailboxBatch,
    OnlineReady,
    PullMailbox,
    SyncComplete,
    WireFrame,
    decode_server_frame,
    encode_frame,
)
from qim.core.contract.wire import FRAME_BYTES_MAX, FrameDecoder

UNASKED_MAX: Final = 1_000
READ_BYTES: Final = 64 * 1024
ANSWER_SECONDS_MAX: Final = 10.0
NO_TIME: Final = frozenset({ErrorCode.UNAVAILABLE, ErrorCode.TIMEOUT_UNKNOWN})
"""A process behind the gateway was not in time: the same frame again is what every client does then."""
AGAIN_SECONDS: Final = 0.1

Answer = TypeVar("Answer", bound=WireFrame)


class Closed(Exception):
    """The other side ended the stream."""


class Wire:
    """Frames out, answers in by request number; what nobody asked for waits in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._requests = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Frame]] = {}
        self._unasked: asyncio.Queue[Frame] = asyncio.Queue(UNASKED_MAX)
        self._reading = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def open(cls, address: str, tls: ClientTls | None = None) -> "Wire":
        """A stream, nothing said on it. Raises OSError, TimeoutError."""
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            reader, writer = await asyncio.open_connection(
                host,
                int(port),
                ssl=None if tls is None else tls.context,
                server_hostname=None if tls is None else tls.server_name or host,
            )
        return cls(reader, writer)

    async def close(self) -> None:
        """End it from our side."""
        self._reading.cancel()
        self._writer.transport.abort()
        await asyncio.gather(self._reading, return_exceptions=True)

    def write(self, data: bytes) -> None:
        """Any bytes."""
        self._writer.write(data)

    def send(self, frame: WireFrame) -> "asyncio.Future[Frame]":
        """The frame under the next request number, and its answer to come."""
        request = next(self._requests)
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._answers[request] = future
        self._writer.write(encode_frame(frame, request=request))
        return future

    async def ask(self, frame: WireFrame, kind: type[Answer]) -> Answer:
        """The answer, which must be of ``kind``; asked again while nobody has time. Raises AssertionError, Closed, TimeoutError."""
        answer = await self.answer(self.send(frame))
        again_until = time.monotonic() + ANSWER_SECONDS_MAX
        while _no_time(answer) and time.monotonic() < again_until:
            await asyncio.sleep(AGAIN_SECONDS)
            answer = await self.answer(self.send(frame))
        assert isinstance(answer, kind), f"{frame.NAME} was answered by {_said(answer)}"
        return answer

    async def refused(self, frame: WireFrame) -> ErrorCode:
        """The code of the ERROR that must answer, on the frame's own request number."""
        return ErrorCode((await self.ask(frame, Error)).code)

    async def answer(self, future: "asyncio.Future[Frame]") -> Frame:
        """Wait for it, with the time-out of all."""
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            return await future

    async def unasked(self, kind: type[Answer]) -> Answer:
        """The next frame of ``kind`` that answers no request; others before it are passed over."""
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            while True:
                frame = await self._unasked.get()
                if isinstance(frame, kind):
                    return frame

    async def ended(self, seconds: float = ANSWER_SECONDS_MAX) -> float:
        """Wait until the other side ends the stream; seconds it took."""
        begun = time.monotonic()
        async with asyncio.timeout(seconds):
            await asyncio.shield(self._reading)
        return time.monotonic() - begun

    async def authenticate(
        self, token: str, device_id: bytes, *, cursor: bytes | None = None, attempt: int = 0
    ) -> AuthOk:
        """AUTH, which must be accepted; the mailbox isn't looked at."""
        frame = Auth(
            access_token=token,
            device_id=device_id,
            attempt=attempt or time.time_ns() // 1_000_000,
            cursor=cursor,
            client_info="qim smoke",
        )
        return await self.ask(frame, AuthOk)

    async def enter(self, token: str, device_id: bytes) -> bytes:
        """AUTH, pull, SYNC_COMPLETE until ONLINE_READY; the cursor reached."""
        hello = await self.authenticate(token, device_id)
        batches = await self.pull_all(hello.cursor, hello.sync_to_seq)
        await self.ask(SyncComplete(sync_to_seq=hello.sync_to_seq), OnlineReady)
        return batches[-1].cursor if batches else hello.cursor

    async def pull_all(self, cursor: bytes, up_to_seq: int = 0) -> list[MailboxBatch]:
        """Every batch from the cursor to the end."""
        batches: list[MailboxBatch] = []
        while True:
            batch = await self.ask(PullMailbox(cursor=cursor, up_to_seq=up_to_seq), MailboxBatch)
            batches.append(batch)
            cursor = batch.cursor
            if not batch.has_more:
                return batches

    async def _read(self) -> None:
        # The server judges sizes; whatever it sends is taken.
        decoder = FrameDecoder(FRAME_BYTES_MAX)
        try:
            while data := await self._reader.read(READ_BYTES):
                for raw in decoder.feed(data):
                    future = self._answers.pop(raw.request, None) if raw.request else None
                    frame = decode_server_frame(raw)
                    if future is None:
                        self._unasked.put_nowait(frame)
                    elif not future.done():
                        future.set_result(frame)
        except (OSError, ProtocolError):
            pass
        finally:
            for future in self._answers.values():
                if not future.done():
                    future.set_exception(Closed("the server ended the connection"))
                    future.exception()


def _no_time(frame: WireFrame) -> bool:
    return isinstance(frame, Error) and frame.code in NO_TIME


def _said(frame: WireFrame) -> str:
    if isinstance(frame, Error):
        return f"ERROR {ErrorCode(frame.code).name}: {frame.message}"
    return frame.NAME
