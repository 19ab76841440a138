"""The simulator's store and a real one, given the same requests, give the same replies and hold the same keyspace.

This is what makes a simulated run evidence about the real store (docs: architecture, "One meaning for the store").
"""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from msgspec.structs import replace

from qim.core.ports import store_audit as audit
from qim.core.ports import store_history as history
from qim.core.ports import store_mailbox as mailbox
from qim.core.ports import store_message as message
from qim.core.ports import store_operator as operator
from qim.core.ports import store_reads as reads
from qim.core.ports import store_session as session
from qim.core.ports import store_source as source
from qim.core.ports.completion import Failed, Fenced
from qim.core.ports.store_mailbox import MailboxStoreRequest
from qim.core.ports.store_session import SessionStoreRequest
from tests.adapters.store.conftest import Stores
from tests.adapters.store.requests import MARKER
from tests.adapters.store.samples import KINDS as ALL_KINDS
from tests.adapters.store.samples import OPENS
from tests.adapters.store.sequences import (
    BOUND,
    KINDS,
    MAILBOX_KINDS,
    SESSION_KINDS,
    WRITER_KINDS,
    requests_of,
)
from tests.adapters.store.servers import Store, ask

DUMP_EVERY = 8
CONNECTED = (
    message.ReserveAndRecord,
    message.MembershipChange,
    message.MarkCommitted,
    mailbox.AppendEntries,
    mailbox.ReadMailboxes,
    reads.ReadHistory,
    history.CommitArchive,
    history.TrimHot,
    history.RestoreConversations,
)


def resource_of(request: Any) -> Any:
    """What an epoch fences: a writer shard, a source partition, its archiver, a mailbox or session shard, a coverage."""
    number = request.partition if hasattr(request, "partition") else request.shard
    if isinstance(request, history.OpenArchive | history.CommitArchive):
        return "archive", number
    if isinstance(request, audit.CoverageStoreRequest):
        return "coverage", number
    if hasattr(request, "partition"):
        return "source", number
    if isinstance(request, SessionStoreRequest | operator.RestartProjection):
        return "session", number
    mailboxes = MailboxStoreRequest | operator.BumpShard
    return ("mailbox" if isinstance(request, mailboxes) else "writer"), number


class TwoStores(RuleBasedStateMachine):
    """Every request goes to both; a difference is a failure."""

    def __init__(self, simulated: Store, real: Store) -> None:
        super().__init__()
        self.stores = (simulated, real)
        self.asked = 0
        self.epochs: dict[Any, int] = {}
        for store in self.stores:
            store.flush()

    def both(self, request: Any) -> Any:
        simulated, real = [ask(store, request) for store in self.stores]
        assert simulated == real, request
        if isinstance(request, OPENS) and not isinstance(simulated, Failed | Fenced):
            self.epochs[resource_of(request)] = request.epoch
        self.asked += 1
        if self.asked % DUMP_EVERY == 0:
            self.same_keyspace()
        return simulated

    def same_keyspace(self) -> None:
        simulated, real = [store.dump() for store in self.stores]
        assert simulated == real

    @initialize(unopened=st.integers(0, 9))
    def open(self, unopened: int) -> None:
        if unopened == 0:
            return
        for shard in (0, 1):
            for request in (
                message.OpenShard(op=1, shard=shard, epoch=2, fresh_key=MARKER),
                source.OpenSource(op=1, partition=shard, epoch=2, fresh_key=MARKER),
                history.OpenArchive(op=1, partition=shard, epoch=2, fresh_key=MARKER),
                audit.OpenCoverage(op=1, partition=shard, epoch=2, fresh_key=MARKER),
                mailbox.OpenMailbox(op=1, shard=shard, epoch=2, fresh_key=MARKER, initial=1 << 53),
                session.OpenSession(op=1, shard=shard, epoch=2, fresh_key=MARKER),
            ):
                self.both(request)

    @rule(request=st.sampled_from(KINDS).flatmap(requests_of))
    def any_request(self, request: Any) -> None:
        self.both(request)

    @rule(request=st.sampled_from(WRITER_KINDS).flatmap(requests_of))
    def writer_request(self, request: Any) -> None:
        self.both(request)

    @rule(request=st.sampled_from(MAILBOX_KINDS).flatmap(requests_of))
    def mailbox_request(self, request: Any) -> None:
        self.both(request)

    @rule(request=st.sampled_from(SESSION_KINDS).flatmap(requests_of))
    def session_request(self, request: Any) -> None:
        self.both(request)

    @rule(request=st.sampled_from(KINDS).flatmap(requests_of))
    def rightful_request(self, request: Any) -> None:
        """Under the epoch and incarnation that stand, and with the compare-and-sets that fit."""
        self.both(self.rightful(request))

    @rule(requests=st.lists(st.sampled_from(CONNECTED).flatmap(requests_of), max_size=4))
    def rightful_requests(self, requests: list[Any]) -> None:
        for request in requests:
            self.both(self.rightful(request))

    def rightful(self, request: Any) -> Any:
        names = request.__struct_fields__
        changes: dict[str, Any] = {}
        if "incarnation" in names:
            changes["incarnation"] = BOUND
        if "epoch" in names:
            changes["epoch"] = self.epochs.get(resource_of(request), request.epoch)
        if isinstance(request, mailbox.AppendEntries):
            state = self.both(mailbox.ReadShardState(op=1, shard=request.shard))
            if isinstance(state, mailbox.ShardStateRead) and 0 <= state.base == state.min_watermark:
                to = max(request.base_to, state.base)
                changes |= {"base_from": state.base, "base_to": to, "moves": ()}
        if isinstance(request, history.CommitArchive):
            seen = self.both(history.ReadArchivePosition(op=1, partition=request.partition))
            if isinstance(seen, history.ArchivePositionRead):
                changes["from_offset"] = seen.offset
        if isinstance(request, operator.BumpShard):
            state = self.both(mailbox.ReadShardState(op=1, shard=request.shard))
            if isinstance(state, mailbox.ShardStateRead) and state.min_watermark >= 0:
                changes["from_watermark"] = state.min_watermark
        if isinstance(request, source.CommitSource | operator.AmendSource):
            asked = source.ReadSource(op=1, partition=request.partition, low=0, high=9, limit=3)
            state = self.both(asked)
            if isinstance(state, source.SourceRead) and state.checkpoint >= 0:
                changes["from_offset"] = state.checkpoint
        return replace(request, **changes)

    def teardown(self) -> None:
        self.same_keyspace()


@pytest.mark.parametrize("server", ["valkey", "redis", "locale"])
def test_equal_replies_and_equal_keyspaces(stores: Stores, server: str) -> None:
    simulated, real = stores.get("simulator"), stores.get(server)
    run_state_machine_as_test(
        lambda: TwoStores(simulated, real),
        settings=settings(max_examples=50, stateful_step_count=40, deadline=None),
    )


def test_every_request_takes_part() -> None:
    assert set(KINDS) == set(ALL_KINDS)
