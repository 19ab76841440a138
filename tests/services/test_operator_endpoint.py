"""The operator's endpoint over real HTTP: health by the observer, actions by POST, and an answer while others wait."""

import http.client
import json
import os
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from qim.adapters.http import operator_endpoint
from qim.adapters.http.operator_endpoint import OperatorEndpoint, comes_from_here
from qim.core.contract.invariants import Invariant
from qim.services.health import Health
from qim.services.observation import LogSink, ProcessObserver
from tests.services.hand_loop import HandLoop

KEY = "7f" * 32


class Operated:
    """An endpoint as `qim up` makes it, over an observer nobody feeds but the test."""

    def __init__(self, path: Path, host: str = "127.0.0.1", key: str = KEY) -> None:
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        loop: Any = HandLoop()
        sink = LogSink(loop, self.descriptor, as_json=True)
        self.observer = ProcessObserver(sink, lambda *_: None, stages=True)
        self.health = Health(self.observer)
        self.health.ready = True
        self.refused: list[dict[str, object]] = []
        self.blocked, self.release = threading.Event(), threading.Event()
        self.endpoint = OperatorEndpoint(
            host,
            0,
            self.observer,
            health=self.health.healthz,
            ready=self.health.readyz,
            live=self.health.livez,
            orders={
                "/audit": lambda _: {"verdict": "CLEAN"},
                "/slow": self._slow,
                "/late": self._late,
                "/broken": self._broken,
                "/mend": lambda body: {"took": body.decode()},
            },
            key=key,
            on_refused=self.refused.append,
        )

    def _slow(self, _: bytes) -> dict[str, object]:
        self.blocked.set()
        self.release.wait(60)
        return {"at last": True}

    def _late(self, _: bytes) -> dict[str, object]:
        raise TimeoutError("no report in 300 s")

    def _broken(self, _: bytes) -> dict[str, object]:
        raise RuntimeError("the loop is closed")

    def ask(
        self,
        path: str,
        method: str = "GET",
        body: bytes | None = None,
        kind: str = "application/json",
        key: str = f"Bearer {KEY}",
    ) -> tuple[int, str, str]:
        """Status, content type, body; ``kind`` of the body that is sent, ``key`` as the header has it, "" none."""
        host, _, port = self.endpoint.address.rpartition(":")
        connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=30)
        try:
            headers = {"Content-Type": kind, "Authorization": key}
            told = {name: value for name, value in headers.items() if value and method == "POST"}
            connection.request(method, path, body, told)
            answer = connection.getresponse()
            return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()
        finally:
            connection.close()

    def close(self) -> None:
        self.release.set()
        self.endpoint.stop()
        os.close(self.descriptor)


@pytest.fixture
def operated(tmp_path: Path) -> Iterator[Operated]:
    made = Operated(tmp_path / "log")
    yield made
    made.close()


def test_all_is_well(operated: Operated) -> None:
    for path in ("/healthz", "/readyz", "/livez"):
        status, kind, body = operated.ask(path)
        assert (status, kind) == (200, "application/json")
        assert json.loads(body)["ok"] is True


@pytest.mark.parametrize("check", [*Invariant, "version_unknown"])
def test_an_invariant_turns_health_and_readiness_red_and_life_stays_green(
    operated: Operated, check: str
) -> None:
    operated.observer.violation("mailbox", str(check), "shard 3")
    for _ in range(2):
        assert operated.ask("/healthz")[0] == 503
        assert operated.ask("/readyz")[0] == 503
        assert operated.ask("/livez")[0] == 200
    assert "shard 3" in operated.ask("/healthz")[2]
    counted = [line for line in operated.ask("/metrics")[2].splitlines() if line.endswith(" 1.0")]
    short = check.removesuffix("_total").removesuffix("_count")
    named = (
        f"qim_{short}_total" if check in [*Invariant] else f'qim_violation_total{{check="{check}"}}'
    )
    assert counted == [f"{named} 1.0"]


@pytest.mark.parametrize("missing", ["", "writer shards 2-3"])
def test_what_does_not_serve_is_healthy_and_not_ready(operated: Operated, missing: str) -> None:
    """Not yet, or not all of it any more."""
    operated.health.ready, operated.health.missing = bool(missing), missing
    status, _, body = operated.ask("/readyz")
    told = json.loads(body)
    assert (status, told["ok"], told["serving"], told["missing"]) == (503, False, False, missing)
    assert operated.ask("/healthz")[0] == 200
    assert operated.ask("/livez")[0] == 200
    operated.health.died = RuntimeError("a machine of ours")
    assert operated.ask("/livez")[0] == 503


def test_metrics_are_prometheus_text(operated: Operated) -> None:
    operated.observer.count("stage", 3, "OUTBOXED")
    status, kind, body = operated.ask("/metrics")
    assert status == 200
    assert kind.startswith("text/plain")
    families = {one.name: one for one in text_string_to_metric_families(body)}
    (sample,) = families["qim_stage"].samples
    assert (sample.name, sample.labels, sample.value) == (
        "qim_stage_total",
        {"stage": "OUTBOXED"},
        3.0,
    )


def test_who_says_nothing_is_hung_up_on(
    operated: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else so many silent connections as there are threads would make a probe read "dead"."""
    monkeypatch.setattr(operator_endpoint._Handler, "timeout", 0.05)
    host, _, port = operated.endpoint.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as silent:
        assert silent.recv(1) == b""


SILENCE_SECONDS = 0.05
"""For the first line; what comes of it has longer, and is waited for that many times as long."""
TIMES = 6


@pytest.mark.parametrize("longer", [True, False])
def test_who_said_a_first_line_has_longer_for_the_rest_but_not_for_ever(
    operated: Operated, monkeypatch: pytest.MonkeyPatch, longer: bool
) -> None:
    monkeypatch.setattr(operator_endpoint._Handler, "timeout", SILENCE_SECONDS)
    if not longer:
        monkeypatch.setattr(operator_endpoint, "REQUEST_TIMEOUT_SECONDS", SILENCE_SECONDS)
    host, _, port = operated.endpoint.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as slow:
        slow.sendall(b"GET /livez HTTP/1.0\r\n")
        if not longer:
            assert slow.recv(1) == b"", "hung up on"
            return
        told, _, _ = select.select([slow], [], [], TIMES * SILENCE_SECONDS)
        assert not told, "neither answered nor hung up on"
        slow.sendall(b"\r\n")
        assert b" 200 " in slow.recv(1 << 16).partition(b"\r\n")[0]


def test_orders_are_posted(operated: Operated) -> None:
    status, kind, body = operated.ask("/audit", "POST")
    assert (status, kind, json.loads(body)) == (200, "application/json", {"verdict": "CLEAN"})
    assert operated.ask("/audit")[0] == 405
    status, _, body = operated.ask("/late", "POST")
    assert (status, json.loads(body)) == (504, {"error": "no report in 300 s"})
    status, _, body = operated.ask("/broken", "POST")
    assert status == 503
    assert "the loop is closed" in json.loads(body)["error"]


def test_an_order_says_that_it_is_json(operated: Operated) -> None:
    """What a page in somebody's browser can't send to another host unasked."""
    status, _, told = operated.ask("/mend", "POST", b"{}", "application/json")
    assert (status, json.loads(told)) == (200, {"took": "{}"})
    assert operated.ask("/mend", "POST", b"{}", "text/plain")[0] == 400
    assert operated.ask("/mend", "POST", b"x" * 70_000, "application/json")[0] == 400


def test_an_order_comes_from_this_machine(
    operated: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint may be shown to a network for its metrics: nothing is ordered from there, with the key or without."""
    monkeypatch.setattr(operator_endpoint, "comes_from_here", lambda here, there: False)
    for path in ("/mend", "/audit"):
        status, _, told = operated.ask(path, "POST", b"{}")
        assert (status, json.loads(told)["code"]) == (403, "order_from_elsewhere")
    assert operated.ask("/metrics")[0] == 200


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("", "order_key_missing"),
        ("Bearer ", "order_key_wrong"),
        (f"Bearer {KEY[:-1]}", "order_key_wrong"),
        (f"Basic {KEY}", "order_key_wrong"),
        ("Bearer k\xe9y", "order_key_wrong"),
    ],
)
def test_an_order_without_the_key_of_this_run_starts_nothing(
    operated: Operated, key: str, code: str
) -> None:
    for path in ("/audit", "/mend", "/slow"):
        status, _, body = operated.ask(path, "POST", b"{}", key=key)
        told = json.loads(body)
        assert (status, told["code"]) == (401, code)
        assert "operator.key" in told["expected"] and told["got"] and KEY not in body
    assert not operated.blocked.is_set()
    assert [one["path"] for one in operated.refused] == ["/audit", "/mend", "/slow"]
    assert {one["code"] for one in operated.refused} == {code}
    assert operated.refused[0]["peer"] == "127.0.0.1"


def test_an_endpoint_without_a_key_takes_no_order(tmp_path: Path) -> None:
    made = Operated(tmp_path / "log", key="")
    try:
        assert made.ask("/audit", "POST", key="Bearer ")[0] == 401
    finally:
        made.close()


@pytest.mark.parametrize(
    ("here", "there", "near"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("0.0.0.0", "127.8.9.1", True),
        ("::1", "::1", True),
        ("::", "::ffff:127.0.0.1", True),
        ("10.0.0.7", "10.0.0.7", True),
        ("10.0.0.7", "10.0.0.8", False),
        ("fe80::1", "fe80::2%eth0", False),
        ("::", "::ffff:10.0.0.8", False),
    ],
)
def test_who_is_on_this_machine(here: str, there: str, near: bool) -> None:
    assert comes_from_here(here, there) is near


def test_an_unknown_path_names_those_that_are_known(operated: Operated) -> None:
    status, _, body = operated.ask("/nothing")
    assert status == 404
    for path in ("/metrics", "/healthz", "/readyz", "/livez", "POST /audit"):
        assert path in body


def test_a_scrape_answers_while_an_action_is_under_way(operated: Operated) -> None:
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(operated.ask("/slow", "POST")))
    asking.start()
    assert operated.blocked.wait(60)
    assert operated.ask("/livez")[0] == 200
    assert operated.ask("/metrics")[0] == 200
    operated.release.set()
    asking.join()
    assert json.loads(answers[0][2]) == {"at last": True}


def test_a_connection_that_asks_nothing_blocks_nobody(operated: Operated) -> None:
    host, _, port = operated.endpoint.address.rpartition(":")
    with socket.create_connection((host, int(port))) as silent:
        silent.sendall(b"GET /livez HT")
        assert operated.ask("/livez")[0] == 200


def test_threads_are_bounded_and_one_beyond_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only thread is at a slow order: who comes then is answered at once, and once it is free, as ever."""
    monkeypatch.setattr(operator_endpoint, "THREADS_MAX", 1)
    small = Operated(tmp_path / "log")
    try:
        slow = threading.Thread(target=small.ask, args=("/slow", "POST"))
        slow.start()
        assert small.blocked.wait(60)
        status, _, said = small.ask("/livez")
        assert (status, "threads of this endpoint are busy" in said) == (503, True)
        assert list(small.endpoint.gauges()) == [
            ("operator_requests_inflight", "", 1),
            ("operator_requests_inflight_max", "", 1),
            ("operator_requests_refused", "", 1),
        ]
        small.release.set()
        slow.join()
        while small.ask("/livez")[0] != 200:
            pass
    finally:
        small.close()


def test_a_stopped_endpoint_lets_go_of_its_port(tmp_path: Path) -> None:
    operated = Operated(tmp_path / "log")
    host, _, port = operated.endpoint.address.rpartition(":")
    operated.close()
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind((host, int(port)))


def test_a_port_in_use_is_an_error_of_the_start(operated: Operated) -> None:
    host, _, port = operated.endpoint.address.rpartition(":")
    always: Any = lambda: (True, {})  # noqa: E731
    with pytest.raises(OSError, match="in use"):
        OperatorEndpoint(
            host,
            int(port),
            operated.observer,
            health=always,
            ready=always,
            live=always,
            orders={},
        )


@pytest.mark.skipif(not socket.has_ipv6, reason="this system has no IPv6")
def test_it_listens_on_ipv6(tmp_path: Path) -> None:
    try:
        operated = Operated(tmp_path / "log", "::1")
    except OSError as error:
        pytest.skip(f"no IPv6 loopback here: {error}")
    try:
        assert operated.endpoint.address.startswith("[::1]:")
        assert operated.ask("/livez")[0] == 200
    finally:
        operated.close()
