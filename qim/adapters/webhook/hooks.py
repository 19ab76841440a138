"""The hooks: connections that are kept, one time for everything an ask may take, notices from a bounded queue.

A verdict is the status alone: 2xx lets pass, 403 rejects, and whatever else comes or doesn't come is no verdict. Redirects
are not followed, proxies and cookies of the environment not used. An ask that met a connection the server had closed in
the meantime goes out once more: it carries the same id.
"""

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import urlsplit

import aiohttp

from qim.adapters.tls.outgoing import read_outgoing
from qim.adapters.wall_clock import wall_ms
from qim.adapters.webhook import payload
from qim.adapters.webhook.settings import WebhookSettings
from qim.adapters.webhook.signing import headers
from qim.core.ports.completion import Completion
from qim.core.ports.moderation import AskVerdict, NotifySent, Verdict, VerdictGiven

Answer = Callable[[VerdictGiven | Completion], None]

REJECTED: Final = 403
KEPT_SECONDS: Final = 15.0
"""How long an idle connection is kept; servers commonly close theirs after 60 s or more."""
CLOSED_MEANWHILE: Final = (
    aiohttp.ServerDisconnectedError,
    aiohttp.ClientConnectionResetError,
    ConnectionResetError,
    BrokenPipeError,
)
LOG: Final = logging.getLogger(__name__)


class Webhooks:
    """``start``; ``submit`` an AskVerdict and ``notify`` from the event loop; ``close`` at the end."""

    def __init__(
        self,
        settings: WebhookSettings,
        loop: asyncio.AbstractEventLoop,
        *,
        wall_ms: Callable[[], int] = wall_ms,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """``tls``: instead of one made of the settings' file, where somebody reads that again."""
        self._tls = tls
        self._settings = settings
        self._loop = loop
        self._wall_ms = wall_ms
        self._session: aiohttp.ClientSession | None = None
        self._asks: set[asyncio.Task[None]] = set()
        self._notices: deque[NotifySent] = deque()
        self._senders: set[asyncio.Task[None]] = set()
        self._closed = False
        self._well: dict[str, bool] = {}
        self.asks_refused = 0
        """Answered UNAVAILABLE for want of room (metric)."""
        self.notices_sent = 0
        self.notices_failed = 0
        """Sent in vain: no connection, no time, no 2xx (metric)."""
        self.notices_dropped = 0
        """Never sent, for want of room or as the process ended (metric)."""

    async def start(self) -> None:
        """Make the client; nobody is called yet. Raises StartRefused where the CA can't be read."""
        connector = aiohttp.TCPConnector(
            limit=self._settings.connections_max,
            keepalive_timeout=KEPT_SECONDS,
            ssl=self._context(),
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=None),
        )

    def _context(self) -> ssl.SSLContext:
        return self._tls or read_outgoing(self._settings.tls_files())[0].context

    async def close(self) -> None:
        """Asks end as UNAVAILABLE when their time is up; notices get what is left of the closing time."""
        self._closed = True
        running = self._asks | self._senders
        if running:
            await asyncio.wait(running, timeout=self._settings.close_timeout_ms / 1_000)
        self.notices_dropped += len(self._notices)
        self._notices.clear()
        left = [*self._asks, *self._senders]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def gauges(self) -> Iterator[tuple[str, str, float]]:
        """Depths, capacities and what was lost, (name, label, value)."""
        settings = self._settings
        yield "webhook_asks_inflight", "", len(self._asks)
        yield "webhook_asks_inflight_max", "", settings.asks_inflight_max
        yield "webhook_asks_refused", "", self.asks_refused
        yield "webhook_notices_waiting", "", len(self._notices)
        yield "webhook_notices_waiting_max", "", settings.notices_waiting_max
        yield "webhook_notices_sent", "", self.notices_sent
        yield "webhook_notices_failed", "", self.notices_failed
        yield "webhook_notices_dropped", "", self.notices_dropped

    # ------------------------------------------------------------ before-send

    def submit(self, request: AskVerdict, answer: Answer) -> None:
        """One verdict, on the event loop."""
        if self._closed or len(self._asks) >= self._settings.asks_inflight_max:
            self.asks_refused += 1
            refused = VerdictGiven(op=request.op, verdict=Verdict.UNAVAILABLE)
            self._loop.call_soon(answer, refused)
            return
        task = self._loop.create_task(self._judge(request, answer))
        self._asks.add(task)
        task.add_done_callback(self._asks.discard)

    async def _judge(self, request: AskVerdict, answer: Answer) -> None:
        verdict = Verdict.UNAVAILABLE
        try:
            webhook_id, body = payload.question(request, self._wall_ms())
            status = await self._post(self._settings.before_send_url, webhook_id, body)
            if status is not None and 200 <= status < 300:
                verdict = Verdict.ALLOW
            elif status == REJECTED:
                verdict = Verdict.REJECT
        finally:
            answer(VerdictGiven(op=request.op, verdict=verdict))

    # ------------------------------------------------------------ after-send

    def notify(self, told: NotifySent) -> None:
        """Best effort: sent some time, or dropped and counted."""
        if self._closed or len(self._notices) >= self._settings.notices_waiting_max:
            self.notices_dropped += 1
            return
        self._notices.append(told)
        if len(self._senders) < self._settings.notices_inflight_max:
            task = self._loop.create_task(self._send_notices())
            self._senders.add(task)
            task.add_done_callback(self._senders.discard)

    async def _send_notices(self) -> None:
        while self._notices:
            told = self._notices.popleft()
            webhook_id, body = payload.notice(told, self._wall_ms())
            status = await self._post(self._settings.after_send_url, webhook_id, body)
            if status is not None and 200 <= status < 300:
                self.notices_sent += 1
            else:
                self.notices_failed += 1

    # ------------------------------------------------------------ HTTP

    async def _post(self, url: str, webhook_id: str, body: bytes) -> int | None:
        """The status; None: it could not be had in time, or at all."""
        try:
            async with asyncio.timeout(self._settings.timeout_ms / 1_000):
                try:
                    status = await self._once(url, webhook_id, body)
                except CLOSED_MEANWHILE:
                    status = await self._once(url, webhook_id, body)
        except TimeoutError:
            self._report(url, f"no answer within {self._settings.timeout_ms} ms")
            return None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self._report(url, f"{type(error).__name__}: {error}")
            return None
        verdict = status == REJECTED or 200 <= status < 300
        self._report(url, "" if verdict else f"status {status}")
        return status

    async def _once(self, url: str, webhook_id: str, body: bytes) -> int:
        assert self._session is not None, "start() comes first"
        told = headers(self._settings.secrets, webhook_id, self._wall_ms() // 1_000, body)
        told["content-type"] = "application/json"
        async with self._session.post(
            url, data=body, headers=told, allow_redirects=False
        ) as response:
            return response.status

    def _report(self, url: str, trouble: str) -> None:
        """A line when a hook begins or ceases to fail, not one a message; never its path or query, which may be secret."""
        well = not trouble
        if self._well.get(url, True) is well:
            return
        self._well[url] = well
        where = urlsplit(url).hostname
        if well:
            LOG.info("webhook at %s answers again", where)
        else:
            LOG.warning("webhook at %s fails: %s", where, trouble)
