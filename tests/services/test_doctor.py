"""What the doctor makes of what a process tells: every finding that isn't ok says what to do and names a page that exists."""

import json
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from qim.adapters.http.operator_endpoint import OperatorEndpoint
from qim.adapters.start_refused import StartRefused
from qim.cli.main import main
from qim.core.contract.invariants import Invariant
from qim.services.doctor import processes
from qim.services.doctor.findings import (
    Finding,
    State,
    as_json,
    as_text,
    fail,
    ok,
    refused,
    warn,
    worst,
)
from qim.services.doctor.processes import DAY_SECONDS, examined, judged, samples_of
from qim.services.health import Health
from qim.services.observation import LogSink, ProcessObserver
from tests.services.hand_loop import HandLoop

ALARMS = Path(__file__).resolve().parents[2] / "docs" / "alarms"


class Process:
    """A process as its operator endpoint shows it."""

    def __init__(self, log: Path) -> None:
        self.descriptor = os.open(log, os.O_WRONLY | os.O_CREAT)
        loop = HandLoop()
        sink = LogSink(loop, self.descriptor, as_json=True)  # type: ignore[arg-type]
        self.observer = ProcessObserver(sink, lambda *_: None, stages=False)
        self.health = Health(self.observer, role="writer")
        self.health.ready = True
        self.endpoint = OperatorEndpoint(
            "127.0.0.1",
            0,
            self.observer,
            health=self.health.healthz,
            ready=self.health.readyz,
            live=self.health.livez,
        )

    def findings(self) -> list[Finding]:
        found = [*examined("writer", self.endpoint.address)]
        for one in found:
            assert (one.state is State.OK) == (one.do == ""), one
            assert not one.page or (ALARMS / f"{one.page}.md").exists(), one
        return found

    def close(self) -> None:
        self.endpoint.stop()
        os.close(self.descriptor)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path / "log")
    try:
        yield made
    finally:
        made.close()


def states(found: list[Finding]) -> list[str]:
    return [one.state.value for one in found]


# ------------------------------------------------------------ processes


def test_a_process_that_serves_is_one_good_finding(process: Process) -> None:
    process.observer.count("messages", 3, "")
    (one,) = process.findings()
    assert (one.state, one.found) == (State.OK, "ready")


def test_what_is_missing_is_said_in_the_processs_own_words(process: Process) -> None:
    process.health.missing = "3 of 4 writer shards"
    (one,) = process.findings()
    assert (one.state, one.page) == (State.FAIL, "shards-not-serving")
    assert "3 of 4 writer shards" in one.found


def test_a_violation_is_told_as_it_stands_and_an_invariant_by_its_meaning(process: Process) -> None:
    process.observer.violation("mailbox", Invariant.MAILBOX_SEQ_REGRESSION, "dispatch/3: gone")
    first, second = process.findings()
    assert "mailbox_seq_regression_count: dispatch/3: gone" in first.found
    assert (first.state, second.state, second.page) == (State.FAIL, State.FAIL, "invariants")
    assert "counter was reset" in second.found


def test_a_death_is_worse_than_what_led_to_it(process: Process) -> None:
    process.health.died = ValueError("a bug")
    assert "died" in process.findings()[0].found


def test_nobody_at_the_address_is_a_failure_that_says_how_to_name_another(
    process: Process,
) -> None:
    address = process.endpoint.address
    process.endpoint.stop()
    (one,) = examined("writer", address)
    assert (one.state, one.page) == (State.FAIL, "shards-not-serving")
    assert "--process writer=HOST:PORT" in one.do


def test_a_process_of_another_role_is_not_taken_for_the_one_that_is_looked_for(
    process: Process,
) -> None:
    (one,) = examined("mailbox", process.endpoint.address)
    assert (one.state, "is a writer" in one.found) == (State.FAIL, True)
    assert "--process mailbox=HOST:PORT" in one.do


@pytest.mark.parametrize("body", [b"hello", b"[1]"])
def test_a_stranger_at_the_address_is_told_as_one(body: bytes) -> None:
    class Stranger(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing on the tests' output."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        (one,) = examined("writer", f"127.0.0.1:{serving.server_address[1]}")
        serving.shutdown()
    assert (one.state, "something else" in one.found) == (State.FAIL, True)


def test_clocks_that_stand_apart_are_seen_in_the_date(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "time", SimpleNamespace(time=lambda: time.time() + 60))
    (clock,) = [one for one in process.findings() if one.page == "clock"]
    assert (clock.state, "60 s behind ours" in clock.found) == (State.FAIL, True)


# ------------------------------------------------------------ metrics


@pytest.mark.parametrize(
    ("samples", "page"),
    [
        ({("queue_depth", "a.b"): 9.0, ("queue_capacity", "a.b"): 10.0}, "queue-full"),
        (
            {("store_calls_inflight", "m"): 9.0, ("store_calls_inflight_max", "m"): 10.0},
            "queue-full",
        ),
        ({("tls_certificate_expires_seconds", "client server"): 3.0 * DAY_SECONDS}, "certificates"),
        ({("tls_certificate_expires_seconds", "client server"): -1.0}, "certificates"),
        ({("mailbox_watermark_age_seconds", "3"): 100.0}, "lag"),
        ({("samples_stale", ""): 1.0}, "event-loop"),
        ({("store_connected", "both"): 0.0}, "store-unreachable"),
        ({("registry_watch_up", ""): 0.0}, "registry"),
        ({("fanout_halted", "1"): 1.0}, "newer-format"),
        ({("session_halted", "3"): 2.0}, "newer-format"),
        ({("fanout_dead_letter_total", "1"): 1.0}, "dead-letters"),
    ],
)
def test_metrics_that_want_somebody_name_their_page(
    samples: dict[tuple[str, str], float], page: str
) -> None:
    (one,) = judged("x", samples)
    assert (one.state is not State.OK, one.page) == (True, page)
    assert one.do


@pytest.mark.parametrize(
    "samples",
    [
        {("queue_depth", "a.b"): 7.0, ("queue_capacity", "a.b"): 10.0},
        {("queue_depth", "a.b"): 0.0, ("queue_capacity", "a.b"): 0.0},
        {
            ("queue_depth", "mailbox.body_cache_bytes"): 10.0,
            ("queue_capacity", "mailbox.body_cache_bytes"): 10.0,
        },
        {("mailbox_watermark_age_seconds", "3"): 0.2},
        {("samples_stale", ""): 0.0, ("store_connected", "both"): 1.0},
        {("fanout_halted", "1"): 0.0, ("of_nobody_halted", "1"): 1.0},
    ],
)
def test_what_is_as_it_should_be_is_not_mentioned(samples: dict[tuple[str, str], float]) -> None:
    assert [*judged("x", samples)] == []


def test_histograms_are_read_without_their_buckets() -> None:
    text = (
        "# TYPE qim_step_seconds histogram\n"
        'qim_step_seconds_bucket{le="+Inf",machine="writer"} 2.0\n'
        'qim_step_seconds_count{machine="writer"} 2.0\nqim_step_seconds_sum{machine="writer"} 0.5\n'
    )
    assert samples_of(text) == {
        ("step_seconds_count", "writer"): 2.0,
        ("step_seconds_sum", "writer"): 0.5,
    }


# ------------------------------------------------------------ what is said


def test_the_worst_finding_decides_and_each_says_what_to_do() -> None:
    error = StartRefused("code", "x", got="1", expected="2", command="set x 2")
    found = [ok("a", "fine"), warn("b", "hm", "look", "lag"), refused("c", error)]
    assert worst([]) is State.OK
    assert worst(found[:2]) is State.WARN
    assert worst(found) is State.FAIL
    assert list(as_text(found)) == [
        "ok    a: fine",
        "warn  b: hm",
        "      do: look (docs/alarms/lag.md)",
        "fail  c: x is 1, expected 2 [code]",
        "      do: set x 2",
    ]
    told = as_json(found)
    assert told["state"] == "fail"
    assert told["findings"][2]["do"] == "set x 2"
    assert states([fail("d", "e", "f")]) == ["fail"]


# ------------------------------------------------------------ the command


def test_a_directory_without_a_server_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--data", str(tmp_path)]) == 2
    assert "--config FILE or --cluster" in capsys.readouterr().err


def test_a_configuration_with_faults_is_what_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "qim.toml"
    config.write_text('redis_adr = "10.0.0.1:6379"\n')
    assert main(["doctor", "--config", str(config), "--json"]) == 1
    (one,) = json.loads(capsys.readouterr().out)["findings"]
    assert (one["subject"], one["state"]) == ("configuration", "fail")
    assert "redis_adr" in one["found"]


WHOLE = """\
metrics_listen = "127.0.0.1:1"
gateway_listen = "127.0.0.1:1"
redpanda_brokers = "127.0.0.1:1"
outbox_topic = "o"
dispatch_topic = "d"
outbox_recovery_window_ms = 1
dispatch_recovery_window_ms = 1
scylla_hosts = "127.0.0.1"
scylla_keyspace = "qim"
scylla_dc = "dc1"
scylla_rf = 3
"""


def test_servers_are_not_looked_at_with_a_configuration_that_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every fault is told, and no adapter is opened with half of what it needs."""
    from qim.services.doctor import cluster

    monkeypatch.setattr(cluster, "open_adapters", None)
    config = tmp_path / "qim.toml"
    kept = [line for line in WHOLE.splitlines() if not line.startswith(("outbox_t", "dispatch_t"))]
    config.write_text("\n".join([*kept, 'etcd_user = "x"']))
    assert main(["doctor", "--config", str(config), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    told = " ".join(one["found"] for one in found)
    for name in ("QIM_OUTBOX_TOPIC", "QIM_DISPATCH_TOPIC", "QIM_ETCD_USER"):
        assert name in told
    looked = [one for one in found if one["subject"].startswith("start-up checks")]
    assert [one["found"] for one in looked] == ["not looked at"] * 2


def test_a_role_that_nobody_knows_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--cluster", "--process", "writter=127.0.0.1:9101"])
    assert ended.value.code == 2
    assert "ROLE of gateway, writer" in capsys.readouterr().err


def test_servers_that_are_not_there_are_named_each_with_its_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first that doesn't answer is told as a start would tell it; the processes are looked for all the same."""
    from qim.services.doctor import cluster

    async def nobody(*_: object) -> object:
        raise StartRefused(
            "redis_unreachable",
            "the store",
            got="gone",
            expected="an answer",
            command="redis-cli ping",
        )

    async def another(*_: object) -> object:
        raise StartRefused("archive_x", "it", got="gone", expected="there", command="cqlsh")

    monkeypatch.setattr(cluster, "open_adapters", nobody)
    monkeypatch.setattr(cluster, "open_archive", another)
    config = tmp_path / "qim.toml"
    config.write_text(WHOLE)
    assert main(["doctor", "--config", str(config), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert ["redis_unreachable" in one["found"] for one in found].count(True) == 1
    (archive,) = [one for one in found if "the archive" in one["subject"]]
    assert archive["do"] == "cqlsh"
    subjects = {one["subject"].split(" at ")[0]: one for one in found}
    assert {"writer", "fanout", "mailbox", "session", "archiver", "gateway"} <= set(subjects)
    assert "redis-cli ping" in {one["do"] for one in found}
    assert all(one["do"] for one in found if one["state"] != "ok")


def test_what_a_start_may_serve_with_is_a_warning_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of an archive whose nodes don't tell how they confirm."""
    from qim.services.cluster.adapters import Opened
    from qim.services.doctor import cluster

    async def nobody(*_: object) -> object:
        raise StartRefused("other", "it", got="gone", expected="there", command="start it")

    async def archive(_: object, __: object, opened: Opened) -> None:
        opened.advice.append(("commitlog_sync of a:1 is not provable", "see to scylla.yaml"))

    monkeypatch.setattr(cluster, "open_adapters", nobody)
    monkeypatch.setattr(cluster, "open_archive", archive)
    config = tmp_path / "qim.toml"
    config.write_text(WHOLE)
    main(["doctor", "--config", str(config), "--json"])
    found = json.loads(capsys.readouterr().out)["findings"]
    (told,) = [one for one in found if "commitlog_sync" in one["found"]]
    assert (told["state"], told["do"]) == ("warn", "see to scylla.yaml")


def test_a_certificate_that_cannot_be_read_is_named_by_its_variable(tmp_path: Path) -> None:
    from qim.services.doctor import cluster
    from qim.services.settings import read_settings

    file = tmp_path / "absent.pem"
    settings = read_settings({"QIM_TLS_CERT": str(file), "QIM_TLS_KEY": str(file)}).settings
    (found,) = cluster._certificates(settings)
    assert found.found.startswith(f"QIM_TLS_CERT ({file}) is ")
