"""A device that stays away longer than the mailbox keeps: CURSOR_EXPIRED by time, a rebuild, and nothing is missing."""

from msgspec.structs import replace

from qim.sim.plan import Compressed, Connect, DevicePlan, Disconnect, Plan, Send, Topology
from qim.sim.run import run_scene
from qim.sim.scene import Kit

AWAY, OTHER = 1, 2
EXPIRED = "said.gateway_refused.CURSOR_EXPIRED"


def plan(parameters: Compressed) -> Plan:
    """One says something all the time, the other is away from 1.5 s to 14 s."""
    sends = tuple(
        Send(at_ms=500 + 200 * at, device=1, number=100 + at, peer=AWAY) for at in range(70)
    )
    return Plan(
        seed=1,
        profile="calm",
        topology=Topology(),
        devices=(
            DevicePlan(user_id=AWAY, device_id=b"d1"),
            DevicePlan(user_id=OTHER, device_id=b"d1"),
        ),
        operations=(
            *sends,
            Disconnect(at_ms=1_500, device=0),
            Connect(at_ms=14_000, device=0),
        ),
        parameters=parameters,
    )


BRIEF = Compressed(mailbox_day_ms=1_000, mailbox_retention_ms=4_000, read_back_ms=2_000)


def test_a_device_away_for_longer_than_its_mailbox_keeps_is_rebuilt_whole() -> None:
    scene, report = run_scene(plan(BRIEF), Kit())
    assert report.clean, report.violations[:3]
    assert report.census.get(EXPIRED), "the cursor was behind what was trimmed"
    assert report.census.get("said.client_rebuilds")
    device = scene.devices[f"client-{AWAY}-d1"]
    assert len(device.messages) == 70, "read back from history beyond what the mailbox keeps"


def test_a_device_away_for_less_is_not() -> None:
    _, report = run_scene(plan(replace(BRIEF, mailbox_retention_ms=60_000)), Kit())
    assert report.clean, report.violations[:3]
    assert EXPIRED not in report.census
