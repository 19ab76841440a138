"""The after-send hook: what was committed is told, within bounds, and never holds anybody up."""

import asyncio
import base64
import json

import pytest

from qim.adapters.webhook import WebhookSettings
from qim.core.contract.entities import decode_stored_record
from qim.core.ports.moderation import FailPolicy, NotifySent
from tests.adapters.webhook.asking import KEY, hooks, serving, url_of
from tests.core.writer.test_moderation import Moderated


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
