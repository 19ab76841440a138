"""Worlds in which a log loses what was acknowledged, and a person mends it amid everything else."""

from typing import Final

import pytest

from qim.core.mending.bump import BumpPlan
from qim.sim.campaign import merged
from qim.sim.faults import FAULTS, DispatchLost, tag_of
from qim.sim.generate import generate
from qim.sim.run import run_scene
from qim.sim.scene import Kit

SEEDS: Final = 25


@pytest.fixture(scope="module")
def kit() -> Kit:
    return Kit()


def test_losses_are_noticed_and_mended_to_the_end(kit: Kit) -> None:
    reports: list[BumpPlan] = []
    parts: list[dict[str, int]] = []
    for seed in range(SEEDS):
        scene, report = run_scene(generate(seed, "mended"), kit)
        assert report.clean, (seed, report.identities())
        reports += [one for one in scene.operators.reports if isinstance(one, BumpPlan)]
        parts.append(report.census)
    census = merged(parts)
    assert census["operator.ordered"] > SEEDS
    assert census["said.shard_bumped"] >= len(reports) > SEEDS // 2
    assert census["said.detected_mailbox_seq_regression_count"] > 0
    assert any(not one.whole for one in reports)
    assert any(first < checkpoint for one in reports for _, checkpoint, first in one.redo)


def test_each_kind_is_drawn_by_its_profile() -> None:
    for profile in ("swarm", "mended"):
        kinds = [kind for kind in FAULTS if kind.tolerated and kind.drawn_by == profile]
        drawn = {type(f) for seed in range(300) for f in generate(seed, profile).faults}
        assert [tag_of(kind) for kind in kinds if kind not in drawn] == []


def test_some_acts_are_left_in_the_middle_and_some_shards_mended_twice() -> None:
    worlds = [
        [fault for fault in generate(seed, "mended").faults if isinstance(fault, DispatchLost)]
        for seed in range(100)
    ]
    assert any(fault.stops_after for losses in worlds for fault in losses)
    assert any(len({one.shard for one in losses}) < len(losses) for losses in worlds)
    assert all(not isinstance(f, DispatchLost) for f in generate(1, "swarm").faults)
