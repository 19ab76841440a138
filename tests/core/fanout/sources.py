"""A bench whose source partitions run, and what was ordered of them."""

from qim.core.contract import routing
from qim.core.ports.log import Append
from qim.core.ports.registry import Resource, Role
from tests.core.fanout.bench import Bench

SHARDS = 4


FANOUT_0 = Resource(role=Role.FANOUT, number=0)


def shard_of(user: int) -> int:
    return routing.shard(user, SHARDS)


def user_in(shard: int, after: int = 0) -> int:
    return next(user for user in range(after + 1, 10_000) if shard_of(user) == shard)


def effects(bench: Bench, kind: type) -> list[object]:
    return [effect for effect in bench.waiting if type(effect) is kind]


def the(bench: Bench, kind: type) -> object:
    (effect,) = effects(bench, kind)
    return effect


def running(bench: Bench) -> Bench:
    bench.hold()
    bench.run()
    return bench


def append_of(bench: Bench, shard: int) -> Append:
    (found,) = [e for e in bench.waiting if isinstance(e, Append) and e.partition == shard]
    return found


def until_appends(bench: Bench) -> None:
    while not effects(bench, Append):
        bench.answer(bench.waiting[0], "done")
