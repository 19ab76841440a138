"""The gateway's listener in TLS with its files in a folder, and clients that dial it."""

import asyncio
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qim.adapters.tcp.server import TcpServer
from qim.adapters.tls.client_facing import ClientFacingTls
from qim.client import client_tls_from_environment
from qim.core.ports.sockets import BytesReceived, SocketEvent
from tests.adapters.rpc.stage import Told
from tests.adapters.tls.chain import chain


class Gateway:
    """A listener with a pair of its own in ``folder``, as QIM_TLS_CERT and QIM_TLS_KEY name it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for kind in ("pem", "key"):
            shutil.copy(chain().folder / f"gateway.{kind}", folder / f"live.{kind}")
        variables = {
            "QIM_TLS_CERT": str(folder / "live.pem"),
            "QIM_TLS_KEY": str(folder / "live.key"),
        }
        self.told = Told()
        self.events: list[SocketEvent] = []
        self._more = asyncio.Event()
        tls = ClientFacingTls.from_environment(variables, self.told.reporting)
        assert tls is not None
        self.tls = tls
        self.server = TcpServer(self._post, lambda: 0, tls=tls, reporting=self.told.reporting)
        self.port = 0

    async def listen(self) -> None:
        self.port = int((await self.server.listen("127.0.0.1", 0)).rpartition(":")[2])

    def _post(self, event: SocketEvent) -> None:
        self.events.append(event)
        self._more.set()

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                self._more.clear()
                await self._more.wait()

    def gauge(self, name: str) -> float:
        """The sum over its labels."""
        return sum(value for known, _, value in self.server.gauges() if known == name)

    def received(self, conn: int = 1) -> bytes:
        mine = [e for e in self.events if isinstance(e, BytesReceived) and e.conn == conn]
        return b"".join(event.data for event in mine)

    async def dial(
        self, context: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        tls = client_tls_from_environment(chain().environment["client"])
        assert tls is not None
        return await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=context or tls.context, server_hostname="localhost"
        )
