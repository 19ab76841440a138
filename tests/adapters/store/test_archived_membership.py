"""A group's versions and intervals are the same in the hot store, in the archive, and in a hot store restored from it."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qim.adapters.redis.scripts import load_scripts
from qim.core.contract.entities import MembershipOp
from qim.core.ports.store_history import RestoreConversations
from qim.core.ports.store_message import Fresh
from qim.core.ports.store_reads import ReadVersions
from qim.sim.keyspace import ScriptRuntime
from tests.adapters.archive.archives import Asker, SqliteAsked
from tests.adapters.archive.records import control
from tests.adapters.archive.records import grouped as archived_message
from tests.adapters.store.requests import GROUP, Shard, digest_of, grouped, step
from tests.adapters.store.servers import SimulatedStore, ask

RUNTIME = ScriptRuntime(load_scripts())
USERS = st.lists(st.sampled_from([1, 2, 3, 7, 255, 256, (1 << 64) - 1]), min_size=1, unique=True)
CHANGES = st.lists(
    st.tuples(
        st.sampled_from([MembershipOp.ADD, MembershipOp.REMOVE, MembershipOp.LEAVE]),
        USERS,
        st.integers(0, 2),
    ),
    max_size=12,
)


def told(shard: Shard, versions: int) -> tuple[Any, ...]:
    """All that the hot store says of the group."""
    read = shard.membership()
    names = tuple((3, GROUP, v, digest_of(v)) for v in range(1, versions + 1))
    exact = ask(shard.store, ReadVersions(op=1, names=names)).versions
    return read.version, read.everyone, read.creator, read.name, read.meta, exact


@given(USERS, CHANGES, st.integers(0, 12))
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_three_ways_to_the_same_members(
    tmp_path_factory: pytest.TempPathFactory, founders: list[int], changes: Any, partly: int
) -> None:
    """``partly``: how many changes a hot store already has when it is restored over."""
    archive = SqliteAsked(Path(tmp_path_factory.mktemp("archive")) / "a.sqlite")
    asker = Asker(archive)
    whole, older = Shard(SimulatedStore(RUNTIME)), Shard(SimulatedStore(RUNTIME))
    number, version = 0, 0
    plan = [(MembershipOp.CREATE, founders, 1), *changes]
    for at, (operation, users, messages) in enumerate(plan):
        version += 1
        for shard in (older, whole)[0 if at <= partly else 1 :]:
            result = shard.change(number + 1, step(version, operation, tuple(users)))
        assert isinstance(result, Fresh)
        number += 1
        row = control(result.conversation_seq, version, operation, tuple(users))
        rows = [row]
        for _ in range(messages):
            number += 1
            for shard in (whole, older)[: 2 if at <= partly else 1]:
                shard.reserve(grouped(number, version, digest_of(version)))
            rows.append(archived_message(row.conversation_seq + len(rows)))
        asker.written(*rows)
    (group,) = asker.conversations().conversations
    archive.close()
    wanted = told(whole, version)
    assert group.versions == wanted[5]
    assert [(m.user_id, m.intervals) for m in group.everyone] == [
        (m.user_id, m.intervals) for m in wanted[1]
    ]
    empty = Shard(SimulatedStore(RUNTIME))
    for shard in (empty, older):
        shard.ask(RestoreConversations, conversations=(group,), applied_to=9)
        again = told(shard, version)
        assert (again[0], again[1], again[5]) == (wanted[0], wanted[1], wanted[5])
        assert (again[2], again[3], again[4]) == (1, "name ü", b"\x00meta")
