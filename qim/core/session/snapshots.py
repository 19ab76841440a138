"""What was computed of users' conversations: summaries that still hold, and lists frozen under a revision (pipeline.md §4).

A summary holds while the stored row of its conversation is the one it was made for: a message, an overlay or a read mark
changes that row. It also ends when retention takes the first record that it counts or shows (Summary.valid_until).
"""

from msgspec import Struct

from qim.core.contract.rpc_session import SessionRow, Summary
from qim.core.machine import Ms
from qim.core.ports.store_session import SessionRecord
from qim.core.session.vocabulary import SessionConfig

ROW_BYTES = 256
"""What a row or summary costs beside its head, roughly."""
Owner = tuple[int, str, int]
"""(shard, tenant, user)."""
Inputs = tuple[bytes, int, int, bytes]


class Kept(Struct, frozen=True):
    """A summary and the row it was made for."""

    inputs: Inputs
    summary: Summary


class Snapshot(Struct, frozen=True):
    """A list as it was: ``rows`` by falling (last_activity_id, conversation_id)."""

    revision: int
    rows: tuple[SessionRow, ...]
    projected_through: int
    badge: int
    frozen_at: Ms


class _User(Struct):
    kept: dict[bytes, Kept] = {}
    given_up: dict[bytes, bytes] = {}
    """conversation -> the touched_id for which its writer was asked again in vain."""
    snapshots: tuple[Snapshot, ...] = ()
    bytes: int = 0


def inputs_of(record: SessionRecord) -> Inputs:
    """All that a summary depends on, but retention."""
    return record.last_activity_id, record.conversation_seq, record.read_seq, record.touched_id


class Snapshots:
    """All users' books, bounded by ``snapshot_bytes_max``; the user longest unasked goes first."""

    def __init__(self, config: SessionConfig) -> None:
        self._config = config
        self._users: dict[Owner, _User] = {}
        self.bytes = 0

    def kept(self, owner: Owner, record: SessionRecord, wall: int) -> Summary | None:
        """The summary of a conversation, if one still holds."""
        user = self._users.get(owner)
        kept = user.kept.get(record.conversation_id) if user is not None else None
        if kept is None or kept.inputs != inputs_of(record) or kept.summary.valid_until <= wall:
            return None
        return kept.summary

    def given_up(self, owner: Owner, record: SessionRecord) -> bool:
        """Was its writer asked again for exactly this state of the row, as often as is worth it, in vain?"""
        user = self._users.get(owner)
        return user is not None and user.given_up.get(record.conversation_id) == record.touched_id

    def find(self, now: Ms, owner: Owner, revision: int) -> Snapshot | None:
        """The list frozen under ``revision``, if it stands; the user becomes the last to go."""
        user = self._users.pop(owner, None)
        if user is None:
            return None
        self._users[owner] = user
        for snapshot in user.snapshots:
            fresh = now < snapshot.frozen_at + self._config.snapshot_ms
            if snapshot.revision == revision and fresh:
                return snapshot
        return None

    def freeze(
        self,
        owner: Owner,
        snapshot: Snapshot,
        kept: dict[bytes, Kept],
        given_up: dict[bytes, bytes],
    ) -> None:
        """Keep a list, the summaries that may serve the next one, and what was asked again in vain."""
        user = self._users.pop(owner, None) or _User()
        self.bytes -= user.bytes
        most = self._config.snapshots_per_user_max
        user.snapshots = (*user.snapshots, snapshot)[-most:]
        user.kept = kept
        user.given_up = given_up
        user.bytes = _cost(user)
        self.bytes += user.bytes
        self._users[owner] = user
        while self.bytes > self._config.snapshot_bytes_max and len(self._users) > 1:
            self._drop(next(iter(self._users)))

    def forget(self, shard: int) -> None:
        """A shard is gone, or another incarnation: nothing of it holds."""
        for owner in [owner for owner in self._users if owner[0] == shard]:
            self._drop(owner)

    def clear(self) -> None:
        """A store was reset: nothing holds."""
        self._users.clear()
        self.bytes = 0

    def users(self) -> int:
        """Users with a list or summaries."""
        return len(self._users)

    def check(self) -> None:
        """The count of bytes is that of what is kept; a single user may exceed the bound alone."""
        assert self.bytes == sum([user.bytes for user in self._users.values()])
        assert self.bytes <= self._config.snapshot_bytes_max or len(self._users) == 1

    def _drop(self, owner: Owner) -> None:
        self.bytes -= self._users.pop(owner).bytes


def _cost(user: _User) -> int:
    """Heads are shared between summaries and rows, counted once where they are."""
    size = sum(ROW_BYTES + len(kept.summary.head) for kept in user.kept.values())
    size += ROW_BYTES * len(user.given_up)
    for snapshot in user.snapshots:
        size += sum(ROW_BYTES + len(row.head) + len(row.state_value) for row in snapshot.rows)
    return size
