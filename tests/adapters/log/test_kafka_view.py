"""What we know of brokers, leaders and topics, and how a broker that is not there is told."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka.conn import AIOKafkaConnection

from qim.adapters.kafka.cluster import BrokerGone, Cluster, Lane, Leader
from tests.adapters.log.kafka_asked import settings_for
from tests.adapters.log.played_cluster import TOPIC_ID, Said
from tests.adapters.log.stage import KEY, NAME


def metadata(epoch: int, node: int, topic_id: bytes = TOPIC_ID, error: int = 0) -> Said:
    return Said(
        brokers=[(1, "a", 1, None, {}), (2, "b", 2, None, {})],
        topics=[
            (error, NAME, topic_id, False, [(0, 0, node, epoch, [1, 2, 3], [], [], {})], 0, {})
        ],
    )


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    loop = asyncio.new_event_loop()
    yield Cluster(settings_for("127.0.0.1:1"), loop, [NAME])
    loop.close()


def test_leaderships_never_go_back(cluster: Cluster) -> None:
    cluster._take(metadata(5, 2))
    cluster._take(metadata(4, 1))
    assert cluster.leader(*KEY) == Leader(2, 5, 3)
    cluster._take(metadata(6, 1))
    assert cluster.leader(*KEY) == Leader(1, 6, 3)
    cluster._take(metadata(7, -1))
    assert cluster.leader(*KEY) is None


def test_a_topic_made_anew_begins_its_leaderships_anew(cluster: Cluster) -> None:
    cluster._take(metadata(5, 2))
    cluster._take(metadata(0, 1, b"n" * 16))
    assert cluster.leader(*KEY) == Leader(1, 0, 3)
    assert cluster.topic_id(NAME) == b"n" * 16
    assert cluster.topics_recreated == 1


def test_a_topic_that_is_gone_keeps_its_id_to_be_compared_with(cluster: Cluster) -> None:
    cluster._take(metadata(5, 2))
    cluster._take(metadata(0, 0, bytes(16), error=3))
    assert cluster.leader(*KEY) is None
    assert cluster.topic_id(NAME) == TOPIC_ID
    cluster._take(metadata(0, 1, b"n" * 16))
    assert cluster.topics_recreated == 1


def test_who_is_doubted_is_asked_last(cluster: Cluster) -> None:
    cluster._take(metadata(5, 2))
    cluster._last_good = 2
    assert cluster._candidates()[0] == 2
    cluster.doubt(2)
    assert cluster._candidates()[-1] == 2


def test_nor_is_who_is_doubted_asked_by_the_address_we_began_with(cluster: Cluster) -> None:
    """Whoever answers there may be the one: an address says nothing of ids, and may be another name."""
    began_with = ("127.0.0.1", 1)
    cluster._take(metadata(5, 2))
    cluster._last_good = began_with
    assert cluster._candidates()[0] == began_with
    cluster.doubt(2)
    assert cluster._candidates()[0] == 1
    assert {began_with, 2} == {*cluster._candidates()[-2:]}


@pytest.mark.parametrize("brokers", [1, 2])
@pytest.mark.parametrize("answering", [2, ("127.0.0.1", 1)])
def test_a_doubted_broker_s_own_word_settles_only_where_it_is_alone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, brokers: int, answering: Any
) -> None:
    """No other one answers, and it believes what it believed when it fell asleep."""
    cluster._take(metadata(5, 2))
    cluster._last_good = answering

    async def ask(node: Any, lane: Lane, request: Any) -> Any:
        if node != answering:
            raise BrokerGone("asleep", sent=True)
        told = metadata(5, 2)
        told.brokers = [one for one in told.brokers if brokers > 1 or one[0] == 2]
        return told

    monkeypatch.setattr(cluster, "ask", ask)
    needed = cluster.doubt(2)
    cluster._wanted.clear()
    assert cluster._loop.run_until_complete(cluster.refresh())
    assert cluster.settled(2, needed) is (brokers == 1)
    assert cluster._wanted.is_set() is (brokers > 1), "asked again soon"


def test_a_look_under_way_settles_no_doubt(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the doubted one's own word; the look begun afterwards goes to another."""
    cluster._take(metadata(5, 2))
    asked: list[Any] = []

    async def ask(node: Any, lane: Lane, request: Any) -> Any:
        asked.append(node)
        if len(asked) == 1:
            needed.append(cluster.doubt(2))
        return metadata(5, 2)

    needed: list[int] = []
    cluster._last_good = 2
    monkeypatch.setattr(cluster, "ask", ask)
    for settled in (False, True):
        assert cluster._loop.run_until_complete(cluster.refresh())
        assert cluster.settled(2, needed[0]) is settled
    assert asked[0] == 2 and asked[1] != 2


def test_of_two_that_are_doubted_neither_settles_what_is_doubted_of_itself(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ends are asked of all leaders at once, and every one of them may have slept; another's word counts for each."""
    cluster._take(metadata(5, 2))
    asked: list[Any] = []

    async def ask(node: Any, lane: Lane, request: Any) -> Any:
        asked.append(node)
        return metadata(5, 2)

    monkeypatch.setattr(cluster, "ask", ask)
    cluster._last_good = 1
    needed = {node: cluster.doubt(node) for node in (1, 2)}
    cluster._wanted.clear()
    assert cluster._loop.run_until_complete(cluster.refresh())
    assert asked == [1]
    assert [cluster.settled(node, needed[node]) for node in (1, 2)] == [False, True]
    assert cluster._wanted.is_set(), "the other is asked for the first one's sake"
    cluster._wanted.clear()
    assert cluster._loop.run_until_complete(cluster.refresh())
    assert asked == [1, 2]
    assert [cluster.settled(node, needed[node]) for node in (1, 2)] == [True, True]
    assert not cluster._wanted.is_set()


def test_a_broker_that_is_not_there_is_surely_not_reached(cluster: Cluster) -> None:
    with pytest.raises(BrokerGone) as gone:
        cluster._loop.run_until_complete(cluster.ask(7, Lane.ASK, None))
    assert not gone.value.sent


def test_those_who_wait_for_a_broker_that_is_not_reached_are_told_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One after the other, each with a connect's patience, more would come than are answered."""
    dials: list[None] = []

    async def black_hole(connection: AIOKafkaConnection) -> None:
        dials.append(None)
        await asyncio.Event().wait()

    monkeypatch.setattr(AIOKafkaConnection, "connect", black_hole)

    async def main() -> list[Any]:
        settings = settings_for("127.0.0.1:1", connect_ms=20)
        cluster = Cluster(settings, asyncio.get_running_loop(), [NAME])
        cluster._take(metadata(5, 2))
        asked = [cluster.ask(2, Lane.ASK, None) for _ in range(50)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        with pytest.raises(BrokerGone):
            await cluster.ask(2, Lane.ASK, None)
        await cluster.close()
        return found

    found = asyncio.run(main())
    assert all(isinstance(one, BrokerGone) and not one.sent for one in found)
    assert len(dials) == 2, "once for all of them, and once for who came afterwards"
