"""`qim serve`, `qim config` and `qim token` by their command lines: exit status, what is said, what is never said."""

import json
import os
import sys
from pathlib import Path

import pytest

from qim.cli.main import main
from qim.core.contract.tokens import verify_token
from tests.services.settings_told import NEEDED


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a role needs, and nothing of whoever runs the tests."""
    for name in [name for name in os.environ if name.startswith("QIM_")]:
        monkeypatch.delenv(name)
    for name, value in NEEDED.items():
        monkeypatch.setenv(name, value)


def test_a_start_that_is_refused_ends_with_2_and_says_how_to_mend_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QIM_TLS_CERT", "cert.pem")
    assert main(["serve", "gateway"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "qim serve gateway: QIM_TLS_KEY is not set while QIM_TLS_CERT is" in told.err
    assert "[tls_half_pair]" in told.err


def test_a_server_that_is_not_there_is_a_refusal_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("qim.adapters.redis.store.READY_LOOK_MS", 50)
    monkeypatch.setenv("QIM_REDIS_ADDR", f"unix:{tmp_path}/none")
    monkeypatch.setenv("QIM_FANOUT_GROUP_ID", "old")
    assert main(["serve", "fanout"]) == 2
    told = capsys.readouterr().err
    assert "[redis_unreachable]" in told
    assert "QIM_FANOUT_GROUP_ID (environment) does nothing" in told


def test_without_the_clients_of_the_servers_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "aiokafka", None)
    assert main(["serve", "fanout"]) == 2
    assert "pip install 'qim[cluster]'" in capsys.readouterr().err


def test_config_check_names_each_fault_once_with_its_roles(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "check"]) == 0
    assert "nothing to refuse" in capsys.readouterr().out
    monkeypatch.delenv("QIM_OUTBOX_TOPIC")
    monkeypatch.setenv("QIM_OUTBOX_TOPICS", "x")
    assert main(["config", "check", "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False
    unknown, missing = told["faults"]
    assert (unknown["code"], unknown["roles"]) == ("config_unknown_key", [])
    assert missing["code"] == "config_missing"
    assert set(missing["roles"]) == {
        "writer",
        "fanout",
        "mailbox",
        "session",
        "archiver",
        "auditor",
    }
    assert main(["config", "check", "--role", "gateway"]) == 2, "an unknown name is everybody's"
    monkeypatch.delenv("QIM_OUTBOX_TOPICS")
    assert main(["config", "check", "--role", "gateway"]) == 0
    assert main(["config", "check", "--role", "writer"]) == 2


def test_config_print_tells_values_sources_and_no_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "qim.toml"
    file.write_text('redis_addr = "redis://:hunter2@10.0.0.1:6379"\nlog_stages = false\n')
    monkeypatch.setenv("QIM_AUTH_SECRET", "s3cret-of-mine")
    monkeypatch.delenv("QIM_OUTBOX_TOPIC")
    assert main(["config", "print", "--config", str(file), "--json"]) == 0
    text = capsys.readouterr().out
    assert "hunter2" not in text
    assert "s3cret" not in text
    rows = {row["name"]: row for row in json.loads(text)["values"]}
    assert rows["QIM_REDIS_ADDR"]["value"].endswith("@10.0.0.1:6379")
    assert rows["QIM_REDIS_ADDR"]["source"] == str(file)
    assert rows["QIM_LOG_STAGES"]["value"] == "0"
    assert rows["QIM_AUTH_SECRET"]["source"] == "environment"
    assert rows["QIM_GATEWAY_LISTEN"] == {
        "name": "QIM_GATEWAY_LISTEN",
        "value": "127.0.0.1:7000",
        "source": "default",
        "needed_by": [],
    }
    assert "writer" in rows["QIM_OUTBOX_TOPIC"]["needed_by"]
    assert main(["config", "print", "--role", "writer"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "QIM_OUTBOX_TOPIC=  # not set needed by writer" in lines


def test_a_token_of_a_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QIM_AUTH_SECRET", "a secret of the cluster")
    assert main(["token", "--user", "7"]) == 0
    claims = verify_token(capsys.readouterr().out.strip(), b"a secret of the cluster", now_ms=0)
    assert claims.user_id == 7
    monkeypatch.setenv("QIM_AUTH_SECRET", " ")
    assert main(["token", "--user", "7"]) == 2


def test_the_archives_schema_by_the_file_that_processes_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in [name for name in os.environ if name.startswith("QIM_")]:
        monkeypatch.delenv(name)
    file = tmp_path / "qim.toml"
    file.write_text(
        'scylla_hosts = ["10.0.4.10", "10.0.4.11"]\nscylla_keyspace = "ours"\nscylla_dc = "dc7"\nscylla_rf = 3\n'
    )
    words = ["archive", "schema", "print"]
    assert main([*words, "--config", str(file)]) == 0
    told = capsys.readouterr().out
    assert "CREATE KEYSPACE IF NOT EXISTS ours" in told
    assert "'dc7': 3" in told
    monkeypatch.setenv("QIM_CONFIG", str(file))
    assert main([*words, "--keyspace", "other"]) == 0, "an option goes before the file"
    assert "CREATE KEYSPACE IF NOT EXISTS other" in capsys.readouterr().out
    file.write_text("scylla_host = 1\n")
    assert main(words) == 2
    assert "scylla_hosts" in capsys.readouterr().err
