"""docs/metrics.md, drawn from the table of metrics: `python -m qim.cli.metrics_doc` writes it, a test compares it."""

import sys
from collections.abc import Iterator
from pathlib import Path

from qim.services.histogram import BOUNDS_SECONDS
from qim.services.metrics import Kind
from qim.services.metrics_table import METRICS

DEFAULT_TARGET = Path("docs/metrics.md")

INTRODUCTION = """\
# Metrics

Drawn from `qim/services/metrics_table.py` by `python -m qim.cli.metrics_doc`; a test holds the two together, and another
compares the table with what a loaded server exposes.

Every process serves them as Prometheus text at `/metrics` of its operator endpoint (ports: gateway 9100, writer 9101,
mailbox 9102, session 9103, fanout 9106, archiver 9107; `qim up` has all of them at one). A metric has at most one label,
named below, of low cardinality. Units are base units. Gauges are read when they are scraped; while the event loop doesn't
come to answer (`qim_samples_stale` is 1) they are those of the scrape before. A process exposes what happens in it: a
counter of machines appears with its first event, the five invariants stand at 0 from the start, and so does what adapters
count by themselves (read like gauges; under a label as soon as there is one). `increase(x[10m])` of a counter that was born at 1 is 0: whoever wants to hear of the first event asks `increase(x[10m]) > 0 or (x unless x offset 10m) > 0`, as
the rules of `deploy/prometheus/alerts.yml` do.
"""
HISTOGRAMS = f"""
Histograms all have the same buckets, 1-2-5 a decade from {BOUNDS_SECONDS[0] * 1e6:.0f} µs to {BOUNDS_SECONDS[-1]:.0f} s, and
are scraped as `_bucket`, `_sum` and `_count`. For instance the share of messages that were in their mailboxes within
200 ms of being sent: `sum(rate(qim_stage_seconds_bucket{{stage="MAILBOXED",le="0.2"}}[5m])) /
sum(rate(qim_stage_seconds_count{{stage="MAILBOXED"}}[5m]))`.
"""
TITLES = {Kind.COUNTER: "Counters", Kind.GAUGE: "Gauges", Kind.HISTOGRAM: "Histograms"}


def render() -> str:
    """The page."""
    return "\n".join([INTRODUCTION, *_tables()]) + "\n"


def _tables() -> Iterator[str]:
    for kind, title in TITLES.items():
        yield f"## {title}"
        yield HISTOGRAMS if kind is Kind.HISTOGRAM else ""
        yield "| metric | unit | label | meaning | alarm |"
        yield "|---|---|---|---|---|"
        for one in METRICS.values():
            if one.kind is kind:
                label = f"`{one.label}`" if one.label else "–"
                alarm = f"[{one.alarm}](alarms/{one.alarm}.md)" if one.alarm else "–"
                yield f"| `{one.exposed()}` | {one.unit} | {label} | {one.meaning} | {alarm} |"
        yield ""


def main() -> None:
    """Write the page to the first argument, or where it belongs."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_TARGET
    target.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
