"""Any sequence of appends, fetches, retention and reopening, against a list (every log)."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qim.core.ports.log import Appended, Fetched, OutOfRange, Topic
from tests.adapters.log.conftest import LOGS, OpenLog
from tests.adapters.log.logs import Asker

VALUES = st.lists(st.binary(max_size=40), min_size=1, max_size=4)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), VALUES),
        st.tuples(
            st.just("fetch"),
            st.tuples(st.integers(0, 30), st.integers(1, 6), st.integers(0, 150)),
        ),
        st.tuples(st.just("retain"), st.integers(0, 30)),
        st.tuples(st.just("reopen"), st.none()),
    ),
    max_size=25,
)


class Model:
    """What a partition is: values from ``start`` on."""

    def __init__(self) -> None:
        self.start = 0
        self.values: list[bytes] = []

    def expected(self, offset: int, limit: int, bytes_max: int) -> list[bytes] | None:
        """None: out of range."""
        if not self.start <= offset <= len(self.values):
            return None
        taken: list[bytes] = []
        size = 0
        for value in self.values[offset : offset + limit]:
            size += 16 + len(value)
            if taken and size > bytes_max:
                break
            taken.append(value)
        return taken


def run(asker: Asker, model: Model, operation: tuple[str, object]) -> None:
    match operation:
        case ("append", list() as appended):
            answer = asker.append(*appended)
            assert isinstance(answer, Appended)
            end = len(model.values)
            assert answer.offsets == tuple(range(end, end + len(appended)))
            model.values += appended
        case ("retain", int() as start):
            asker.log.retain(Topic.OUTBOX, 0, start)
            model.start = min(max(model.start, start), len(model.values))
        case ("fetch", (int() as offset, int() as limit, int() as bytes_max)):
            reply = asker.fetch(offset, limit=limit, bytes_max=bytes_max)
            expected = model.expected(offset, limit, bytes_max)
            if expected is None:
                assert isinstance(reply, OutOfRange)
            else:
                assert isinstance(reply, Fetched)
                assert [one.value for one in reply.records] == expected
                places = range(offset, offset + len(expected))
                assert [one.offset for one in reply.records] == list(places)
            assert (reply.start, reply.end) == (model.start, len(model.values))
        case _:
            asker.log.reopen()


@pytest.mark.parametrize("name", LOGS)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(operations=OPERATIONS)
def test_a_log_is_a_list_with_a_start(
    name: str, open_log: OpenLog, operations: list[tuple[str, object]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = open_log(name, Path(folder))
        try:
            asker, model = Asker(log), Model()
            for operation in operations:
                run(asker, model, operation)
            ends = asker.ends()
            assert (ends.start, ends.end) == (model.start, len(model.values))
        finally:
            log.close()
