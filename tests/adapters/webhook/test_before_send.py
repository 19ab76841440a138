"""The before-send hook against a real HTTP server: every kind of answer under either policy, through the writer to the client."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from typing import Any

import pytest

from qim.adapters.webhook import Webhooks, WebhookSettings
from qim.core.contract.errors import ErrorCode
from qim.core.contract.rpc import Refused, SendDone
from qim.core.ports.moderation import AskVerdict, FailPolicy
from tests.adapters.webhook.asking import (
    ALLOW,
    KEY,
    REJECT,
    UNAVAILABLE,
    ask_about,
    hooks,
    judged,
    serving,
    url_of,
)
from tests.adapters.webhook.hook_server import HookServer
from tests.core.writer.scene import WALL, chat
from tests.core.writer.test_moderation import Moderated

VERDICTS = {
    "/allow": ALLOW,
    "/ok": ALLOW,
    "/299": ALLOW,
    "/endless": ALLOW,
    "/reject": REJECT,
    "/redirect": UNAVAILABLE,
    "/400": UNAVAILABLE,
    "/401": UNAVAILABLE,
    "/404": UNAVAILABLE,
    "/429": UNAVAILABLE,
    "/500": UNAVAILABLE,
    "/503": UNAVAILABLE,
    "/garbage": UNAVAILABLE,
    "/odd-status": UNAVAILABLE,
    "/huge-header": UNAVAILABLE,
    "/half": UNAVAILABLE,
    "/nothing": UNAVAILABLE,
    "/slow": UNAVAILABLE,
    "/slow-line": UNAVAILABLE,
    "down": UNAVAILABLE,
    "no-name": UNAVAILABLE,
}
HANGS = ("/slow", "/slow-line")


# ------------------------------------------------------------ the whole matrix


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.run_until_complete(made.shutdown_default_executor())
    made.close()


class Hooked(Moderated):
    """The writer, and real HTTP where it asks."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, policy: FailPolicy, url: str, timeout_ms: int
    ) -> None:
        self.loop = loop
        told = WebhookSettings(before_send_url=url, fail_policy=policy, timeout_ms=timeout_ms)
        self.hooks = Webhooks(told, loop)
        loop.run_until_complete(self.hooks.start())
        super().__init__(told.before_send)

    def carry_out(self, question: Any) -> Any:
        if not isinstance(question, AskVerdict):
            return super().carry_out(question)

        async def ask() -> Any:
            future: asyncio.Future[Any] = self.loop.create_future()
            self.hooks.submit(question, future.set_result)
            return await future

        return self.loop.run_until_complete(ask())


@pytest.mark.parametrize("policy", [FailPolicy.OPEN, FailPolicy.CLOSED])
@pytest.mark.parametrize("path", VERDICTS)
def test_what_a_sender_hears(
    loop: asyncio.AbstractEventLoop, path: str, policy: FailPolicy
) -> None:
    server = HookServer()
    loop.run_until_complete(server.start())
    scene = Hooked(loop, policy, url_of(server, path), 100 if path in HANGS else 5_000)
    rid = scene.send(1, 2, body=b"hi")
    scene.settle()
    answer = scene.said(rid)
    verdict = VERDICTS[path]
    if verdict is ALLOW or (verdict is UNAVAILABLE and policy is FailPolicy.OPEN):
        assert isinstance(answer, SendDone), answer
        assert scene.bodies() == [b"hi"]
    else:
        assert isinstance(answer, Refused), answer
        wanted = ErrorCode.MODERATION_REJECTED if verdict is REJECT else ErrorCode.UNAVAILABLE
        assert answer.code == wanted
        assert scene.bodies() == []
    assert scene.counts == scene.counts | {f"moderation_verdicts.{verdict}": 1}
    assert scene.counts.get("moderation_failed_open", 0) == (
        1 if verdict is UNAVAILABLE and policy is FailPolicy.OPEN else 0
    )
    again = scene.send(1, 2, body=b"hi", number=rid)
    if isinstance(answer, SendDone):
        asked = len(server.requests)
        scene.settle()
        assert scene.sent(again).message_id == answer.message_id
        assert len(server.requests) == asked, "a retry of what was accepted asks nobody"
    loop.run_until_complete(scene.hooks.close())
    loop.run_until_complete(server.close())


# ------------------------------------------------------------ what is sent


def test_an_ask_says_who_and_what_and_is_signed() -> None:
    async def main() -> None:
        async with serving() as server:
            told = WebhookSettings(
                before_send_url=server.url("/ok"), secrets=(KEY,), timeout_ms=5_000
            )
            async with hooks(told, wall_ms=lambda: WALL + 7) as made:
                assert await judged(made, ask_about(b"\xff\x00")) is ALLOW
            (request,) = server.requests
            event = json.loads(request.body)
            assert event["type"] == "message.before_send"
            assert event["timestamp"] == "2023-11-14T22:13:20.007Z"
            assert event["data"] == {
                "tenant_id": "default",
                "sender_id": str(2**64 - 1),
                "device_id": (b"d" * 16).hex(),
                "client_message_id": (b"c" * 16).hex(),
                "conversation_id": chat(1, 2).hex(),
                "conversation_kind": 1,
                "peer_user_id": "2",
                "kind": 1,
                "custom_type": "",
                "body_base64": base64.b64encode(b"\xff\x00").decode(),
            }
            assert request.headers["content-type"] == "application/json"
            assert request.headers["webhook-id"] == "ask_" + (b"k" * 16).hex()
            assert request.headers["webhook-timestamp"] == str(WALL // 1_000)
            assert "cookie" not in request.headers
            signed = b".".join(
                [
                    request.headers["webhook-id"].encode(),
                    request.headers["webhook-timestamp"].encode(),
                    request.body,
                ]
            )
            digest = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
            assert request.headers["webhook-signature"] == f"v1,{digest}"

    asyncio.run(main())


def test_connections_are_kept_and_one_closed_meanwhile_costs_no_verdict() -> None:
    async def main() -> None:
        async with serving() as server:
            told = WebhookSettings(before_send_url=server.url("/ok"), timeout_ms=5_000)
            async with hooks(told) as made:
                for op in range(5):
                    assert await judged(made, ask_about(op=op)) is ALLOW
                assert server.connections == 1
                server.close_after = 1
                for op in range(5, 15):
                    assert await judged(made, ask_about(op=op)) is ALLOW
                assert server.connections > 5

    asyncio.run(main())


def test_asks_have_a_bound_and_a_time_of_their_own() -> None:
    async def main() -> None:
        async with serving() as server:
            told = WebhookSettings(
                before_send_url=server.url("/slow"), timeout_ms=300, asks_inflight_max=2
            )
            async with hooks(told) as made:
                asks = [judged(made, ask_about(op=op)) for op in range(4)]
                assert await asyncio.gather(*asks) == [UNAVAILABLE] * 4
                assert made.asks_refused == 2
                assert len(server.requests) <= 2
                gauges = {name: value for name, _, value in made.gauges()}
                assert gauges["webhook_asks_inflight"] == 0
                assert gauges["webhook_asks_refused"] == 2

    asyncio.run(main())


def test_closing_answers_everybody() -> None:
    async def main() -> None:
        async with serving() as server:
            told = WebhookSettings(
                before_send_url=server.url("/slow"), timeout_ms=8_000, close_timeout_ms=50
            )
            async with hooks(told) as made:
                waiting = asyncio.create_task(judged(made, ask_about()))
                await server.came(1)
                await made.close()
                assert await waiting is UNAVAILABLE
                assert await judged(made, ask_about(op=2)) is UNAVAILABLE

    asyncio.run(main())


def test_trouble_is_told_once_and_without_path_or_query(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving() as server:
            chosen = WebhookSettings(before_send_url=server.url("/500"), timeout_ms=5_000)
            async with hooks(chosen) as made:
                for op in range(3):
                    await judged(made, ask_about(op=op))

    caplog.set_level("INFO", logger="qim.adapters.webhook")
    asyncio.run(main())
    assert [record.getMessage() for record in caplog.records] == [
        "webhook at 127.0.0.1 fails: status 500"
    ]
