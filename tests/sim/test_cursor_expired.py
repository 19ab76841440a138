"""Devices that come later than the mailbox keeps: one with a cursor is rebuilt whole, a new one begins where it is let, and
each is owed exactly what the design gives it."""

from msgspec.structs import replace

from qim.core.contract.entities import RetentionClass
from qim.sim.plan import (
    Compressed,
    Connect,
    DevicePlan,
    Disconnect,
    MarkRead,
    Operation,
    Plan,
    Send,
    Topology,
)
from qim.sim.run import run_scene
from qim.sim.scene import Kit

AWAY, OTHER = 1, 2
EPHEMERAL = RetentionClass.EPHEMERAL
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


def test_a_rebuilt_device_is_owed_what_history_shows_and_no_more() -> None:
    made = plan(replace(BRIEF, ephemeral_ms=1_500))
    brief = [
        replace(op, retention_class=EPHEMERAL) if is_even(op) else op for op in made.operations
    ]
    scene, report = run_scene(replace(made, operations=tuple(brief)), Kit())
    assert report.clean, report.violations[:3]
    assert report.census.get(EXPIRED)
    held = {row.conversation_seq for row in scene.devices[f"client-{AWAY}-d1"].messages.values()}
    lacking = [seq for seq in range(1, 71) if seq not in held]
    assert lacking, "some ran out while the device was away"
    assert all(seq % 2 for seq in lacking), "what is kept longer is here"


def test_a_new_device_begins_at_the_read_back_position() -> None:
    """What its user read elsewhere before that is not brought to it."""
    made = plan(BRIEF)
    late = DevicePlan(user_id=AWAY, device_id=b"d2")
    operations = (
        *(op for op in made.operations if isinstance(op, Send)),
        Disconnect(at_ms=1, device=2),
        MarkRead(at_ms=11_800, device=0, number=9, peer=OTHER),
        Connect(at_ms=12_000, device=2),
    )
    scene, report = run_scene(
        replace(made, devices=(*made.devices, late), operations=operations), Kit()
    )
    assert report.clean, report.violations[:3]
    assert len(scene.devices[f"client-{AWAY}-d1"].messages) == 70
    held = sorted(
        row.conversation_seq for row in scene.devices[f"client-{AWAY}-d2"].messages.values()
    )
    assert held == list(range(71 - len(held), 71)), "no hole above where it began"
    assert 15 <= len(held) < 40, "some days back, and not the whole mailbox"


def is_even(operation: Operation) -> bool:
    return isinstance(operation, Send) and operation.number % 2 == 0
