"""The walk over the dispatch logs: every dispatch has its effective record, which must reach this shard.

    RECORDS --fetched--> PLACES (the outbox records named) --> VERSIONS --> judged, next window
    RECORDS --not readable--> the rest of the shard's log is left out

It also answers for the outbox walk's suspects: a message without an entry above trim is no orphan if its dispatch first
stands at or below trim (pipeline.md §8).
"""

from enum import IntEnum
from typing import Any

from msgspec import Struct

from qim.core.audit.evidence import Evidence
from qim.core.audit.log_lookup import Absence
from qim.core.audit.reads import Purpose, RecordsFrom
from qim.core.audit.run import ShardCut
from qim.core.audit.vocabulary import OrphanKind
from qim.core.contract.entities import NO_SOURCE, GroupDispatch, MessageRecord
from qim.core.contract.ids import dispatch_id
from qim.core.contract.logvalue import (
    Barrier,
    Dispatched,
    NewerFormat,
    Outboxed,
    Undecodable,
    read_dispatch,
    read_outbox,
)
from qim.core.dispatch_digest import expected_digest, materialisation_digest
from qim.core.machine import Ms
from qim.core.ports.log import Fetched, StoredRecord, Topic


class _Phase(IntEnum):
    RECORDS = 0
    PLACES = 1
    VERSIONS = 2


class _Window(Struct, kw_only=True):
    """Dispatches at [low, high) of one shard's log."""

    shard: ShardCut
    low: int
    high: int
    fetched: tuple[StoredRecord, ...] = ()
    dispatches: list[tuple[int, GroupDispatch]] = []


class DispatchWalk:
    """Shard by shard, window by window."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._run = evidence.run
        self._number = 0
        self._phase = _Phase.RECORDS
        self._window: _Window | None = None

    def advance(self, now: Ms) -> bool:
        """Queue the next reads, or judge; False when every shard was walked."""
        window = self._window
        if window is None:
            return self._begin()
        match self._phase:
            case _Phase.RECORDS:
                self._read(window)
                self._ask_records(window)
                self._phase = _Phase.PLACES
            case _Phase.PLACES:
                sources = [
                    (dispatch.source_partition, self._stored(dispatch))
                    for _, dispatch in window.dispatches
                ]
                self._evidence.versions.want(
                    (number, entry.record)
                    for number, stored in sources
                    if isinstance(entry := _entry(stored), Outboxed)
                )
                self._phase = _Phase.VERSIONS
            case _:
                for offset, dispatch in window.dispatches:
                    self._judge(window, offset, dispatch)
                self._window = None
        return True

    def take(self, purpose: Purpose, reply: Any) -> None:
        """One answer."""
        assert self._window is not None and isinstance(purpose, RecordsFrom), purpose
        if isinstance(reply, Fetched):
            self._window.fetched = reply.records

    def _begin(self) -> bool:
        evidence = self._evidence
        evidence.lookup.clear()
        while self._number < len(self._run.shards):
            shard = self._run.shards[self._number]
            if shard.walked_to < shard.end:
                low = shard.walked_to
                self._window = _Window(shard=shard, low=low, high=low)
                self._phase = _Phase.RECORDS
                request = evidence.window(Topic.DISPATCH, self._number, low, shard.end)
                evidence.reads.ask(request, RecordsFrom(Topic.DISPATCH, self._number, low))
                return True
            self._close(shard)
            self._number += 1
        return False

    def _close(self, shard: ShardCut) -> None:
        """The shard's suspects were not seen at or below trim."""
        for key in [key for key in self._run.suspects if key[0] == self._number]:
            self._run.keep(self._run.suspects.pop(key))

    def _read(self, window: _Window) -> None:
        shard, number = window.shard, self._number
        for stored in window.fetched:
            if stored.offset != window.high or stored.offset >= shard.end:
                break
            window.high = shard.walked_to = stored.offset + 1
            self._run.dispatches += 1
            read = read_dispatch(stored.value)
            if isinstance(read, Dispatched):
                window.dispatches.append((stored.offset, read.dispatch))
            elif isinstance(read, NewerFormat):
                why = "a newer format than this auditor's"
                what = f"dispatch {number}"
                self._run.left_out(what, why, stored.offset, stored.offset + 1)
            else:
                detail = f"no version can decode the dispatch at offset {stored.offset}: {read.why}"
                kind = OrphanKind.DEAD_LETTERED
                self._run.orphan(kind, -1, stored.offset, stored.key, detail, number)
        if window.high == window.low:
            self._leave_rest(window)

    def _leave_rest(self, window: _Window) -> None:
        """Unread dispatches may clear a suspect: it is neither an orphan nor covered."""
        number = self._number
        self._run.left_out(f"dispatch {number}", "not readable", window.low, window.shard.end)
        for key, orphan in list(self._run.suspects.items()):
            if key[0] == number:
                del self._run.suspects[key]
                what = f"outbox {orphan.partition}"
                why = f"whether it was trimmed in mailbox shard {number} can't be read"
                self._run.left_out(what, why, orphan.offset, orphan.offset + 1)
        self._number += 1

    def _ask_records(self, window: _Window) -> None:
        """Ask for the outbox records named; those below the audited range are not judged, those behind it must be there."""
        wanted: dict[int, list[int]] = {}
        behind: dict[int, int] = {}
        for _, dispatch in window.dispatches:
            if self._inside(dispatch):
                wanted.setdefault(dispatch.source_partition, []).append(dispatch.source_offset)
            elif self._behind(dispatch):
                behind[dispatch.source_partition] = max(
                    behind.get(dispatch.source_partition, 0), dispatch.source_offset
                )
        for partition, offsets in sorted(wanted.items()):
            self._evidence.lookup.want(Topic.OUTBOX, partition, offsets)
        for partition, offset in sorted(behind.items()):
            self._evidence.ask_end(partition, offset)

    def _inside(self, dispatch: GroupDispatch) -> bool:
        if not 0 <= dispatch.source_partition < len(self._run.partitions):
            return False
        cut = self._run.partitions[dispatch.source_partition]
        return cut.start <= dispatch.source_offset < cut.end

    def _behind(self, dispatch: GroupDispatch) -> bool:
        if not 0 <= dispatch.source_partition < len(self._run.partitions):
            return False
        return dispatch.source_offset >= self._run.partitions[dispatch.source_partition].end

    def _stored(self, dispatch: GroupDispatch) -> StoredRecord | Absence | None:
        """What stands where its source offset points; None: not read."""
        if not self._inside(dispatch):
            return None
        return self._evidence.lookup.get(
            Topic.OUTBOX, dispatch.source_partition, dispatch.source_offset
        )

    def _judge(self, window: _Window, offset: int, dispatch: GroupDispatch) -> None:
        run, number = self._run, self._number
        if run.suspects and window.shard.trimmed(offset):
            run.suspects.pop((number, dispatch.dispatch_id), None)
        if dispatch.shard != number:
            detail = f"it is of shard {dispatch.shard}"
            self._finding(OrphanKind.WRONG_SHARD_SET, offset, dispatch, detail)
        elif dispatch.dispatch_id != dispatch_id(dispatch.message_id, number):
            detail = "its id is not that of its message"
            self._finding(OrphanKind.DISPATCH_WITHOUT_RECORD, offset, dispatch, detail)
        elif dispatch.source_partition == NO_SOURCE:
            return  # redriven or repaired: it names no record, only its claim decides (pipeline.md §3.4)
        elif dispatch.source_partition >= len(run.partitions):
            detail = f"there is no outbox {dispatch.source_partition}"
            self._finding(OrphanKind.DISPATCH_WITHOUT_RECORD, offset, dispatch, detail)
        elif self._inside(dispatch):
            self._judge_source(offset, dispatch)
        elif self._behind(dispatch):
            self._judge_behind(offset, dispatch)

    def _judge_behind(self, offset: int, dispatch: GroupDispatch) -> None:
        """Its record came after the cut, or was lost with the log's tail."""
        number, place = dispatch.source_partition, dispatch.source_offset
        end = self._evidence.lost_from(number, place)
        if end is not None:
            detail = f"its record stood at {place} of outbox {number}, which ends at {end}"
            self._finding(OrphanKind.DISPATCH_WITHOUT_RECORD, offset, dispatch, detail)

    def _judge_source(self, offset: int, dispatch: GroupDispatch) -> None:
        place = f"outbox {dispatch.source_partition} offset {dispatch.source_offset}"
        stored = self._stored(dispatch)
        if stored is Absence.TRIMMED:
            return
        if stored is None:
            self._leave_out(offset, f"{place} is not readable")
            return
        entry = _entry(stored)
        cut = self._run.partitions[dispatch.source_partition]
        walked = dispatch.source_offset < cut.walked_to
        if isinstance(entry, NewerFormat):
            self._leave_out(offset, f"{place} has a newer format than this auditor's")
        elif not isinstance(entry, Outboxed) or entry.record.message_id != dispatch.message_id:
            if cut.was_lost(dispatch.source_offset):
                return
            detail = f"{place} is not its record"
            self._finding(OrphanKind.DISPATCH_WITHOUT_RECORD, offset, dispatch, detail)
        elif walked and entry.epoch < cut.epoch_before(dispatch.source_offset):
            if cut.was_lost(dispatch.source_offset):
                return  # its writer's late append came to the very place again, behind what a repair had filled up
            detail = f"{place} is not effective"
            self._finding(OrphanKind.DISPATCH_WITHOUT_RECORD, offset, dispatch, detail)
        else:
            self._judge_content(offset, dispatch, entry.record)

    def _judge_content(self, offset: int, dispatch: GroupDispatch, record: MessageRecord) -> None:
        targets = self._evidence.versions.targets(record)
        if targets is None:
            why = f"version {record.version} of its group is not in the store"
            self._leave_out(offset, why)
        elif self._number not in targets:
            detail = f"its record must reach shards {sorted(targets)}"
            self._finding(OrphanKind.WRONG_SHARD_SET, offset, dispatch, detail)
        elif materialisation_digest(dispatch) != expected_digest(record, targets[self._number]):
            detail = "it is not what its record says"
            self._finding(OrphanKind.WRONG_DIGEST, offset, dispatch, detail)

    def _leave_out(self, offset: int, why: str) -> None:
        self._run.left_out(f"dispatch {self._number}", why, offset, offset + 1)

    def _finding(self, kind: OrphanKind, offset: int, dispatch: GroupDispatch, detail: str) -> None:
        partition = -1 if dispatch.source_partition == NO_SOURCE else dispatch.source_partition
        told = f"dispatch at offset {offset}: {detail}"
        self._run.orphan(kind, partition, offset, dispatch.message_id, told, self._number)


def _entry(
    stored: StoredRecord | Absence | None,
) -> Barrier | Outboxed | NewerFormat | Undecodable | None:
    return read_outbox(stored.value) if isinstance(stored, StoredRecord) else None
