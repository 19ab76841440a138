"""Pending rows in memory, by conversation and in the order of sending (pipeline.md §6, Client).

    SAVING ──durable──► QUEUED ──not_after durable──► INFLIGHT ──ack, own copy──► SETTLING ──durable──► settled
                         ▲  └──FIXING──┘                 │  │
                         └───────── COOLING ◄──may help──┘  └──SEND_EXPIRED──► LOOKING ──found or not──► SETTLING

A lane is one conversation: only its head window is on the wire, so a refused or lost row never lets a later one pass.
The rows themselves live in the local store; this is what the machine must remember between two steps.
"""

from collections import deque
from collections.abc import Iterator
from enum import IntEnum
from typing import Final

from qim.core.contract.entities import MembershipOp
from qim.core.contract.ids import dedupe_key, group_conversation_id, single_conversation_id
from qim.core.contract.sequences import U64_MAX
from qim.core.machine import Ms
from qim.core.ports.local_store import PendingGroupChange, PendingMessage, PendingRow


class RowStage(IntEnum):
    """The states of the diagram."""

    SAVING = 1
    QUEUED = 2
    FIXING = 3
    INFLIGHT = 4
    COOLING = 5
    LOOKING = 6
    SETTLING = 7


ON_WIRE: Final = (RowStage.FIXING, RowStage.INFLIGHT)
_SETTLING: Final = RowStage.SETTLING


class OutboxRow:
    """One unsettled row. ``stored``: the local store is known to have it; before that it is on no wire. ``transmitted``:
    it may have reached a server; then its not_after never changes again."""

    __slots__ = (
        "conversation_id",
        "due",
        "expired",
        "key",
        "looked_from",
        "row",
        "stage",
        "stored",
        "trace",
        "transmitted",
        "tries",
    )

    def __init__(self, row: PendingRow, conversation_id: bytes, trace: int) -> None:
        self.row = row
        self.key = row.client_message_id
        self.conversation_id = conversation_id
        self.trace = trace
        self.stage = RowStage.SAVING
        self.stored = False
        self.transmitted = False
        self.tries = 0
        self.due: Ms = 0
        self.expired = False
        self.looked_from = U64_MAX


def outbox_row(row: PendingRow, tenant_id: str, user_id: int) -> OutboxRow:
    """Computes the conversation it goes to, as the server will, and its trace."""
    key = row.client_message_id
    if isinstance(row, PendingGroupChange) and row.operation == MembershipOp.CREATE:
        conversation_id = group_conversation_id(tenant_id, user_id, key)
    elif row.conversation_id is not None:
        conversation_id = row.conversation_id
    else:
        assert isinstance(row, PendingMessage) and row.peer_user_id is not None
        conversation_id = single_conversation_id(tenant_id, user_id, row.peer_user_id)
    trace = int.from_bytes(dedupe_key(tenant_id, user_id, key)[:8], "big")
    return OutboxRow(row, conversation_id, trace)


class Outbox:
    """Rows by key, and lanes of those that must still go out. It sends nothing.

    ``inflight`` counts the rows on the wire or about to be (FIXING, INFLIGHT).
    """

    def __init__(self) -> None:
        self.rows: dict[bytes, OutboxRow] = {}
        self.inflight = 0
        self.cooling: dict[bytes, OutboxRow] = {}
        self._lanes: dict[bytes, deque[OutboxRow]] = {}
        self._runnable: dict[bytes, None] = {}

    def add(self, row: OutboxRow) -> None:
        """A new row, behind all of its conversation."""
        assert row.key not in self.rows, "client_message_id stands already"
        self.rows[row.key] = row
        self.enlist(row)

    def enlist(self, row: OutboxRow) -> None:
        """Into its lane at its place: a row whose settling failed comes back where it was."""
        lane = self._lanes.setdefault(row.conversation_id, deque())
        at = len(lane)
        while at and lane[at - 1].row.order > row.row.order:
            at -= 1
        lane.insert(at, row)
        self.wake(row)

    def delist(self, row: OutboxRow) -> None:
        """Out of its lane: the next of the conversation may go."""
        lane = self._lanes.get(row.conversation_id)
        if lane is None or row not in lane:
            return
        lane.remove(row)
        if lane:
            self.wake(row)
        else:
            del self._lanes[row.conversation_id]
            self._runnable.pop(row.conversation_id, None)

    def drop(self, row: OutboxRow) -> None:
        """Settled or never stored."""
        self.delist(row)
        self.rows.pop(row.key, None)

    def cool(self, row: OutboxRow, due: Ms) -> None:
        """Not again before ``due``."""
        self.inflight -= row.stage in ON_WIRE
        row.tries += 1
        row.stage = RowStage.COOLING
        row.due = due
        self.cooling[row.key] = row

    def warm(self, now: Ms) -> None:
        """End the pauses that are over."""
        if not self.cooling:
            return
        for row in [row for row in self.cooling.values() if row.due <= now]:
            del self.cooling[row.key]
            row.stage = RowStage.QUEUED
            self.wake(row)

    def leave(self, row: OutboxRow) -> None:
        """Into SETTLING: the next row of its conversation may go."""
        self.inflight -= row.stage in ON_WIRE
        self.cooling.pop(row.key, None)
        row.stage = RowStage.SETTLING
        self.delist(row)

    def is_clear_for(self, conversation_id: bytes, window: int) -> bool:
        """Could one more row of the conversation go out as soon as it is stored."""
        lane = self._lanes.get(conversation_id, ())
        moving = (RowStage.SAVING, *ON_WIRE)
        return len(lane) < window and all(row.stage in moving for row in lane)

    def wake(self, row: OutboxRow) -> None:
        """Something changed in the row's lane."""
        self._runnable[row.conversation_id] = None

    def wake_all(self) -> None:
        """Something changed for every lane."""
        self._runnable = dict.fromkeys(self._lanes)

    def take_runnable(self) -> list[bytes]:
        """Lanes to look at, each once."""
        lanes = list(self._runnable)
        self._runnable.clear()
        return lanes

    def put_back(self, lanes: list[bytes]) -> None:
        """Lanes that could not be looked at after all."""
        self._runnable.update(dict.fromkeys(lanes))

    def head(self, conversation_id: bytes, window: int) -> Iterator[OutboxRow]:
        """The first ``window`` rows of a lane in order."""
        lane = self._lanes.get(conversation_id, ())
        for at, row in enumerate(lane):
            if at >= window:
                return
            yield row

    def check(self) -> None:
        """Lanes hold exactly the rows that are not settling, in order."""
        if not self.rows:
            assert not (self._lanes or self.inflight or self.cooling), "no row, and yet"
            return
        listed = 0
        for conversation_id, lane in self._lanes.items():
            assert lane, "an empty lane"
            last = lane[0].row.order
            for row in lane:
                assert row.row.order >= last, "a lane out of order"
                last = row.row.order
                assert row.conversation_id == conversation_id
                assert self.rows.get(row.key) is row
                assert row.stage is not _SETTLING
            listed += len(lane)
        settling = on_wire = 0
        for row in self.rows.values():
            settling += row.stage is _SETTLING
            on_wire += row.stage in ON_WIRE
        assert listed + settling == len(self.rows), "a row is nowhere"
        assert on_wire == self.inflight, f"{on_wire} rows on the wire, counted {self.inflight}"
        for key, row in self.cooling.items():
            assert self.rows.get(key) is row and row.stage is RowStage.COOLING
