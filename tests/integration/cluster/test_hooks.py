"""A cluster whose writers ask before they take a message and tell afterwards: what the hook says is what users see."""

import asyncio
import base64
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import pytest

from qim.client import Client, SendStatus
from tests.integration.cluster.cluster import Cluster
from tests.integration.cluster.conftest import drained
from tests.integration.people import PATIENCE_SECONDS, acked
from tests.integration.raw_client import token
from tests.integration.served import eventually

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("cluster")]


class Hook:
    """One server for both hooks; ``status`` is what /before answers, what /after was told is kept."""

    def __init__(self) -> None:
        self.status = 204
        self.asked: list[bytes] = []
        self.told: list[bytes] = []
        lock, hook = Lock(), self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                size = int(self.headers["content-length"])
                event: dict[str, Any] = json.loads(self.rfile.read(size))
                body = base64.b64decode(event["data"]["body_base64"])
                with lock:
                    (hook.asked if self.path == "/before" else hook.told).append(body)
                    status = hook.status if self.path == "/before" else 204
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing on the tests' output."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer nobody any more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture(scope="module")
def hook() -> Iterator[Hook]:
    made = Hook()
    yield made
    made.close()


@pytest.fixture(scope="module")
def moderated(tmp_path_factory: pytest.TempPathFactory, hook: Hook) -> Iterator[Cluster]:
    settings = {
        "QIM_WEBHOOK_BEFORE_SEND_URL": f"{hook.url}/before",
        "QIM_WEBHOOK_AFTER_SEND_URL": f"{hook.url}/after",
        "QIM_WEBHOOK_FAIL_POLICY": "closed",
    }
    with Cluster(tmp_path_factory.mktemp("moderated"), settings=settings) as running:
        yield running
        drained(running)


def test_allowed_rejected_and_not_judged(
    moderated: Cluster, hook: Hook, stores: Path, first_user: int
) -> None:
    async def main() -> None:
        sender = Client(
            user_id=first_user,
            access_token=token(moderated.target.secret, first_user),
            addresses=moderated.addresses,
            store_path=stores / "sender.db",
            device_id=b"phone",
        )
        async with sender:
            await sender.online(PATIENCE_SECONDS)
            to = first_user + 1
            acked(await sender.send("fine", to=to, timeout=PATIENCE_SECONDS))
            hook.status = 403
            rejected = await sender.send("foul", to=to, timeout=PATIENCE_SECONDS)
            assert (rejected.status, rejected.code) == (SendStatus.FAILED, "MODERATION_REJECTED")
            hook.status = 500
            asked = len(hook.asked)
            waiting = asyncio.create_task(sender.send("unjudged", to=to, timeout=PATIENCE_SECONDS))
            await eventually(lambda: len(hook.asked) > asked)
            assert not waiting.done(), "nobody could judge it, and the policy is closed"
            hook.status = 204
            acked(await waiting)
        await eventually(lambda: {b"fine", b"unjudged"} <= set(hook.told))
        assert b"foul" not in hook.told
        assert b"foul" in hook.asked

    asyncio.run(main())
