"""A server of one user that answers as told: enough of `qim/1` to test what the SDK makes of answers, and of silence."""

import asyncio
from typing import Final

from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import (
    Auth,
    AuthOk,
    ClientFrame,
    CreateGroup,
    Error,
    GroupOk,
    HistoryBatch,
    Kicked,
    KickReason,
    MailboxBatch,
    MailboxEntry,
    Members,
    OnlineReady,
    Ping,
    Pong,
    PullHistory,
    PullMailbox,
    SendAck,
    SendMessage,
    ServerLimits,
    SyncComplete,
    WireFrame,
    decode_client_frame,
    encode_frame,
)
from qim.core.contract.ids import single_conversation_id
from qim.core.contract.wire import FRAME_BYTES_MAX, FrameDecoder

USER: Final = 1
PEER: Final = 2
CONVERSATION: Final = single_conversation_id("default", USER, PEER)
LIMITS: Final = ServerLimits(
    body_bytes_max=131_072,
    frame_bytes_max=524_288,
    page_max=500,
    pulls_inflight_max=4,
    group_members_max=1000,
    not_after_ms=3_600_000,
    heartbeat_ms=30_000,
    idle_kill_ms=90_000,
)


class ScriptedServer:
    """``silent``: frames that get no answer. ``refuse``: frames that get this ERROR."""

    def __init__(self) -> None:
        self.address = ""
        self.silent: set[type[WireFrame]] = set()
        self.refuse: dict[type[WireFrame], ErrorCode] = {}
        self.mailbox: list[MailboxEntry] = []
        self.heard: list[ClientFrame] = []
        self.sent: dict[bytes, SendAck] = {}
        self._writers: list[asyncio.StreamWriter] = []
        self._more = asyncio.Event()

    async def __aenter__(self) -> "ScriptedServer":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def deliver(self, number: int, body: bytes = b"hi") -> MailboxEntry:
        """One more message in the mailbox, the ``number``-th of its conversation."""
        entry = MailboxEntry(
            mailbox_seq=len(self.mailbox) + 1,
            event_id=number.to_bytes(16, "big"),
            message_id=number.to_bytes(16, "big"),
            conversation_id=CONVERSATION,
            conversation_seq=number,
            last_activity_id=number.to_bytes(16, "big"),
            kind=1,
            sender_id=PEER,
            custom_type="",
            body=body,
            sent_at=5,
            peer_user_id=USER,
            trace_id=number,
            conversation_kind=1,
        )
        self.mailbox.append(entry)
        return entry

    def cut(self) -> None:
        """End every connection, as a crash does."""
        for writer in self._writers:
            writer.transport.abort()

    def kick(self, reason: KickReason) -> None:
        """Say so and end every connection."""
        for writer in self._writers:
            writer.write(encode_frame(Kicked(reason=reason, reconnect=False)))
            writer.close()

    async def until_heard(self, kind: type[WireFrame], times: int = 1) -> None:
        """Wait until a frame came so often."""
        async with asyncio.timeout(30):
            while sum(isinstance(frame, kind) for frame in self.heard) < times:
                self._more.clear()
                await self._more.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        decoder = FrameDecoder(FRAME_BYTES_MAX)
        try:
            while data := await reader.read(65_536):
                for raw in decoder.feed(data):
                    frame = decode_client_frame(raw)
                    self.heard.append(frame)
                    self._more.set()
                    answer = self._answer(frame)
                    if answer is not None and type(frame) not in self.silent:
                        writer.write(encode_frame(answer, request=raw.request))
        except OSError:
            pass
        finally:
            writer.close()

    def _answer(self, frame: ClientFrame) -> WireFrame | None:
        if type(frame) in self.refuse:
            key = getattr(frame, "client_message_id", None)
            code = self.refuse[type(frame)]
            return Error(code=code, message="as told", client_message_id=key)
        match frame:
            case Auth():
                return self._auth_ok()
            case PullMailbox():
                after = int.from_bytes(frame.cursor, "big")
                last = len(self.mailbox)
                return MailboxBatch(
                    entries=tuple(self.mailbox[after:]),
                    covered_through_seq=last,
                    has_more=False,
                    cursor=last.to_bytes(8, "big"),
                )
            case SyncComplete():
                return OnlineReady(watermark=len(self.mailbox))
            case Ping():
                return Pong(client_time=frame.client_time, server_time=1, watermark=0)
            case SendMessage():
                return self._ack(frame)
            case CreateGroup():
                return GroupOk(
                    client_message_id=frame.client_message_id,
                    conversation_id=b"g" * 16,
                    version=1,
                    control_seq=1,
                )
            case PullHistory():
                return HistoryBatch(
                    conversation_id=frame.conversation_id, records=(), has_more=False
                )
            case Members():
                return Error(code=ErrorCode.NOT_MEMBER, message="never")
            case _:
                return None

    def _auth_ok(self) -> AuthOk:
        return AuthOk(
            session_epoch=1,
            user_id=USER,
            sync_to_seq=len(self.mailbox),
            has_offline=bool(self.mailbox),
            cursor=bytes(8),
            badge=0,
            limits=LIMITS,
            server_time=1_700_000_000_000,
        )

    def _ack(self, frame: SendMessage) -> SendAck:
        number = len(self.sent) + 1
        ack = SendAck(
            client_message_id=frame.client_message_id,
            message_id=(number << 64).to_bytes(16, "big"),
            conversation_id=CONVERSATION,
            conversation_seq=number,
            last_activity_id=bytes(15) + b"\1",
            sent_at=9,
        )
        return self.sent.setdefault(frame.client_message_id, ack)
