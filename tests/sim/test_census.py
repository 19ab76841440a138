"""The instrument reaches what it claims to reach, and each fault that must be detected is."""

import pytest
from msgspec.structs import replace

from qim.core.ports.log import Topic
from qim.sim.campaign import merged
from qim.sim.census import SEEDS, SOMETIMES, forbidden, unreached
from qim.sim.faults import FAULTS, TOLERATED, Fault, Pause, RetentionPasses, TopicRecreated
from qim.sim.generate import generate
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


def stopped(role: str, *, fault: Fault) -> tuple[Fault, ...]:
    """The consumers sleep while the log goes on without them."""
    sleeping = [Pause(at_ms=500, until_ms=8_000, node=f"{role}-{i}") for i in (1, 2)]
    return (*sleeping, fault)


DETECTED: dict[str, tuple[Fault, ...]] = {
    "dispatch topic recreated": (TopicRecreated(at_ms=2_500, topic=Topic.DISPATCH, partition=0),),
    "outbox topic recreated": (TopicRecreated(at_ms=2_500, topic=Topic.OUTBOX, partition=0),),
    "outbox retention passes a stopped fanout": stopped(
        "fanout", fault=RetentionPasses(at_ms=3_500, topic=Topic.OUTBOX, partition=0)
    ),
    "dispatch retention passes a stopped mailbox": stopped(
        "mailbox", fault=RetentionPasses(at_ms=3_500, topic=Topic.DISPATCH, partition=0)
    ),
}
LOSS = {
    *("delivered", "ledger", "intent_settled", "state_settled"),
    *("fanout_at_end", "mailbox_at_end", "archiver_at_end", "session_at_end"),
    # What users and archive have is that much less; who stopped (for the same reason) doesn't answer.
    *("mailbox", "archived", "session_order", "unread", "preview", "unanswered"),
    "local_unread",
    "position_mismatch",
}
AUDIT = {
    "audit_not_clean",
    "audit_ledger",
    "audit_blind",
    "audit_unfinished",
    "orphan_dispatch_total",
}


@pytest.mark.parametrize("name", DETECTED)
def test_what_must_be_detected_is_and_nothing_is_skipped_in_silence(name: str, kit: Kit) -> None:
    faults = DETECTED[name]
    plan = replace(generate(2, "calm", messages=20), faults=faults, heal_ms=9_000, end_ms=30_000)
    fired = {check for check, _ in run(plan, kit).identities()}
    assert "audit_blind" not in fired, "the audit must name a loss"
    assert faults[-1].expected() in fired
    # What was lost stays lost and is told; no safety rule is broken on the way.
    assert fired <= {faults[-1].expected()} | LOSS | AUDIT


def test_each_kind_that_must_be_detected_is_here() -> None:
    kinds = {kind for kind in FAULTS if not kind.tolerated}
    assert kinds == {type(faults[-1]) for faults in DETECTED.values()}


def test_what_is_tolerated_says_so() -> None:
    for profile in PROFILES[1:]:
        for seed in range(10):
            faults = generate(seed, profile).faults
            assert all(fault.expected() == TOLERATED for fault in faults)
