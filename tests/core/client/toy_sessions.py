"""The toy session owner: list, unread, read marks and states from the toy writer's records, in plain dicts (pipeline.md §4)."""

from typing import Any

from qim.core.contract.entities import (
    EMPTY_ID,
    MessageKind,
    MessageRecord,
    encode_record,
    stored_record,
)
from qim.core.contract.rpc import Message
from qim.core.contract.rpc_session import (
    AskReadBy,
    AskSessionList,
    AskStates,
    ReadByAnswer,
    SessionListAnswer,
    SessionRow,
    StateDone,
    StateRow,
    StatesAnswer,
    SubmitRead,
    SubmitState,
)

WINDOW = 200
OVERLAYS = (MessageKind.RECALL, MessageKind.DELETE_FOR_ME)


class ToySessions:
    """Sees what the toy writer sees; `projected` lags where a test wants it to."""

    def __init__(self, services: Any) -> None:
        self.services = services
        self.reads: dict[tuple[int, bytes], int] = {}
        self.states: dict[tuple[int, bytes], tuple[int, bytes, int, bytes]] = {}
        self.changes: dict[int, list[bytes]] = {}
        self.snapshots: dict[int, tuple[SessionRow, ...]] = {}
        self.revision = 0
        self.lag = 0

    def answer(self, ask: Message) -> Message:
        match ask:
            case AskSessionList():
                return self._list(ask)
            case SubmitRead():
                key = (ask.actor.user_id, ask.conversation_id)
                self.reads[key] = max(self.reads.get(key, 0), ask.read_seq)
                self._change(*key)
                return StateDone(rid=ask.rid)
            case SubmitState():
                key = (ask.actor.user_id, ask.conversation_id)
                new = (ask.version, ask.actor.device_id, ask.flags, ask.value)
                if new[:2] >= self.states.get(key, (0, b"", 0, b""))[:2]:
                    self.states[key] = new
                self._change(*key)
                return StateDone(rid=ask.rid)
            case AskStates():
                return self._states(ask)
            case AskReadBy():
                readers = tuple(
                    user
                    for (user, conversation_id), seq in sorted(self.reads.items())
                    if conversation_id == ask.conversation_id and seq >= ask.conversation_seq
                )
                return ReadByAnswer(rid=ask.rid, users=readers, has_more=False)
            case _:
                raise AssertionError(ask)

    def row(self, user: int, conversation_id: bytes) -> SessionRow:
        visible = self.services.visible(user, conversation_id)
        read = self.reads.get((user, conversation_id), 0)
        beyond = [row for row in visible if row[0] > read]
        exact = len(beyond) <= WINDOW
        head = b""
        for seq, record, hidden in visible:
            if not hidden and record.kind not in OVERLAYS:
                head = stored_record(seq, record.message_id, encode_record(record))
        version, _, flags, value = self.states.get((user, conversation_id), (0, b"", 0, b""))
        first: MessageRecord = self.services.records[conversation_id][0]
        pair = (first.sender_id, first.peer_user_id)
        return SessionRow(
            conversation_id=conversation_id,
            conversation_kind=first.conversation_kind,
            peer_user_id=(pair[0] if pair[1] == user else pair[1]),
            last_activity_id=visible[-1][1].message_id if visible else EMPTY_ID,
            head=head,
            unread=sum(counts(r, hidden, user) for _, r, hidden in beyond) if exact else WINDOW,
            unread_exact=exact,
            read_seq=read,
            state_version=version,
            state_flags=flags,
            state_value=value,
        )

    def _change(self, user: int, conversation_id: bytes) -> None:
        self.changes.setdefault(user, []).append(conversation_id)

    def _list(self, ask: AskSessionList) -> Message:
        user = ask.actor.user_id
        if ask.revision == 0:
            self.revision += 1
            mine = {entry.conversation_id for entry in self.services.mailboxes.get(user, ())}
            rows = [self.row(user, conversation_id) for conversation_id in sorted(mine)]
            rows.sort(key=lambda row: row.last_activity_id, reverse=True)
            self.snapshots[self.revision] = tuple(rows)
        revision = ask.revision or self.revision
        begin = int(ask.after or b"0")
        page = self.snapshots[revision][begin : begin + ask.limit]
        more = begin + len(page) < len(self.snapshots[revision])
        return SessionListAnswer(
            rid=ask.rid,
            rows=page,
            revision=revision,
            after=b"%d" % (begin + len(page)) if more else b"",
            projected_through=self.services.watermark - self.lag,
            badge=sum(row.unread for row in self.snapshots[revision]),
        )

    def _states(self, ask: AskStates) -> Message:
        user = ask.actor.user_id
        changes = self.changes.get(user, [])[ask.since_revision :]
        page = changes[: ask.limit]
        rows = []
        for conversation_id in dict.fromkeys(page):
            key = (user, conversation_id)
            version, device, flags, value = self.states.get(key, (0, b"", 0, b""))
            rows.append(
                StateRow(
                    conversation_id=conversation_id,
                    version=version,
                    device_id=device,
                    read_seq=self.reads.get(key, 0),
                    flags=flags,
                    value=value,
                )
            )
        return StatesAnswer(
            rid=ask.rid,
            rows=tuple(rows),
            revision=ask.since_revision + len(page),
            has_more=len(page) < len(changes),
        )


def counts(record: MessageRecord, hidden: bool, user: int) -> bool:
    plain = record.kind in (MessageKind.TEXT, MessageKind.CUSTOM)
    return record.sender_id != user and plain and not hidden
