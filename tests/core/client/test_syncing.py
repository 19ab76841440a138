"""Client and ConnectionNode back to back: cursor, pushes, watermarks, REBUILD."""

from typing import Any

import pytest

from qim.core.client.vocabulary import (
    CaughtUp,
    ClientState,
    MessageApplied,
    OfflineWanted,
    SyncRequested,
)
from qim.core.contract.errors import ErrorCode
from qim.core.contract.ids import single_conversation_id
from qim.core.contract.rpc import (
    AskPull,
    AskSync,
    PullAnswer,
    PushBatch,
    WatermarkAnswer,
)
from qim.core.ports.local_store import (
    LocalState,
    SaveState,
)
from tests.core.client.toy_world import (
    DropFirst,
    ToyClient,
    ToyWorld,
    carries,
    pair,
)


def test_a_push_moves_no_cursor_and_the_gap_below_it_is_filled() -> None:
    """BR-019: pushed n+5 before n+1..n+4 were pulled, then the process dies: all five stand once after."""
    world, ann, bob = pair()
    world.drop = DropFirst(4, PushBatch)
    before = bob.store.cursor
    for number in range(1, 6):
        ann.send(number, peer=2, body=b"%d" % number)
    world.drop = lambda target, event: (
        carries(event, PushBatch) and event.message.pushes[0].entry.body != b"5"
    )
    world.run()
    assert bob.bodies() == [b"5"]
    assert bob.store.cursor == before
    bob.crash()
    world.drop = lambda target, event: False
    bob.start()
    bob.online()
    world.advance(1_000)
    assert sorted(b for b in bob.bodies() if b) == [b"1", b"2", b"3", b"4", b"5"]
    assert bob.store.covered == world.services.watermark


def test_a_push_while_a_pull_is_in_flight_is_not_forgotten() -> None:
    """BR-020: then silence; visible without waiting for a heartbeat."""
    world, ann, bob = pair()
    kept: list[tuple[str, Any]] = []

    def keep(target: str, event: Any) -> bool:
        if carries(event, PullAnswer):
            kept.append((target, event))
            return True
        return False

    world.drop = keep
    world.give(bob.name, SyncRequested())
    world.run()
    assert kept
    world.drop = lambda target, event: False
    ann.send(1, peer=2, body=b"meanwhile")
    world.run()
    assert bob.bodies() == [b"meanwhile"]
    world.give(*kept[0])
    world.advance(1_000)
    assert bob.store.covered == world.services.watermark


def test_lost_pushes_are_repaired_by_the_heartbeat() -> None:
    world, ann, bob = pair()
    world.services.pushes = False
    ann.send(1, peer=2, body=b"unheard")
    world.run()
    assert bob.bodies() == []
    world.advance(31_000)
    assert bob.bodies() == [b"unheard"]


def test_what_comes_between_the_first_sync_and_ready_is_told_by_the_watermark() -> None:
    """The barrier: no push before ONLINE_READY, whose watermark repairs exactly that."""
    world = ToyWorld()
    ann, bob = world.client(1), world.client(2)
    ann.online()
    world.run()
    kept: list[tuple[str, Any]] = []
    world.drop = lambda target, event: (
        carries(event, WatermarkAnswer) and kept.append((target, event)) is None
    )
    bob.online()
    world.run()
    assert bob.state is ClientState.SYNCING
    ann.send(1, peer=2, body=b"in between")
    world.run()
    assert bob.bodies() == []
    world.drop = lambda target, event: False
    for item in kept:
        world.give(*item)
    world.run()
    assert bob.bodies() == [b"in between"]


def test_first_sync_in_pages_then_caught_up() -> None:
    world = ToyWorld()
    ann, bob = world.client(1), world.client(2, pull_limit=7)
    ann.online()
    world.run()
    for number in range(1, 51):
        ann.send(number, peer=2, body=b"%d" % number)
    world.run()
    bob.online()
    world.run()
    assert bob.bodies() == [b"%d" % n for n in range(1, 51)]
    assert bob.told(CaughtUp)[-1].covered_through == world.services.watermark
    pulls = [q for q in world.services.asked if isinstance(q, AskPull) and q.actor.user_id == 2]
    assert len(pulls) >= 8


def test_transient_pull_errors_are_not_remembered() -> None:
    """BR-027."""
    world, ann, bob = pair()
    world.services.refuse(AskPull, ErrorCode.UNAVAILABLE, ErrorCode.INTERNAL)
    world.services.pushes = False
    ann.send(1, peer=2, body=b"x")
    world.run()
    world.give(bob.name, SyncRequested())
    world.advance(5_000)
    assert bob.bodies() == [b"x"]


def test_sleeping_through_the_dead_peer_time_reconnects_and_back_fills() -> None:
    """BR-021: the process stood still for two minutes, the server dropped it."""
    world, ann, bob = pair()
    world.down.add(bob.name)
    ann.send(1, peer=2, body=b"while asleep")
    world.now += 120_000
    world.run()
    world.down.discard(bob.name)
    world.advance(5_000)
    assert bob.state is ClientState.ONLINE
    assert bob.bodies() == [b"while asleep"]


def test_black_hole_is_noticed_on_both_sides_and_nothing_is_lost() -> None:
    """BR-022, BR-031: no FIN, bytes vanish; three messages arrive by pull after the reconnect."""
    world, ann, bob = pair()
    for end, other in list(world.streams.items()):
        if end[0] == bob.name:
            world.held[end] = []
            world.held[other] = []
    for number in range(1, 4):
        ann.send(number, peer=2, body=b"%d" % number)
    world.advance(200_000)
    assert bob.state is ClientState.ONLINE
    assert bob.bodies() == [b"1", b"2", b"3"]


def trimmed_world() -> tuple[ToyWorld, ToyClient, ToyClient]:
    """Bob was away: ten messages, the mailbox trimmed behind the seventh."""
    world, ann, bob = pair()
    ann.send(1, peer=2, body=b"known")
    world.advance(1_000)
    world.give(bob.name, OfflineWanted())
    world.run()
    for number in range(2, 12):
        ann.send(number, peer=2, body=b"%d" % number)
    world.run()
    world.services.trim = world.services.watermark - 3
    return world, ann, bob


def test_expired_cursor_rebuilds_without_losing_what_is_here() -> None:
    """BR-029: cursor behind the trim; local messages stay, history fills the hole, each applied once."""
    world, _, bob = trimmed_world()
    kept = dict(bob.store.messages)
    bob.online()
    world.advance(30_000)
    assert bob.state is ClientState.ONLINE
    assert bob.store.state is LocalState.ONLINE
    assert kept.items() <= bob.store.messages.items()
    assert len(bob.store.messages) == 11
    assert len(bob.told(MessageApplied)) == 11
    assert bob.store.anchors == {single_conversation_id("default", 1, 2): 11}
    assert bob.store.covered == world.services.watermark


def test_rebuilding_survives_a_restart_and_moves_no_anchor_by_mailbox() -> None:
    world, _, bob = trimmed_world()
    world.drop = lambda target, event: (
        carries(event, object) and type(event.message).__name__ == "HistoryAnswer"
    )
    bob.online()
    world.advance(3_000)
    assert bob.store.state is LocalState.REBUILDING
    assert bob.store.anchors == {single_conversation_id("default", 1, 2): 1}
    assert len(bob.store.messages) == 4
    bob.crash()
    world.drop = lambda target, event: False
    bob.start()
    bob.online()
    world.advance(30_000)
    assert bob.store.state is LocalState.ONLINE
    assert len(bob.store.messages) == 11


@pytest.mark.parametrize(
    "code", [ErrorCode.CURSOR_EXPIRED, ErrorCode.CURSOR_INVALID, ErrorCode.CURSOR_REBASED]
)
@pytest.mark.parametrize("question", [AskSync, AskPull])
def test_every_cursor_verdict_leads_to_rebuild(question: type, code: ErrorCode) -> None:
    world, ann, bob = pair()
    ann.send(1, peer=2, body=b"1")
    world.advance(1_000)
    world.cut(bob)
    world.services.refuse(question, code)
    world.services.pushes = False
    ann.send(2, peer=2, body=b"2")
    world.advance(40_000)
    assert bob.store.state is LocalState.ONLINE
    assert bob.bodies() == [b"1", b"2"]
    assert world.counts["client_rebuilds"] == 1


def test_rebuild_waits_for_its_state_to_be_stored() -> None:
    world, _, bob = trimmed_world()
    bob.store.fail_next += [SaveState, SaveState]
    bob.online()
    world.advance(30_000)
    assert bob.store.state is LocalState.ONLINE
    assert len(bob.store.messages) == 11
