"""A procedure that takes longer than its leases: they are renewed as time goes on, and one that is gone ends it in the middle."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from qim.core.mending.asking import (
    LEASE_TTL_MS,
    Overtaken,
    Procedure,
    Unanswered,
    ends,
    leased,
)
from qim.core.mending.carrying import MARGIN_MS, RENEW_MS, RETRY_MS, Carrying
from qim.core.ports.completion import Failed, FailReason, Unknown
from qim.core.ports.local import Started
from qim.core.ports.log import EndsRead, ReadEnds, Topic
from qim.core.ports.registry import (
    Acquire,
    Denied,
    Granted,
    Release,
    Released,
    Renew,
    Renewed,
    Resource,
    Role,
)

OWNER = "operator-1"
WRITER = Resource(role=Role.WRITER, number=3)
FANOUT = Resource(role=Role.FANOUT, number=3)
STARTED = Started(address="", wall=0)
VALID_MS = LEASE_TTL_MS - MARGIN_MS
STEPS_MAX = 1_000


def looking(times: int, given_back: bool = False) -> Procedure[str]:
    """Two leases, then so many looks; ``given_back``: the second lease after the first of them."""

    def work(epoch: int) -> Procedure[str]:
        for at in range(times):
            yield from ends(Topic.OUTBOX, 3)
            if given_back and at == 0:
                yield Release(op=0, owner=OWNER, leases=((FANOUT, epoch),))
        return "done"

    def inner(_: int) -> Procedure[str]:
        return leased(FANOUT, OWNER, "", work)

    return leased(WRITER, OWNER, "", inner)


class Registry:
    """Leases by the time at which a request is answered, as every registry keeps them; and a log that has ends."""

    def __init__(self) -> None:
        self.until: dict[Resource, int] = {}
        self.renewals = 0
        self.released: list[Resource] = []

    def answer(self, now: int, request: Any) -> Any:
        op = request.op
        match request:
            case Acquire(resource=resource):
                self.until[resource] = now + request.ttl_ms
                return Granted(
                    op=op, resource=resource, epoch=7, barrier_epoch=0, barrier_offset=-1
                )
            case Renew(leases=leases):
                self.renewals += 1
                assert request.owner == OWNER
                lost = tuple(one for one, _ in leases if self.until.get(one, 0) <= now)
                for one, epoch in leases:
                    assert epoch == 7
                    if one not in lost:
                        self.until[one] = now + request.ttl_ms
                return Renewed(op=op, lost=lost)
            case Release(leases=leases):
                self.released += [one for one, _ in leases]
                for one, _ in leases:
                    self.until.pop(one, None)
                return Released(op=op)
            case _:
                assert isinstance(request, ReadEnds)
                return EndsRead(op=op, topic_id=b"", start=0, end=0)


Fate = Callable[[int, Any], Any]


def run(machine: Carrying, registry: Registry, took_ms: int, fate: Fate = lambda *_: None) -> int:
    """Each look takes so long, the registry no time; the machine is stepped when it says. The time at the end."""
    now = 0
    due = [(now, answer(registry, now, request, fate)) for request in machine.step(now, [STARTED])]
    for _ in range(STEPS_MAX):
        machine.check()
        if machine.idle():
            return now
        at = machine.deadline()
        now = min([when for when, _ in due] + ([] if at is None else [at]))
        events = [event for when, event in due if when <= now]
        due = [one for one in due if one[0] > now]
        for request in machine.step(now, events):
            later = now + took_ms if isinstance(request, ReadEnds) else now
            due.append((later, answer(registry, now, request, fate)))
    raise AssertionError("it comes to no end")


def answer(registry: Registry, now: int, request: Any, fate: Fate) -> Any:
    told = fate(now, request)
    return registry.answer(now, request) if told is None else told


@pytest.mark.parametrize("took_ms", [1, RENEW_MS // 3, RENEW_MS, 3 * LEASE_TTL_MS])
def test_leases_last_as_long_as_the_work(took_ms: int) -> None:
    """However long one request takes, or all of them."""
    registry, machine = Registry(), Carrying(looking(9))

    def kept(now: int, request: Any) -> None:
        if isinstance(request, ReadEnds | Release):
            assert registry.until[WRITER] > now

    over = run(machine, registry, took_ms, kept)
    assert machine.result() == "done"
    assert over == 9 * took_ms
    assert registry.renewals == over // RENEW_MS
    assert registry.released == [FANOUT, WRITER]


def test_a_renewal_that_fails_is_tried_again_at_once() -> None:
    registry, machine = Registry(), Carrying(looking(4))
    asked: list[int] = []

    def away(now: int, request: Any) -> Any:
        if isinstance(request, Renew):
            asked.append(now)
            if len(asked) < 4:
                return Failed(op=request.op, why=FailReason.UNREACHABLE)
        return None

    run(machine, registry, LEASE_TTL_MS, away)
    assert machine.result() == "done"
    assert asked[:5] == [
        *range(RENEW_MS, RENEW_MS + 4 * RETRY_MS, RETRY_MS),
        2 * RENEW_MS + 3 * RETRY_MS,
    ]


def test_a_lease_that_is_lost_ends_it_at_the_next_answer() -> None:
    """Nothing more is asked of anybody but to give back the others."""
    registry, machine = Registry(), Carrying(looking(9))
    asked: list[Any] = []

    def loses(now: int, request: Any) -> None:
        asked.append(request)
        if isinstance(request, Renew):
            registry.until[WRITER] = now

    over = run(machine, registry, RENEW_MS - 1, loses)
    with pytest.raises(Overtaken, match=r"writer 3 ended amid.*Nothing is lost.*order it again"):
        machine.result()
    assert over == 2 * (RENEW_MS - 1)
    assert [type(one) for one in asked[-3:]] == [Renew, Release, Release]
    assert registry.released == [FANOUT, WRITER]


@pytest.mark.parametrize("answered", [False, True])
def test_a_lease_that_nobody_could_renew_ends_it_when_it_is_over(answered: bool) -> None:
    """The registry is away: whether it ended there is not known, and not before it is over by our own clock."""
    registry, machine = Registry(), Carrying(looking(200))

    def away(_: int, request: Any) -> Any:
        return Unknown(op=request.op if answered else -1) if isinstance(request, Renew) else None

    over = run(machine, registry, 1_000, away)
    with pytest.raises(Overtaken, match="the lease of writer 3, fanout 3 ended"):
        machine.result()
    assert over == VALID_MS


def test_what_was_given_back_is_not_missed() -> None:
    """A repair gives the fanout's lease back before its end, also while a renewal of it is under way."""
    registry, machine = Registry(), Carrying(looking(3, given_back=True))
    (asked,) = machine.step(0, [STARTED])
    while not isinstance(asked, ReadEnds):
        (asked,) = machine.step(0, [registry.answer(0, asked)])
    (renew,) = machine.step(RENEW_MS, ())
    assert [one for one, _ in renew.leases] == [WRITER, FANOUT]
    (release,) = machine.step(RENEW_MS + 1, [registry.answer(RENEW_MS + 1, asked)])
    (asked,) = machine.step(RENEW_MS + 2, [registry.answer(RENEW_MS + 2, release)])
    assert machine.step(RENEW_MS + 3, [registry.answer(RENEW_MS + 3, renew)]) == []
    (renew,) = machine.step(2 * RENEW_MS, ())
    assert [one for one, _ in renew.leases] == [WRITER]
    while not machine.idle():
        requests = machine.step(2 * RENEW_MS, [registry.answer(2 * RENEW_MS, asked)])
        assert not any(isinstance(one, Renew) for one in requests), "one at a time"
        asked = requests[0] if requests else None
    assert machine.result() == "done"


def test_a_lease_that_ends_when_all_is_done_undoes_nothing() -> None:
    """A registry that takes its time over what is given back."""
    registry, machine = Registry(), Carrying(looking(1))
    (asked,) = machine.step(0, [STARTED])
    while not isinstance(asked, Release):
        (asked,) = machine.step(0, [registry.answer(0, asked)])
    late = 2 * LEASE_TTL_MS
    (asked,) = machine.step(late, [registry.answer(late, asked)])
    assert machine.step(late, [registry.answer(late, asked)]) == []
    assert machine.result() == "done"


@pytest.mark.parametrize("reply", [Unknown(op=0), Failed(op=0, why=FailReason.UNREACHABLE)])
def test_a_lease_that_is_not_given_back_hides_no_outcome(reply: Any) -> None:
    """Neither a report nor what was refused: it ends by itself."""

    def silent(_: int, request: Any) -> Any:
        return replace(reply, op=request.op) if isinstance(request, Release) else None

    def refusing(now: int, request: Any) -> Any:
        if isinstance(request, ReadEnds):
            return Failed(op=request.op, why=FailReason.OVERLOADED)
        return silent(now, request)

    done, refused = Carrying(looking(1)), Carrying(looking(1))
    run(done, Registry(), 1, silent)
    assert done.result() == "done"
    run(refused, Registry(), 1, refusing)
    with pytest.raises(Unanswered, match=r"^ReadEnds: overloaded$"):
        refused.result()


def test_what_another_holds_is_refused_and_nothing_renewed() -> None:
    machine = Carrying(looking(1))
    (acquire,) = machine.step(0, [STARTED])
    denied = Denied(op=acquire.op, resource=WRITER, owner="writer-1", remaining_ms=4_000)
    assert machine.step(1, [denied]) == []
    assert machine.idle()
    assert machine.deadline() is None
    with pytest.raises(Exception, match="is held by writer-1"):
        machine.result()
