"""What a stored record tells an archive besides itself: greatest seq, membership steps, overlays (pipeline.md §§1.8, 5).

Every fact is a row of its own, keyed so that inserting it again changes nothing, whatever the order and however late;
versions and intervals are made from the steps when they are read. So no archive needs a read before its write.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from qim.core.contract.entities import (
    ConversationKind,
    Interval,
    Member,
    MemberHistoryRow,
    MembershipOp,
    MembershipVersion,
    MessageKind,
    MessageRecord,
)

BUCKET_SEQS: Final = 4_096
"""Conversation seqs of one history bucket (pipeline.md §5)."""
ALWAYS: Final = (1 << 64) - 1
_JOINING: Final = (MembershipOp.CREATE, MembershipOp.ADD)


class MembershipStep(Struct, frozen=True, kw_only=True, gc=False):
    """One control record: the users really changed, the version and digest it made, its own seq."""

    version: int
    digest: bytes
    control_seq: int
    operation: int
    users: tuple[int, ...]


class Founding(Struct, frozen=True, kw_only=True, gc=False):
    """What a group's CREATE record says."""

    creator: int
    name: str
    meta: bytes


def bucket_of(conversation_seq: int) -> int:
    """The history bucket a seq belongs to."""
    return conversation_seq // BUCKET_SEQS


def single_users_of(record: MessageRecord) -> tuple[int, int] | None:
    """A single chat's two users, the lower first."""
    if record.conversation_kind != ConversationKind.SINGLE:
        return None
    first, second = sorted((record.sender_id, record.peer_user_id))
    return first, second


def step_of(record: MessageRecord) -> MembershipStep | None:
    """The membership step a control record made."""
    delta = record.delta
    if delta is None:
        return None
    return MembershipStep(
        version=delta.version,
        digest=delta.digest,
        control_seq=record.conversation_seq,
        operation=delta.op,
        users=delta.users,
    )


def founding_of(record: MessageRecord) -> Founding | None:
    """Creator, name and meta of the group a record founds."""
    delta = record.delta
    if delta is None or delta.op != MembershipOp.CREATE:
        return None
    return Founding(creator=record.sender_id, name=delta.name, meta=delta.meta)


def overlay_of(record: MessageRecord) -> tuple[int, int, int] | None:
    """(target seq, own seq, user of a delete-for-me or 0 for a recall)."""
    if record.kind == MessageKind.RECALL:
        return record.target_seq, record.conversation_seq, 0
    if record.kind == MessageKind.DELETE_FOR_ME:
        return record.target_seq, record.conversation_seq, record.sender_id
    return None


def membership_after(
    conversation_id: bytes, steps: Iterable[MembershipStep]
) -> tuple[tuple[MembershipVersion, ...], tuple[MemberHistoryRow, ...]]:
    """Every version in order and all who ever were members, exactly as the hot store has them (contract.md, Interval).

    A version's members carry the intervals known now. The chain is taken as far as it reaches without a gap.
    """
    intervals: dict[int, list[tuple[int, int]]] = {}
    present: dict[int, None] = {}
    made: list[tuple[MembershipStep, tuple[int, ...]]] = []
    for step in sorted(steps, key=lambda one: (one.version, one.digest)):
        if step.version != len(made) + 1:
            if step.version <= len(made):
                continue
            break
        _walk(step, intervals, present)
        made.append((step, tuple(sorted(present))))
    members = {
        user: Member(user, tuple([Interval(*pair) for pair in pairs]))
        for user, pairs in intervals.items()
    }
    versions = tuple(
        [
            MembershipVersion(
                conversation_id=conversation_id,
                version=step.version,
                digest=step.digest,
                control_seq=step.control_seq,
                members=tuple([members[user] for user in users]),
            )
            for step, users in made
        ]
    )
    everyone = [MemberHistoryRow(user, tuple(intervals[user])) for user in sorted(intervals)]
    return versions, tuple(everyone)


def _walk(
    step: MembershipStep, intervals: dict[int, list[tuple[int, int]]], present: dict[int, None]
) -> None:
    """An interval begins at the seq before the control message and ends at the control message's own."""
    joining = step.operation in _JOINING
    since = 0 if step.operation == MembershipOp.CREATE else step.control_seq - 1
    for user in step.users:
        if joining and user not in present:
            present[user] = None
            intervals.setdefault(user, []).append((since, ALWAYS))
        elif not joining and user in present:
            del present[user]
            intervals[user][-1] = (intervals[user][-1][0], step.control_seq)
