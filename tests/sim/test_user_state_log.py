"""The user-state log: a tail it lost is told by whoever had read it, and compaction, which no storm draws, is met in silence."""

import pytest
from msgspec.structs import replace

from qim.core.ports.log import Topic
from qim.sim.faults import TailLost
from qim.sim.generate import generate
from qim.sim.report import Report
from qim.sim.run import report_of, run, run_scene
from qim.sim.scene import Kit, Scene

LOST_AT_MS = 2_500
FOLLOWS = {"state_settled", "session_at_end", "unanswered", "audit_blind"}
"""The shard stands: what was set there waits, who asks for lists waits, and an audit judges messages alone."""
COMPACTED_EVERY_MS = 400
COMPACTIONS = 60


@pytest.fixture(scope="module")
def kit() -> Kit:
    return Kit()


@pytest.mark.parametrize(
    ("seed", "refilled"), [(0, False), (1, False), (9, False), (16, False), (0, True), (24, True)]
)
def test_a_lost_tail_stops_its_session_shard(seed: int, refilled: bool, kit: Kit) -> None:
    fault = TailLost(
        at_ms=LOST_AT_MS, topic=Topic.USER_STATE, partition=0, records=1, refilled=refilled
    )
    made = generate(seed, "calm", messages=20)
    plan = replace(made, faults=(fault,), heal_ms=LOST_AT_MS + 1, end_ms=20_000)
    report = run(plan, kit)
    assert report.census["log.tail_lost"] == 1
    fired = dict(report.identities())
    assert fired.pop("position_mismatch") == "session"
    assert set(fired) <= FOLLOWS


def compacted(seed: int, kit: Kit, monkeypatch: pytest.MonkeyPatch) -> Report:
    """The world of a seed whose user-state partitions are compacted again and again, up to what stands there."""
    begun = Scene.__init__

    def begin(scene: Scene, *args: object, **kwargs: object) -> None:
        begun(scene, *args, **kwargs)  # type: ignore[arg-type]

        def compact(_: object) -> None:
            for (topic, _number), partition in scene.log.partitions.items():
                if topic is Topic.USER_STATE:
                    scene.log.compact(partition, partition.end)

        for index in range(COMPACTIONS):
            scene.world.at(1_000 + index * COMPACTED_EVERY_MS, 0, compact, None)

    with monkeypatch.context() as patched:
        patched.setattr(Scene, "__init__", begin)
        scene, _ = run_scene(generate(seed, "swarm"), kit)
    return report_of(scene)


def test_worlds_over_a_compacted_log_end_clean(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = 0
    for seed in range(40):
        report = compacted(seed, kit, monkeypatch)
        assert report.clean, (seed, report.identities())
        taken += report.census.get("log.compacted", 0)
    assert taken, "no world of these had anything to compact"
