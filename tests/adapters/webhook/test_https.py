"""Hooks over TLS: who answers must prove its name to an authority that we were told of."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from qim.adapters.start_refused import StartRefused
from qim.adapters.webhook import Webhooks, WebhookSettings
from qim.core.ports.moderation import Verdict
from tests.adapters.webhook.asking import ALLOW, UNAVAILABLE, ask_about, hooks, judged, serving
from tests.adapters.webhook.authority import make_authority


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
