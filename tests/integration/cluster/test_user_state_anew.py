"""A user-state topic that was made anew on real servers: nobody starts over it until a person has said so."""

import asyncio
from pathlib import Path

import pytest

from qim.core.contract.frames import MarkRead, Ok, StateBatch, StateSync
from qim.core.contract.ids import single_conversation_id
from qim.core.ports.log import Topic
from tests.integration.cluster.cluster import Cluster, make_topics
from tests.integration.cluster.operating import (
    HEARS,
    SAYS,
    delete_topic,
    examined,
    heard,
    ordered,
    say,
)
from tests.integration.cluster.role_process import RoleProcess
from tests.integration.raw_client import RawClient
from tests.integration.testbed.server_process import ServerFailed

CHAT = single_conversation_id("default", SAYS, HEARS)
pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("cluster")]


def test_marks_are_taken_again_after_an_order(tmp_path: Path) -> None:
    """What was set stands, and a device that knew everything before hears of what is set afterwards."""
    with Cluster(tmp_path / "cluster") as cluster:
        last = asyncio.run(say(cluster, b"one", b"two", b"three"))

        async def mark(seq: int) -> None:
            async with await RawClient.log_in(cluster.target, HEARS) as reader:
                await reader.ask(MarkRead(conversation_id=CHAT, read_seq=seq), Ok)

        async def told_since(revision: int) -> StateBatch:
            async with await RawClient.log_in(cluster.target, HEARS, device=b"other") as reader:
                return await reader.ask(StateSync(since_revision=revision), StateBatch)

        asyncio.run(heard(cluster, last, b"d1"))
        for seq in (1, 2):
            asyncio.run(mark(seq))
        known = asyncio.run(told_since(0))
        assert [state.read_seq for state in known.states] == [2]
        sessions = cluster.roles("session")
        for process in sessions:
            assert process.stop() == 0
        asyncio.run(delete_topic(cluster, Topic.USER_STATE))
        asyncio.run(make_topics(cluster.kafka_settings()))
        _, found = examined(cluster)
        (anew,) = [one for one in found if one["subject"] == "shared topic_id_user_state"]
        assert "qim repair states" in anew["do"]
        refused = RoleProcess("session-9", "session", tmp_path / "refused", sessions[0].settings)
        with pytest.raises(ServerFailed, match="topic_id_user_state"):
            refused.start()
        status, report = ordered(cluster, "repair", "states")
        assert (status, sum(one["padding"] for one in report["found"])) == (1, 2), "a dry run"
        status, report = ordered(cluster, "repair", "states", "--apply")
        assert (status, report.get("refused")) == (0, None), report
        cluster.start_processes(sessions)
        assert asyncio.run(told_since(0)).revision == known.revision
        asyncio.run(mark(3))
        after = asyncio.run(told_since(known.revision))
        assert [state.read_seq for state in after.states] == [3]
