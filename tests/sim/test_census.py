"""The instrument reaches what it claims to reach, and each fault that must be detected is."""

import re

import pytest
from msgspec.structs import replace

from qim.core.contract.invariants import Invariant
from qim.core.ports.log import Topic
from qim.sim.campaign import merged
from qim.sim.census import SEEDS, SOMETIMES, forbidden, unreached
from qim.sim.faults import (
    FAULTS,
    TOLERATED,
    Crash,
    Fault,
    Pause,
    RetentionPasses,
    TailLost,
    TopicRecreated,
)
from qim.sim.generate import generate
from qim.sim.partition import Partition
from qim.sim.plan import PROFILES
from qim.sim.run import run
from qim.sim.scene import Kit
from qim.sim.storms import KINDS


@pytest.fixture(scope="module")
def kit() -> Kit:
    return Kit()


@pytest.mark.slow
def test_everything_declared_is_reached_and_nothing_forbidden(kit: Kit) -> None:
    census = merged(run(generate(seed, "swarm"), kit).census for seed in range(SEEDS))
    assert unreached(census) == []
    assert forbidden(census) == []


def test_declarations_are_told_apart() -> None:
    assert len(set(SOMETIMES)) == len(SOMETIMES)
    assert unreached({}) == list(SOMETIMES)
    assert forbidden({"said.mailbox_dead_letter.3": 1}) == ["said.mailbox_dead_letter.3 (1)"]


def test_every_profile_has_its_kinds() -> None:
    assert tuple(KINDS) == PROFILES
    assert not KINDS["calm"]
    assert all(KINDS[profile] for profile in PROFILES[1:])


def stopped(*roles: str, fault: Fault) -> tuple[Fault, ...]:
    """The consumers sleep while the log goes on without them."""
    sleeping = [
        Pause(at_ms=500, until_ms=8_000, node=f"{role}-{i}") for role in roles for i in (1, 2)
    ]
    return (*sleeping, fault)


def cut(topic: Topic, *, at_ms: int, refilled: bool = False) -> Fault:
    """``refilled``: nobody ever meets an end below its position."""
    return TailLost(at_ms=at_ms, topic=topic, partition=0, records=3, refilled=refilled)


READERS = ("fanout", "archiver")
DOWN = tuple(Crash(at_ms=2_400, node=f"writer-{i}", salt=1, down_ms=500) for i in (1, 2))


UNREAD = re.compile(r"\((\d+), .*\), the list says (\d+)")
DETECTED: dict[str, tuple[Fault, ...]] = {
    "dispatch topic recreated": (TopicRecreated(at_ms=2_500, topic=Topic.DISPATCH, partition=0),),
    "outbox topic recreated": (TopicRecreated(at_ms=2_500, topic=Topic.OUTBOX, partition=0),),
    "outbox retention passes a stopped fanout": stopped(
        "fanout", fault=RetentionPasses(at_ms=3_500, topic=Topic.OUTBOX, partition=0)
    ),
    "dispatch retention passes a stopped mailbox": stopped(
        "mailbox", fault=RetentionPasses(at_ms=3_500, topic=Topic.DISPATCH, partition=0)
    ),
    "the outbox lost its tail": (cut(Topic.OUTBOX, at_ms=1_300),),
    "the outbox lost its tail and grew again": (cut(Topic.OUTBOX, at_ms=2_500, refilled=True),),
    "the outbox lost its tail before anybody read it": stopped(
        *READERS, fault=cut(Topic.OUTBOX, at_ms=1_300)
    ),
    "the outbox lost its tail before anybody read it and behind the last send": stopped(
        *READERS, fault=cut(Topic.OUTBOX, at_ms=7_500)
    ),
    "the outbox grew again while its writer was down": (
        *DOWN,
        *stopped(*READERS, fault=cut(Topic.OUTBOX, at_ms=2_500, refilled=True)),
    ),
    "a dispatch log lost its tail": (cut(Topic.DISPATCH, at_ms=1_300),),
    "a dispatch log lost its tail and grew again": (
        cut(Topic.DISPATCH, at_ms=2_500, refilled=True),
    ),
}
WRITER_SEES = {
    "the outbox lost its tail before anybody read it": "outbox_truncated",
    "the outbox grew again while its writer was down": "outbox_truncated",
}
"""Where readers that sleep have read nothing of what is gone, the outbox's only appender tells of it."""
AUDIT_SEES = {"the outbox lost its tail before anybody read it and behind the last send"}
"""Nor does anybody append: nothing meets the end of the log but the audit, by the facts."""
NEVER_THERE = {"delivered", "unanswered"}
"""The mailbox shard stands: what the log lost is on no device, and who asks the shard waits."""
NEVER_DISPATCHED = {"delivered", "mailbox", "session_order", "local_unread"}
"""Writer and archive have it, nobody else does: no mailbox, no list, and no device counts what the list counts."""
WRITER_STANDS = {"outbox_truncated", "intent_settled", "state_settled", "unanswered"}
"""The writer shard stands too: who sends or asks there waits."""
NEVER_READ = {"archive_watermark", "receipts", "archived", "position_mismatch"}
"""A reader passes offsets whose first records it never saw."""
LOSS: dict[str, set[str]] = {
    "dispatch topic recreated": {*NEVER_THERE, "position_mismatch"},
    "outbox topic recreated": {*NEVER_DISPATCHED, "archived", *WRITER_STANDS},
    "outbox retention passes a stopped fanout": NEVER_DISPATCHED,
    "dispatch retention passes a stopped mailbox": NEVER_THERE,
    "the outbox lost its tail": {*NEVER_DISPATCHED, "archived", *WRITER_STANDS},
    "the outbox lost its tail and grew again": {*NEVER_DISPATCHED, "archived"},
    "the outbox lost its tail before anybody read it": {"delivered", *WRITER_STANDS, *NEVER_READ},
    "the outbox lost its tail before anybody read it and behind the last send": {
        *NEVER_DISPATCHED,
        "archived",
        "position_mismatch",
    },
    "the outbox grew again while its writer was down": {"delivered", *WRITER_STANDS, *NEVER_READ},
    "a dispatch log lost its tail": {*NEVER_THERE, "position_mismatch", "state_settled"},
    "a dispatch log lost its tail and grew again": {*NEVER_THERE, "position_mismatch"},
}
AUDIT = {"audit_not_clean", "audit_ledger", "orphan_dispatch_total"}
"""The log itself lost what receipts name: the audit says so, and reads less than it counts."""
REPLACED = {name for name in DETECTED if "retention" not in name}
"""A log without the records that receipts name, or with others in their places."""


def expected_of(name: str) -> str:
    """The check that must fire."""
    if name in AUDIT_SEES:
        return Invariant.ORPHAN_DISPATCH
    return WRITER_SEES.get(name, DETECTED[name][-1].expected())


@pytest.mark.parametrize("seed", [2, 4])
@pytest.mark.parametrize("name", DETECTED)
def test_what_must_be_detected_is_and_nothing_is_skipped_in_silence(
    name: str, seed: int, kit: Kit
) -> None:
    faults = DETECTED[name]
    made = generate(seed, "calm", messages=20)
    report = run(replace(made, faults=faults, heal_ms=9_000, end_ms=30_000), kit)
    fired = {check for check, _ in report.identities()}
    assert "audit_blind" not in fired, "the audit must name a loss"
    assert expected_of(name) in fired
    # What was lost stays lost and is told; no safety rule is broken on the way.
    told = AUDIT if name in REPLACED else set()
    assert fired <= {expected_of(name)} | LOSS[name] | told
    for finding in report.violations:
        if finding.check == "local_unread":
            counted, listed = UNREAD.search(finding.detail).groups()  # type: ignore[union-attr]
            assert int(counted) < int(listed), (
                "a device counts too little for what never reached it"
            )


@pytest.mark.parametrize("name", [name for name in DETECTED if "grew again" in name])
def test_a_log_that_grew_again_is_found_out_by_nothing_else(
    name: str, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that compares nothing: the scenario would pass in silence, so what fired above is the comparison."""
    monkeypatch.setattr(Partition, "differs", lambda *_: False)
    made = generate(2, "calm", messages=20)
    report = run(replace(made, faults=DETECTED[name], heal_ms=9_000, end_ms=30_000), kit)
    assert expected_of(name) not in {check for check, _ in report.identities()}


def test_each_kind_that_must_be_detected_is_here() -> None:
    kinds = {kind for kind in FAULTS if not kind.tolerated}
    assert kinds == {type(faults[-1]) for faults in DETECTED.values()}


def test_what_is_tolerated_says_so() -> None:
    for profile in PROFILES[1:]:
        for seed in range(10):
            faults = generate(seed, profile).faults
            assert all(fault.expected() == TOLERATED for fault in faults)
