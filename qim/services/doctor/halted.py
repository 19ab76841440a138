"""Records that this version can't read: who stands still before a newer format, and what was passed as a dead letter."""

from collections.abc import Iterator, Mapping
from typing import Final

from qim.core.contract.entities import FORMAT_VERSION
from qim.core.contract.logvalue import VERSION_MAX
from qim.core.mending.asking import NotMended
from qim.core.mending.halts import Halt
from qim.core.ports.log import Topic
from qim.services.doctor.findings import Finding, fail, ok, warn
from qim.services.mending import Mender
from qim.services.metrics_table import METRICS

PAGE: Final = "newer-format"
_SUFFIX: Final = "_halted"
_PASSED: Final = ("fanout_dead_letter", "mailbox_dead_letter", "session_dead_letter")
"""The archiver's are fanout's."""
_DO: Final = f"bring {{}} to the version that writes it; if no version of yours does (they are 1 to {VERSION_MAX}), read the page"


async def halted(mender: Mender) -> list[Finding]:
    """Fanout, archiver and mailbox at their positions."""
    try:
        found = await mender.halts()
    except NotMended as refused:
        return [fail("newer format", str(refused), "look at store and log", "store-unreachable")]
    return [_told(one) for one in found] or [ok("newer format", "no position stands before one")]


def _told(one: Halt) -> Finding:
    log = "outbox" if one.topic is Topic.OUTBOX else "dispatch"
    found = (
        f"it halts at offset {one.offset}: {one.size_bytes} bytes of format {one.version}, and this version reads "
        f"up to {FORMAT_VERSION}; nothing behind is delivered"
    )
    return fail(f"{one.consumer} of {log} {one.number}", found, _DO.format(one.consumer), PAGE)


def judged(subject: str, samples: Mapping[tuple[str, str], float]) -> Iterator[Finding]:
    """By the metrics of a process: it may still work on what stands before the record."""
    for (name, label), value in sorted(samples.items()):
        counter = name.removesuffix("_total")
        if counter in _PASSED and value:
            found = f"{counter} in {METRICS[counter].label} {label}: {value:g} since its start"
            yield warn(subject, found, "qim deadletter list; who writes there?", "dead-letters")
        if name.endswith(_SUFFIX) and name in METRICS and value:
            role = name.removesuffix(_SUFFIX)
            where = f"{METRICS[name].label} {label}"
            found = f"{role} halts before a record of a newer format in {where}"
            yield fail(subject, found, _DO.format(role), PAGE)
