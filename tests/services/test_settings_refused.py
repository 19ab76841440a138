"""Settings that each can be read and together must not start: every check has a start that it alone refuses."""

import sys

import pytest

from qim.adapters.start_refused import StartRefused
from qim.cli.serve import ROLES
from qim.services.roles import ServiceRole
from qim.services.settings import check_settings, read_settings, require, warnings
from tests.services.settings_told import ABROAD, MTLS, NEEDED, codes, faults


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
    assert codes("gateway", **{f"QIM_TLS_{here}": "x.pem"}) == ["tls_half_pair"]
    assert codes("writer", **{f"QIM_ETCD_TLS_{here}": "x.pem"}) == ["tls_half_pair"]


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
    assert refused.code == "internal_tls_incomplete"
    assert absent in refused.got


LISTENING = ("WRITER", "MAILBOX", "SESSION", "AUDITOR")


@pytest.mark.parametrize("listener", ["GATEWAY_PUSH", *(f"{one}_LISTEN" for one in LISTENING)])
@pytest.mark.parametrize("role", ["fanout", "writer"])
def test_plaintext_needs_every_internal_listener_on_loopback(role: str, listener: str) -> None:
    told = {f"QIM_{listener}": ABROAD}
    (refused,) = faults(role, **told)
    assert (refused.code, refused.what) == ("internal_plaintext", f"the internal listener {ABROAD}")
    assert codes(role, **told, **MTLS) == []


def test_mtls_needs_the_name_of_each_it_dials() -> None:
    told = {name: value for name, value in MTLS.items() if not name.endswith("NAME")}
    told["QIM_INTERNAL_TLS_SERVER_NAME_WRITER"] = "writer.internal"
    named = [(refused.code, refused.what) for refused in faults("gateway", **told)]
    code, roles = "internal_server_name_missing", ("gateway", "mailbox", "session")
    assert named == [(code, f"the name expected of a {role}") for role in roles]
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
    assert codes("gateway", **told, QIM_TLS_KEY="a.key") == ["tls_half_pair"]
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
    assert codes("writer", **(told | {"QIM_WRITER_LISTEN": "[0::0]:7001"})) == [
        "internal_address_unknown"
    ]


@pytest.mark.parametrize("name", ["BEFORE", "AFTER"])
def test_a_hook_is_asked_over_http(name: str) -> None:
    variable = f"QIM_WEBHOOK_{name}_SEND_URL"
    for told in ("ftp://u:hunter2@x", "https://", "https://x:y", "hunter2"):
        (refused,) = faults("writer", **{variable: told})
        assert (refused.code, refused.what) == ("webhook_url", variable)
        assert "hunter2" not in str(refused)
    assert codes("writer", **{variable: "https://x"}) == []
    assert codes("writer", **{variable: "https://x"}, QIM_WEBHOOK_SECRET="x") == ["webhook_secret"]


@pytest.mark.parametrize("name", ["QIM_REDIS_ADDR", "QIM_MAILBOX_REDIS_ADDR"])
@pytest.mark.parametrize("told", ["http://h", "h:0", "redis://:hunter2@h/3", "rediss://h?what=/a"])
def test_a_store_has_an_address(name: str, told: str) -> None:
    (refused,) = faults("writer", **{name: told})
    assert (refused.code, refused.what) == ("redis_address", name)
    assert refused.command == f"export {name}=127.0.0.1:6379"
    assert "hunter2" not in str(refused)


@pytest.mark.parametrize("name", ["QIM_REDIS_ADDR", "QIM_MAILBOX_REDIS_ADDR"])
def test_checks_of_a_store_are_waived_on_this_machine_alone(name: str) -> None:
    unsafe = {"QIM_REDIS_ALLOW_UNSAFE_DEV": "1"}
    assert codes("writer", **unsafe, **{name: "10.0.0.5:6379"}) == ["redis_unsafe_dev_elsewhere"]
    for here in ("localhost:1", "[::1]:1", "unix:/run/redis.sock"):
        assert codes("writer", **unsafe, **{name: here}) == []


@pytest.mark.parametrize(
    ("name", "told", "code"),
    [
        ("QIM_SCYLLA_HOSTS", "a:b", "archive_hosts_invalid"),
        ("QIM_SCYLLA_HOSTS", "a:1,b:2", "archive_hosts_invalid"),
        ("QIM_SCYLLA_KEYSPACE", "My-Space", "archive_keyspace_invalid"),
    ],
)
def test_an_archive_is_named_as_it_must_be(name: str, told: str, code: str) -> None:
    for role in ("writer", "mailbox", "archiver"):
        (refused,) = faults(role, **{name: told})
        assert (refused.code, refused.what) == (code, name)
    assert codes("fanout", **{name: told}) == [], "it reads none"
    assert codes("writer", **{name: told}, QIM_MESSAGE_STORE_BACKEND="redis") == []


def test_checks_of_the_archive_are_waived_on_this_machine_alone() -> None:
    unsafe = {"QIM_SCYLLA_ALLOW_UNSAFE_DEV": "1"}
    assert codes("archiver", **unsafe) == []
    assert codes("archiver", **unsafe, QIM_SCYLLA_HOSTS="10.0.0.5") == ["archive_unsafe_dev_abroad"]


def test_without_the_clients_of_the_servers_the_rest_is_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("qim.adapters.cassandra.settings", "qim.adapters.webhook.settings"):
        monkeypatch.setitem(sys.modules, name, None)
    told = {"QIM_WEBHOOK_AFTER_SEND_URL": "ftp://x", "QIM_SCYLLA_HOSTS": "a:b"}
    assert codes("writer", **told) == []
    assert codes("writer", **told, QIM_ETCD_USER="x") == ["etcd_login_half"]


def test_windows_keep_their_order() -> None:
    (refused,) = faults("writer", QIM_LEASE_RENEW_MS="9500")
    assert refused.code == "config_parameters"
    assert "lease_renew_ms" in refused.what
    assert codes("gateway", QIM_DEFAULT_HISTORY_RETENTION_DAYS="7") == ["config_parameters"]


@pytest.mark.parametrize(
    ("told", "named", "command"),
    [
        (
            {"QIM_LEASE_RENEW_MS": "9500"},
            "QIM_LEASE_RENEW_MS (lease_renew_ms)",
            "export QIM_LEASE_RENEW_MS=…  # renew earlier or lengthen QIM_LEASE_TTL_MS",
        ),
        (
            {"QIM_HISTORY_HOT_WINDOW_MS": "5184000000"},
            "QIM_HISTORY_HOT_WINDOW_MS (hot_window_ms)",
            "export QIM_HISTORY_HOT_WINDOW_MS=…  # lower QIM_HISTORY_HOT_WINDOW_MS or raise QIM_DEFAULT_HISTORY_RETENTION_DAYS",
        ),
        (
            {"QIM_HISTORY_HOT_WINDOW_MS": "3600000"},
            "the parameter dedupe_window_ms",
            "export QIM_HISTORY_HOT_WINDOW_MS=…  # lower dedupe_window_ms or raise QIM_HISTORY_HOT_WINDOW_MS",
        ),
    ],
)
def test_a_parameter_is_named_by_its_variable(
    told: dict[str, str], named: str, command: str
) -> None:
    (refused,) = faults("writer", **told)
    assert (refused.what, refused.command) == (named, command)
