"""Who holds what, and how far each consumer is behind its log: asked of registry, stores and log themselves."""

from collections.abc import Awaitable
from typing import Any

from qim.core.contract.params import Parameters
from qim.core.contract.sequences import split_mailbox_seq
from qim.core.mending.asking import NothingYet, NotMended, Procedure, ask, ends
from qim.core.ports.log import Topic
from qim.core.ports.registry import LeaseRead, ReadLease, Resource, Role
from qim.core.ports.store_history import ArchivePositionRead, ReadArchivePosition
from qim.core.ports.store_mailbox import ReadShardState, ShardStateRead
from qim.core.ports.store_source import ReadSource, SourceRead
from qim.services.doctor.findings import Finding, fail, ok, warn
from qim.services.mending import Mender
from qim.services.roles import LEASED, ServiceRole, resources

LAG_RECORDS_MAX = 10_000
ADDRESSES_SHOWN_MAX = 8


async def leases(mender: Mender, parameters: Parameters, *, tiered: bool) -> list[Finding]:
    """One finding a role: who holds its shards, and which nobody holds."""
    found: list[Finding] = []
    for service, role in LEASED.items():
        if service is ServiceRole.ARCHIVER and not tiered:
            continue
        held = await mender.carry_out(_holders(role, resources(service, parameters)))
        bare = [number for number, owner in held.items() if not owner]
        owners = sorted({owner for owner in held.values() if owner})
        told = f"{len(held) - len(bare)} of {len(held)} held by {len(owners)} process(es)"
        if bare:
            numbers = ", ".join(map(str, bare[:ADDRESSES_SHOWN_MAX]))
            do = f"start a {service} process (qim serve {service}), or wait for a lease to end"
            # Messages go their way without an auditor; its absence is told, and no fault.
            judged = warn if service is ServiceRole.AUDITOR else fail
            found.append(
                judged(f"leases of {service}", f"{told}; nobody holds {numbers}", do, "leases")
            )
        else:
            shown = ", ".join(owners[:ADDRESSES_SHOWN_MAX])
            found.append(ok(f"leases of {service}", f"{told}: {shown}"))
    return found


def _holders(role: Role, count: int) -> Procedure[dict[int, str]]:
    held: dict[int, str] = {}
    for number in range(count):
        request = ReadLease(op=0, resource=Resource(role=role, number=number))
        held[number] = (yield from ask(request, LeaseRead)).owner
    return held


async def lags(mender: Mender, parameters: Parameters, *, tiered: bool) -> list[Finding]:
    """Fanout, archiver and mailbox against the ends of their logs; the session projection says it in its metrics."""
    found: list[Finding] = []
    for partition in range(parameters.outbox_partition_count):
        found += await _told(mender, f"outbox {partition}", _source(partition, tiered))
    for shard in range(parameters.shard_count):
        found += await _told(mender, f"mailbox shard {shard}", _mailbox(shard))
    behind = [one for one in found if one.state != "ok"]
    whole = len(found) - len(behind)
    return [
        *behind,
        ok("lag", f"{whole} of {len(found)} consumers are within {LAG_RECORDS_MAX} records"),
    ]


async def _told(mender: Mender, subject: str, procedure: Procedure[list[Finding]]) -> list[Finding]:
    try:
        return await mender.carry_out(procedure)
    except NotMended as refused:
        return [fail(subject, str(refused), "look at store and log", "store-unreachable")]


def _source(partition: int, tiered: bool) -> Procedure[list[Finding]]:
    log = yield from ends(Topic.OUTBOX, partition)
    request = ReadSource(op=0, partition=partition, low=0, high=0, limit=1)
    state = yield from ask(request, SourceRead)
    found = [
        _judged(f"fanout of outbox {partition}", max(state.checkpoint, 0), log.start, log.end),
        _judged(f"store of outbox {partition}", state.applied, log.start, log.end),
    ]
    if tiered:
        archive = yield from ask(
            ReadArchivePosition(op=0, partition=partition), ArchivePositionRead
        )
        found.append(_judged(f"archiver of outbox {partition}", archive.offset, log.start, log.end))
    return found


def _mailbox(shard: int) -> Procedure[list[Finding]]:
    log = yield from ends(Topic.DISPATCH, shard)
    state = yield from ask(ReadShardState(op=0, shard=shard), ShardStateRead)
    offset = split_mailbox_seq(state.min_watermark + 1)[1] if state.base >= 0 else log.start
    return [_judged(f"mailbox shard {shard}", offset, log.start, log.end)]


def _judged(subject: str, at: int, start: int, end: int) -> Finding:
    if at > end:
        found = f"it stands at {at}, and the log ends at {end}: the log lost records"
        return fail(subject, found, "read the page before anything else", "position-mismatch")
    if at < start and at:
        found = f"it stands at {at}, and the log begins at {start}: retention took what it lacks"
        return fail(subject, found, "read the page before anything else", "position-mismatch")
    if end - max(at, start) > LAG_RECORDS_MAX:
        return warn(subject, f"{end - at} records behind", "see whether it moves", "lag")
    return ok(subject, f"{end - max(at, start)} records behind")


async def wholeness(mender: Mender) -> list[Finding]:
    """Dead letters, and positions against their logs by digest (--deep: it reads every receipt)."""
    found: list[Finding] = []
    letters = [one for one in await mender.dead_letters() if one.state not in _SETTLED]
    if letters:
        first = letters[0]
        told = f"{len(letters)}, the first in outbox {first.partition} at {first.offset}: {first.state}"
        found.append(warn("dead letters", told, "qim deadletter list", "dead-letters"))
    else:
        found.append(ok("dead letters", "none"))
    for partition in mender.partitions():
        subject = f"outbox {partition} against its facts"
        found.append(
            await _planned(
                subject, mender.repair_outbox(partition, apply=False), "qim repair outbox"
            )
        )
    for shard in mender.shards():
        subject = f"mailbox shard {shard} against its log"
        found.append(await _planned(subject, mender.bump(shard, apply=False), "qim shard bump"))
        subject = f"user_state {shard} against its store"
        found.append(
            await _planned(subject, mender.repair_states(shard, apply=False), "qim repair states")
        )
    return found


_SETTLED = ("resolved", "barrier", "ineffective", "halting")
"""What halts is no letter, and is told by halted.py."""


async def _planned(subject: str, planned: Awaitable[Any], do: str) -> Finding:
    try:
        plan = await planned
    except NothingYet as told:
        return ok(subject, str(told))
    except NotMended as refused:
        return warn(subject, str(refused), do, "position-mismatch")
    whole = plan.nothing() if hasattr(plan, "nothing") else plan.whole
    if whole:
        return ok(subject, "whole")
    return fail(subject, "they don't belong together", do, "position-mismatch")
