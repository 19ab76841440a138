"""Leases that no storm takes: a writer's instance number and the audit's coverage run out, and are granted again by an old registry."""

import pytest
from msgspec.structs import replace

from qim.core.ports.registry import Role
from qim.sim.choice import choose
from qim.sim.faults import Fault, LeaseExpires, RegistrySetBack
from qim.sim.generate import generate
from qim.sim.plan import Plan
from qim.sim.run import run
from qim.sim.scene import Kit

TIMES = 4
SPAN_MS = 12_000


@pytest.fixture(scope="module")
def kit() -> Kit:
    return Kit()


def struck(made: Plan) -> Plan:
    """Amid whatever else befalls it."""

    def at(what: str, index: int) -> int:
        return 500 + choose(made.seed, what, (index,)) % SPAN_MS

    more: list[Fault] = []
    for index in range(TIMES):
        number = 1 + index % made.topology.writers
        more += [
            LeaseExpires(at_ms=at("instance", index), role=Role.INSTANCE, number=number),
            LeaseExpires(at_ms=at("auditor", index), role=Role.AUDITOR, number=0),
            RegistrySetBack(at_ms=at("set_back", index), role=Role.AUDITOR, number=0),
        ]
    faults = tuple(sorted([*made.faults, *more], key=lambda fault: fault.at_ms))
    heal_ms = max(made.heal_ms, SPAN_MS + 2_000)
    return replace(made, faults=faults, heal_ms=heal_ms, end_ms=made.end_ms + heal_ms)


@pytest.mark.parametrize("profile", ["swarm", "zombie"])
def test_worlds_end_clean(profile: str, kit: Kit, seed_base: int) -> None:
    for seed in range(seed_base, seed_base + 15):
        report = run(struck(generate(seed, profile)), kit)
        assert report.clean, (f"-k {profile} --seed-base {seed}", report.identities())
