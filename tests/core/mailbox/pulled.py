"""A bench whose mailbox is pulled from: cursors, questions, and bodies where a test wants them."""

from collections.abc import Iterator

from qim.core.contract import routing
from qim.core.contract.actor import Actor
from qim.core.contract.cursor import Cursor, encode_cursor
from qim.core.contract.entities import GroupDispatch
from qim.core.contract.errors import ErrorCode
from qim.core.contract.rpc import AskPull, PullAnswer, Refused
from qim.core.contract.sequences import before_first
from qim.core.mailbox import MailboxConfig
from tests.core.mailbox.bench import CONFIG, SECRET, TENANT, Bench, dispatch, record_of, replace

DAY = 86_400_000


NO_CACHE = replace(CONFIG, body_cache_bytes_max=0)


ARCHIVED = replace(NO_CACHE, archived=True)


def actor(user: int = 1, device: bytes = b"phone") -> Actor:
    return Actor(TENANT, user, device)


def cursor(seq: int, user: int = 1, epoch: int = 1) -> bytes:
    return encode_cursor(
        Cursor(
            tenant_id=TENANT,
            user_id=user,
            device_id=b"phone",
            shard=0,
            shard_epoch=epoch,
            lane=routing.lane(user),
            seq=seq,
        ),
        SECRET,
    )


START = before_first(1, 0)


def ask(bench: Bench, data: bytes, *, up_to: int = 0, limit: int = 0, user: int = 1) -> None:
    bench.receive(AskPull(rid=2, actor=actor(user), cursor=data, up_to_seq=up_to, limit=limit))


def pull(bench: Bench, data: bytes, *, up_to: int = 0, limit: int = 0) -> PullAnswer:
    ask(bench, data, up_to=up_to, limit=limit)
    bench.run()
    answer = bench.last_message()
    assert isinstance(answer, PullAnswer), answer
    return answer


def pull_in_vain(bench: Bench, kind: type, fault: str) -> PullAnswer:
    """A pull from the start whose first question of a kind meets a fault: nothing comes, and it is told when to try again."""
    ask(bench, cursor(START))
    while not (reads := [e for e in bench.waiting if isinstance(e, kind)]):
        bench.answer(next(e for e in bench.waiting if not bench.parked(e)), "done")
    bench.answer(reads[0], fault)
    answer = bench.last_message()
    assert isinstance(answer, PullAnswer)
    assert answer.entries == ()
    assert answer.retry_after_ms > 0
    return answer


def refusal(bench: Bench) -> ErrorCode:
    answer = bench.last_message()
    assert isinstance(answer, Refused), answer
    return ErrorCode(answer.code)


def named_owner(bench: Bench) -> str:
    answer = bench.last_message()
    assert isinstance(answer, Refused), answer
    return answer.owner_address


def running(
    *items: GroupDispatch, config: MailboxConfig = CONFIG, hot: bytes | None = None
) -> Bench:
    bench = Bench(config)
    bench.append(*items)
    if hot is not None:
        for item in items:
            put_hot(bench, item, hot)
    bench.hold()
    bench.run()
    return bench


def put_hot(bench: Bench, item: GroupDispatch, body: bytes) -> None:
    name = (item.conversation_id, item.conversation_seq, item.message_id)
    bench.bodies[name] = record_of(item, body)


def numbered(count: int) -> Iterator[GroupDispatch]:
    return (dispatch(n, users=(1,), body=b"%d" % n) for n in range(count))


def put_archived(bench: Bench, item: GroupDispatch, body: bytes) -> None:
    put_hot(bench, item, body)
    bench.archive.update(bench.bodies)
    bench.bodies.clear()
