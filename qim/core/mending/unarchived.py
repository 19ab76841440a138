"""Where an archiver stands, judged as it does at its open; and what was committed since where it had read others (pipeline.md §5).

Nobody else need have known of what it read there: a record is appended before it is marked, and a barrier is told by no fact. So
facts, fanout and the writer's position may all agree with a log that the archiver's alone does not.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from qim.core.contract.logvalue import Outboxed
from qim.core.mending import looking
from qim.core.mending.asking import NotMended, Procedure, ask, epoch_of, read, records_at
from qim.core.ports.archive import (
    ArchiveBodiesRead,
    ArchivedConversationsRead,
    ReadArchiveBodies,
    ReadArchivedConversations,
)
from qim.core.ports.log import EndsRead, StoredRecord, Topic
from qim.core.ports.registry import Role
from qim.core.ports.store_history import (
    ArchiveOpened,
    ArchivePositionRead,
    OpenArchive,
    ReadArchivePosition,
)
from qim.core.position import Verdict
from qim.core.writer.vocabulary import WriterConfig

NAMES_PAGE: Final = 64
APPEND_MOST: Final = WriterConfig().append_records_max
"""Records that a writer has in flight at most: it stops at the first append which stands where others had stood.

No setting of a deployment changes it.
"""


class Archived(Struct, frozen=True, kw_only=True):
    """``offset``: the archiver's position, 0 where there is none; ``kept``: where the archive itself says to be.

    ``filter_epoch``: the greatest barrier that had been passed there.
    """

    offset: int = 0
    kept: int = 0
    verdict: Verdict = Verdict.TRUSTED
    filter_epoch: int = 0

    def astray(self) -> bool:
        """Its position is of another log than the one at hand, or of one that had more."""
        return self.verdict not in (Verdict.TRUSTED, Verdict.BELOW_START)


def judged(partition: int, log: EndsRead, fresh_key: bytes) -> Procedure[Archived]:
    """Opened under the epoch that stands: nobody is disturbed by it."""
    own = ReadArchivedConversations(op=0, partition=partition, after=b"", limit=0)
    kept = (yield from ask(own, ArchivedConversationsRead)).position
    look = ReadArchivePosition(op=0, partition=partition)
    if (yield from ask(look, ArchivePositionRead)).offset <= 0:
        return Archived(kept=kept)
    epoch = yield from epoch_of(Role.ARCHIVER, partition)
    key = looking.key_of(epoch, fresh_key)
    request = OpenArchive(op=0, partition=partition, epoch=epoch, fresh_key=key)
    opened = yield from ask(request, ArchiveOpened)
    position = opened.position
    if position is None:
        return Archived(kept=kept)
    verdict = yield from looking.verdict(Topic.OUTBOX, partition, log, position)
    return Archived(
        offset=position.offset, kept=kept, verdict=verdict, filter_epoch=opened.filter_epoch
    )


def refuse_hole(partition: int, log: EndsRead, archived: Archived) -> None:
    """Raises NotMended where retention took what the archive lacks: no log is left to compare with, or to take it from."""
    has = min(archived.offset, archived.kept) if archived.offset else archived.kept
    lacks = has < min(log.start, archived.offset or log.start)
    if archived.verdict is Verdict.BELOW_START or (lacks and (archived.offset or archived.kept)):
        raise NotMended(
            f"outbox {partition}: the archive has what stood below {has}, and the log begins at {log.start}: what "
            "lies between is in neither. Put back the log from a mirror that has it (and raise the topic's retention), or an "
            "archive that has it"
        )


def unarchived(
    partition: int,
    archived: Archived,
    log: EndsRead,
    placed: dict[int, bytes],
    barriers: Sequence[tuple[int, int]],
) -> Procedure[dict[bytes, int]]:
    """Records below the archiver's position that the archive lacks, in the order in which they stand, with their offsets.

    Whatever was opened since has a barrier above all that the archiver had passed. Before it, one append of a writer that lived
    on; further down the archive lacks only what it has let go.
    """
    if not archived.astray():
        return {}
    top = min(archived.offset, log.end)
    opened = [at for at, epoch in barriers if epoch > archived.filter_epoch and at < top]
    since = opened[0] if opened else top
    below = [at for at in placed if at < since][-APPEND_MOST:]
    absent = yield from _absent(partition, [*below, *_within(placed, since, top)])
    run: list[int] = []
    for at in reversed(below):
        if at not in absent:
            break
        run.append(at)
    places = (*reversed(run), *[at for at in _within(placed, since, top) if at in absent])
    return {placed[at]: at for at in places}


def _within(placed: dict[int, bytes], low: int, high: int) -> list[int]:
    return [at for at in placed if low <= at < high]


def _absent(partition: int, offsets: Sequence[int]) -> Procedure[dict[int, None]]:
    """Offsets of those which the archive hasn't, by its own word; a page of records is held at a time."""
    found: dict[int, None] = {}
    for first in range(0, len(offsets), NAMES_PAGE):
        some = offsets[first : first + NAMES_PAGE]
        page = yield from records_at(Topic.OUTBOX, partition, some)
        reply = yield from ask(
            ReadArchiveBodies(op=0, names=tuple(_name(one) for one in page)), ArchiveBodiesRead
        )
        for one, stored in zip(page, reply.stored, strict=True):
            if stored is None:
                found[one.offset] = None
    return found


def _name(stored: StoredRecord) -> tuple[bytes, int, bytes]:
    entry = read(stored)
    assert isinstance(entry, Outboxed), "walked"
    record = entry.record
    return record.conversation_id, record.conversation_seq, record.message_id
