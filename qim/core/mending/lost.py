"""What an outbox partition lacks: the log as it is, held against facts, hot rows and the positions of who read it.

Nothing is written here. What retention or an audit took out of the facts was covered and is not missed.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from qim.core.contract.entities import CommitAuditFact, CommitState, decode_stored_record
from qim.core.contract.logvalue import Barrier, NewerFormat, Outboxed
from qim.core.effective import EffectiveFilter
from qim.core.mending import applied, looking, source
from qim.core.mending.asking import (
    NotMended,
    Procedure,
    ask,
    barrier_below,
    ends,
    fetch,
    read,
    records_at,
)
from qim.core.mending.source import Evidence
from qim.core.mending.unarchived import Archived, judged, unarchived
from qim.core.ports.log import EndsRead, Topic
from qim.core.ports.store_operator import HotRead, ReadHot
from qim.core.ports.store_reads import BodiesRead, ReadBodies
from qim.core.ports.store_source import FactsRead, ReadFacts
from qim.core.position import Verdict

FACTS_PAGE: Final = 1_000
BODIES_PAGE: Final = 64
HOT_PAGE: Final = 256
_RECORDED: Final = int(CommitState.RECORDED)
_COMMITTED: Final = int(CommitState.COMMITTED)


class Lost(Struct):
    """A committed message the log doesn't have: where it stood, its fact or its stored record, or both."""

    offset: int
    fact: CommitAuditFact | None = None
    stored: bytes | None = None

    def message_id(self) -> bytes:
        """Of whichever is there."""
        if self.fact is not None:
            return self.fact.message_id
        assert self.stored is not None
        return decode_stored_record(self.stored).message_id


class Standing(Struct):
    """The records of a log that mean something: where the last stands by message_id, and the message_id of each by offset.

    None is kept itself: a log is greater than a memory. Two may be of one message: what a writer had appended when it stopped at a lost tail comes again (decision 0021).
    """

    effective: dict[bytes, int]
    placed: dict[int, bytes]
    barriers: list[tuple[int, int]]
    """(offset, epoch) of those that are above every one before them."""
    barrier_epoch: int = 0
    """The greatest of all, those below the log's start too."""

    def stands(self, message_id: bytes, offset: int) -> bool:
        """Whether it is this message that stands there."""
        return self.placed.get(offset) == message_id


class Found(Struct):
    """The log as it is, in the light of the facts."""

    log: EndsRead
    known: Evidence
    archived: Archived
    trusted: bool
    differs_from: int
    effective: dict[bytes, int]
    lost: list[Lost]
    pending: dict[bytes, None]
    """Messages that their writer has not marked."""
    unarchived: dict[bytes, None]
    """Messages that stand where the archiver had read others, and the archive doesn't have."""
    barrier_epoch: int
    """The greatest that stands in the log, or had stood below it."""
    elsewhere: dict[bytes, None]
    """Committed messages that stand at another place than their facts say: the barrier that voided a late append was lost."""

    def stood(self) -> int:
        """Behind everything that ever stood at an offset of this partition, as far as anybody remembers."""
        reached = [one.offset + 1 for one in self.lost]
        archived = self.archived
        return max(
            [self.known.applied, self.known.checkpoint, archived.offset, archived.kept, *reached]
        )

    def written_over(self) -> Procedure[list[Outboxed]]:
        """What its writer appended last, before it stopped because others had stood there; and what was committed there since.

        OPEN takes the first for one that is still to be appended, and an archiver would pass over all: it is published again,
        behind.
        """
        reached = max(self.known.applied, self.archived.offset)
        offsets = [
            offset
            for message_id, offset in self.effective.items()
            if (self.differs_from <= offset < reached and message_id in self.pending)
            or message_id in self.unarchived
            or (offset < self.known.applied and message_id in self.elsewhere)
        ]
        records = yield from records_at(Topic.OUTBOX, self.known.partition, sorted(offsets))
        entries = {stored.offset: read(stored) for stored in records}
        again = [entries[offset] for offset in offsets]
        return [entry for entry in again if isinstance(entry, Outboxed)]


def look(partition: int, fresh_key: bytes, *, tiered: bool) -> Procedure[Found]:
    """``tiered``: the archiver's position counts too. Raises NotMended where something can't be read."""
    log = yield from ends(Topic.OUTBOX, partition)
    known = yield from source.evidence(partition)
    archived = (yield from judged(partition, log, fresh_key)) if tiered else Archived()
    fanout = yield from _judged(log, known, fresh_key)
    trusted = fanout is Verdict.TRUSTED
    trusted = trusted and (yield from applied.judged(log, known)) is Verdict.TRUSTED
    standing = yield from walk(partition, log)
    lost: dict[bytes, Lost] = {}
    facts = yield from _facts(partition)
    committed = [one for one in facts if one.state == _COMMITTED]
    committed.sort(key=lambda one: one.outbox_offset)
    differs_from = _compared(log, standing, committed, lost, trusted=trusted)
    if fanout is Verdict.OTHER_RECORD:
        differs_from = min(differs_from, _not_passed(known, standing))
    lacking = yield from unarchived(partition, archived, log, standing.placed, standing.barriers)
    if archived.astray():
        differs_from = min(differs_from, archived.offset - 1, *lacking.values())
    if not trusted or known.applied > log.end or archived.offset > log.end:
        # Facts behind an audit are gone; what it covered was delivered, but the archive may not have it yet.
        low = min(max(known.checkpoint, 0), archived.offset) if tiered else known.checkpoint
        yield from _add_hot(partition, max(low, 0), standing, lost)
    return Found(
        log=log,
        known=known,
        archived=archived,
        trusted=trusted and not archived.astray(),
        differs_from=max(differs_from, log.start),
        effective=standing.effective,
        lost=sorted(lost.values(), key=lambda one: one.offset),
        pending={one.message_id: None for one in facts if one.state == _RECORDED},
        unarchived={
            message_id: None
            for message_id, offset in lacking.items()
            if standing.effective[message_id] == offset  # else it stands behind, too
        },
        barrier_epoch=standing.barrier_epoch,
        elsewhere={
            one.message_id: None
            for one in committed
            if standing.effective.get(one.message_id, one.outbox_offset) != one.outbox_offset
        },
    )


def walk(partition: int, log: EndsRead) -> Procedure[Standing]:
    """The whole log. Raises NotMended where it is not readable."""
    found = Standing(effective={}, placed={}, barriers=[])
    offset = log.start
    passed = EffectiveFilter((yield from barrier_below(partition, log.start)))
    while offset < log.end:
        records = yield from fetch(Topic.OUTBOX, partition, offset)
        if not records:
            raise NotMended(f"outbox {partition} is not readable at {offset}")
        for stored in records:
            offset = stored.offset + 1
            entry = read(stored)
            if isinstance(entry, NewerFormat):
                # Who waits before it would be put behind it.
                raise NotMended(
                    f"outbox {partition} has a record of format {entry.version} at {stored.offset}, newer than this program "
                    "reads: repair it with the version that wrote it"
                )
            if isinstance(entry, Barrier) and entry.epoch > passed.epoch:
                found.barriers.append((stored.offset, entry.epoch))
            if isinstance(entry, Barrier | Outboxed) and passed.admits(entry):
                assert isinstance(entry, Outboxed)
                message_id = entry.record.message_id
                found.placed[stored.offset] = message_id
                found.effective[message_id] = stored.offset
    found.barrier_epoch = passed.epoch
    return found


def bodies_of(lost: Sequence[Lost]) -> Procedure[dict[bytes, bytes]]:
    """Stored records that are still hot, by message_id."""
    found = {one.message_id(): one.stored for one in lost if one.stored is not None}
    facts = [one.fact for one in lost if one.fact is not None and one.stored is None]
    for first in range(0, len(facts), BODIES_PAGE):
        page = facts[first : first + BODIES_PAGE]
        names = tuple((f.conversation_id, f.conversation_seq, f.message_id) for f in page)
        reply = yield from ask(ReadBodies(op=0, names=names), BodiesRead)
        for fact, stored in zip(page, reply.stored, strict=True):
            if stored is not None:
                found[fact.message_id] = stored
    return found


def _compared(
    log: EndsRead,
    standing: Standing,
    facts: Sequence[CommitAuditFact],
    lost: dict[bytes, Lost],
    *,
    trusted: bool,
) -> int:
    """The first offset at which the log is not that of the facts, its end where it has them all; adds to ``lost``."""
    differs_from, matched_to = log.end, log.start
    for fact in facts:
        if fact.outbox_offset < log.start and fact.message_id not in standing.effective:
            continue  # retention took it; what it took was archived and delivered
        if not standing.stands(fact.message_id, fact.outbox_offset):
            differs_from = min(differs_from, fact.outbox_offset)
        elif fact.outbox_offset < differs_from:
            matched_to = fact.outbox_offset + 1
        if fact.message_id not in standing.effective:
            lost[fact.message_id] = Lost(offset=fact.outbox_offset, fact=fact)
    # Barriers alone may differ, which no fact tells: nothing above the last record that matches is believed then.
    return differs_from if trusted else min(differs_from, matched_to)


def _add_hot(
    partition: int, low: int, standing: Standing, lost: dict[bytes, Lost]
) -> Procedure[None]:
    """Committed records of the hot store from an offset on that the log doesn't have."""
    while True:
        request = ReadHot(op=0, shard=partition, low=low, limit=HOT_PAGE)
        page = yield from ask(request, HotRead)
        for offset, stored in page.rows:
            low = offset + 1
            message_id = decode_stored_record(stored).message_id
            if message_id in standing.effective:
                continue
            if message_id in lost:
                lost[message_id].stored = stored
            else:
                lost[message_id] = Lost(offset=offset, stored=stored)
        if not page.more or not page.rows:
            return


def _judged(log: EndsRead, known: Evidence, fresh_key: bytes) -> Procedure[Verdict]:
    """Fanout's position, as fanout itself judges it at its open."""
    if known.checkpoint < 0:
        return Verdict.TRUSTED
    position = (yield from source.opened(known.partition, fresh_key)).position
    return (yield from looking.verdict(Topic.OUTBOX, known.partition, log, position))


def _not_passed(known: Evidence, found: Standing) -> int:
    """Another record stands before fanout's checkpoint than it had passed, and perhaps below that one, too.

    What was lost may have been barriers or pending records alone, and what was committed since stands where its facts say: they
    tell nothing of it.
    """
    below = [
        offset
        for offset in found.placed
        if offset < known.checkpoint
        and offset not in known.receipts
        and offset not in known.dead_letters
    ]
    return min([known.checkpoint - 1, *below])


def _facts(partition: int) -> Procedure[list[CommitAuditFact]]:
    found: list[CommitAuditFact] = []
    after = b""
    while True:
        request = ReadFacts(op=0, shard=partition, after=after, limit=FACTS_PAGE)
        page = yield from ask(request, FactsRead)
        found += page.facts
        if not page.more or not page.facts:
            return found
        after = page.facts[-1].message_id
