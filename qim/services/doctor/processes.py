"""What a process says of itself at its operator endpoint: /livez, /readyz, /metrics, and the clock of its answer."""

import email.utils
import http.client
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from qim.core.contract.invariants import INVARIANT_MEANINGS, Invariant
from qim.services.doctor import halted
from qim.services.doctor.findings import Finding, fail, ok, warn
from qim.services.metrics import PREFIX
from qim.services.metrics_table import METRICS

ANSWER_SECONDS_MAX: Final = 5.0
CLOCK_APART_SECONDS: Final = 5.0
"""A Date has whole seconds; more than this is no rounding."""
FULL_PART: Final = 0.8
CERTIFICATE_DAYS_LEAST: Final = 14
LAG_AGE_SECONDS_MAX: Final = 30.0
DAY_SECONDS: Final = 86_400
_EXPIRES: Final = "tls_certificate_expires_seconds"
_AGE: Final = "mailbox_watermark_age_seconds"

Samples = Mapping[tuple[str, str], float]
"""(name without qim_, label) -> value; buckets of histograms are left out."""


class Answer(Struct, frozen=True, kw_only=True):
    """What one path answered; ``apart``: seconds the process's clock is ahead of ours."""

    status: int
    body: str
    apart: float


class Silent(Exception):
    """Nobody answers there."""


def asked(address: str, path: str) -> Answer:
    """GET. Raises Silent."""
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=ANSWER_SECONDS_MAX)
    try:
        before = time.time()
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read().decode("utf-8", "replace")
        middle = (before + time.time()) / 2
    except (OSError, http.client.HTTPException) as error:
        raise Silent(f"{type(error).__name__}: {error}") from None
    finally:
        connection.close()
    date = answer.headers["Date"]
    if date is None:
        raise Silent("something answers, and it is no process of Q-IM")
    told = email.utils.parsedate_to_datetime(date).timestamp()
    # The Date is cut to its second: half of it is the best guess.
    return Answer(status=answer.status, body=body, apart=told + 0.5 - middle)


def samples_of(text: str) -> dict[tuple[str, str], float]:
    """Every sample of an exposition."""
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            labels = [value for key, value in one.labels.items() if key != "le"]
            if not one.name.endswith("_bucket"):
                found[one.name.removeprefix(PREFIX), labels[0] if labels else ""] = one.value
    return found


def examined(name: str, address: str) -> Iterator[Finding]:
    """Everything a process tells, as findings."""
    subject = f"{name} at {address}"
    try:
        live, ready = asked(address, "/livez"), asked(address, "/readyz")
        metrics = asked(address, "/metrics")
    except Silent as silent:
        yield fail(
            subject,
            f"no answer ({silent})",
            f"start it, or name where its metrics are with --process {name}=HOST:PORT",
            "shards-not-serving",
        )
        return
    told = _details(ready.body)
    role = None if told is None else told.get("role", name)
    if told is None or role != name:
        what = f"a {role}" if told is not None else f"something else: {ready.body[:80]!r}"
        do = f"name where it is with --process {name}=HOST:PORT"
        yield fail(subject, f"what answers there is {what}", do, "shards-not-serving")
        return
    yield from _alive(subject, live, ready, told)
    yield from clock(subject, ready.apart)
    if metrics.status == 200:
        yield from judged(subject, samples_of(metrics.body))


def _details(body: str) -> dict[str, Any] | None:
    """What /readyz says beside its status; None where it isn't one of ours."""
    try:
        told = json.loads(body)
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


def _alive(subject: str, live: Answer, ready: Answer, told: Mapping[str, Any]) -> Iterator[Finding]:
    if live.status != 200:
        yield fail(
            subject, "a machine of it died", "read its last log lines, restart it", "violations"
        )
    elif told.get("violations"):
        violations = "; ".join(told["violations"])
        yield fail(
            subject, f"stopped by {violations}", "keep its log, don't restart it yet", "violations"
        )
    elif ready.status != 200:
        missing = told.get("missing") or ("it is draining" if told.get("draining") else "not ready")
        yield fail(
            subject, f"not ready: {missing}", "see who holds the leases", "shards-not-serving"
        )
    else:
        yield ok(subject, "ready")


def clock(subject: str, apart: float) -> Iterator[Finding]:
    """``apart``: seconds its clock is ahead of ours."""
    if abs(apart) > CLOCK_APART_SECONDS:
        ahead = "ahead of" if apart > 0 else "behind"
        found = f"its clock is {abs(apart):.0f} s {ahead} ours"
        yield fail(subject, found, "run NTP on both machines", "clock")


def judged(subject: str, samples: Samples) -> Iterator[Finding]:
    """What its metrics say."""
    yield from _invariants(subject, samples)
    yield from _queues(subject, samples)
    yield from halted.judged(subject, samples)
    for (name, label), value in sorted(samples.items()):
        if name == _EXPIRES and value < CERTIFICATE_DAYS_LEAST * DAY_SECONDS:
            yield from certificate(f"{subject}, certificate {label}", value)
        elif name == _AGE and value > LAG_AGE_SECONDS_MAX:
            found = f"mailbox shard {label} is {value:.0f} s behind its log"
            yield warn(subject, found, "see whether it moves", "lag")
        elif name in _BAD and value == _BAD[name]:
            told = METRICS[name]
            yield warn(
                subject, f"qim_{name} is {value:g}: {told.meaning}", "read the page", told.alarm
            )


_BAD: Final = {
    "samples_stale": 1.0,
    "store_connected": 0.0,
    "registry_watch_up": 0.0,
}


def _invariants(subject: str, samples: Samples) -> Iterator[Finding]:
    for invariant in Invariant:
        short = invariant.value.removesuffix("_total").removesuffix("_count")
        count = samples.get((f"{short}_total", ""), 0.0)
        if count:
            found = f"{invariant.value} is {count:g}: {INVARIANT_MEANINGS[invariant].meaning}"
            yield fail(subject, found, "stop releases, keep the evidence", "invariants")


def _queues(subject: str, samples: Samples) -> Iterator[Finding]:
    for (name, label), capacity in sorted(samples.items()):
        if name == "queue_capacity":
            depth, queue = samples.get(("queue_depth", label), 0.0), label
        elif name.endswith("_max") and capacity:
            depth, queue = samples.get((name.removesuffix("_max"), label), 0.0), name
        else:
            continue
        # A cache is full on purpose.
        if capacity and depth > FULL_PART * capacity and "cache" not in queue:
            found = f"{queue} {label} holds {depth:g} of {capacity:g}".replace(
                f"{label} {label}", label
            )
            yield warn(subject, found, "find the slowest stage behind it", "queue-full")


def certificate(subject: str, seconds_left: float) -> Iterator[Finding]:
    """One certificate, by what is left of its time."""
    days = seconds_left / DAY_SECONDS
    if seconds_left <= 0:
        yield fail(subject, "it has expired", "put a new pair in place, kill -HUP", "certificates")
    elif days < CERTIFICATE_DAYS_LEAST:
        yield warn(subject, f"it expires in {days:.1f} days", "renew it", "certificates")
    else:
        yield ok(subject, f"it is good for {days:.0f} days")
