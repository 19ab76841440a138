"""Settled worlds, one a test and seed."""

import pytest

from qim.sim.generate import generate
from qim.sim.run import run_scene
from qim.sim.scene import Kit
from tests.core.mending.settled import SpoilingKit, World


@pytest.fixture(scope="module")
def kit() -> Kit:
    return SpoilingKit()


@pytest.fixture(params=(3, 11, 12))
def world(request: pytest.FixtureRequest, kit: Kit) -> World:
    scene, report = run_scene(generate(request.param, "calm"), kit)
    assert report.violations == ()
    return World(scene)
