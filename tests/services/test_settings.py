"""What `qim serve` is told: names, sources, refusals, and the page that lists them."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from qim.adapters.start_refused import StartRefused
from qim.cli import config_doc
from qim.cli.config import shown
from qim.cli.config_doc import REFUSALS, document
from qim.cli.serve import ROLES
from qim.services.roles import ServiceRole
from qim.services.settings import (
    Settings,
    check_settings,
    read_settings,
    require,
    warnings,
)
from qim.services.settings.table import BY_NAME, ELSEWHERE, OBSOLETE, VARIABLES
from qim.services.settings.values import ADDRESS

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
NEEDED = {
    "QIM_REDPANDA_BROKERS": "127.0.0.1:9092",
    "QIM_OUTBOX_TOPIC": "qim.outbox",
    "QIM_OUTBOX_RECOVERY_WINDOW_MS": "86400000",
    "QIM_DISPATCH_TOPIC": "qim.dispatch",
    "QIM_DISPATCH_RECOVERY_WINDOW_MS": "3000000",
    "QIM_SCYLLA_HOSTS": "127.0.0.1",
    "QIM_SCYLLA_KEYSPACE": "qim",
    "QIM_SCYLLA_DC": "dc1",
    "QIM_SCYLLA_RF": "3",
}
ABROAD = "10.0.0.5:7001"
MTLS = {
    "QIM_INTERNAL_TLS_CERT": "leaf.pem",
    "QIM_INTERNAL_TLS_KEY": "leaf.key",
    "QIM_INTERNAL_TLS_CLIENT_CA": "clients.pem",
    "QIM_INTERNAL_TLS_SERVER_CA": "servers.pem",
    "QIM_INTERNAL_TLS_SERVER_NAME": "qim.internal",
    "QIM_INTERNAL_GATEWAY_CERT_SHA256": "ab" * 32,
    "QIM_INTERNAL_WRITER_CERT_SHA256": "ac" * 32,
    "QIM_INTERNAL_MAILBOX_CERT_SHA256": "ad" * 32,
    "QIM_INTERNAL_SESSION_CERT_SHA256": "ae" * 32,
}


def faults(role: str, **told: str) -> list[StartRefused]:
    """Everything that refuses a process of the role, told this beside what it needs."""
    reading = read_settings(NEEDED | told)
    return [*reading.faults, *check_settings(reading.settings, ServiceRole(role))]


def codes(role: str, **told: str) -> list[str]:
    return [refused.code for refused in faults(role, **told)]


# ------------------------------------------------------------ the table


def test_each_variable_is_a_field_of_the_settings_and_each_field_a_variable() -> None:
    assert sorted(Settings.__struct_fields__) == sorted(one.key for one in VARIABLES)
    assert len(BY_NAME) == len(VARIABLES)
    others = {*ELSEWHERE, *(one.name for one in OBSOLETE)}
    assert not others & set(BY_NAME)


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
        ("QIM_ETCD_ENDPOINTS", "http://a"),
        ("QIM_INTERNAL_ADMIN_CERT_SHA256", "abc"),
        ("QIM_INTERNAL_ADMIN_CERT_SHA256", "g" * 64),
        ("QIM_TENANT_RETENTION_DAYS", "acme"),
        ("QIM_TENANT_RETENTION_DAYS", "acme=0"),
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


@pytest.mark.parametrize("name", ["QIM_MESSAGE_STORE_BACKEND", "QIM_MAILBOX_STORE_BACKEND"])
def test_whoever_wants_scylla_as_hot_store_is_told_why_not(name: str) -> None:
    (refused,) = read_settings({name: "scylla"}).faults
    assert refused.expected.endswith("(docs/decisions/0017)")
    assert [*PAGE.parent.glob("decisions/0017-*.md")]


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


# ------------------------------------------------------------ refusals by role


@pytest.mark.parametrize("role", ROLES)
def test_a_role_that_is_told_what_it_needs_may_start(role: str) -> None:
    assert codes(role) == []
    require(read_settings(NEEDED).settings, ServiceRole(role))


@pytest.mark.parametrize("role", ROLES)
def test_what_a_role_needs_is_named(role: str) -> None:
    settings = read_settings({}).settings
    named = {
        refused.what.split()[0]
        for refused in check_settings(settings, ServiceRole(role))
        if refused.code == "config_missing"
    }
    windows = {"QIM_OUTBOX_RECOVERY_WINDOW_MS", "QIM_DISPATCH_RECOVERY_WINDOW_MS"}
    archive = {name for name in NEEDED if name.startswith("QIM_SCYLLA_")}
    logs = {"QIM_REDPANDA_BROKERS", "QIM_OUTBOX_TOPIC", "QIM_DISPATCH_TOPIC"}
    wanted = windows | (set() if role == "gateway" else logs)
    if role == "mailbox":
        wanted -= {"QIM_REDPANDA_BROKERS", "QIM_DISPATCH_TOPIC"}
    if role in ("writer", "mailbox", "archiver"):
        wanted |= archive
    assert named == wanted
    with pytest.raises(StartRefused):
        require(settings, ServiceRole(role))


@pytest.mark.parametrize("name", ["QIM_OUTBOX_TOPIC", "QIM_USER_STATE_TOPIC"])
def test_each_log_has_a_topic_of_its_own(name: str) -> None:
    assert codes("writer", **{name: "qim.dispatch"}) == ["topics_not_distinct"]
    assert codes("gateway", **{name: "qim.dispatch"}) == ["topics_not_distinct"]


def test_an_archiver_without_an_archive() -> None:
    told = {"QIM_MESSAGE_STORE_BACKEND": "redis"}
    assert codes("archiver", **told) == ["archiver_without_archive"]
    assert codes("writer", **told, QIM_SCYLLA_HOSTS="a") == []


@pytest.mark.parametrize("here", ["CERT", "KEY"])
def test_half_a_pair(here: str) -> None:
    assert codes("gateway", **{f"QIM_TLS_{here}": "x.pem"}) == ["tls_pair_half"]
    assert codes("writer", **{f"QIM_ETCD_TLS_{here}": "x.pem"}) == ["tls_pair_half"]


@pytest.mark.parametrize("here", ["USER", "PASSWORD"])
def test_half_a_login(here: str) -> None:
    assert codes("writer", **{f"QIM_ETCD_{here}": "x"}) == ["etcd_login_half"]
    assert codes("writer", **{f"QIM_SCYLLA_{here}": "x"}) == ["archive_login_half"]


BROKERS_LOGIN = {
    "QIM_REDPANDA_SASL_MECHANISM": "SCRAM-SHA-256",
    "QIM_REDPANDA_SASL_USER": "qim",
    "QIM_REDPANDA_SASL_PASSWORD": "right",
}


@pytest.mark.parametrize("absent", list(BROKERS_LOGIN))
def test_half_a_login_at_the_brokers(absent: str) -> None:
    """A name without a mechanism would be told to nobody: the connection would simply have no login."""
    told = {name: value for name, value in BROKERS_LOGIN.items() if name != absent}
    (refused,) = faults("fanout", **told)
    assert (refused.code, absent in refused.got) == ("brokers_login_half", True)
    (only,) = faults("fanout", **{absent: BROKERS_LOGIN[absent]})
    assert only.code == "brokers_login_half"
    assert codes("fanout", **BROKERS_LOGIN) == []


@pytest.mark.parametrize("absent", list(MTLS)[:4])
def test_half_of_mtls(absent: str) -> None:
    told = {name: value for name, value in MTLS.items() if name != absent}
    (refused,) = faults("writer", **told)
    assert refused.code == "internal_tls_half"
    assert absent in refused.got


@pytest.mark.parametrize("listener", ["GATEWAY_PUSH", "WRITER_LISTEN", "MAILBOX_LISTEN"])
@pytest.mark.parametrize("role", ["fanout", "writer"])
def test_plaintext_needs_every_internal_listener_on_loopback(role: str, listener: str) -> None:
    told = {f"QIM_{listener}": ABROAD}
    (refused,) = faults(role, **told)
    assert (refused.code, refused.what) == ("internal_plaintext", f"the internal listener {ABROAD}")
    assert codes(role, **told, **MTLS) == []


def test_mtls_needs_the_name_of_each_it_dials() -> None:
    told = {name: value for name, value in MTLS.items() if not name.endswith("NAME")}
    told["QIM_INTERNAL_TLS_SERVER_NAME_WRITER"] = "writer.internal"
    named = [refused.what for refused in faults("gateway", **told)]
    assert named == [f"the name expected of a {role}" for role in ("gateway", "mailbox", "session")]
    assert codes("fanout", **told) == [], "it dials nobody"


def test_mtls_needs_the_certificates_of_each_that_dials() -> None:
    told = {name: value for name, value in MTLS.items() if not name.endswith("SHA256")}
    named = [(refused.code, refused.what) for refused in faults("mailbox", **told)]
    assert named == [("internal_role_list_missing", "QIM_INTERNAL_GATEWAY_CERT_SHA256")]
    assert codes("fanout", **told) == [], "nobody dials it"


@pytest.mark.parametrize("role", ["gateway", "mailbox"])
def test_the_development_secret_stays_at_home(role: str) -> None:
    told = MTLS | {"QIM_WRITER_LISTEN": ABROAD}
    assert codes(role, **told) == ["auth_secret_default"]
    assert codes(role, **told, QIM_AUTH_SECRET="x" * 32) == []
    assert codes("writer", **told) == [], "it signs nothing"
    abroad = {"QIM_GATEWAY_LISTEN": "0.0.0.0:7000", "QIM_GATEWAY_PLAINTEXT": "1"}
    assert codes(role, **abroad) == ["auth_secret_default"]


def test_clients_abroad_are_not_served_in_plaintext() -> None:
    told = {"QIM_GATEWAY_LISTEN": "0.0.0.0:7000", "QIM_AUTH_SECRET": "x" * 32}
    (refused,) = faults("gateway", **told)
    assert (refused.code, refused.what) == (
        "clients_plaintext",
        "the clients' listener 0.0.0.0:7000",
    )
    assert "QIM_GATEWAY_PLAINTEXT=1" in refused.command
    assert codes("gateway", **told, QIM_GATEWAY_PLAINTEXT="1") == []
    assert codes("gateway", **told, QIM_TLS_CERT="a.pem", QIM_TLS_KEY="a.key") == []
    assert codes("gateway", **told, QIM_TLS_KEY="a.key") == ["tls_pair_half"]
    assert codes("gateway", QIM_GATEWAY_LISTEN="127.0.0.1:7000") == []
    assert codes("mailbox", **told) == [], "it serves no clients"


def warned(role: str, **told: str) -> tuple[str, ...]:
    return warnings(read_settings(NEEDED | told).require(), ServiceRole(role))


def test_what_is_let_pass_is_said() -> None:
    own = {"QIM_AUTH_SECRET": "x" * 32}
    for role in ("gateway", "mailbox"):
        assert ["QIM_AUTH_SECRET" in one for one in warned(role)] == [True]
        assert warned(role, **own) == ()
    assert warned("writer") == (), "it signs nothing"
    abroad = own | {"QIM_GATEWAY_LISTEN": "0.0.0.0:7000"}
    (plain,) = warned("gateway", **abroad, QIM_GATEWAY_PLAINTEXT="1")
    assert "plaintext at 0.0.0.0:7000" in plain
    assert warned("gateway", **abroad) == (), "that is refused: nobody is served"
    assert warned("mailbox", **abroad) == ()
    assert warned("gateway", **abroad, QIM_TLS_CERT="a.pem", QIM_TLS_KEY="a.key") == ()


def test_a_listener_on_every_interface_is_advertised() -> None:
    told = MTLS | {"QIM_WRITER_LISTEN": "0.0.0.0:7001", "QIM_AUTH_SECRET": "x" * 32}
    assert codes("writer", **told) == ["internal_address_unknown"]
    assert codes("writer", **told, QIM_INTERNAL_ADVERTISE="w1:7001") == []
    assert codes("mailbox", **told) == [], "it isn't this one that listens there"


@pytest.mark.parametrize("name", ["BEFORE", "AFTER"])
def test_a_hook_is_asked_over_http(name: str) -> None:
    assert codes("writer", **{f"QIM_WEBHOOK_{name}_SEND_URL": "ftp://x"}) == ["webhook_url"]
    assert codes("writer", **{f"QIM_WEBHOOK_{name}_SEND_URL": "https://x"}) == []


def test_windows_keep_their_order() -> None:
    (refused,) = faults("writer", QIM_LEASE_RENEW_MS="9500")
    assert refused.code == "config_parameters"
    assert "lease_renew_ms" in refused.what
    assert codes("gateway", QIM_DEFAULT_HISTORY_RETENTION_DAYS="7") == ["config_parameters"]


# ------------------------------------------------------------ the page


def test_the_page_says_what_the_code_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == document(), "python -m qim.cli.config_doc"


def test_every_refusal_of_a_check_is_on_the_page() -> None:
    folder = Path(config_doc.__file__).parents[1] / "services" / "settings"
    source = "".join((folder / name).read_text() for name in ("checks.py", "reading.py"))
    raised = set(re.findall(r'StartRefused\(\s*"([a-z_]+)"', source))
    raised |= {"tls_pair_half", "etcd_login_half", "archive_login_half"}
    raised |= {"config_obsolete", "store_backend_deprecated"}
    assert raised == set(re.findall(r"`([a-z_]+)`", REFUSALS)) - {"qim"}


def test_the_page_is_written_where_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["config_doc", str(tmp_path / "page.md")])
    config_doc.main()
    assert (tmp_path / "page.md").read_text() == document()
