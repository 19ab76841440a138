"""The rules of deploy/prometheus/alerts.yml ring when they should: at the first event too, whose counter was not there before."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from qim.services.metrics_table import METRICS
from tests.promql import Labels, Samples, Series, evaluate

ROOT = Path(__file__).resolve().parent.parent
ALERTS = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())
RULES = {rule["alert"]: rule for group in ALERTS["groups"] for rule in group["rules"]}
LABELS = {metric.exposed(): metric.label for metric in METRICS.values()}
RISEN = re.compile(r"increase\((qim_\w+)(\{[^}]*\})?\[(\w+)\]\) > 0")
MATCHED = re.compile(r'(\w+)=~?"([^"]*)"')
SCRAPE_SECONDS: Final = 15.0
BORN: Final = 7_200.0
END: Final = BORN + 9_000.0
LOOK_SECONDS: Final = 30
UNITS: Final = {"s": 1, "m": 60, "h": 3600}


def risen() -> Iterator[tuple[str, str, str]]:
    """(rule, counter, selector) of everything that rings at one event."""
    for name, rule in RULES.items():
        for counter, selector, _ in RISEN.findall(rule["expr"]):
            yield name, counter, selector


ONE_EVENT = sorted(risen())


def labels_of(counter: str, selector: str) -> Labels:
    """As a scrape brings them: its target's, and its own, a value that the selector wants."""
    found = {"job": "qim", "instance": "127.0.0.1:9101"}
    if own := LABELS[counter]:
        found[own] = "3"
    found |= {name: value.replace(".*", "x ") for name, value in MATCHED.findall(selector)}
    return frozenset(found.items())


def scraped(begin: float, end: float, value: float) -> Samples:
    """One value from ``begin`` until ``end``."""
    count = int((end - begin) / SCRAPE_SECONDS)
    return [(begin + number * SCRAPE_SECONDS, value) for number in range(count)]


def rings(rule: dict[str, Any], series: Series) -> list[float]:
    """When the alarm is firing: its condition held for as long as the rule says."""
    wait = rule.get("for", "0s")
    lasting = int(wait[:-1]) * UNITS[wait[-1]]
    since: float | None = None
    fired = []
    for at in range(int(BORN) - 600, int(END), LOOK_SECONDS):
        if not evaluate(rule["expr"], series, float(at)):
            since = None
            continue
        since = at if since is None else since
        if at - since >= lasting:
            fired.append(float(at))
    return fired


def test_the_search_finds_the_rules() -> None:
    assert len(ONE_EVENT) >= 18
    assert {name for name, _, _ in ONE_EVENT} >= {
        "QimNewerFormat", "QimDeadLetters", "QimLeasesLost", "QimRegistrySetBack", "QimClock",
        "QimRpc", "QimBodyMissing", "QimRecordRefused", "QimModeration", "QimCertificate",
    }  # fmt: skip


@pytest.mark.parametrize(("name", "counter", "selector"), ONE_EVENT)
def test_the_first_event_rings_and_not_for_ever(name: str, counter: str, selector: str) -> None:
    """The counter is not there, then it is 1: for increase() alone nothing rose."""
    key = (counter, labels_of(counter, selector))
    fired = rings(RULES[name], {key: scraped(BORN, END, 1.0)})
    assert fired, f"{name} is silent at the first {counter}"
    assert BORN <= fired[0] <= BORN + 600
    assert fired[-1] < END - 3_600, "it ends some time after the event"


@pytest.mark.parametrize(("name", "counter", "selector"), ONE_EVENT)
def test_a_later_event_rings_and_so_does_one_after_a_restart(
    name: str, counter: str, selector: str
) -> None:
    key = (counter, labels_of(counter, selector))
    before = scraped(0.0, BORN, 5.0)
    later = rings(RULES[name], {key: before + scraped(BORN, END, 6.0)})
    restarted = rings(RULES[name], {key: before + scraped(BORN + 120, END, 1.0)})
    for fired in (later, restarted):
        after = [at for at in fired if at >= BORN]
        assert after, (name, counter)
        assert BORN <= after[0] <= BORN + 720
        assert after[-1] < END - 3_600


@pytest.mark.parametrize("name", sorted({name for name, _, _ in ONE_EVENT}))
def test_nothing_that_stands_still_rings(name: str) -> None:
    """Counters at 0 from the start, and such as were scraped all the time."""
    found = [(counter, selector) for rule, counter, selector in ONE_EVENT if rule == name]
    for value in (0.0, 7.0):
        series = {
            (counter, labels_of(counter, selector)): scraped(0.0, END, value)
            for counter, selector in found
        }
        assert not [at for at in rings(RULES[name], series) if at > BORN], value
    assert not rings(RULES[name], {})


@pytest.mark.parametrize("role", ["fanout", "mailbox", "session", "archiver"])
def test_who_halts_rings_for_as_long_as_it_lasts(role: str) -> None:
    """The counter's alarm ends by itself, though nobody has come with newer code yet."""
    key = (f"qim_{role}_halted", frozenset({("instance", "a")}))
    until = END - 1_800
    standing = scraped(0.0, BORN, 0.0) + scraped(BORN, until, 1.0) + scraped(until, END, 0.0)
    fired = rings(RULES["QimHalted"], {key: standing})
    assert BORN <= fired[0] <= BORN + 60
    assert until - 60 <= fired[-1] <= until + 60
    assert len(fired) >= (until - BORN) // LOOK_SECONDS - 2, "without a pause"


# ------------------------------------------------------------ the language


def series(**told: Samples) -> Series:
    return {(name, frozenset({("instance", "a")})): samples for name, samples in told.items()}


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("x", [3.0]),
        ("x > 2", [3.0]),
        ("x > 3", []),
        ("gone > 0 or x", [3.0]),
        ("x unless x offset 60s", []),
        ("x unless x offset 10m", [3.0]),
        ("x + x * 2", [9.0]),
        ("x / on (instance) (y > 0) > 0.2", [0.25]),
        ("increase(x[5m])", [2.0]),
        ("increase(reset[5m])", [6.0]),
        ("rate(x[100s])", [0.02]),
        ('x{instance!~"b.*"}', [3.0]),
        ("x / (y * 0)", [math.inf]),
        ("absent(x)", []),
        ('absent(x{instance="b"})', [1.0]),
        ("absent(stale)", [1.0]),
        ('label_replace(x, "to", "new", "", "") or x', [3.0, 3.0]),
        ('label_replace(x, "to", "new", "instance", "b") or x', [3.0]),
        ("x / on (instance) group_left y", [0.25]),
        ('x{instance="b"}', []),
        ("sum by (instance) (x) == 3", [3.0]),
        ("stale", []),
    ],
)
def test_the_language_as_prometheus_has_it(expression: str, wanted: list[float]) -> None:
    told = series(
        x=[(0.0, 1.0), (3_500.0, 1.0), (3_590.0, 3.0)],
        y=[(3_590.0, 12.0)],
        reset=[(3_500.0, 4.0), (3_560.0, 9.0), (3_590.0, 1.0)],
        stale=[(3_299.0, 1.0)],
    )
    found = evaluate(expression, told, 3_600.0)
    assert isinstance(found, dict)
    assert list(found.values()) == wanted


@pytest.mark.parametrize(
    "expression",
    ["per_peer / on (instance) bound", "bound / on (instance) per_peer", "bound < on (job) other"],
)
def test_what_prometheus_refuses_to_answer_is_no_answer_here(expression: str) -> None:
    told = {
        (name, frozenset(labels.items())): [(3_590.0, 1.0)]
        for name, labels in (
            ("per_peer", {"instance": "a", "peer": "x"}),
            ("per_peer", {"instance": "a", "peer": "y"}),
            ("bound", {"instance": "a"}),
            ("bound", {"instance": "b"}),
            ("other", {"instance": "c"}),
        )
    }
    with pytest.raises(AssertionError, match="side match"):
        evaluate(expression, told, 3_600.0)


# ------------------------------------------------------------ queues

# Statements in flight are as many as may be whenever the archiver catches up: a throttle, and no queue.
BOUNDS = sorted({name for name in LABELS if name.endswith("_max")} - {
    "qim_archive_statements_inflight_max"
})  # fmt: skip
TARGET: Final = {"job": "qim", "instance": "127.0.0.1:9101"}


def standing(*told: tuple[str, dict[str, str], float]) -> Series:
    """Scraped all the time, always alike."""
    return {
        (name, frozenset((TARGET | labels).items())): scraped(0.0, END, value)
        for name, labels, value in told
    }


def full(name: str, told: Series) -> list[dict[str, str]]:
    """What the rule says of each that it found."""
    found = evaluate(RULES[name]["expr"], told, END - SCRAPE_SECONDS)
    assert isinstance(found, dict)
    return [dict(labels) for labels in found]


def test_the_bounds_are_found() -> None:
    assert len(BOUNDS) >= 18


@pytest.mark.parametrize("bound", BOUNDS)
def test_every_bound_that_is_told_is_watched(bound: str) -> None:
    """A gauge and its ..._max are a queue: none fills up in silence, and the alarm names it."""
    depth = bound.removesuffix("_max")
    assert depth in LABELS, f"{bound} bounds nothing that is told"
    one, other = ({label: which} if (label := LABELS[depth]) else {} for which in ("x", "y"))
    of_one = one if LABELS[bound] else {}
    much = standing((depth, other, 8.0), (depth, one, 81.0), (bound, of_one, 100.0))
    (told,) = full("QimQueueFull", much)
    assert told["queue"] == depth.removeprefix("qim_")
    assert told["instance"] == TARGET["instance"] and told.items() >= one.items()
    enough = standing((depth, other, 8.0), (depth, one, 80.0), (bound, of_one, 100.0))
    assert not full("QimQueueFull", enough)
    nowhere = standing((depth, other, 0.0), (depth, one, 0.0), (bound, of_one, 0.0))
    assert not full("QimQueueFull", nowhere), "without a bound it is off"


def test_a_queue_of_a_machine_is_watched_and_a_cache_may_be_full() -> None:
    told = [
        (name, {"queue": queue}, value)
        for queue in ("writer.inbox", "session.snapshots_cached_bytes")
        for name, value in (("qim_queue_depth", 81.0), ("qim_queue_capacity", 100.0))
    ]
    (found,) = full("QimQueueFull", standing(*told))
    assert found["queue"] == "writer.inbox"
    assert rings(RULES["QimQueueFull"], standing(*told[:2]))


# ------------------------------------------------------------ roles

EVIDENCE: Final = {
    **{role: ("qim_leases_held", {"role": role}) for role in ("writer", "fanout", "mailbox", "session")},
    "gateway": ("qim_tcp_streams_open", {}),
}  # fmt: skip
"""What a process of the role always tells."""


@pytest.mark.parametrize("role", EVIDENCE)
def test_a_role_that_nobody_scrapes_any_more_rings_by_its_name(role: str) -> None:
    told = standing(*[(*evidence, 0.0) for evidence in EVIDENCE.values()])
    assert not rings(RULES["QimRoleMissing"], told), "all are there, though they hold nothing"
    name, own = EVIDENCE[role]
    key = (name, frozenset((TARGET | own).items()))
    gone = {**told, key: scraped(0.0, BORN, 4.0)}
    assert full("QimRoleMissing", gone) == [{"role": role}]
    assert BORN < rings(RULES["QimRoleMissing"], gone)[0] <= BORN + 420
