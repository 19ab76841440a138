"""From a dispatch to rows of mailboxes: admitted in offset order, claimed, then written lane by lane (pipeline.md §3.1-2).

What is materialised is a function of the dispatch, the version it names and its offset; never of epoch, source or time of
day, except the day bucket, which follows from the log's own append times.
"""

from typing import assert_never

from qim.core.audience import VersionAudience, recipients_in_shard
from qim.core.contract import ids, routing
from qim.core.contract.entities import GroupDispatch, UserMailboxEntry, encode_entry
from qim.core.contract.invariants import Invariant
from qim.core.contract.logvalue import Dispatched, NewerFormat, Undecodable, read_dispatch
from qim.core.dispatch_digest import materialisation_digest
from qim.core.machine import Ms
from qim.core.mailbox.orders import Orders, What
from qim.core.mailbox.shard import Shard, WindowRecord
from qim.core.ports.log import StoredRecord
from qim.core.ports.observe import Count, Violation, halted
from qim.core.ports.store_mailbox import Claim, ClaimDispatches, Claimed, MailboxRow

TRACES_MAX = 4


def admit(orders: Orders, shard: Shard, stored: StoredRecord, day_ms: Ms) -> WindowRecord | None:
    """Put the record at ``next_offset`` into the window; None where a newer format halts the shard before it."""
    assert stored.offset == shard.next_offset and not shard.halted
    entry = read_dispatch(stored.value)
    dispatch: GroupDispatch | None = None
    match entry:
        case Dispatched():
            dispatch = entry.dispatch
        case NewerFormat():
            shard.halted = True
            orders.give(Count(name="mailbox_newer_format", label=str(shard.number)))
            orders.give(halted("dispatch", shard.number, stored.offset, entry.version))
            return None
        case Undecodable():
            orders.give(Count(name="mailbox_dead_letter", label=str(shard.number)))
        case _:
            assert_never(entry)
    _take_day(shard, stored, day_ms)
    record = WindowRecord(
        seq=shard.seq_of(stored.offset),
        stored=stored,
        day=shard.day,
        dispatch=dispatch,
        digest=materialisation_digest(dispatch) if dispatch is not None else b"",
    )
    shard.next_offset += 1
    shard.bytes += len(stored.value)
    shard.window.append(record)
    shard.unclaimed.append(record)
    return record


def _take_day(shard: Shard, stored: StoredRecord, day_ms: Ms) -> None:
    """day(o) = max(day(o-1), UTC day of the append time): ranges of offsets, also when the log's clock steps back."""
    shard.newest_append_time = stored.append_time
    shard.day = max(shard.day, stored.append_time // day_ms)
    ranges = shard.new_days or shard.days
    if not ranges or ranges[-1][0] < shard.day:
        shard.new_days.append((shard.day, stored.offset))


def claim(orders: Orders, shard: Shard, claims_max: int) -> None:
    """Claim the next records in offset order; one batch in flight. Undecodable ones have nothing to claim."""
    if What.CLAIM in shard.requests or not shard.unclaimed:
        return
    claims: list[Claim] = []
    traces: list[int] = []
    for record in shard.unclaimed:
        if len(claims) == claims_max:
            break
        dispatch = record.dispatch
        if dispatch is not None:
            claims.append(
                Claim(
                    dispatch.dispatch_id,
                    record.stored.offset,
                    dispatch.source_partition,
                    dispatch.source_offset,
                )
            )
            traces.append(dispatch.trace_id)
    if not claims:
        shard.unready.extend(shard.unclaimed)
        shard.unclaimed.clear()
        return
    request = ClaimDispatches(
        op=orders.op(What.CLAIM, shard),
        shard=shard.number,
        epoch=shard.epoch,
        incarnation=shard.incarnation,
        claims=tuple(claims),
        traces=tuple(traces[:TRACES_MAX]),
    )
    orders.ask(What.CLAIM, shard, request)


def on_claimed(orders: Orders, shard: Shard, event: Claimed) -> None:
    """First here: to be materialised. First elsewhere, or below the floor: a duplicate that passes every lane."""
    place = 0
    while shard.unclaimed:
        record = shard.unclaimed[0]
        if record.dispatch is not None:
            if place == len(event.first_offsets):
                break
            _judge_claim(orders, shard, record, event.first_offsets[place], event.digests[place])
            place += 1
        shard.unready.append(shard.unclaimed.popleft())
    assert place == len(event.first_offsets), "one answer a claim"


def _judge_claim(
    orders: Orders, shard: Shard, record: WindowRecord, first_offset: int, digest: bytes
) -> None:
    if first_offset != record.stored.offset:
        record.duplicate = True
        orders.give(Count(name="mailbox_duplicate_dispatch"))
    elif digest and digest != record.digest:
        report_nondeterminism(orders, shard, record.stored.offset)


def report_nondeterminism(orders: Orders, shard: Shard, offset: int) -> None:
    """A replay, or another node, materialised something else at this offset."""
    detail = f"dispatch/{shard.number}@{offset}: another digest was finished here"
    orders.give(Violation(check=Invariant.EVENT_ID_NONDETERMINISM, detail=detail))


def fill(shard: Shard, record: WindowRecord, audience: VersionAudience | None, count: int) -> None:
    """Make the record's rows, by lane. ``count`` is the shard_count of routing."""
    dispatch = record.dispatch
    assert dispatch is not None and not record.duplicate
    chunks: dict[int, list[MailboxRow]] = {}
    for user_id in recipients_in_shard(dispatch, audience, count):
        row = _row(shard, record, dispatch, user_id)
        chunks.setdefault(routing.lane(user_id), []).append(row)
    record.chunks = {lane: tuple(rows) for lane, rows in chunks.items()}
    record.counts = {lane: len(rows) for lane, rows in chunks.items()}
    record.entry_count = sum(record.counts.values())


def _row(shard: Shard, record: WindowRecord, dispatch: GroupDispatch, user_id: int) -> MailboxRow:
    own = user_id == dispatch.sender_id
    entry = UserMailboxEntry(
        mailbox_seq=record.seq,
        event_id=ids.event_id(shard.number, record.seq, user_id),
        message_id=dispatch.message_id,
        conversation_id=dispatch.conversation_id,
        conversation_seq=dispatch.conversation_seq,
        kind=dispatch.kind,
        sender_id=dispatch.sender_id,
        client_message_id=dispatch.client_message_id if own else None,
    )
    return MailboxRow(dispatch.tenant_id, user_id, record.day, record.seq, encode_entry(entry))
