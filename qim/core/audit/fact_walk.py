"""The walk from the other side: CommitAuditFacts, each committed one standing in the outbox where it says.

    FACTS (a page) --read--> RECORDS (the outbox records named, and whether what was walked still stands) --judged--> next page
      \\--not readable--> the rest of the writer shard's facts is left out
      RECORDS --the log lost its tail during the run--> the partition is not vouched for, its facts are judged and stay

Facts whose records the outbox walk has judged may go: behind the CoverageCursor that walk judges them (pipeline.md §8).
"""

from enum import IntEnum
from typing import Any

from msgspec import Struct

from qim.core.audit.evidence import Evidence
from qim.core.audit.log_lookup import Absence
from qim.core.audit.reads import CoverageOf, FactsAfter, Purpose, StillThere
from qim.core.audit.run import PartitionCut
from qim.core.audit.vocabulary import OrphanKind
from qim.core.contract.entities import CommitAuditFact, CommitState
from qim.core.contract.logvalue import NewerFormat, Outboxed, read_outbox
from qim.core.machine import Ms
from qim.core.ports.log import OutOfRange, StoredRecord, Topic
from qim.core.ports.store_audit import AdvanceCoverage
from qim.core.ports.store_source import FactsRead, ReadFacts


class _Phase(IntEnum):
    FACTS = 0
    RECORDS = 1


class _Page(Struct, kw_only=True):
    """Facts of one writer shard behind ``after``; ``read`` None until they are there."""

    cut: PartitionCut
    after: bytes
    read: FactsRead | None = None


class FactWalk:
    """Writer shard by writer shard, page by page."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._run = evidence.run
        self._number = 0
        self._phase = _Phase.FACTS
        self._after = b""
        self._page: _Page | None = None
        self._tail_lost = False
        """Of the partition at hand: what was walked stands there no more."""

    def advance(self, now: Ms) -> bool:
        """Queue the next reads, or judge; False when every shard was walked."""
        page = self._page
        if page is None:
            return self._begin()
        match self._phase:
            case _Phase.FACTS:
                if page.read is None:
                    self._next_shard()
                    return True
                self._ask_records(page.cut, page.read)
                self._phase = _Phase.RECORDS
            case _:
                assert page.read is not None
                for fact in page.read.facts:
                    self._judge(page.cut, fact)
                self._drop(page.cut, page.read)
                self._page = None
                if page.read.more and page.read.facts:
                    self._after = page.read.facts[-1].message_id
                else:
                    self._next_shard()
        return True

    def take(self, purpose: Purpose, reply: Any) -> None:
        """One answer."""
        if isinstance(purpose, FactsAfter):
            assert self._page is not None
            self._page.read = reply
        elif isinstance(purpose, StillThere):
            assert self._page is not None
            self._take_walked(self._page.cut, reply)
        else:
            assert isinstance(purpose, CoverageOf), purpose

    def _begin(self) -> bool:
        self._evidence.lookup.clear()
        if self._number >= len(self._run.partitions):
            return False
        self._phase = _Phase.FACTS
        self._page = _Page(cut=self._run.partitions[self._number], after=self._after)
        limit = self._evidence.config.window_records_max
        request = ReadFacts(op=0, shard=self._number, after=self._after, limit=limit)
        self._evidence.reads.ask(request, FactsAfter(self._number, self._after))
        return True

    def _next_shard(self) -> None:
        self._page = None
        self._tail_lost = False
        self._after = b""
        self._number += 1

    def _ask_records(self, cut: PartitionCut, read: FactsRead) -> None:
        """After the facts: a record that a fact names was in the log before it was told of."""
        offsets = [fact.outbox_offset for fact in read.facts if _names(cut, fact)]
        self._evidence.lookup.want(Topic.OUTBOX, cut.number, offsets)
        behind = [fact.outbox_offset for fact in read.facts if _is_behind(cut, fact)]
        if behind:
            self._evidence.ask_end(cut.number, max(behind))
        if not self._tail_lost:
            self._evidence.ask_whether_walked_stands(cut)

    def _take_walked(self, cut: PartitionCut, reply: Any) -> None:
        lost = isinstance(reply, OutOfRange) and (reply.other_record or reply.end < cut.walked_to)
        if lost and not self._tail_lost:
            self._tail_lost = True
            cut.covered.clear()
            why = "the log lost its tail during the run"
            self._run.left_out(f"outbox {cut.number}", why, cut.start, cut.walked_to)

    def _judge(self, cut: PartitionCut, fact: CommitAuditFact) -> None:
        """A rebuilt fact is no evidence for its own record; a pending one is in flight."""
        if fact.state == CommitState.RECORDED:
            self._run.in_flight_seen(fact.message_id)
        if _is_behind(cut, fact):
            self._judge_behind(cut, fact)
        if not _names(cut, fact):
            return
        offset = fact.outbox_offset
        stored = self._evidence.lookup.get(Topic.OUTBOX, cut.number, offset)
        if stored is None:
            what = f"outbox {cut.number}"
            why = "not readable where a fact points"
            self._run.left_out(what, why, offset, offset + 1)
        elif stored is not Absence.TRIMMED:
            self._compare(cut, fact, stored)

    def _judge_behind(self, cut: PartitionCut, fact: CommitAuditFact) -> None:
        """Its record came after the cut, or was lost with the log's tail: then the fact is all that is left of it."""
        end = self._evidence.lost_from(cut.number, fact.outbox_offset)
        if end is not None:
            detail = f"committed, but the log ends at {end}"
            kind = OrphanKind.FACT_WITHOUT_RECORD
            self._run.orphan(kind, cut.number, fact.outbox_offset, fact.message_id, detail)

    def _compare(
        self, cut: PartitionCut, fact: CommitAuditFact, stored: StoredRecord | Absence
    ) -> None:
        offset = fact.outbox_offset
        entry = read_outbox(stored.value) if isinstance(stored, StoredRecord) else None
        if isinstance(entry, NewerFormat):
            return  # the outbox walk has said so
        if not isinstance(entry, Outboxed) or entry.record.message_id != fact.message_id:
            detail = "committed, but its record does not stand there"
        elif offset < cut.walked_to and entry.epoch < cut.epoch_before(offset):
            detail = "committed, but its record is not effective"
        else:
            return
        kind = OrphanKind.FACT_WITHOUT_RECORD
        self._run.orphan(kind, cut.number, offset, fact.message_id, detail)

    def _drop(self, cut: PartitionCut, read: FactsRead) -> None:
        """Never a pending one: its mark is still to come, and would find nothing to mark."""
        if self._run.orphans_total or self._tail_lost:
            return
        if not cut.opened or self._run.epoch != self._evidence.tenure.epoch:
            return  # its fence doesn't stand at our epoch: whoever holds the lease covers it
        behind = [
            fact.message_id
            for fact in read.facts
            if fact.state == CommitState.REFUSED
            or (fact.state == CommitState.COMMITTED and fact.outbox_offset < cut.judged_to)
        ]
        if not behind and cut.judged_to == cut.start:
            return
        request = AdvanceCoverage(
            op=0,
            partition=cut.number,
            epoch=self._run.epoch,
            incarnation=cut.incarnation,
            covered_to=cut.judged_to,
            drop_facts=tuple(behind),
        )
        self._evidence.reads.ask(request, CoverageOf(cut.number))


def _names(cut: PartitionCut, fact: CommitAuditFact) -> bool:
    """Whether the fact is evidence about an offset of the cut."""
    return _is_evidence(fact) and cut.start <= fact.outbox_offset < cut.end


def _is_behind(cut: PartitionCut, fact: CommitAuditFact) -> bool:
    """Whether it is evidence about an offset that the log had not when the run began, or no longer."""
    return _is_evidence(fact) and fact.outbox_offset >= cut.end


def _is_evidence(fact: CommitAuditFact) -> bool:
    return fact.state == CommitState.COMMITTED and not fact.rebuilt
