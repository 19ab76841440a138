"""A bench whose one shard runs, and what it has ordered."""

from qim.core.contract import routing
from tests.core.mailbox.bench import CONFIG, Bench

DAY = 86_400_000


def users_of_lanes(count: int) -> tuple[int, ...]:
    """The first users of ``count`` different lanes."""
    found: dict[int, int] = {}
    for user in range(1, 10_000):
        found.setdefault(routing.lane(user), user)
        if len(found) == count:
            break
    return tuple(found.values())


def effects(bench: Bench, kind: type) -> list[object]:
    return [effect for effect in bench.waiting if type(effect) is kind]


def until(bench: Bench, kind: type) -> object:
    """Answer all else in order until such an effect waits."""
    for _ in range(200):
        found = effects(bench, kind)
        if found:
            return found[0]
        bench.answer(next(e for e in bench.waiting if not bench.parked(e)), "done")
    raise AssertionError(kind)


def running(*items: object, config: object = CONFIG) -> Bench:
    bench = Bench(config)  # type: ignore[arg-type]
    bench.append(*items)  # type: ignore[arg-type]
    bench.hold()
    bench.run()
    return bench
