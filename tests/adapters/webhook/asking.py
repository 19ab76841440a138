"""Hooks of ours and a server for them, for as long as a block lasts; a question, and what was made of it."""

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import Any

from qim.adapters.webhook import Webhooks, WebhookSettings
from qim.core.ports.moderation import AskVerdict, Verdict
from tests.adapters.webhook.hook_server import HookServer
from tests.core.writer.scene import chat

KEY = b"k" * 32
ALLOW, REJECT, UNAVAILABLE = Verdict.ALLOW, Verdict.REJECT, Verdict.UNAVAILABLE


def ask_about(body: bytes = b"hi", op: int = 1) -> AskVerdict:
    return AskVerdict(
        op=op,
        dedupe_key=b"k" * 16,
        tenant_id="default",
        sender_id=2**64 - 1,
        device_id=b"d" * 16,
        client_message_id=b"c" * 16,
        conversation_id=chat(1, 2),
        conversation_kind=1,
        peer_user_id=2,
        kind=1,
        custom_type="",
        body=body,
    )


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def url_of(server: HookServer, path: str) -> str:
    if path == "down":
        return f"http://127.0.0.1:{closed_port()}/"
    if path == "no-name":
        return "http://nowhere.invalid/"
    return server.url(path)


@asynccontextmanager
async def hooks(settings: WebhookSettings, **more: Any) -> Any:
    made = Webhooks(settings, asyncio.get_running_loop(), **more)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def serving(tls: Any = None) -> Any:
    server = HookServer(tls)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def judged(made: Webhooks, ask: AskVerdict) -> Verdict:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    made.submit(ask, future.set_result)
    answer = await future
    assert answer.op == ask.op
    verdict: Verdict = answer.verdict
    return verdict
