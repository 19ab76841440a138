"""deploy/ fits the code: what compose tells each process is accepted, rules and panels ask only for metrics that exist.

No Docker engine runs here: that the images start is not proved by this.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from qim.cli.main import main, parser
from qim.services.cluster.admin import auditor_address, proved_here
from qim.services.metrics import Kind
from qim.services.metrics_table import METRICS
from qim.services.roles import ServiceRole
from qim.services.settings import check_settings, read_settings, warnings

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())
ALERTS = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
SERVED = tuple(role.value for role in ServiceRole)
THEIRS = ("redis", "redpanda", "scylla", "etcd", "prometheus", "grafana")
NAME = re.compile(r"\bqim_[a-z0-9_]+")
SELECTOR = re.compile(r"(qim_[a-z0-9_]+)(?:\{([^}]*)\})?")
LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
TARGET_LABELS = {"job", "instance", "service", "le"}


def exposed() -> dict[str, str]:
    """Every name that can be scraped -> its own label ("" none)."""
    names: dict[str, str] = {}
    for metric in METRICS.values():
        ends = ("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",)
        names.update({metric.exposed() + end: metric.label for end in ends})
    return names


def told(service: str) -> dict[str, str]:
    """The environment of a compose service, as the container has it."""
    found: dict[str, str] = {}
    for name in COMPOSE["services"][service].get("env_file", []):
        for line in (DEPLOY / name).read_text().splitlines():
            if line and not line.startswith("#"):
                key, _, value = line.partition("=")
                found[key] = value
    for key, value in COMPOSE["services"][service].get("environment", {}).items():
        found[key] = "0" * 64 if value.startswith("${QIM_AUTH_SECRET:?") else str(value)
    return found


# ------------------------------------------------------------ compose


def test_everything_of_the_issue_is_there() -> None:
    assert {*SERVED, *THEIRS, "topics", "schema", "certs", "doctor", "audit"} <= set(
        COMPOSE["services"]
    )


@pytest.mark.parametrize("service", [*SERVED, "topics", "schema", "certs", "doctor", "audit"])
def test_each_process_is_told_what_it_accepts(service: str) -> None:
    words = COMPOSE["services"][service]["command"]
    arguments = parser().parse_args(words)
    reading = read_settings(told(service))
    assert not reading.faults, [str(fault) for fault in reading.faults]
    if words[0] == "serve":
        assert arguments.role == service
        faults = list(check_settings(reading.settings, ServiceRole(service)))
        assert not faults, [str(fault) for fault in faults]


def test_the_gateway_alone_is_reached_from_outside_and_nobody_has_the_default_secret() -> None:
    ports = COMPOSE["services"]["net"]["ports"]
    assert all(port.startswith("127.0.0.1:") for port in ports)
    for service in SERVED:
        environment = told(service)
        assert len(environment["QIM_AUTH_SECRET"]) == 64
        assert ("QIM_GATEWAY_LISTEN" in environment) == (service == "gateway")
        assert COMPOSE["services"][service]["network_mode"] == "service:net"


def test_what_is_waited_for_exists() -> None:
    services = COMPOSE["services"]
    for name, service in services.items():
        for awaited, how in service.get("depends_on", {}).items():
            assert awaited in services, (name, awaited)
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[awaited], (name, awaited)
    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            there = (
                (DEPLOY / source).exists()
                if source.startswith(".")
                else source in COMPOSE["volumes"]
            )
            assert there, volume


def test_prometheus_scrapes_every_process_where_it_serves() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    found = {static["labels"]["service"]: static["targets"] for static in job["static_configs"]}
    assert set(found) == set(SERVED)
    for service, targets in found.items():
        settings = read_settings(told(service)).settings
        host, port = settings.metrics(ServiceRole(service))
        assert targets == [f"{host}:{port}"]


def test_a_process_is_waited_for_until_it_serves() -> None:
    for service in SERVED:
        settings = read_settings(told(service)).settings
        host, port = settings.metrics(ServiceRole(service))
        test = COMPOSE["services"][service]["healthcheck"]["test"]
        assert test[:3] == ["CMD", "python", "-c"]
        assert f"http://{host}:{port}/readyz" in test[3]
        compile(test[3], service, "exec")


def test_the_auditor_of_compose_takes_orders_of_the_admin_that_compose_makes(
    tmp_path: Path,
) -> None:
    """The chain as its service makes it: twice, since every `up` runs it."""
    services = COMPOSE["services"]
    words = services["certs"]["command"]
    made = tmp_path / "dev"
    here = [str(made) if word == "/certs/dev" else word for word in words]
    assert here != words
    assert main(here) == 0 == main(here)
    files = {}
    for name, service in (("auditor.toml", "auditor"), ("admin.toml", "audit")):
        arguments = parser().parse_args(services[service]["command"])
        assert arguments.config == Path("/certs/dev") / name
        reading = read_settings(told(service), made / name)
        assert not reading.faults, [str(fault) for fault in reading.faults]
        assert not list(check_settings(reading.settings, ServiceRole.AUDITOR))
        files[service] = reading.settings
    assert not warnings(files["auditor"], ServiceRole.AUDITOR)
    assert proved_here(files["audit"]) in files["auditor"].internal_admin_cert_sha256
    assert auditor_address(files["audit"]) == auditor_address(files["auditor"])


def test_the_image_has_what_it_copies() -> None:
    for line in (DEPLOY / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY") and "--from" not in line:
            *sources, _ = line.split()[1:]
            for source in sources:
                assert (ROOT / source).exists(), line


# ------------------------------------------------------------ production


def test_the_example_of_a_production_configuration_is_accepted() -> None:
    own = {
        "QIM_AUTH_SECRET": "0" * 64,
        "QIM_INTERNAL_ADVERTISE": "10.0.0.7:7001",
        "QIM_TLS_CERT": "/etc/qim/gateway.pem",
        "QIM_TLS_KEY": "/etc/qim/gateway.key",
    }
    reading = read_settings(own, DEPLOY / "qim.example.toml")
    assert not reading.faults, [str(fault) for fault in reading.faults]
    assert not reading.remarks
    for role in ServiceRole:
        faults = list(check_settings(reading.settings, role))
        assert not faults, (role, [str(fault) for fault in faults])


def test_the_check_of_the_operators_page_says_nothing_of_the_example(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Step 6 as it is written, over the file of step 3: the exports, then the command."""
    for name in [name for name in os.environ if name.startswith("QIM_")]:
        monkeypatch.delenv(name)
    page = (ROOT / "docs" / "operations.md").read_text()
    step = page[page.index("6. **Check**") : page.index("7. **Topics**")]
    lines = [line.strip() for line in step.split("```")[1].splitlines() if line.strip()]
    *exports, command = lines
    for export in exports:
        for name, value in re.findall(r"(QIM_\w+)=(\S+)", export):
            monkeypatch.setenv(name, "5" * 64 if value.startswith("$(") else value)
    example = str(DEPLOY / "qim.example.toml")
    words = [example if word == "/etc/qim.toml" else word for word in command.split()]
    assert words[:3] == ["qim", "config", "check"]
    assert main(words[1:]) == 0, capsys.readouterr()
    assert "nothing to refuse" in capsys.readouterr().out


# ------------------------------------------------------------ rules and panels


def asked() -> Iterator[tuple[str, str]]:
    """(where, expression) of every rule and panel."""
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def test_rules_and_panels_ask_for_metrics_and_labels_that_exist() -> None:
    known = exposed()
    for where, expression in asked():
        for name, labels in SELECTOR.findall(expression):
            assert name in known, (where, name)
            wanted = set(LABEL.findall(labels)) - TARGET_LABELS
            assert wanted <= {known[name]}, (where, name, wanted)


def test_every_rule_names_a_page_and_every_page_has_a_rule() -> None:
    pages = {page.stem for page in (ROOT / "docs" / "alarms").glob("*.md")} - {"README"}
    named = {rule["annotations"]["page"] for rule in RULES}
    assert named == pages
    for rule in RULES:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]
    assert len({rule["alert"] for rule in RULES}) == len(RULES)


def test_rules_watch_what_the_table_says_wants_an_alarm() -> None:
    """Each page's rules ask for a metric of that page; all five invariants are watched."""
    watched: dict[str, set[str]] = {}
    for rule in RULES:
        watched.setdefault(rule["annotations"]["page"], set()).update(NAME.findall(rule["expr"]))
    pages: dict[str, set[str]] = {}
    for metric in METRICS.values():
        ends = ("_bucket",) if metric.kind is Kind.HISTOGRAM else ("",)
        pages.setdefault(metric.alarm, set()).update(metric.exposed() + end for end in ends)
    assert pages["invariants"] <= watched["invariants"]
    for page, names in watched.items():
        assert names & pages[page], (
            f"no rule of {page} asks for a metric that the table sends there"
        )


def test_panels_stand_beside_each_other_and_each_asks_something() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at: dict[str, Any] = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
        assert panel["type"] == "row" or panel["targets"], panel["title"]


def test_the_chain_of_files_that_grafana_reads() -> None:
    folder = DEPLOY / "grafana" / "provisioning"
    source = yaml.safe_load((folder / "datasources" / "prometheus.yml").read_text())
    provider = yaml.safe_load((folder / "dashboards" / "qim.yml").read_text())
    mounted = [volume.split(":")[1] for volume in COMPOSE["services"]["grafana"]["volumes"]]
    path = provider["providers"][0]["options"]["path"]
    assert any(Path(place).parent.as_posix() == path for place in mounted)
    uids = {panel["datasource"]["uid"] for panel in DASHBOARD["panels"] if panel["type"] != "row"}
    assert uids == {source["datasources"][0]["uid"]}
