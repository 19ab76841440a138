"""Conversations as writer owners hold them: what is visible, unread and newest is computed from the rows, by the definition."""

from typing import Any

from msgspec import Struct

from qim.core.contract import routing
from qim.core.contract.entities import EMPTY_ID, Interval, Member, MembershipVersion, MessageKind
from qim.core.contract.errors import ErrorCode
from qim.core.contract.hashing import H
from qim.core.contract.rpc import AskMembers, MembersAnswer, Refused
from qim.core.contract.rpc_session import AskSummaries, SummariesAnswer, Summary
from qim.core.contract.sequences import U64_MAX

WRITERS = 2
WALL = 1_800_000_000_000
OVERLAYS = (MessageKind.RECALL, MessageKind.DELETE_FOR_ME)


def conversation(number: int) -> bytes:
    return H("test.talk", number)


class Row(Struct, eq=False):
    seq: int
    activity: bytes
    kind: int
    sender: int
    stored: bytes
    target: int = 0
    pending: bool = False


class Conversation(Struct, eq=False):
    """A group of fixed members; ``since`` is joined_at of each."""

    name: bytes
    since: dict[int, int]
    rows: list[Row] = []


class WriterModel:
    """All conversations; answers as writer owners do."""

    def __init__(self) -> None:
        self.conversations: dict[bytes, Conversation] = {}
        self._ids = 0
        self.valid_until = U64_MAX >> 1

    def activity(self) -> bytes:
        self._ids += 1
        return ((WALL << 80) + self._ids).to_bytes(16, "big")

    def visible(self, name: bytes, user: int) -> list[Row]:
        talk = self.conversations[name]
        return [
            row
            for row in talk.rows
            if not row.pending
            and row.seq > talk.since[user]
            and (row.kind != MessageKind.DELETE_FOR_ME or row.sender == user)
        ]

    def gone(self, rows: list[Row], user: int) -> dict[int, None]:
        """Seqs recalled for all, or deleted by the user."""
        return {row.target: None for row in rows if row.kind in OVERLAYS}

    def summary(self, name: bytes, user: int, read_seq: int, window: int) -> Summary:
        talk = self.conversations.get(name)
        if talk is None or user not in talk.since:
            return Summary(
                conversation_id=name,
                known=False,
                conversation_kind=0,
                peer_user_id=0,
                unread=0,
                unread_exact=True,
                head=b"",
                last_activity_id=EMPTY_ID,
            )
        rows = self.visible(name, user)
        gone = self.gone(rows, user)
        beyond = [row for row in rows if row.seq > read_seq][: window + 1]
        counted = [
            row
            for row in beyond
            if row.sender != user
            and row.kind in (MessageKind.TEXT, MessageKind.CUSTOM)
            and row.seq not in gone
        ]
        exact = len(beyond) <= window
        heads = [row for row in rows if row.kind not in OVERLAYS and row.seq not in gone]
        return Summary(
            conversation_id=name,
            known=True,
            conversation_kind=2,
            peer_user_id=0,
            unread=len(counted) if exact else window,
            unread_exact=exact,
            head=heads[-1].stored if heads else b"",
            last_activity_id=rows[-1].activity if rows else EMPTY_ID,
            valid_until=self.valid_until,
        )

    def answer(self, ask: AskSummaries | AskMembers) -> Any:
        user = ask.actor.user_id
        if isinstance(ask, AskSummaries):
            partitions = [routing.writer_shard(i.conversation_id, WRITERS) for i in ask.items]
            assert len(dict.fromkeys(partitions)) == 1, "one writer shard an ask"
            summaries = [
                self.summary(i.conversation_id, user, i.read_seq, ask.window) for i in ask.items
            ]
            return SummariesAnswer(rid=ask.rid, summaries=tuple(summaries))
        talk = self.conversations.get(ask.conversation_id)
        if talk is None or user not in talk.since:
            return Refused(rid=ask.rid, code=ErrorCode.NOT_MEMBER, message="never a member of it")
        return MembersAnswer(
            rid=ask.rid,
            conversation_id=ask.conversation_id,
            version=1,
            since_version=0,
            added=tuple(sorted(one for one, since in talk.since.items() if since < ask.seeing)),
            removed=(),
            name="",
            creator=0,
        )

    def frozen(self, name: bytes, version: int, digest: bytes) -> MembershipVersion:
        """Its members as a version of it that the store holds."""
        members = tuple(
            Member(user, (Interval(joined, U64_MAX),))
            for user, joined in sorted(self.conversations[name].since.items())
        )
        return MembershipVersion(
            conversation_id=name, version=version, digest=digest, control_seq=0, members=members
        )

    def listed(self, user: int, marks: dict[tuple[int, bytes], int], window: int) -> list[Any]:
        """(list activity, conversation, unread, exact, head, mark) as the definition says, newest first."""
        listed = []
        for name, talk in self.conversations.items():
            if user not in talk.since:
                continue
            raising = [
                row for row in talk.rows if row.seq > talk.since[user] and row.kind not in OVERLAYS
            ]
            if not raising:
                continue
            mark = marks.get((user, name), 0)
            summary = self.summary(name, user, mark, window)
            listed.append(
                (
                    raising[-1].activity,
                    name,
                    summary.unread,
                    summary.unread_exact,
                    summary.head,
                    mark,
                )
            )
        return sorted(listed, reverse=True)
