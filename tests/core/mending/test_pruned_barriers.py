"""A dead letter older than every barrier that the registry kept: nobody can tell whether its record means anything."""

import pytest

from qim.core.contract.logvalue import Outboxed, read_outbox
from qim.core.mending.dead_letters import _judged
from qim.core.ports.registry import LeaseRead, ReadLease
from tests.core.writer.scene import Scene

OFFSET = 7


@pytest.fixture(scope="module")
def value() -> bytes:
    """A record of the writer's own."""
    scene = Scene()
    scene.send(1, 2)
    scene.settle()
    return scene.log[-1].value


def judged(value: bytes, barrier_epoch: int, barrier_offset: int) -> str:
    procedure = _judged(0, OFFSET, value, False)
    request = next(procedure)
    assert isinstance(request, ReadLease)
    assert request.barriers_below == OFFSET
    answer = LeaseRead(
        op=0,
        resource=request.resource,
        epoch=99,
        owner="",
        address="",
        barrier_epoch=barrier_epoch,
        barrier_offset=barrier_offset,
    )
    with pytest.raises(StopIteration) as done:
        procedure.send(answer)
    return str(done.value.value.state)


def test_only_what_stands_above_a_known_barrier_is_readable(value: bytes) -> None:
    entry = read_outbox(value)
    assert isinstance(entry, Outboxed)
    assert judged(value, entry.epoch, OFFSET - 1) == "readable"
    assert judged(value, entry.epoch + 1, OFFSET - 1) == "ineffective"
    assert judged(value, 0, -1) == "barrier_unknown"
