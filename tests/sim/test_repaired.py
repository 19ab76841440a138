"""Worlds in which an outbox loses what was committed, and a person repairs it amid everything else."""

from typing import Final

import pytest

from qim.core.mending.outbox import OutboxPlan
from qim.sim.campaign import merged
from qim.sim.faults import FAULTS, OutboxLost, tag_of
from qim.sim.generate import generate
from qim.sim.run import run_scene
from qim.sim.scene import Kit

SEEDS: Final = 25
PROFILE: Final = "repaired"


@pytest.fixture(scope="module")
def kit() -> Kit:
    return Kit()


def test_what_an_outbox_lost_is_noticed_and_comes_back(kit: Kit) -> None:
    plans: list[OutboxPlan] = []
    parts: list[dict[str, int]] = []
    for seed in range(SEEDS):
        scene, report = run_scene(generate(seed, PROFILE), kit)
        assert report.clean, (seed, report.identities())
        plans += [one for one in scene.operators.reports if isinstance(one, OutboxPlan)]
        parts.append(report.census)
    census = merged(parts)
    assert census["operator.ordered"] >= len(plans) > SEEDS
    assert census["said.detected_position_mismatch"] > 0
    assert census["said.detected_outbox_truncated"] > 0
    assert any(one.republished for one in plans)
    assert any(one.lost_undispatched for one in plans)
    assert any(one.padding for one in plans)
    assert any(not one.trusted for one in plans)


def test_each_kind_is_drawn_by_its_profile() -> None:
    kinds = [kind for kind in FAULTS if kind.drawn_by == PROFILE]
    drawn = {type(f) for seed in range(100) for f in generate(seed, PROFILE).faults}
    assert kinds
    assert [tag_of(kind) for kind in kinds if kind not in drawn] == []


def test_some_acts_are_left_in_the_middle_and_some_logs_lose_twice() -> None:
    worlds = [
        [fault for fault in generate(seed, PROFILE).faults if isinstance(fault, OutboxLost)]
        for seed in range(100)
    ]
    assert any(fault.stops_after for losses in worlds for fault in losses)
    assert {fault.how for losses in worlds for fault in losses} == {"cut", "refilled", "recreated"}
    assert any(len({one.partition for one in losses}) < len(losses) for losses in worlds)
    assert all(not isinstance(f, OutboxLost) for f in generate(1, "mended").faults)
