"""/metrics, /healthz, /readyz, /livez and orders by POST on threads of their own, by the standard library's WSGI server.

A scrape must answer while the event loop is busy or stuck, so it doesn't run on it. Whoever reaches it may read; an order
starts work, so it needs the key of this run (decision 0025).
"""

import hmac
import ipaddress
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from socket import AF_INET6
from socketserver import TCPServer, ThreadingMixIn
from threading import BoundedSemaphore, Lock, Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import make_wsgi_app
from prometheus_client.registry import Collector

REQUEST_TIMEOUT_SECONDS = 10
SILENCE_SECONDS = 2
"""For the first line: who connects and says nothing must not keep a probe from its thread."""
THREADS_MAX = 32
"""Requests served at a time: probes, scrapes and a few orders. One beyond is told so at once, and its connection closed."""
STOP_LOOK_SECONDS = 0.05

Report = Callable[[], tuple[bool, dict[str, object]]]
Refused = Callable[[dict[str, object]], None]
Order = Callable[[bytes], dict[str, object]]
ORDER_BYTES_MAX = 64 * 1024
NO_THREAD = (
    b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Type: text/plain\r\n\r\n"
    b"all threads of this endpoint are busy; ask again\n"
)
REFUSAL_SECONDS = 0.1
"""Into an empty socket buffer it goes at once; nobody may hold the accepting thread."""
JSON_TYPE = "application/json"
"""An order must say that it is JSON: a page in somebody's browser can't send that to another host unasked."""


UNAUTHORISED = "401 Unauthorized"
FORBIDDEN = "403 Forbidden"
BAD_REQUEST = "400 Bad Request"
_NEAR = "qim.near"
_KEY_EXPECTED = "Authorization: Bearer and the key in operator.key of the data directory, which its owner can read"


def _why(code: str, got: str, expected: str) -> dict[str, str]:
    told = f"the order came {got}, expected: {expected}; qim audit, repair, deadletter, shard --data DIR do that"
    return {"code": code, "got": got, "expected": expected, "error": told}


def comes_from_here(here: str, there: str) -> bool:
    """Whether a peer is on this machine, by both ends of its connection; IPv4 may stand in an IPv6 address."""
    address = ipaddress.ip_address(there.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return here == there or bool((mapped or address).is_loopback)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64
    refused = 0
    """Requests that found no thread; counted on the accepting thread alone."""

    def __init__(self, *args: Any, **more: Any) -> None:
        self.busy = 0
        self._free = BoundedSemaphore(THREADS_MAX)
        self._counting = Lock()
        super().__init__(*args, **more)

    def process_request(self, request: Any, client_address: Any) -> None:
        """On a thread of its own where there is one; else an answer that needs none."""
        if self._free.acquire(blocking=False):
            with self._counting:
                self.busy += 1
            try:
                super().process_request(request, client_address)
            except BaseException:
                self._ended()
                raise
            return
        self.refused += 1
        with suppress(OSError):
            request.settimeout(REFUSAL_SECONDS)
            request.sendall(NO_THREAD)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """As the base does; the thread is free for another afterwards."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._ended()

    def _ended(self) -> None:
        with self._counting:
            self.busy -= 1
        self._free.release()

    def server_bind(self) -> None:
        """As the base does, but without asking a name service for our own name: a start must not wait for that."""
        TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name, self.server_port = str(host), int(port)
        self.setup_environ()


class _Server6(_Server):
    address_family = AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = SILENCE_SECONDS

    def parse_request(self) -> bool:
        """As the base does; whoever said a first line has longer for the rest."""
        self.connection.settimeout(REQUEST_TIMEOUT_SECONDS)
        return super().parse_request()

    def get_environ(self) -> dict[str, Any]:
        """As the base does, and whether the caller is on this machine."""
        here, there = self.connection.getsockname()[0], self.client_address[0]
        return super().get_environ() | {_NEAR: comes_from_here(here, there)}

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not news."""


class OperatorEndpoint:
    """Serves ``collector`` and the reports; each report is (ok, details): ok False answers 503."""

    def __init__(
        self,
        host: str,
        port: int,
        collector: Collector,
        *,
        health: Report,
        ready: Report,
        live: Report,
        orders: Mapping[str, Order] | None = None,
        key: str = "",
        on_refused: Refused = lambda _: None,
    ) -> None:
        """``key``: what an order must say as its bearer; without one no order is taken. ``on_refused``: on any thread."""
        registry = CollectorRegistry()
        registry.register(collector)
        self._metrics = make_wsgi_app(registry)
        self._orders = dict(orders or {})
        self._key = key
        self._on_refused = on_refused
        self._reports = {"/healthz": health, "/readyz": ready, "/livez": live}
        kind = _Server6 if ":" in host else _Server
        self._server: _Server = make_server(
            host, port, self._app, server_class=kind, handler_class=_Handler
        )
        self._thread = Thread(target=self._serve, name="qim-operator", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """host:port as bound, an IPv6 host in brackets."""
        host, port = self._server.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

    def gauges(self) -> Iterable[tuple[str, str, float]]:
        """Threads at work, and requests that found none."""
        yield "operator_requests_inflight", "", self._server.busy
        yield "operator_requests_inflight_max", "", THREADS_MAX
        yield "operator_requests_refused", "", self._server.refused

    def stop(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=STOP_LOOK_SECONDS)

    def _app(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path == "/metrics":
            metrics: Iterable[bytes] = self._metrics(environ, start_response)
            return metrics
        order = self._orders.get(path)
        if order is not None:
            return self._order(order, environ, start_response)
        report = self._reports.get(path)
        if report is None:
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            known = ["/metrics", *self._reports, *(f"POST {name}" for name in self._orders)]
            return [f"known paths: {' '.join(known)}\n".encode()]
        ok, details = report()
        status = "200 OK" if ok else "503 Service Unavailable"
        start_response(status, [("Content-Type", "application/json")])
        return [json.dumps({"ok": ok, **details}).encode() + b"\n"]

    def _order(
        self, order: Order, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """By POST, from this machine, with the key; ValueError of ``order`` is the caller's fault."""
        if environ.get("REQUEST_METHOD") != "POST":
            start_response(
                "405 Method Not Allowed", [("Allow", "POST"), ("Content-Type", "text/plain")]
            )
            return [b"use POST\n"]
        status, refusal = self._refusal(environ)
        if status:
            asked = {"path": environ["PATH_INFO"], "peer": environ.get("REMOTE_ADDR", "?")}
            self._on_refused(asked | {"code": refusal["code"], "why": refusal["error"]})
            start_response(status, [("Content-Type", JSON_TYPE)])
            return [json.dumps(refusal).encode() + b"\n"]
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or "0"))
        return self._act(lambda: order(body), start_response)

    def _refusal(self, environ: dict[str, Any]) -> tuple[str, dict[str, str]]:
        """Status and why; "": it may."""
        if not environ[_NEAR]:
            # Whoever may order has a login on this machine.
            got = f"from {environ['REMOTE_ADDR']}"
            return FORBIDDEN, _why("order_from_elsewhere", got, "from this machine alone")
        given = environ.get("HTTP_AUTHORIZATION", "")
        if not given:
            return UNAUTHORISED, _why("order_key_missing", "without a key", _KEY_EXPECTED)
        wanted = f"Bearer {self._key}"
        if not self._key or not hmac.compare_digest(given.encode(), wanted.encode()):
            return UNAUTHORISED, _why("order_key_wrong", "with another key", _KEY_EXPECTED)
        size = environ.get("CONTENT_LENGTH") or "0"
        kind = environ.get("CONTENT_TYPE", "")
        if kind.partition(";")[0].strip() != JSON_TYPE:
            return BAD_REQUEST, _why("order_not_json", f"as {kind!r}", f"Content-Type: {JSON_TYPE}")
        if not size.isdigit() or int(size) > ORDER_BYTES_MAX:
            most = f"at most {ORDER_BYTES_MAX} bytes"
            return BAD_REQUEST, _why("order_too_long", f"of {size} bytes", most)
        return "", {}

    def _act(
        self, action: Callable[[], dict[str, object]], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        try:
            answer = action()
        except ValueError as error:
            start_response("400 Bad Request", [("Content-Type", "application/json")])
            return [json.dumps({"error": str(error)}).encode() + b"\n"]
        except TimeoutError as error:
            start_response("504 Gateway Timeout", [("Content-Type", "application/json")])
            return [json.dumps({"error": str(error)}).encode() + b"\n"]
        except (
            Exception
        ) as error:  # a server that is stopping can't do it; the operator wants to know why
            start_response("503 Service Unavailable", [("Content-Type", "application/json")])
            return [json.dumps({"error": repr(error)}).encode() + b"\n"]
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(answer).encode() + b"\n"]
