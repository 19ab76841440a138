"""What `qim serve` is told: names, defaults, sources, and values of another form."""

import re
from pathlib import Path
from typing import Any

import pytest

from qim.adapters.start_refused import StartRefused
from qim.cli.config import shown
from qim.cli.serve import ROLES
from qim.core.contract.params import DEFAULT
from qim.core.contract.redact import secret_digest
from qim.services.roles import ServiceRole
from qim.services.settings import Settings, read_settings
from qim.services.settings.model import VARIABLE_OF
from qim.services.settings.obsolete import ELSEWHERE, OBSOLETE
from qim.services.settings.table import BY_NAME, VARIABLES
from qim.services.settings.values import ADDRESS

DECISIONS = Path(__file__).parents[2] / "docs" / "decisions"


# ------------------------------------------------------------ the table


def test_each_variable_is_a_field_of_the_settings_and_each_field_a_variable() -> None:
    assert sorted(Settings.__struct_fields__) == sorted(one.key for one in VARIABLES)
    assert len(BY_NAME) == len(VARIABLES)
    others = {*ELSEWHERE, *(one.name for one in OBSOLETE)}
    assert not others & set(BY_NAME)


SEED = re.findall(
    r"\w+",
    """
    REDIS_ADDR REDIS_ALLOW_UNSAFE_DEV REDPANDA_BROKERS OUTBOX_TOPIC OUTBOX_PARTITION OUTBOX_RECOVERY_WINDOW_MS
    DISPATCH_TOPIC DISPATCH_RECOVERY_WINDOW_MS FANOUT_GROUP_ID FANOUT_TRANSACTIONAL_ID MAILBOX_SHARD_COUNT
    MESSAGE_STORE_BACKEND MAILBOX_STORE_BACKEND MESSAGE_STORE_CONNECTIONS DEFAULT_HISTORY_RETENTION_DAYS
    HISTORY_HOT_WINDOW_MS ARCHIVER_GROUP_ID ARCHIVER_BATCH_MAX ARCHIVER_METRICS STORE_BACKEND SCYLLA_HOSTS
    SCYLLA_KEYSPACE SCYLLA_DC SCYLLA_RF AUTH_SECRET TLS_CERT TLS_KEY TLS_CA TLS_SNI INTERNAL_TLS_CERT INTERNAL_TLS_KEY
    INTERNAL_TLS_CLIENT_CA INTERNAL_TLS_SERVER_CA INTERNAL_TLS_SERVER_NAME INTERNAL_TLS_SERVER_NAME_WRITER
    INTERNAL_TLS_SERVER_NAME_MAILBOX INTERNAL_TLS_SERVER_NAME_SESSION INTERNAL_TLS_SERVER_NAME_GATEWAY
    INTERNAL_GATEWAY_CERT_SHA256 INTERNAL_MAILBOX_CERT_SHA256 INTERNAL_ADMIN_CERT_SHA256 WRITER_ADDR WRITER_ADDRS
    WRITER_ID WEBHOOK_BEFORE_SEND_URL WEBHOOK_AFTER_SEND_URL WEBHOOK_FAIL_POLICY SHARD_EPOCH GATEWAY_LISTEN GATEWAY_PUSH
    TOKEN_LISTEN WRITER_LISTEN MAILBOX_LISTEN SESSION_LISTEN LOG_FORMAT LOAD_RATE
""",
)


@pytest.mark.parametrize("name", SEED)
def test_a_variable_of_the_seed_is_known_and_where_it_does_nothing_that_is_said(name: str) -> None:
    known = {*BY_NAME, *ELSEWHERE, *(one.name for one in OBSOLETE)}
    assert f"QIM_{name}" in known


OTHERWISE = {
    "QIM_MESSAGE_STORE_BACKEND": "redis",
    "QIM_MAILBOX_STORE_BACKEND": "redis",
    "QIM_HISTORY_HOT_WINDOW_MS": "7200001",
}


@pytest.mark.parametrize("parameter", list(VARIABLE_OF))
def test_a_parameter_is_told_by_the_variable_that_a_refusal_names(parameter: str) -> None:
    variable = VARIABLE_OF[parameter]
    told = read_settings({variable: OTHERWISE.get(variable, "2048")}).require().parameters()
    differ = [
        one for one in DEFAULT.__struct_fields__ if getattr(told, one) != getattr(DEFAULT, one)
    ]
    only = [] if variable == "QIM_MAILBOX_STORE_BACKEND" else [parameter]
    assert differ == only, "of a mailbox store there is one kind alone"


def test_the_roles_of_the_command_are_those_of_the_services() -> None:
    assert list(ROLES) == [role.value for role in ServiceRole]


@pytest.mark.parametrize("variable", VARIABLES, ids=lambda one: one.name)
def test_a_default_is_written_as_it_is_read(variable: Any) -> None:
    value = getattr(Settings(), variable.key)
    if value not in (None, ()):
        assert variable.kind.read(variable.kind.show(value)) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("QIM_REDIS_ADDR", "127.0.0.1:6379"),
        ("QIM_REDIS_ALLOW_UNSAFE_DEV", "0"),
        ("QIM_MAILBOX_SHARD_COUNT", "64"),
        ("QIM_MESSAGE_STORE_BACKEND", "tiered"),
        ("QIM_MAILBOX_STORE_BACKEND", "redis"),
        ("QIM_DEFAULT_HISTORY_RETENTION_DAYS", "30"),
        ("QIM_HISTORY_HOT_WINDOW_MS", "604800000"),
        ("QIM_ARCHIVER_BATCH_MAX", "512"),
        ("QIM_WEBHOOK_FAIL_POLICY", "open"),
        ("QIM_GATEWAY_LISTEN", "127.0.0.1:7000"),
        ("QIM_GATEWAY_PUSH", "127.0.0.1:7010"),
        ("QIM_WRITER_LISTEN", "127.0.0.1:7001"),
        ("QIM_MAILBOX_LISTEN", "127.0.0.1:7002"),
        ("QIM_SESSION_LISTEN", "127.0.0.1:7003"),
        ("QIM_LOG_FORMAT", "text"),
    ],
)
def test_defaults_of_the_seed(name: str, text: str) -> None:
    variable = BY_NAME[name]
    assert variable.kind.show(getattr(Settings(), variable.key)) == text


def test_ports_of_the_seed() -> None:
    told = {role.value: Settings().metrics(role)[1] for role in ServiceRole}
    assert told == {
        "gateway": 9100,
        "writer": 9101,
        "mailbox": 9102,
        "session": 9103,
        "fanout": 9106,
        "archiver": 9107,
        "auditor": 9108,
    }
    own = Settings(archiver_metrics=("127.0.0.1", 5), metrics_listen=("127.0.0.1", 6))
    assert own.metrics(ServiceRole.ARCHIVER) == ("127.0.0.1", 5)
    assert own.metrics(ServiceRole.WRITER) == ("127.0.0.1", 6)


def test_a_mailbox_has_a_broker_and_a_topic_of_its_own_by_default() -> None:
    settings = Settings()
    assert settings.brokers(ServiceRole.MAILBOX) == ("127.0.0.1:19092",)
    assert settings.dispatches(ServiceRole.MAILBOX) == "qim.dispatch"
    assert settings.brokers(ServiceRole.FANOUT) is None
    assert settings.dispatches(ServiceRole.FANOUT) is None


# ------------------------------------------------------------ reading


def test_the_environment_goes_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "qim.toml"
    file.write_text(
        'redis_addr = "10.0.0.1:6379"\nmailbox_shard_count = 16\nlog_stages = false\n'
        'redpanda_brokers = ["a:1", "b:2"]\n'
    )
    reading = read_settings({"QIM_MAILBOX_SHARD_COUNT": "8", "QIM_CONFIG": str(file), "HOME": "/"})
    settings = reading.require()
    assert settings.redis_addr == "10.0.0.1:6379"
    assert settings.mailbox_shard_count == 8
    assert settings.log_stages is False
    assert settings.redpanda_brokers == ("a:1", "b:2")
    assert reading.sources == {
        "QIM_REDIS_ADDR": str(file),
        "QIM_MAILBOX_SHARD_COUNT": "environment",
        "QIM_LOG_STAGES": str(file),
        "QIM_REDPANDA_BROKERS": str(file),
    }


def test_a_named_file_goes_before_the_variable(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text("")
    assert read_settings({"QIM_CONFIG": "/nowhere"}, file).faults == ()
    assert read_settings({"QIM_CONFIG": "/nowhere"}).faults[0].code == "config_file"


def test_an_unknown_name_is_refused_and_the_nearest_is_named(tmp_path: Path) -> None:
    file = tmp_path / "qim.toml"
    file.write_text('redis_adr = "x:1"\nRedis_addr = "x:1"\nzzz = 1\n')
    reading = read_settings({"QIM_WRITER_LISTN": "x", "QIM_TEST_KAFKA": "x:1"}, file)
    told = [str(refused) for refused in reading.faults]
    assert [refused.code for refused in reading.faults] == ["config_unknown_key"] * 4
    assert "'redis_adr'" in told[0] and "the nearest is redis_addr" in told[0]
    assert "'Redis_addr'" in told[1] and "the nearest is redis_addr" in told[1]
    assert "nearest" not in told[2]
    assert "'QIM_WRITER_LISTN'" in told[3] and "the nearest is QIM_WRITER_LISTEN" in told[3]
    with pytest.raises(StartRefused, match="redis_adr"):
        reading.require()


@pytest.mark.parametrize(
    "toml", ["redis_addr = 1.5", "redis_addr = {a = 1}", "redpanda_brokers = [['a:1']]", "x = ["]
)
def test_a_file_says_texts_numbers_bools_and_lists(tmp_path: Path, toml: str) -> None:
    file = tmp_path / "qim.toml"
    file.write_text(toml)
    (refused,) = read_settings({}, file).faults
    assert refused.code in ("config_value", "config_file")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("QIM_MAILBOX_SHARD_COUNT", "63"),
        ("QIM_MAILBOX_SHARD_COUNT", "131072"),
        ("QIM_MAILBOX_SHARD_COUNT", "x"),
        ("QIM_REDIS_ALLOW_UNSAFE_DEV", "maybe"),
        ("QIM_MESSAGE_STORE_BACKEND", "scylla"),
        ("QIM_MAILBOX_STORE_BACKEND", "scylla"),
        ("QIM_DEFAULT_HISTORY_RETENTION_DAYS", "0"),
        ("QIM_DEFAULT_HISTORY_RETENTION_DAYS", "3651"),
        ("QIM_HISTORY_HOT_WINDOW_MS", "3599999"),
        ("QIM_ARCHIVER_BATCH_MAX", "4097"),
        ("QIM_GATEWAY_LISTEN", "7000"),
        ("QIM_GATEWAY_LISTEN", "::1:7000"),
        ("QIM_GATEWAY_LISTEN", "localhost:65536"),
        ("QIM_REDPANDA_BROKERS", "a:1,"),
        ("QIM_REDPANDA_BROKERS", "a"),
        ("QIM_REDPANDA_BROKERS", "a:0"),
        ("QIM_ETCD_ENDPOINTS", "http://a"),
        ("QIM_ETCD_ENDPOINTS", "https://a:0"),
        ("QIM_INTERNAL_ADVERTISE", "0.0.0.0:7001"),
        ("QIM_INTERNAL_ADVERTISE", "[::]:7001"),
        ("QIM_INTERNAL_ADVERTISE", "w1:0"),
        ("QIM_INTERNAL_ADMIN_CERT_SHA256", "abc"),
        ("QIM_INTERNAL_ADMIN_CERT_SHA256", "g" * 64),
        ("QIM_TENANT_RETENTION_DAYS", "acme"),
        ("QIM_TENANT_RETENTION_DAYS", "acme=0"),
        ("QIM_TENANT_RETENTION_DAYS", "acme=1,acme=2"),
        ("QIM_WRITER_ID", "65536"),
        ("QIM_WRITER_ID", "0"),
        ("QIM_WEBHOOK_FAIL_POLICY", "ajar"),
        ("QIM_OUTBOX_TOPIC", " "),
    ],
)
def test_a_value_of_another_form_is_refused(name: str, text: str) -> None:
    (refused,) = read_settings({name: text}).faults
    assert (refused.code, refused.what) == ("config_value", name)
    kind = BY_NAME[name].kind
    assert refused.expected == f"{kind.expected}{kind.more}"


@pytest.mark.parametrize(
    "line",
    [
        'redis_allow_unsafe_dev = "maybe"',
        'store_backend = "redis"',
        'redis_adr = "x"',
        'Redis_addr = "x"',
        "auth_secret = 1.5",
    ],
)
def test_what_a_file_says_wrongly_is_mended_there(tmp_path: Path, line: str) -> None:
    """An export would not help: the environment goes before the file, and the file's fault stays one."""
    file = tmp_path / "own file.toml"
    file.write_text(line)
    key = line.split()[0]
    (refused,) = read_settings({f"QIM_{key.upper()}": "1"} if "unsafe" in key else {}, file).faults
    assert str(file) in refused.what
    assert refused.command.startswith(f"${{EDITOR:-vi}} '{file}'  # ")
    assert key in refused.command


def test_what_the_environment_says_wrongly_is_mended_there() -> None:
    told = {"QIM_DRAIN_MS": "x", "QIM_WRITER_LISTN": "x", "QIM_STORE_BACKEND": "redis"}
    commands = [refused.command for refused in read_settings(told).faults]
    assert commands == [
        "export QIM_DRAIN_MS=…",
        "unset QIM_STORE_BACKEND",
        "unset QIM_WRITER_LISTN",
    ]


@pytest.mark.parametrize("name", ["QIM_MESSAGE_STORE_BACKEND", "QIM_MAILBOX_STORE_BACKEND"])
def test_whoever_wants_scylla_as_hot_store_is_told_why_not(name: str) -> None:
    (refused,) = read_settings({name: "scylla"}).faults
    assert refused.expected.endswith("(docs/decisions/0017)")
    assert [*DECISIONS.glob("0017-*.md")]


def test_values_as_people_write_them() -> None:
    colons = ":".join(["AB"] * 32)
    settings = read_settings(
        {
            "QIM_GATEWAY_LISTEN": "[::1]:7000",
            "QIM_ETCD_ENDPOINTS": "http://a:1, b:2",
            "QIM_INTERNAL_GATEWAY_CERT_SHA256": f"{colons},{'cd' * 32}",
            "QIM_TENANT_RETENTION_DAYS": "acme=90,other=1",
            "QIM_REDIS_ALLOW_UNSAFE_DEV": "true",
        }
    ).require()
    assert settings.gateway_listen == ("::1", 7000)
    assert ADDRESS.show(settings.gateway_listen) == "[::1]:7000"
    assert settings.etcd_endpoints == ("http://a:1", "b:2")
    assert settings.internal_gateway_cert_sha256 == ("ab" * 32, "cd" * 32)
    assert settings.retention().tenants == (("acme", 90 * 86_400_000), ("other", 86_400_000))
    assert settings.redis_allow_unsafe_dev is True


def test_a_secret_is_never_repeated() -> None:
    (refused,) = read_settings({"QIM_AUTH_SECRET": "   "}).faults
    assert "h:" in refused.got
    password = BY_NAME["QIM_REDIS_ADDR"]
    assert shown(password, "redis://:hunter2@host:1") is not None
    assert "hunter2" not in str(shown(password, "redis://:hunter2@host:1"))
    assert str(shown(password, "redis://:hunter2@host:1")).endswith("@host:1")
    assert shown(password, "host:1") == "host:1"
    assert "s3cret" not in str(shown(BY_NAME["QIM_AUTH_SECRET"], "s3cret"))
    for name in ("QIM_WEBHOOK_BEFORE_SEND_URL", "QIM_WEBHOOK_AFTER_SEND_URL"):
        hook = str(
            shown(BY_NAME[name], "https://u:hunter2@hooks.example:8443/T0p/s3cret?key=s3cret")
        )
        assert hook.startswith("https://hooks.example/h:")
        assert "hunter2" not in hook and "s3cret" not in hook
        assert shown(BY_NAME[name], "https://[s3cret") == secret_digest("https://[s3cret")


def test_what_has_no_meaning_any_more_is_remarked_or_refused() -> None:
    harmless = {
        "QIM_FANOUT_GROUP_ID": "g",
        "QIM_FANOUT_TRANSACTIONAL_ID": "t",
        "QIM_ARCHIVER_GROUP_ID": "g",
        "QIM_OUTBOX_PARTITION": "0",
        "QIM_SHARD_EPOCH": "1",
        "QIM_WRITER_ADDRS": "a:1",
        "QIM_MESSAGE_STORE_CONNECTIONS": "8",
    }
    reading = read_settings(harmless)
    assert reading.faults == ()
    assert len(reading.remarks) == len(harmless)
    refused = {"QIM_STORE_BACKEND": "redis", "QIM_SHARD_EPOCH": "2", "QIM_TOKEN_LISTEN": "a:1"}
    assert {fault.what.split()[0]: fault.code for fault in read_settings(refused).faults} == {
        "QIM_STORE_BACKEND": "store_backend_deprecated",
        "QIM_SHARD_EPOCH": "config_obsolete",
        "QIM_TOKEN_LISTEN": "config_obsolete",
    }
