"""The table of metrics is whole: what the code can expose stands in it, docs/metrics.md is drawn from it."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qim.cli import metrics_doc
from qim.core.contract.invariants import Invariant
from qim.services.metrics import Kind
from qim.services.metrics_table import METRICS, label_of, meaning_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "metrics.md"
ALARMS = ROOT / "docs" / "alarms"
OBSERVED = {"Count": Kind.COUNTER, "Gauge": Kind.GAUGE, "Measured": Kind.HISTOGRAM}
SAMPLERS = {"gauges", "samples", "queue_lengths", "_queue_lengths", "_own_gauges", "leases"}
COUNTING = {"orders", "_orders", "context", "_context", "reporting", "_reporting", "_observer"}


def test_the_page_is_the_rendered_one() -> None:
    assert PAGE.read_text(encoding="utf-8") == metrics_doc.render(), (
        "run `python -m qim.cli.metrics_doc`"
    )


def test_main_writes_where_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["metrics_doc", str(tmp_path / "page.md")])
    metrics_doc.main()
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == metrics_doc.render()


def test_names_have_the_units_of_the_contract() -> None:
    for name, metric in METRICS.items():
        assert name == metric.name
        assert not name.endswith(("_total", "_ms", "_us", "_count")), name
        if metric.kind is Kind.HISTOGRAM:
            assert name.endswith("_seconds") and metric.unit == "seconds", name
        if name.endswith("_seconds"):
            assert metric.unit == "seconds", name
        assert metric.meaning and metric.unit, name
    assert {one.value for one in Invariant} == {
        invariant.value for invariant in Invariant if label_of(_short(invariant.value)) == ()
    }


def test_what_the_table_does_not_know_is_served_all_the_same() -> None:
    assert label_of("unheard_of") == ("label",)
    assert meaning_of("unheard_of") == "unheard_of"


def test_every_alarm_named_has_its_page_and_every_page_is_named() -> None:
    named = {one.alarm for one in METRICS.values() if one.alarm}
    pages = {page.stem for page in ALARMS.glob("*.md")} - {"README"}
    assert named <= pages, sorted(named - pages)
    index = (ALARMS / "README.md").read_text("utf-8")
    assert {page for page in pages if f"({page}.md)" not in index} == set()


def test_everything_the_code_counts_stands_in_the_table() -> None:
    found = list(exposed())
    assert len(found) > 100, "the search finds nothing any more"
    unknown = {
        f"{where}: {name}"
        for where, name, kind in found
        if name not in METRICS or METRICS[name].kind is not kind
    }
    assert not unknown, "\n".join(sorted(unknown))


def test_everything_in_the_table_is_counted_somewhere() -> None:
    found = {name for _, name, _ in exposed()}
    # Named by a rule rather than by a constant: stages, invariants, ports and steps.
    found |= {"stage", "stage_seconds", "violation", "port_seconds", "log_transit_seconds"}
    found |= {"step_seconds", "inbox_wait_seconds", "samples_stale", "log_lines_dropped"}
    found |= {"process_start_seconds", "queue_depth", "queue_capacity", "conn_write_seconds"}
    found |= {_short(one.value) for one in Invariant}
    assert set(METRICS) == found, sorted(set(METRICS) - found)


def _short(name: str) -> str:
    return name.removesuffix("_total").removesuffix("_count")


def exposed() -> Iterator[tuple[str, str, Kind]]:
    """(file, name in base units, kind) of every metric that is named by a constant."""
    for path in sorted((ROOT / "qim").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(("qim/sim/", "qim/core/client/", "qim/client/")):
            continue
        tree = ast.parse(path.read_text("utf-8"))
        for found, kind in (*_calls(tree, name), *_yields(tree)):
            yield name, found, kind


def _calls(tree: ast.AST, file: str) -> Iterator[tuple[str, Kind]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id in OBSERVED:
            for keyword in node.keywords:
                if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
                    kind = OBSERVED[called.id]
                    yield _base_units(str(keyword.value.value), kind), kind
        elif isinstance(called, ast.Attribute):
            text = node.args[0] if node.args else None
            if not (isinstance(text, ast.Constant) and isinstance(text.value, str)):
                continue
            if called.attr in ("observe", "_observe"):
                yield text.value, Kind.HISTOGRAM
            elif called.attr == "_count" or (called.attr == "count" and _owner(called) in COUNTING):
                prefix = "gateway_" if file.startswith("qim/core/gateway/") else ""
                yield prefix + _short(text.value), Kind.COUNTER


def _owner(called: ast.Attribute) -> str:
    value = called.value
    if isinstance(value, ast.Attribute):
        return value.attr
    return value.id if isinstance(value, ast.Name) else ""


def _base_units(name: str, kind: Kind) -> str:
    if kind is Kind.COUNTER:
        return _short(name)
    if kind is Kind.HISTOGRAM:
        return f"{name}_seconds"
    return f"{name.removesuffix('_ms')}_seconds" if name.endswith("_ms") else name


def _yields(tree: ast.AST) -> Iterator[tuple[str, Kind]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.name not in SAMPLERS:
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.Yield) and isinstance(inner.value, ast.Tuple):
                first = inner.value.elts[0]
                if isinstance(first, ast.Constant):
                    found = _base_units(str(first.value), Kind.GAUGE)
                    total = found in METRICS and METRICS[found].kind is Kind.COUNTER
                    yield found, Kind.COUNTER if total else Kind.GAUGE
