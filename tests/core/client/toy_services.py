"""Toy services behind a gateway: one writer, one mailbox, a registry, in plain dicts; presence and sessions stand beside.

They keep the promises of the ports and nothing more; the real ones have tests of their own. `refuse` lets a test make
the next answers refusals.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from qim.core.contract.actor import Actor
from qim.core.contract.entities import (
    ConversationKind,
    MessageKind,
    MessageRecord,
    encode_record,
    stored_record,
)
from qim.core.contract.errors import ErrorCode
from qim.core.contract.ids import (
    dedupe_key,
    group_conversation_id,
    request_digest,
    single_conversation_id,
)
from qim.core.contract.kinds import Tombstone
from qim.core.contract.rpc import (
    AskHistory,
    AskMembers,
    AskPull,
    AskSync,
    AskWatermark,
    GroupDone,
    HistoryAnswer,
    MembersAnswer,
    Message,
    PullAnswer,
    PulledEntry,
    Push,
    PushBatch,
    PushTarget,
    Refused,
    SendDone,
    SubmitGroup,
    SubmitOverlay,
    SubmitSend,
    SyncAnswer,
    WatermarkAnswer,
)
from qim.core.contract.rpc_session import (
    AskReadBy,
    AskSessionList,
    AskStates,
    SubmitRead,
    SubmitState,
)
from qim.core.ports.registry import LeaseRead, ReadLease
from qim.core.ports.store_mailbox import EnterPresence, LeavePresence, RefreshPresence
from tests.core.client.toy_presence import ToyPresence
from tests.core.client.toy_sessions import ToySessions

BASE_SEQ = (1 << 48) - 1
SERVICES = "services-1"

Post = Callable[[str, Message], None]


def cursor_at(seq: int) -> bytes:
    return b"c%d" % seq


def seq_of(cursor: bytes) -> int:
    return int(cursor[1:])


class ToyServices:
    """Answers questions; `post(address, message)` sends what is not an answer (pushes)."""

    def __init__(self, post: Post) -> None:
        self.post = post
        self.mailboxes: dict[int, list[PulledEntry]] = {}
        self.records: dict[bytes, list[MessageRecord]] = {}
        self.committed: dict[bytes, SendDone | GroupDone] = {}
        self.digests: dict[bytes, bytes] = {}
        self.members: dict[bytes, tuple[int, ...]] = {}
        self.recalled: set[tuple[bytes, int]] = set()
        self.deleted: set[tuple[int, bytes, int]] = set()
        self.expired: set[tuple[bytes, int]] = set()
        self.audience: dict[bytes, tuple[int, ...]] = {}
        self.sessions = ToySessions(self)
        self.presence = ToyPresence()
        self.watermark = BASE_SEQ
        self.trim = 0
        self.began: dict[tuple[int, bytes], int] = {}
        """Where each device's first cursor stood: older entries were never promised to it."""
        self.counter = 0
        self.wall = 0
        self.pushes = True
        self.refusals: dict[type, deque[ErrorCode]] = {}
        self.asked: list[Message] = []

    def refuse(self, question: type, *codes: ErrorCode) -> None:
        """The next questions of this type are refused with these codes."""
        self.refusals.setdefault(question, deque()).extend(codes)

    def answer(self, question: Message) -> Message | None:
        self.asked.append(question)
        codes = self.refusals.get(type(question))
        if codes:
            return Refused(rid=question.rid, code=codes.popleft(), message="as the test wants")
        match question:
            case SubmitSend():
                return self._send(question)
            case SubmitGroup():
                return self._group(question)
            case SubmitOverlay():
                return self._overlay(question)
            case AskSessionList() | SubmitRead() | SubmitState() | AskStates() | AskReadBy():
                return self.sessions.answer(question)
            case AskSync():
                return self._sync(question)
            case AskPull():
                return self._pull(question)
            case AskWatermark():
                marks = (self.watermark,) * len(question.users)
                return WatermarkAnswer(rid=question.rid, watermarks=marks)
            case AskHistory():
                return self._history(question)
            case AskMembers():
                return MembersAnswer(
                    rid=question.rid,
                    conversation_id=question.conversation_id,
                    version=1,
                    since_version=question.since_version,
                    added=self.members[question.conversation_id],
                    removed=(),
                    name="toys",
                    creator=self.members[question.conversation_id][0],
                )
            case _:
                raise AssertionError(question)

    def store(self, effect: Any) -> Any:
        match effect:
            case ReadLease():
                return LeaseRead(
                    op=effect.op,
                    resource=effect.resource,
                    epoch=1,
                    owner="toy",
                    address=SERVICES,
                    barrier_epoch=0,
                    barrier_offset=-1,
                )
            case EnterPresence() | RefreshPresence() | LeavePresence():
                return self.presence.answer(effect)
            case _:
                raise AssertionError(effect)

    # ------------------------------------------------------------ writer

    def _send(self, ask: SubmitSend) -> Message:
        actor = ask.actor
        conversation_id = ask.conversation_id or single_conversation_id(
            actor.tenant_id, actor.user_id, ask.peer_user_id or 0
        )
        digest = request_digest(
            actor.tenant_id, actor.user_id, conversation_id, ask.kind, ask.custom_type, ask.body
        )
        known = self._known(actor, ask.client_message_id, digest, ask.rid, ask.not_after)
        if known is not None:
            return known
        peer = ask.peer_user_id
        audience = self.members.get(conversation_id) or (actor.user_id, peer or actor.user_id)
        done = self._commit(ask, conversation_id, audience, peer or 0, ask.kind, ask.body)
        key = dedupe_key(actor.tenant_id, actor.user_id, ask.client_message_id)
        self.committed[key] = done
        self.digests[key] = digest
        return done

    def _group(self, ask: SubmitGroup) -> Message:
        actor = ask.actor
        known = self._known(actor, ask.client_message_id, b"", ask.rid, ask.not_after)
        if known is not None:
            return known
        conversation_id = ask.conversation_id or group_conversation_id(
            actor.tenant_id, actor.user_id, ask.client_message_id
        )
        members = tuple(
            dict.fromkeys((*self.members.get(conversation_id, (actor.user_id,)), *ask.members))
        )
        self.members[conversation_id] = members
        sent = self._commit(ask, conversation_id, members, 0, MessageKind.CONTROL, b"")
        done = GroupDone(
            rid=ask.rid,
            client_message_id=ask.client_message_id,
            conversation_id=conversation_id,
            version=1,
            control_seq=sent.conversation_seq,
            noop=False,
        )
        self.committed[dedupe_key(actor.tenant_id, actor.user_id, ask.client_message_id)] = done
        return done

    def _overlay(self, ask: SubmitOverlay) -> Message:
        actor, conversation_id = ask.actor, ask.conversation_id
        body = ask.target_seq.to_bytes(8, "big")
        digest = request_digest(actor.tenant_id, actor.user_id, conversation_id, ask.kind, "", body)
        known = self._known(actor, ask.client_message_id, digest, ask.rid, ask.not_after)
        if known is not None:
            return known
        rows = self.records.get(conversation_id, [])
        at = (conversation_id, ask.target_seq)
        if not 0 < ask.target_seq <= len(rows) or at in self.recalled:
            return Refused(rid=ask.rid, code=ErrorCode.NOT_FOUND, message="no such message")
        if ask.kind == MessageKind.RECALL:
            if rows[ask.target_seq - 1].sender_id != actor.user_id:
                return Refused(rid=ask.rid, code=ErrorCode.FORBIDDEN, message="not yours")
            self.recalled.add(at)
            audience = self.audience[conversation_id]
        else:
            self.deleted.add((actor.user_id, *at))
            audience = (actor.user_id,)
        peer = rows[0].peer_user_id
        done = self._commit(ask, conversation_id, audience, peer, ask.kind, body)
        key = dedupe_key(actor.tenant_id, actor.user_id, ask.client_message_id)
        self.committed[key] = done
        self.digests[key] = digest
        return done

    def visible(self, user: int, conversation_id: bytes) -> list[tuple[int, MessageRecord, bool]]:
        """(seq, record, recalled or deleted) of what ``user`` may see: not others' deletions, not the expired."""
        found = []
        for seq, record in enumerate(self.records.get(conversation_id, ()), start=1):
            foreign = record.kind == MessageKind.DELETE_FOR_ME and record.sender_id != user
            if foreign or (conversation_id, seq) in self.expired:
                continue
            hidden = (conversation_id, seq) in self.recalled
            hidden = hidden or (user, conversation_id, seq) in self.deleted
            found.append((seq, record, hidden))
        return found

    def _known(
        self, actor: Actor, key: bytes, digest: bytes, rid: int, not_after: int
    ) -> Message | None:
        dedupe = dedupe_key(actor.tenant_id, actor.user_id, key)
        done = self.committed.get(dedupe)
        if done is None:
            if not_after < self.wall:
                return Refused(rid=rid, code=ErrorCode.SEND_EXPIRED, message="too late")
            return None
        if self.digests.get(dedupe, b"") != digest:
            return Refused(rid=rid, code=ErrorCode.IDEMPOTENCY_CONFLICT, message="other")
        kept = {name: getattr(done, name) for name in done.__struct_fields__}
        return type(done)(**(kept | {"rid": rid}))

    def _commit(
        self,
        ask: SubmitSend | SubmitGroup | SubmitOverlay,
        conversation_id: bytes,
        audience: tuple[int, ...],
        peer: int,
        kind: int,
        body: bytes,
    ) -> SendDone:
        self.counter += 1
        self.watermark += 1
        message_id = self.counter.to_bytes(16, "big")
        record = MessageRecord(
            tenant_id=ask.actor.tenant_id,
            conversation_id=conversation_id,
            conversation_kind=ConversationKind.SINGLE if peer else ConversationKind.GROUP,
            kind=kind,
            sender_id=ask.actor.user_id,
            device_id=ask.actor.device_id,
            client_message_id=ask.client_message_id,
            request_digest=bytes(16),
            message_id=message_id,
            version=0,
            membership_digest=b"",
            peer_user_id=peer,
            recipients=(),
            delta=None,
            body=body,
            custom_type="",
            retention_class=0,
            sent_at=self.wall,
            not_after=ask.not_after,
            trace_id=self.counter,
        )
        row = self.records.setdefault(conversation_id, [])
        row.append(record)
        self.audience.setdefault(conversation_id, audience)
        for user in dict.fromkeys(audience):
            self._materialise(user, record, len(row))
        return SendDone(
            rid=ask.rid,
            client_message_id=ask.client_message_id,
            message_id=message_id,
            conversation_id=conversation_id,
            conversation_seq=len(row),
            last_activity_id=message_id,
            sent_at=self.wall,
        )

    def _history(self, ask: AskHistory) -> Message:
        user = ask.actor.user_id
        rows = [
            (seq, record)
            for seq, record, _ in self.visible(user, ask.conversation_id)
            if (user, ask.conversation_id, seq) not in self.deleted
        ]
        older = ask.direction == 0
        if older:
            wanted = [row for row in rows if row[0] < (ask.anchor or 1 << 63)]
            page, rest = wanted[-ask.limit :], wanted[: -ask.limit]
        else:
            wanted = [row for row in rows if row[0] > ask.anchor]
            page, rest = wanted[: ask.limit], wanted[ask.limit :]
        stored = tuple(stored_record(seq, r.message_id, encode_record(r)) for seq, r in page)
        recalled = tuple(seq for seq, _ in page if (ask.conversation_id, seq) in self.recalled)
        return HistoryAnswer(
            rid=ask.rid,
            conversation_id=ask.conversation_id,
            records=stored,
            has_more=bool(rest),
            recalled=recalled,
        )

    # ------------------------------------------------------------ mailbox

    def _materialise(self, user: int, record: MessageRecord, conversation_seq: int) -> None:
        own = user == record.sender_id
        entry = PulledEntry(
            mailbox_seq=self.watermark,
            event_id=record.message_id,
            message_id=record.message_id,
            conversation_id=record.conversation_id,
            conversation_kind=record.conversation_kind,
            conversation_seq=conversation_seq,
            last_activity_id=record.message_id,
            kind=record.kind,
            sender_id=record.sender_id,
            client_message_id=record.client_message_id if own else None,
            custom_type=record.custom_type,
            body=record.body,
            tombstone=0,
            sent_at=record.sent_at,
            peer_user_id=record.peer_user_id,
            trace_id=record.trace_id,
        )
        self.mailboxes.setdefault(user, []).append(entry)
        for (owner, _), presence in sorted(self.presence.items()):
            if owner == user and self.pushes:
                target = PushTarget(
                    user,
                    presence.conn,
                    presence.session_epoch,
                    entry.mailbox_seq,
                    entry.event_id,
                    own,
                )
                self.post(presence.gateway, PushBatch(shard=0, pushes=(Push(entry, (target,)),)))

    def _sync(self, ask: AskSync) -> Message:
        if ask.cursor is not None and seq_of(ask.cursor) < self.trim:
            return Refused(rid=ask.rid, code=ErrorCode.CURSOR_EXPIRED, message="trimmed")
        cursor = ask.cursor or cursor_at(max(BASE_SEQ, self.trim))
        self.began.setdefault((ask.actor.user_id, ask.actor.device_id), seq_of(cursor))
        return SyncAnswer(
            rid=ask.rid,
            sync_to_seq=self.watermark,
            has_offline=seq_of(cursor) < self.watermark,
            cursor=cursor,
        )

    def _pull(self, ask: AskPull) -> Message:
        start = seq_of(ask.cursor)
        if start < self.trim:
            return Refused(rid=ask.rid, code=ErrorCode.CURSOR_EXPIRED, message="trimmed")
        to = min(ask.up_to_seq or self.watermark, self.watermark)
        mailbox = self.mailboxes.get(ask.actor.user_id, [])
        wanted = [entry for entry in mailbox if start < entry.mailbox_seq <= to]
        page = wanted[: ask.limit]
        more = len(page) < len(wanted)
        covered = page[-1].mailbox_seq if more else max(start, to)
        return PullAnswer(
            rid=ask.rid,
            entries=tuple(map(self._shown, page)),
            covered_through_seq=covered,
            has_more=more,
            cursor=cursor_at(covered),
            retry_after_ms=0,
        )

    def _shown(self, entry: PulledEntry) -> PulledEntry:
        """What is recalled leaves without its body."""
        if (entry.conversation_id, entry.conversation_seq) in self.recalled:
            return replace(entry, body=None, tombstone=Tombstone.RECALLED)
        return entry
