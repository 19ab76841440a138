"""Ends of partitions before brokers that a test plays: who led when it answered, and who says so."""

from qim.adapters.kafka.cluster import Leader
from qim.adapters.kafka.ends import Ends
from qim.adapters.kafka.wire import AskOffsets
from qim.core.ports.completion import FailReason
from tests.adapters.log.played_cluster import TOPIC_ID
from tests.adapters.log.stage import KEY, Stage


def test_ends_of_a_topic_that_is_made_anew_meanwhile_are_not_mixed(stage: Stage) -> None:
    stage.asker.ask(KEY, stage.told.append)
    stage.asked(AskOffsets)
    stage.cluster.id = b"u" * 16
    stage.ends(0, 9)
    assert stage.told == [], "asked under the one, answered under the other"
    stage.ends(0, 2)
    stage.cluster.refreshed()
    stage.until(1)
    assert stage.told == [Ends(topic_id=b"u" * 16, start=0, end=2)]


def test_ends_of_who_led_before_it_slept_are_not_told(stage: Stage) -> None:
    """A resumed leader answers what stood when it was paused; the cluster, asked afterwards, names another."""
    stage.asker.ask(KEY, stage.told.append)
    stage.ends(0, 4)
    assert (stage.told, stage.cluster.doubted) == ([], [1]), "not by its own word"
    stage.cluster.led = Leader(2, 1, 3)
    stage.cluster.refreshed()
    stage.ends(0, 10)
    assert (stage.told, stage.cluster.doubted) == ([], [1, 2])
    stage.cluster.refreshed()
    stage.until(1)
    assert stage.told == [Ends(topic_id=TOPIC_ID, start=0, end=10)]


def test_ends_of_a_leader_that_was_elected_again_are_asked_again(stage: Stage) -> None:
    """The same broker, another leadership: what it said belongs to the one before."""
    stage.asker.ask(KEY, stage.told.append)
    stage.ends(0, 4)
    stage.cluster.led = Leader(1, 2, 3)
    stage.cluster.refreshed()
    stage.ends(0, 5)
    stage.cluster.refreshed()
    stage.until(1)
    assert stage.told == [Ends(topic_id=TOPIC_ID, start=0, end=5)]


def test_ends_of_a_single_copy_are_told_at_once(stage: Stage) -> None:
    stage.cluster.led = Leader(1, 0, 1)
    stage.asker.ask(KEY, stage.told.append)
    stage.ends(0, 4)
    assert stage.told == [Ends(topic_id=TOPIC_ID, start=0, end=4)]
    assert stage.cluster.doubted == []


def test_ends_that_need_not_be_sure_are_told_at_once(stage: Stage) -> None:
    stage.asker.ask(KEY, stage.told.append, sure=False)
    stage.ends(0, 4)
    assert stage.told == [Ends(topic_id=TOPIC_ID, start=0, end=4)]


def test_ends_that_nobody_confirms_are_unreachable_in_time() -> None:
    stage = Stage(fetch_patience_ms=200)
    stage.asker.ask(KEY, stage.told.append)
    stage.ends(0, 4)
    try:
        stage.until(1)
        assert stage.told == [FailReason.UNREACHABLE]
    finally:
        stage.close()
