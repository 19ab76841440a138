"""etcd is away, and the process ends: nothing of the registry keeps it."""

import asyncio
import socket

import pytest

from qim.adapters.etcd import EtcdRegistry
from qim.adapters.etcd.connection import EtcdConnection

END_SECONDS_MAX = 30.0
"""Only a hang takes so long: nothing is waited for."""


@pytest.fixture
def nobody() -> str:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        return f"127.0.0.1:{closed.getsockname()[1]}"


def test_a_watch_that_dials_ends_when_it_is_told(
    nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled amid a dial it heard NotApplied, which is what an etcd that is away is called, and dialled for ever."""

    async def main() -> None:
        dials = asyncio.Event()
        stands = EtcdConnection._stands

        async def dialled(self: EtcdConnection, channel: object, until: float) -> bool:
            dials.set()
            return await stands(self, channel, until)

        monkeypatch.setattr(EtcdConnection, "_stands", dialled)
        registry = EtcdRegistry([nobody], "/qim/", asyncio.get_running_loop())
        registry.watch(lambda event: None)
        await dials.wait()
        ended, _ = await asyncio.wait(
            [asyncio.create_task(registry.close())], timeout=END_SECONDS_MAX
        )
        assert ended, "it dials on"

    asyncio.run(main())
