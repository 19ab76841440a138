"""/metrics, /healthz, /readyz, /livez and POST actions on threads of their own, by the standard library's WSGI server.

A scrape must answer while the event loop is busy or stuck, so it doesn't run on it.
"""

import ipaddress
import json
from collections.abc import Callable, Iterable, Mapping
from socket import AF_INET6
from socketserver import TCPServer, ThreadingMixIn
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import make_wsgi_app
from prometheus_client.registry import Collector

REQUEST_TIMEOUT_SECONDS = 10
STOP_LOOK_SECONDS = 0.05

Report = Callable[[], tuple[bool, dict[str, object]]]
Action = Callable[[], dict[str, object]]
Order = Callable[[bytes], dict[str, object]]
ORDER_BYTES_MAX = 64 * 1024
JSON_TYPE = "application/json"
"""An order must say that it is JSON: a page in somebody's browser can't send that to another host unasked."""


_NEAR = "qim.near"


def comes_from_here(here: str, there: str) -> bool:
    """Whether a peer is on this machine, by both ends of its connection; IPv4 may stand in an IPv6 address."""
    address = ipaddress.ip_address(there.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return here == there or bool((mapped or address).is_loopback)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64

    def server_bind(self) -> None:
        """As the base does, but without asking a name service for our own name: a start must not wait for that."""
        TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name, self.server_port = str(host), int(port)
        self.setup_environ()


class _Server6(_Server):
    address_family = AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_TIMEOUT_SECONDS

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
        actions: Mapping[str, Action],
        orders: Mapping[str, Order] | None = None,
    ) -> None:
        registry = CollectorRegistry()
        registry.register(collector)
        self._metrics = make_wsgi_app(registry)
        self._actions = dict(actions)
        self._orders = dict(orders or {})
        self._reports = {"/healthz": health, "/readyz": ready, "/livez": live}
        kind = _Server6 if ":" in host else _Server
        self._server = make_server(host, port, self._app, server_class=kind, handler_class=_Handler)
        self._thread = Thread(target=self._serve, name="qim-operator", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """host:port as bound, an IPv6 host in brackets."""
        host, port = self._server.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

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
        action = self._actions.get(path)
        if action is not None:
            return self._act(action, environ, start_response)
        order = self._orders.get(path)
        if order is not None:
            return self._order(order, environ, start_response)
        report = self._reports.get(path)
        if report is None:
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            posted = (*self._actions, *self._orders)
            known = ["/metrics", *self._reports, *(f"POST {name}" for name in posted)]
            return [f"known paths: {' '.join(known)}\n".encode()]
        ok, details = report()
        status = "200 OK" if ok else "503 Service Unavailable"
        start_response(status, [("Content-Type", "application/json")])
        return [json.dumps({"ok": ok, **details}).encode() + b"\n"]

    def _order(
        self, order: Order, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """An action with a body, for callers on this machine; ValueError of ``order`` is the caller's fault."""
        if not environ[_NEAR]:
            # There is no password here, and an order changes data: whoever may, has a login on this machine.
            start_response("403 Forbidden", [("Content-Type", JSON_TYPE)])
            told = f"orders are taken from this machine alone, not from {environ['REMOTE_ADDR']}"
            return [json.dumps({"error": told}).encode() + b"\n"]
        size = environ.get("CONTENT_LENGTH") or "0"
        refused = ""
        if environ.get("CONTENT_TYPE", "").partition(";")[0].strip() != JSON_TYPE:
            refused = f"say Content-Type: {JSON_TYPE}"
        elif not size.isdigit() or int(size) > ORDER_BYTES_MAX:
            refused = f"at most {ORDER_BYTES_MAX} bytes"
        if refused:
            start_response("400 Bad Request", [("Content-Type", JSON_TYPE)])
            return [json.dumps({"error": refused}).encode() + b"\n"]
        body = environ["wsgi.input"].read(int(size))
        return self._act(lambda: order(body), environ, start_response)

    def _act(
        self, action: Action, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        if environ.get("REQUEST_METHOD") != "POST":
            start_response(
                "405 Method Not Allowed", [("Allow", "POST"), ("Content-Type", "text/plain")]
            )
            return [b"use POST\n"]
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
