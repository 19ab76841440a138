"""Groups greater than a broadcast may be: a change is sent to few, and all others read it in history."""

import pytest

from qim.core.contract.params import DEFAULT
from qim.sim.campaign import merged
from qim.sim.generate import generate
from qim.sim.plan import QUERY_HISTORY, ChangeGroup, DevicePlan, Plan, Query, Send
from qim.sim.run import run, run_scene
from qim.sim.scene import Kit

CREATOR, MEMBER, ADDED = 5_001, 5_002, 5_003
STRANGERS = tuple(range(1, DEFAULT.membership_broadcast_max + 1))
CREATE, ADD = 1, 2
SEEDS = 10


@pytest.fixture(scope="module")
def kit() -> Kit:
    return Kit()


def grown() -> Plan:
    """Somebody is added to a group of five hundred and two; one of the others looks into history then."""
    users = (CREATOR, MEMBER, ADDED)
    group = {"device": 0, "group": 0}
    return Plan(
        seed=1,
        profile="calm",
        topology=generate(1, "calm").topology,
        devices=tuple(DevicePlan(user_id=user, device_id=b"d1") for user in users),
        operations=(
            ChangeGroup(at_ms=300, number=1, operation=CREATE, users=(MEMBER, *STRANGERS), **group),
            Send(at_ms=900, number=10, **group),
            ChangeGroup(at_ms=1_500, number=2, operation=ADD, users=(ADDED,), **group),
            Query(at_ms=2_500, device=1, kind=QUERY_HISTORY, group=0),
        ),
    )


def test_who_is_not_sent_a_change_reads_it_in_history(kit: Kit) -> None:
    scene, report = run_scene(grown(), kit)
    assert report.clean, report.violations[:3]
    assert report.census["said.change_sent_to_few"] == 1
    change = next(
        one.record
        for one in scene.history.oracle.messages.values()
        if one.record.delta is not None and one.record.delta.op == ADD
    )
    assert change.recipients == (CREATOR, ADDED)
    holders = {d.user_id for d in scene.devices.values() if change.message_id in d.messages}
    assert holders == {CREATOR, ADDED, MEMBER}
    assert report.census["said.change_read_in_history"] == 1


def test_crowds_meet_such_changes_and_some_are_of_hundreds(kit: Kit) -> None:
    census = merged(run(generate(seed, "crowd"), kit).census for seed in range(SEEDS))
    assert census["said.change_sent_to_few"] > SEEDS
    assert census["said.change_read_in_history"] > 0
    plans = [generate(seed, "crowd") for seed in range(10 * SEEDS)]
    great = [plan for plan in plans if plan.parameters.membership_broadcast_max == len(STRANGERS)]
    assert 0 < len(great) < len(plans) // 3
    for plan in great:
        founded = plan.operations[0]
        assert isinstance(founded, ChangeGroup)
        assert len(founded.users) >= len(STRANGERS)


def test_no_other_profile_has_them() -> None:
    for seed in range(SEEDS):
        plan = generate(seed, "swarm")
        assert plan.parameters.membership_broadcast_max == len(STRANGERS)
        assert all(len(op.users) < 10 for op in plan.operations if isinstance(op, ChangeGroup))
