"""The auditor over what the real machines left behind: the simulator's keyspace, the real scripts and the real codec.

A world runs calmly to its end and is CLEAN. Then one thing is spoiled behind everybody's back, and exactly the message
concerned must be found, by the right name.
"""

from collections.abc import Callable
from typing import Any

import pytest

from qim.adapters.redis.scripts import load_scripts
from qim.core.audit import AuditReport, Orphan, OrphanKind, Verdict
from qim.core.contract.entities import decode_entry, decode_receipt
from qim.core.contract.logvalue import Dispatched, Outboxed, read_dispatch, read_outbox
from qim.core.ports.completion import StoreRole
from qim.core.ports.log import StoredRecord, Topic
from qim.sim.auditing import audited
from qim.sim.generate import generate
from qim.sim.keyspace import ScriptRuntime
from qim.sim.run import run_scene
from qim.sim.scene import Kit, Scene

SPOIL = "redis.call(unpack(ARGV)) return {'K'}"
SEEDS = (3, 11, 12)
GARBAGE = b"\x01\x07garbage"


class SpoilingKit(Kit):
    """Its keyspaces know one script more: any command at all."""

    def __init__(self) -> None:
        super().__init__()
        self._runtime = ScriptRuntime({**load_scripts(), "spoil": SPOIL})


@pytest.fixture(scope="module")
def kit() -> Kit:
    return SpoilingKit()


@pytest.fixture(params=SEEDS)
def scene(request: pytest.FixtureRequest, kit: Kit) -> Scene:
    """A world that has settled."""
    made, report = run_scene(generate(request.param, "calm"), kit)
    assert report.violations == ()
    assert made.audit_report is not None
    assert (made.audit_report.verdict, made.audit_report.incomplete) == (Verdict.CLEAN, ())
    assert made.audit_report.records == len(made.history.oracle.messages) > 0
    return made


def again(scene: Scene) -> AuditReport:
    """A second look, now that the world is spoiled."""
    report = audited(scene)
    assert report is not None
    return report


def spoil(scene: Scene, role: StoreRole, *command: bytes) -> None:
    scene.stores[role].keyspace.call("spoil", [], list(command))


def rows(scene: Scene, role: StoreRole, prefix: bytes) -> list[tuple[bytes, Any]]:
    """Keys of a kind and what they hold."""
    held = scene.stores[role].keyspace.dump()
    return [(key, content) for key, (_, content) in held.items() if key.startswith(prefix)]


def found(scene: Scene) -> set[tuple[OrphanKind, bytes]]:
    report = again(scene)
    assert report.verdict is Verdict.ORPHANS
    orphans: tuple[Orphan, ...] = report.orphans
    return {(one.kind, one.message_id) for one in orphans}


def test_a_receipt_is_lost(scene: Scene) -> None:
    key, receipts = rows(scene, StoreRole.MESSAGE, b"fr:")[0]
    spoil(scene, StoreRole.MESSAGE, b"ZREM", key, receipts[-1])
    lost = decode_receipt(receipts[-1][8:]).message_id
    assert found(scene) == {(OrphanKind.RECEIPT_MISSING, lost)}


def test_an_entry_is_lost(scene: Scene) -> None:
    key, entries = rows(scene, StoreRole.MAILBOX, b"mb:")[0]
    spoil(scene, StoreRole.MAILBOX, b"ZREM", key, entries[0])
    lost = decode_entry(entries[0][8:]).message_id
    assert found(scene) == {(OrphanKind.NOT_MATERIALISED, lost)}


def test_an_entry_stands_twice(scene: Scene) -> None:
    key, entries = rows(scene, StoreRole.MAILBOX, b"mb:")[0]
    first = entries[0]
    before = (int.from_bytes(first[:8], "big") - 1).to_bytes(8, "big")
    spoil(scene, StoreRole.MAILBOX, b"ZADD", key, b"0", before + first[8:])
    twice = decode_entry(first[8:]).message_id
    assert (OrphanKind.NOT_MATERIALISED, twice) in found(scene)


def test_a_progress_mark_counts_one_more_than_the_audience(scene: Scene) -> None:
    """What nobody reads: an entry in the mailbox of somebody who must not have it."""
    for key, claims in rows(scene, StoreRole.MAILBOX, b"mc:"):
        for field, claim in claims:
            if len(claim) > 20:
                count = (int.from_bytes(claim[20:24], "big") + 1).to_bytes(4, "big")
                spoil(
                    scene, StoreRole.MAILBOX, b"HSET", key, field, claim[:20] + count + claim[24:]
                )
                assert {kind for kind, _ in found(scene)} == {OrphanKind.NOT_MATERIALISED}
                return
    raise AssertionError("no mark stands in this world: choose a seed where floors left some")


def spoil_log(
    scene: Scene, topic: Topic, wanted: Callable[[StoredRecord], bool], value: bytes
) -> StoredRecord:
    """The first such record holds something else; as it was."""
    for (held, _), partition in scene.log.partitions.items():
        for index, record in enumerate(partition.records):
            if held is topic and wanted(record):
                spoiled = StoredRecord(
                    offset=record.offset,
                    append_time=record.append_time,
                    key=record.key,
                    value=value,
                )
                partition.records[index] = spoiled
                return record
    raise AssertionError("no such record")


def test_a_dispatch_is_garbled(scene: Scene) -> None:
    record = spoil_log(
        scene, Topic.DISPATCH, lambda one: isinstance(read_dispatch(one.value), Dispatched), GARBAGE
    )
    assert (OrphanKind.DEAD_LETTERED, record.key) in found(scene)


def test_an_outbox_record_is_garbled(scene: Scene) -> None:
    """Its receipt still stands, so it counts as redriven; its dispatches and its fact have lost what they name."""
    record = spoil_log(
        scene, Topic.OUTBOX, lambda one: isinstance(read_outbox(one.value), Outboxed), GARBAGE
    )
    assert {(OrphanKind.DISPATCH_WITHOUT_RECORD, record.key)} <= found(scene)
