"""How a process tells of its end: a refused start as one line like the log's, a drain that wasn't one with what was left."""

import asyncio
import json
import socket
from collections.abc import Iterator
from errno import EADDRNOTAVAIL
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qim.adapters.start_refused import StartRefused
from qim.cli.main import main
from qim.core.ports.observe import Gauge, queue
from qim.services.refused_line import refused_address, refused_line
from qim.services.roles import ServiceRole
from qim.services.runtime import Runtime
from tests.services.one_process_cluster import SETTINGS, OneProcessCluster
from tests.services.settings_told import NEEDED

REFUSED = StartRefused(
    "redis_aof_off", "appendonly", got="no", expected="yes", command="redis-cli …"
)


@pytest.fixture
def taken() -> Iterator[tuple[str, int]]:
    """An address somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield "127.0.0.1", listening.getsockname()[1]


# ------------------------------------------------------------ refused


def test_a_refusal_is_a_sentence_for_people_and_fields_for_programs() -> None:
    sentence = refused_line("qim serve writer", "writer", REFUSED, as_json=False)
    assert sentence == f"qim serve writer: {REFUSED}"
    record = json.loads(refused_line("qim serve writer", "writer", REFUSED, as_json=True))
    assert record.pop("time").endswith("+00:00")
    assert record == {
        "level": "error",
        "service": "writer",
        "event": "start refused",
        "why": str(REFUSED),
        "code": "redis_aof_off",
        "what": "appendonly",
        "found": "no",
        "needed": "yes",
        "command": "redis-cli …",
    }


def test_what_has_no_code_has_its_words() -> None:
    record = json.loads(refused_line("qim up", "up", OSError("read-only"), as_json=True))
    assert (record["event"], record["why"]) == ("start refused", "read-only")
    assert "code" not in record


def test_serve_refuses_in_the_format_of_its_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in NEEDED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("QIM_TLS_CERT", "cert.pem")
    monkeypatch.setenv("QIM_LOG_FORMAT", "json")
    assert main(["serve", "gateway"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    record = json.loads(line)
    assert (record["service"], record["code"]) == ("gateway", "tls_half_pair")
    monkeypatch.setenv("QIM_LOG_FORMAT", "text")
    assert main(["serve", "gateway"]) == 2
    assert capsys.readouterr().err.startswith("qim serve gateway: QIM_TLS_KEY")


def test_what_is_let_pass_is_told_in_that_format_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("qim.adapters.redis.store.READY_LOOK_MS", 50)
    for name, value in NEEDED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("QIM_LOG_FORMAT", "json")
    monkeypatch.setenv("QIM_REDIS_ADDR", f"unix:{tmp_path}/none")
    monkeypatch.setenv("QIM_FANOUT_GROUP_ID", "old")
    assert main(["serve", "fanout"]) == 2
    records = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert records[0]["event"] == "setting ignored"
    assert "QIM_FANOUT_GROUP_ID" in records[0]["what"]
    assert records[-1]["code"] == "redis_unreachable"


@pytest.mark.parametrize(
    ("role", "setting", "variable"),
    [
        (ServiceRole.GATEWAY, "gateway_listen", "QIM_GATEWAY_LISTEN"),
        (ServiceRole.GATEWAY, "gateway_push", "QIM_GATEWAY_PUSH"),
        (ServiceRole.WRITER, "writer_listen", "QIM_WRITER_LISTEN"),
        (ServiceRole.FANOUT, "metrics_listen", "QIM_METRICS_LISTEN"),
    ],
)
def test_a_port_that_is_taken_is_refused_by_name(
    tmp_path: Path, taken: tuple[str, int], role: ServiceRole, setting: str, variable: str
) -> None:
    async def starting() -> None:
        async with OneProcessCluster(tmp_path / "data") as cluster:
            with pytest.raises(StartRefused) as refused:
                await cluster.start(role, **{setting: taken})
            assert refused.value.code == "address_taken"
            assert refused.value.what == f"{variable}: 127.0.0.1:{taken[1]}"
            assert str(taken[1]) in refused.value.command

    asyncio.run(starting())


def test_an_address_of_another_machine_is_refused_and_what_is_neither_is_not_touched() -> None:
    with (
        pytest.raises(StartRefused) as refused,
        refused_address("QIM_METRICS_LISTEN", ("192.0.2.1", 9100)),
    ):
        raise OSError(EADDRNOTAVAIL, "not ours")
    assert refused.value.code == "address_not_ours"
    with pytest.raises(OSError, match="else"), refused_address("X", ("h", 1)):
        raise OSError("something else")


# ------------------------------------------------------------ not drained


class Working:
    """A machine that has something to do for ever."""

    def step(self, now: int, events: object) -> list[object]:
        return []

    def deadline(self) -> int | None:
        return None

    def idle(self) -> bool:
        return False

    def gauges(self, now: int) -> list[Gauge]:
        return [*queue("fanout.window", 3, 10), *queue("fanout.body_cache", 9, 10)]


def test_who_is_left_working_is_told_with_what_it_holds() -> None:
    observer: Any = SimpleNamespace(
        sample=lambda *_: None, timer=lambda *_: lambda _: None, count=None
    )
    loop: Any = SimpleNamespace(call_soon=lambda _: None)
    runtime = Runtime(loop, observer)
    hosted = runtime.add("fanout", Working(), {})
    assert hosted.in_flight() == "fanout: window 3"
    hosted.post("a fact")
    assert hosted.in_flight() == "fanout: inbox 1, window 3"
    silent: Any = SimpleNamespace()
    assert runtime.add("x", silent, {}).in_flight() == "x: requests without an answer"


@pytest.mark.parametrize("works", [True, False])
def test_a_drain_that_did_not_end_says_what_was_in_flight(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], works: bool
) -> None:
    assert SETTINGS.log_format == "text"

    async def stopping() -> int:
        async with OneProcessCluster(tmp_path / "data") as cluster:
            await cluster.start(ServiceRole.FANOUT, drain_ms=50, log_format="json")
            process, _ = cluster.running["fanout"]
            assert process._hosting is not None
            if works:
                process._hosting.hosts[ServiceRole.FANOUT].machine = Working()
            return await cluster.stop("fanout")

    assert asyncio.run(stopping()) == int(works)
    records = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    (last,) = [one for one in records if one["event"] in ("drained", "not drained")]
    if works:
        assert (last["level"], last["event"]) == ("error", "not drained")
        assert last is records[-1]
        assert last["in_flight"] == "fanout: window 3"
    else:
        assert (last["level"], last["event"]) == ("info", "drained")
