"""The writer's position in its outbox: what the store remembers of the record before ``applied``, judged and told anew."""

from qim.core.mending import source
from qim.core.mending.asking import Procedure, ask, record_at
from qim.core.mending.looking import key_of
from qim.core.mending.passed import Barriers, passed_at
from qim.core.mending.source import Evidence
from qim.core.ports.log import EndsRead, Topic
from qim.core.ports.store_message import ApplyOutbox, OpenShard, OutboxApplied, ShardOpened
from qim.core.position import Verdict, is_other


def judged(log: EndsRead, known: Evidence) -> Procedure[Verdict]:
    """As OPEN does; where the log ends below it, its ends have told."""
    if not (known.applied_before and log.start < known.applied <= log.end):
        return Verdict.TRUSTED
    before = yield from record_at(Topic.OUTBOX, known.partition, known.applied - 1)
    if before is not None and is_other(known.applied_before, before):
        return Verdict.OTHER_RECORD
    return Verdict.TRUSTED


def told(
    log: EndsRead, known: Evidence, standing: Barriers, epoch: int, fresh_key: bytes
) -> Procedure[None]:
    """What stands there now, under the ``epoch`` of the writer's lease, which we hold; OPEN applies all from there on again."""
    if known.applied <= log.start:
        return
    key = key_of(epoch, fresh_key)
    request = OpenShard(op=0, shard=known.partition, epoch=epoch, fresh_key=key)
    opened = yield from ask(request, ShardOpened)
    if opened.applied != known.applied:
        return
    to = yield from source.position_at(Topic.OUTBOX, known.partition, opened.applied)
    request_told = ApplyOutbox(
        op=0,
        shard=known.partition,
        epoch=epoch,
        incarnation=opened.incarnation,
        now_wall=0,
        applied_from=opened.applied,
        applied_to=opened.applied,
        filter_epoch=passed_at(standing, opened.applied),
        records=(),
        before=to.digest,
    )
    yield from ask(request_told, OutboxApplied)
