"""The hooks against a real HTTP(S) server: every kind of answer under either policy, through the writer to the client."""

import asyncio
import base64
import hashlib
import hmac
import json
import socket
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from qim.adapters.start_refused import StartRefused
from qim.adapters.webhook import Webhooks, WebhookSettings
from qim.core.contract.entities import decode_stored_record
from qim.core.contract.errors import ErrorCode
from qim.core.contract.rpc import Refused, SendDone
from qim.core.ports.moderation import AskVerdict, FailPolicy, NotifySent, Verdict
from tests.adapters.webhook.authority import make_authority
from tests.adapters.webhook.hook_server import HookServer
from tests.core.writer.scene import WALL, chat
from tests.core.writer.test_moderation import Moderated

KEY = b"k" * 32
ALLOW, REJECT, UNAVAILABLE = Verdict.ALLOW, Verdict.REJECT, Verdict.UNAVAILABLE
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


# ------------------------------------------------------------ https


@pytest.mark.parametrize(
    ("trusted", "expired", "verdict"),
    [("own", False, ALLOW), ("other", False, UNAVAILABLE), ("own", True, UNAVAILABLE)],
)
def test_https_is_believed_only_with_a_certificate(
    tmp_path: Path, trusted: str, expired: bool, verdict: Verdict
) -> None:
    own, tls = make_authority(tmp_path / "own", "own", expired=expired)
    other, _ = make_authority(tmp_path / "other", "other")

    async def main() -> None:
        async with serving(tls) as server:
            told = WebhookSettings(
                before_send_url=server.url("/ok"),
                tls_ca=str(own if trusted == "own" else other),
                timeout_ms=5_000,
            )
            async with hooks(told) as made:
                assert await judged(made, ask_about()) is verdict
            by_number = replace(
                told, before_send_url=told.before_send_url.replace("localhost", "127.0.0.1")
            )
            async with hooks(by_number) as made:
                assert await judged(made, ask_about()) is UNAVAILABLE, "another name"
            assert len(server.requests) == (1 if verdict is ALLOW else 0)

    asyncio.run(main())


def test_a_ca_that_cannot_be_read(tmp_path: Path) -> None:
    async def main(path: Path) -> None:
        made = Webhooks(WebhookSettings(tls_ca=str(path)), asyncio.get_running_loop())
        with pytest.raises(StartRefused) as caught:
            await made.start()
        assert caught.value.code == "tls_file_unreadable"
        assert caught.value.what == f"QIM_WEBHOOK_TLS_CA ({path})"
        await made.close()

    asyncio.run(main(tmp_path / "absent.pem"))
    (tmp_path / "empty.pem").write_text("")
    asyncio.run(main(tmp_path / "empty.pem"))


# ------------------------------------------------------------ after-send


def notices(count: int) -> list[NotifySent]:
    scene = Moderated(FailPolicy.OFF, after_send=True)
    for number in range(count):
        scene.send(1, 2, body=b"%d" % number)
    scene.settle()
    assert len(scene.told) == count
    return scene.told


def test_a_notice_says_what_was_committed() -> None:
    (told,) = notices(1)
    record = decode_stored_record(told.stored)

    async def main() -> None:
        async with serving() as server:
            chosen = WebhookSettings(after_send_url=server.url("/ok"), secrets=(KEY,))
            async with hooks(chosen) as made:
                made.notify(told)
                made.notify(told)
            assert made.notices_sent == 2
            one, two = server.requests
            assert one.headers["webhook-id"] == two.headers["webhook-id"]
            assert one.headers["webhook-id"] == f"msg_{record.message_id.hex()}"
            assert one.headers["webhook-signature"].startswith("v1,")
            event = json.loads(one.body)
            assert event["type"] == "message.sent"
            data = event["data"]
            assert data["message_id"] == record.message_id.hex()
            assert (data["conversation_seq"], data["sender_id"]) == ("1", "1")
            assert base64.b64decode(data["body_base64"]) == b"0"
            assert data["sent_at"] == record.sent_at

    asyncio.run(main())


def test_notices_beyond_the_bound_are_dropped_and_counted() -> None:
    told = notices(10)

    async def main() -> None:
        async with serving() as server:
            chosen = WebhookSettings(
                after_send_url=server.url("/held"),
                notices_waiting_max=3,
                notices_inflight_max=2,
                timeout_ms=8_000,
            )
            async with hooks(chosen) as made:
                made.notify(told[0])
                made.notify(told[1])
                await server.came(2)
                for one in told[2:]:
                    made.notify(one)
                assert made.notices_dropped == 5
                gauges = {name: value for name, _, value in made.gauges()}
                assert gauges["webhook_notices_waiting"] == 3
                assert gauges["webhook_notices_waiting_max"] == 3
                server.release.set()
            assert (made.notices_sent, made.notices_dropped, made.notices_failed) == (5, 5, 0)
            made.notify(told[0])
            assert made.notices_dropped == 6, "closed"

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/500", "/reject", "/garbage", "down"])
def test_a_notice_nobody_takes_is_counted_and_holds_nobody_up(path: str) -> None:
    told = notices(3)

    async def main() -> None:
        async with serving() as server:
            chosen = WebhookSettings(after_send_url=url_of(server, path), timeout_ms=5_000)
            async with hooks(chosen) as made:
                for one in told:
                    made.notify(one)
            assert (made.notices_sent, made.notices_failed) == (0, 3)

    asyncio.run(main())


def test_notices_that_closing_cuts_off_are_dropped() -> None:
    told = notices(4)

    async def main() -> None:
        async with serving() as server:
            chosen = WebhookSettings(
                after_send_url=server.url("/slow"),
                notices_inflight_max=1,
                timeout_ms=8_000,
                close_timeout_ms=50,
            )
            async with hooks(chosen) as made:
                for one in told:
                    made.notify(one)
                await server.came(1)
            assert made.notices_dropped == 3
            assert made.notices_sent == 0

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
