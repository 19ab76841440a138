"""An order over all partitions or shards: what became of each, whatever befell the others."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from qim.cli.mending import _is_left, _text
from qim.core.audit import AuditReport, OrphanKind
from qim.core.contract.params import DEFAULT
from qim.core.mending import carrying
from qim.core.ports.completion import Failed, FailReason
from qim.core.ports.log import Append, ReadEnds, Topic
from qim.core.ports.registry import Acquire, Denied, Renew, Renewed, Role
from qim.core.ports.store_mailbox import ReadShardState, ShardStateRead
from qim.core.ports.store_operator import BumpShard
from qim.services import mending
from qim.services.hosting import Ports
from qim.services.mending import Mender, MendOrder, mended
from qim.sim.generate import generate
from qim.sim.run import run_scene
from tests.core.mending.settled import SpoilingKit, World

ASLEEP = object()
"""What a server answers that never answers."""


WAITS = object()
"""What it answers that waits until a lease has been renewed."""


class Side:
    """Every port of a mender, over a settled world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: list[Callable[[], None]] = []

    def submit(self, request: Any, answered: Callable[[Any], None]) -> None:
        answer = self._world.fate(request)
        if answer is WAITS:
            self._waiting.append(lambda: answered(self._world.answer(request)))
            return
        if isinstance(request, Renew):
            for waiting in self._waiting:
                waiting()
            self._waiting.clear()
        if answer is not ASLEEP:
            answered(self._world.answer(request) if answer is None else answer)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """One whose dispatch logs are gone, each."""
    monkeypatch.setattr(mending, "RETRY_SECONDS", 0.0)
    scene, report = run_scene(generate(8, "calm"), SpoilingKit())
    assert report.violations == ()
    made = World(scene)
    for (topic, _), partition in scene.log.partitions.items():
        if topic is Topic.DISPATCH:
            partition.records.clear()
            partition.topic_id = b"made anew"
    assert len(lost(made)) >= 3
    return made


def lost(world: World) -> list[int]:
    """Shards that had anything in their logs."""
    found = carried_out(world, "bump")["found"]
    return [one["shard"] for one in found if one["result"] == "to_do"]


def carried_out(world: World, what: Any, **more: Any) -> dict[str, Any]:
    side = Side(world)
    ports = Ports(message=side, mailbox=side, log=side, registry=side, archive=side)
    topics = [topic for topic, _ in world.scene.log.partitions]
    parameters = replace(
        DEFAULT,
        shard_count=world.shards(),
        outbox_partition_count=topics.count(Topic.OUTBOX),
    )

    async def audit() -> AuditReport:
        report = world.audit()
        assert isinstance(report, AuditReport)
        return report

    order = MendOrder(what=what, **more)
    return asyncio.run(mended(order, Mender(ports, parameters, tiered=True), audit))


def results(report: dict[str, Any]) -> list[str]:
    return [one["result"] for one in report["found"]]


def expected(world: World, changed: dict[int, str]) -> list[str]:
    """Of all shards; where nothing else is said they are whole."""
    return [changed.get(shard, "whole") for shard in range(world.shards())]


def said(report: dict[str, Any]) -> list[str]:
    left = [one for one in report["found"] if _is_left(one)]
    return list(_text(report, report["apply"], left))


def held(shard: int) -> Callable[[Any], Any]:
    """Somebody's lease of this shard stands."""

    def fate(request: Any) -> Any:
        if isinstance(request, Acquire) and request.resource.number == shard:
            return Denied(op=0, resource=request.resource, owner="mailbox-7", remaining_ms=4_000)
        return None

    return fate


def test_a_shard_that_is_refused_keeps_no_other_from_being_done(world: World) -> None:
    first, second, *_ = todo = lost(world)
    world.fate = held(second)
    report = carried_out(world, "bump", apply=True)
    assert results(report) == expected(world, dict.fromkeys(todo, "done") | {second: "refused"})
    assert [one["shard"] for one in report["found"]] == list(range(world.shards()))
    assert "is held by mailbox-7" in report["found"][second]["why"]
    assert report["refused"].startswith(f"1 of {world.shards()} refused, 0 not tried; the first: ")
    lines = said(report)
    assert [one for one in lines if one.startswith(f"shard {first}: shard_epoch 1 -> 2")]
    assert [
        one for one in lines if one.startswith(f"shard {second}: refused: mailbox {second} is held")
    ]
    world.fate = lambda request: None
    report = carried_out(world, "bump", apply=True)
    assert results(report) == expected(world, {second: "done"})
    assert "refused" not in report


def test_where_a_server_is_away_what_comes_after_is_not_tried(world: World) -> None:
    first, second, *_ = lost(world)

    def away(request: Any) -> Any:
        if isinstance(request, BumpShard) and request.shard == second:
            return Failed(op=0, why=FailReason.UNREACHABLE)
        return None

    world.fate = away
    report = carried_out(world, "bump", apply=True)
    behind = dict.fromkeys(range(second + 1, world.shards()), "not_tried")
    assert results(report) == expected(world, {first: "done", second: "refused"} | behind)
    assert report["found"][second]["why"] == "BumpShard: unreachable"
    assert report["found"][-1] == {"shard": world.shards() - 1, "result": "not_tried"}
    lines = said(report)
    assert f"shard {second}: refused: BumpShard: unreachable" in lines
    assert f"shard {world.shards() - 1}: not tried" in lines
    assert lines[-1] == f"refused: {report['refused']}", "and no promise that --apply would do it"


@pytest.mark.parametrize("kept", [True, False])
def test_leases_are_renewed_while_a_server_takes_its_time(
    world: World, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """One that is lost all the same is told of that shard, and the others go on."""
    monkeypatch.setattr(carrying, "RENEW_MS", 20)
    _, second, *_ = todo = lost(world)
    renewed: list[Role] = []

    def slow(request: Any) -> Any:
        if isinstance(request, BumpShard) and request.shard == second:
            return WAITS
        if isinstance(request, Renew):
            named = tuple(one for one, _ in request.leases)
            renewed.extend(one.role for one in named if one.number == second)
            gone = [one for one in named if one.number == second and one.role is Role.SESSION]
            return Renewed(op=0, lost=() if kept else tuple(gone))
        return None

    world.fate = slow
    report = carried_out(world, "bump", apply=True)
    assert renewed[:2] == [Role.MAILBOX, Role.SESSION]
    changed = dict.fromkeys(todo, "done") | ({} if kept else {second: "refused"})
    assert results(report) == expected(world, changed)
    if not kept:
        why = report["found"][second]["why"]
        assert why.startswith(f"overtaken: the lease of session {second} ended amid the work")
        world.fate = lambda request: None
        assert results(carried_out(world, "bump", apply=True))[second] == "done", "what was left"


def test_a_server_that_never_answers_is_away(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mending, "ANSWER_SECONDS_MAX", 0.05)

    def asleep(request: Any) -> Any:
        mine = isinstance(request, ReadEnds) and request.topic is Topic.OUTBOX
        return ASLEEP if mine and request.partition == 0 else None

    world.fate = asleep
    report = carried_out(world, "outbox")
    assert results(report)[0] == "refused"
    assert set(results(report)[1:]) == {"not_tried"}
    assert "no answer; it may have been done" in report["refused"]


def test_one_that_is_named_is_refused_in_its_own_words(world: World) -> None:
    world.fate = held(1)
    report = carried_out(world, "bump", apply=True, shard=1)
    assert results(report) == ["refused"]
    assert report["refused"] == report["found"][0]["why"]
    assert said(report) == [f"shard 1: refused: {report['refused']}"]
    report = carried_out(world, "bump", apply=True, shard=world.shards())
    assert (report["found"], report["misasked"]) == ([], True)
    assert said(report) == [f"refused: {report['refused']}"]


def test_a_shard_that_has_not_begun_is_nothing_to_mend_among_others(world: World) -> None:
    def empty(request: Any) -> Any:
        if isinstance(request, ReadShardState) and request.shard == 0:
            answer = world.answer(request)
            assert isinstance(answer, ShardStateRead)
            return replace(answer, base=-1)
        return None

    world.fate = empty
    for what in ("bump", "states"):
        report = carried_out(world, what, apply=True)
        assert results(report)[0] == "nothing_yet"
        assert {"refused", "not_tried"}.isdisjoint(results(report))
        assert "refused" not in report
        assert said(report)[0] == "shard 0: mailbox shard 0 has no state: it begins by itself"
        assert not [one for one in report["found"] if _is_left(one)]
    assert results(carried_out(world, "bump", shard=0)) == ["refused"]


def test_a_dry_run_says_of_each_whether_there_is_something_to_do(world: World) -> None:
    report = carried_out(world, "bump")
    todo = lost(world)
    assert results(report) == expected(world, dict.fromkeys(todo, "to_do"))
    assert said(report)[-1] == f"a dry run: {len(todo)} to do; --apply does it"
    assert set(results(carried_out(world, "outbox"))) == {"whole"}
    assert set(results(carried_out(world, "states"))) == {"whole"}


def test_a_record_that_is_refused_leaves_the_others_to_be_dispatched(world: World) -> None:
    missing = {
        (one.partition, one.offset)
        for one in world.audit().orphans
        if one.kind is OrphanKind.RECORD_WITHOUT_DISPATCH and one.partition >= 0
    }
    assert len(missing) >= 3, "no dispatch is left"
    shards: list[int] = []

    def refused(request: Any) -> Any:
        if isinstance(request, Append) and request.topic is Topic.DISPATCH:
            shards.append(request.partition)
            if len(shards) == 1:
                return Failed(op=0, why=FailReason.TOO_LARGE)
        return None

    world.fate = refused
    report = carried_out(world, "dispatches", apply=True)
    assert len(report["found"]) == len(missing)
    first, *others = report["found"]
    assert (first["result"], first["partition"], first["offset"]) == (
        "refused",
        min(missing)[0],
        str(min(missing)[1]),
    )
    assert {one["outcome"] for one in others} == {"dispatched"}
    assert said(report)[0].startswith(
        f"outbox {first['partition']} offset {first['offset']}: refused: "
    )
