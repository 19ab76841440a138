"""Who gets a message: the one function that fanout, mailbox, auditor and session projection share (pipeline.md §§2-4).

Explicit recipients if a record or dispatch names any (membership control); else, in a single chat, its two users; else
the members of exactly the named version whose interval holds the seq. It never asks for today's members: a replay gives
the same answer as the first time. Users are sorted by user_id, shards ascending.
"""

from typing import Final

from qim.core.contract import routing
from qim.core.contract.entities import GroupDispatch, Member, MembershipVersion, MessageRecord
from qim.core.contract.sequences import U64_MAX

VersionKey = tuple[bytes, int, bytes]
"""(conversation_id, V, membership_digest): the name of an immutable MembershipVersion."""

NO_USERS: Final[tuple[int, ...]] = ()


def named_version(message: MessageRecord | GroupDispatch) -> VersionKey | None:
    """The version whose members are the audience; None where the message itself names its recipients."""
    if message.recipients or not message.version:
        return None
    return message.conversation_id, message.version, message.membership_digest


def sees(member: Member, conversation_seq: int) -> bool:
    """Visible iff joined_at < seq <= left_at in one of the member's intervals (contract.md, Entities)."""
    return any(part.joined_at < conversation_seq <= part.left_at for part in member.intervals)


class VersionAudience:
    """The members of one version, sorted into shards once, asked for many messages."""

    __slots__ = ("_members", "_open_from", "_users", "size")

    def __init__(self, version: MembershipVersion, shard_count: int) -> None:
        members: dict[int, list[Member]] = {}
        for member in version.members:
            members.setdefault(routing.shard(member.user_id, shard_count), []).append(member)
        self._members = {shard: tuple(members[shard]) for shard in sorted(members)}
        self._users = {
            shard: tuple(member.user_id for member in group)
            for shard, group in self._members.items()
        }
        self._open_from = _open_from(version.members)
        self.size = len(version.members)

    def shards(self) -> tuple[int, ...]:
        """Every shard that has a member, ascending."""
        return tuple(self._members)

    def users(self, shard: int, conversation_seq: int) -> tuple[int, ...]:
        """The members in ``shard`` to whom ``conversation_seq`` is visible."""
        if conversation_seq > self._open_from:
            return self._users.get(shard, NO_USERS)
        return tuple(
            member.user_id
            for member in self._members.get(shard, ())
            if sees(member, conversation_seq)
        )


def _open_from(members: tuple[Member, ...]) -> int:
    """A seq above which every member surely sees: nearly always true, and then no interval need be looked at."""
    joined = 0
    for member in members:
        last = member.intervals[-1] if member.intervals else None
        if last is None or last.left_at != U64_MAX:
            return U64_MAX
        joined = max(joined, last.joined_at)
    return joined


def _named_by_record(record: MessageRecord) -> tuple[int, ...]:
    if record.recipients:
        return tuple(sorted(set(record.recipients)))
    return tuple(sorted({record.sender_id, record.peer_user_id}))


def audience_by_shard(
    record: MessageRecord, audience: VersionAudience | None, shard_count: int
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """(target shard, its recipients) of an outbox record, shards ascending, none without recipients.

    ``audience`` is that of ``named_version(record)``, None where that is None.
    """
    if named_version(record) is not None:
        assert audience is not None, "a named version must be read before its message is dispatched"
        seq = record.conversation_seq
        pairs = ((shard, audience.users(shard, seq)) for shard in audience.shards())
        return tuple((shard, users) for shard, users in pairs if users)
    by_shard: dict[int, list[int]] = {}
    for user_id in _named_by_record(record):
        by_shard.setdefault(routing.shard(user_id, shard_count), []).append(user_id)
    return tuple((shard, tuple(by_shard[shard])) for shard in sorted(by_shard))


def recipients_in_shard(
    dispatch: GroupDispatch, audience: VersionAudience | None, shard_count: int
) -> tuple[int, ...]:
    """The users of the dispatch's own shard who get an entry.

    ``audience`` is that of ``named_version(dispatch)``, None where that is None. Fanout writes a single chat's users of the
    shard and explicit recipients into ``recipients``; one that routing puts elsewhere has no mailbox here.
    """
    shard = dispatch.shard
    if named_version(dispatch) is not None:
        assert audience is not None, (
            "a named version must be read before its dispatch is materialised"
        )
        return audience.users(shard, dispatch.conversation_seq)
    return tuple(
        sorted({user for user in dispatch.recipients if routing.shard(user, shard_count) == shard})
    )
