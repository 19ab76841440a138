"""Whom a fault of the log strikes."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.injector import ClusterInjector
from qim.core.ports.log import Topic
from qim.sim.faults import Fault, LeaderChange, LogStall


class Broker:
    """Keeps what was done to it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.done: list[str] = []
        self.process = SimpleNamespace(alive=True)

    def kill(self) -> None:
        self.done.append("killed")

    def pause(self) -> None:
        self.done.append("paused")


def struck(fault: Fault, leader: int | None) -> tuple[list[list[str]], list[str]]:
    """What became of each of three brokers, and what was said."""
    brokers, said = [Broker(number) for number in (1, 2, 3)], []

    async def leading(topic: Topic, partition: int) -> Broker | None:
        assert (topic, partition) == (Topic.DISPATCH, 3)
        return None if leader is None else brokers[leader - 1]

    cluster: Any = SimpleNamespace(kafka=brokers, leading=leading)
    asyncio.run(ClusterInjector(cluster, say=said.append).begin(fault))  # type: ignore[arg-type]
    return [broker.done for broker in brokers], said


@pytest.mark.parametrize("leader", [1, 2, 3])
@pytest.mark.parametrize(("kind", "what"), [(LeaderChange, "killed"), (LogStall, "paused")])
def test_the_broker_that_leads_is_struck(
    kind: type[LeaderChange | LogStall], what: str, leader: int
) -> None:
    done, said = struck(kind(at_ms=1, until_ms=2, topic=Topic.DISPATCH, partition=3), leader)
    assert done == [[what] if number == leader else [] for number in (1, 2, 3)]
    assert not said


def test_where_nobody_leads_any_broker_is_struck_and_that_is_said() -> None:
    done, said = struck(LeaderChange(at_ms=4, until_ms=5, topic=Topic.DISPATCH, partition=3), None)
    assert done == [[], ["killed"], []]
    assert "by chance" in said[0]
