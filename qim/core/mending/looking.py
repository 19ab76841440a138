"""What stands of a mailbox shard before it is mended: whether there is anything, its session, and whether a position is in its log."""

from qim.core.contract.hashing import H
from qim.core.mending.asking import Moved, NothingYet, NotMended, Procedure, ask, ends, record_at
from qim.core.ports.log import EndsRead, Position, Topic
from qim.core.ports.store_mailbox import ReadShardState, ShardStateRead
from qim.core.ports.store_session import OpenSession, SessionOpened
from qim.core.position import Verdict, judge_ends, judge_predecessor


def left(shard: int) -> Procedure[ShardStateRead]:
    """What stands there, also of earlier bumps. Raises NothingYet: an Open would be the first thing in an empty store."""
    found = yield from ask(ReadShardState(op=0, shard=shard), ShardStateRead)
    if found.base < 0:
        raise NothingYet(f"mailbox shard {shard} has no state: it begins by itself")
    return found


def key_of(epoch: int, fresh_key: bytes) -> bytes:
    """What an Open of ours marks an empty store with."""
    return H("qim.incarnation", "operator", epoch, fresh_key)


def session(shard: int, epoch: int, fresh_key: bytes) -> Procedure[SessionOpened]:
    """Opened under this epoch."""
    request = OpenSession(op=0, shard=shard, epoch=epoch, fresh_key=key_of(epoch, fresh_key))
    return (yield from ask(request, SessionOpened))


def is_still(shard: int, judged: EndsRead) -> Procedure[None]:
    """The dispatch log is the one that was judged: in one that was lost meanwhile the shard would begin where nothing of it stands."""
    log = yield from ends(Topic.DISPATCH, shard)
    if (log.topic_id, log.start) != (judged.topic_id, judged.start) or log.end < judged.end:
        raise Moved(
            f"dispatch {shard} held [{judged.start}, {judged.end}) and holds [{log.start}, {log.end}) now, maybe of "
            "another topic: run it again"
        )


def verdict(
    topic: Topic, number: int, log: EndsRead, position: Position, *, compacted: bool = False
) -> Procedure[Verdict]:
    """As who owns the position judges it at its open. ``compacted``: a record that is gone can't be compared, and need not be."""
    found = judge_ends(position, log.topic_id, log.start, log.end)
    if found is not Verdict.NEEDS_PREDECESSOR:
        return found
    before = yield from record_at(topic, number, position.offset - 1)
    if before is not None:
        return judge_predecessor(position, before)
    if compacted:
        return Verdict.TRUSTED
    raise NotMended(f"{topic.value} {number} is not readable at {position.offset - 1}")
