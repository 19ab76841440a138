"""One full and one smallest frame of every kind, and the text form the wire is frozen in (golden_frames.txt)."""

from pathlib import Path

from qim.core.contract import frames as f
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import WireFrame, encode_frame

GOLDEN_FILE = Path(__file__).with_name("golden_frames.txt")
REQUEST = 0x01020304

CMID = bytes.fromhex("c0ffee00112233445566778899aabbcc")
MESSAGE = bytes.fromhex("018cbba6f68072ac0001000700030000")
ACTIVITY = bytes.fromhex("018cbba6f68072ac0001000700030001")
CHAT = bytes(range(0xA0, 0xB0))
EVENT = bytes(range(0xE0, 0xF0))
SEQ = (1 << 48) + 6
SENT = 1_700_000_000_000
TRACE = 2**63 + 1


def send_message() -> f.SendMessage:
    return f.SendMessage(
        client_message_id=CMID,
        conversation_id=CHAT,
        peer_user_id=None,
        kind=f.MessageKind.TEXT,
        custom_type="",
        body="hello, 世界".encode(),
        retention_class=f.RetentionClass.DEFAULT,
        not_after=SENT + 3_600_000,
    )


ENTRY = f.MailboxEntry(
    mailbox_seq=SEQ, event_id=EVENT, message_id=MESSAGE, conversation_id=CHAT, conversation_seq=41,
    last_activity_id=ACTIVITY, kind=f.MessageKind.CUSTOM, sender_id=7, client_message_id=CMID,
    custom_type="app.sticker", body=b"\x00\xff", tombstone=f.Tombstone.NONE, sent_at=SENT, peer_user_id=8,
    trace_id=TRACE, conversation_kind=f.ConversationKind.SINGLE,
)  # fmt: skip
GONE = f.MailboxEntry(
    mailbox_seq=SEQ + 1, event_id=EVENT, message_id=MESSAGE, conversation_id=CHAT, conversation_seq=42,
    last_activity_id=ACTIVITY, kind=f.MessageKind.TEXT, sender_id=2**64 - 1, custom_type="", body=None,
    tombstone=f.Tombstone.EXPIRED, sent_at=SENT, trace_id=0,
)  # fmt: skip
RECORD = f.HistoryRecord(
    message_id=MESSAGE, conversation_seq=41, last_activity_id=ACTIVITY, kind=f.MessageKind.TEXT, sender_id=7,
    client_message_id=CMID, custom_type="", body=b"hi", tombstone=f.Tombstone.NONE, sent_at=SENT, trace_id=TRACE,
)  # fmt: skip
RECALLED = f.HistoryRecord(
    message_id=MESSAGE, conversation_seq=42, last_activity_id=ACTIVITY, kind=f.MessageKind.TEXT, sender_id=8,
    custom_type="", body=None, tombstone=f.Tombstone.RECALLED, sent_at=SENT, trace_id=0,
)  # fmt: skip
SAID = f.RoomMessage(
    room_seq=(1 << 48) + 1, message_id=MESSAGE, kind=f.MessageKind.TEXT, sender_id=7, custom_type="", body=b"hi",
    sent_at=SENT, client_message_id=CMID,
)  # fmt: skip
LIMITS = f.ServerLimits(
    body_bytes_max=131072, frame_bytes_max=524288, page_max=500, pulls_inflight_max=4, group_members_max=1000,
    not_after_ms=3_600_000, heartbeat_ms=30_000, idle_kill_ms=90_000,
)  # fmt: skip
SESSION = f.SessionEntry(
    conversation_id=CHAT, conversation_kind=f.ConversationKind.GROUP, peer_user_id=None, last_activity_id=ACTIVITY,
    head=RECORD, unread=200, unread_exact=False, read_seq=3, state_version=9,
    state_flags=int(f.StateFlag.PINNED | f.StateFlag.MUTED), state_value=b"{}",
)  # fmt: skip
EMPTY_SESSION = f.SessionEntry(
    conversation_id=CHAT, conversation_kind=f.ConversationKind.SINGLE, peer_user_id=8, last_activity_id=ACTIVITY,
    head=None, unread=0, unread_exact=True, read_seq=0,
)  # fmt: skip
STATE = f.ConversationState(
    conversation_id=CHAT, version=9, device_id=b"d1", read_seq=3, flags=1, value=b"{}"
)


def _connection() -> dict[str, WireFrame]:
    return {
        "PING.full": f.Ping(client_time=SENT),
        "PING.least": f.Ping(client_time=0),
        "PONG.full": f.Pong(client_time=SENT, server_time=SENT + 5, watermark=SEQ),
        "AUTH.full": f.Auth(
            access_token="qim1.a.b", device_id=b"d1", attempt=SENT, cursor=b"cursor", client_info="qim/0.1",
            capabilities=("push", "rooms"),
        ),
        "AUTH.least": f.Auth(access_token="", device_id=b"\x00", attempt=0),
        "AUTH_OK.full": f.AuthOk(
            session_epoch=SENT << 16, user_id=7, sync_to_seq=SEQ, has_offline=True, cursor=b"cursor", badge=3,
            limits=LIMITS, server_time=SENT,
        ),
        "SYNC_COMPLETE.full": f.SyncComplete(sync_to_seq=SEQ),
        "ONLINE_READY.full": f.OnlineReady(watermark=SEQ),
        "KICKED.full": f.Kicked(reason=f.KickReason.REPLACED, reconnect=False),
        "REDIRECT.full": f.Redirect(address="im-2.example:443", reason="shard moved"),
        "REDIRECT.least": f.Redirect(address="im-2.example:443"),
        "SIGNAL.full": f.Signal(
            conversation_id=CHAT, peer_user_id=None, custom_type="typing", body=b"\x01", sender_id=7, sent_at=SENT
        ),
        "SIGNAL.least": f.Signal(conversation_id=None, peer_user_id=8, custom_type="", body=b""),
        "OK.full": f.Ok(),
        "ERROR.full": f.Error(
            code=ErrorCode.RATE_LIMITED, message="too fast", retry_after_ms=250, client_message_id=CMID
        ),
        "ERROR.least": f.Error(code=ErrorCode.INTERNAL, message=""),
    }  # fmt: skip


def _messages() -> dict[str, WireFrame]:
    return {
        "SEND_MESSAGE.full": send_message(),
        "SEND_MESSAGE.least": f.SendMessage(
            client_message_id=CMID, conversation_id=None, peer_user_id=8, kind=f.MessageKind.TEXT, custom_type="",
            body=b"", retention_class=f.RetentionClass.DEFAULT, not_after=0,
        ),
        "SEND_ACK.full": f.SendAck(
            client_message_id=CMID, message_id=MESSAGE, conversation_id=CHAT, conversation_seq=41,
            last_activity_id=ACTIVITY, sent_at=SENT,
        ),
        "PULL_MAILBOX.full": f.PullMailbox(cursor=b"cursor", up_to_seq=SEQ, limit=100),
        "PULL_MAILBOX.least": f.PullMailbox(cursor=b""),
        "MAILBOX_BATCH.full": f.MailboxBatch(
            entries=(ENTRY, GONE), covered_through_seq=SEQ + 1, has_more=True, cursor=b"cursor", retry_after_ms=200
        ),
        "MAILBOX_BATCH.least": f.MailboxBatch(
            entries=(), covered_through_seq=(1 << 48) - 1, has_more=False, cursor=b""
        ),
        "PUSH_EVENTS.full": f.PushEvents(entries=(ENTRY,)),
    }  # fmt: skip


def _history() -> dict[str, WireFrame]:
    return {
        "PULL_SESSION_LIST.full": f.PullSessionList(revision=5, after=b"key", limit=50),
        "PULL_SESSION_LIST.least": f.PullSessionList(),
        "SESSION_LIST_BATCH.full": f.SessionListBatch(
            conversations=(SESSION, EMPTY_SESSION), revision=5, after=b"key", projected_through=SEQ
        ),
        "MARK_READ.full": f.MarkRead(conversation_id=CHAT, read_seq=41),
        "PULL_HISTORY.full": f.PullHistory(
            conversation_id=CHAT, anchor=41, direction=f.HistoryDirection.OLDER, limit=100
        ),
        "PULL_HISTORY.least": f.PullHistory(conversation_id=CHAT, anchor=0, direction=f.HistoryDirection.NEWER),
        "HISTORY_BATCH.full": f.HistoryBatch(
            conversation_id=CHAT, records=(RECORD, RECALLED), has_more=True,
            write_policy=f.WritePolicy.READ_FANOUT, has_more_newer=True,
        ),
        "HISTORY_BATCH.least": f.HistoryBatch(conversation_id=CHAT, records=(), has_more=False),
        "SET_STATE.full": f.SetState(conversation_id=CHAT, version=9, flags=1, value=b"{}"),
        "SET_STATE.least": f.SetState(conversation_id=CHAT, version=1, flags=0),
        "STATE_SYNC.full": f.StateSync(since_revision=4, limit=100),
        "STATE_SYNC.least": f.StateSync(),
        "STATE_BATCH.full": f.StateBatch(
            states=(STATE,), revision=6, has_more=False,
            devices=(f.DeviceDelivered(device_id=b"d1", delivered_through=SEQ),),
        ),
        "STATE_BATCH.least": f.StateBatch(states=(STATE,), revision=6, has_more=False),
        "READ_BY.full": f.ReadBy(conversation_id=CHAT, conversation_seq=41, users=(7, 8), has_more=True),
        "READ_BY.least": f.ReadBy(conversation_id=CHAT, conversation_seq=41),
        "RECALL.full": f.Recall(client_message_id=CMID, not_after=SENT, conversation_id=CHAT, target_seq=41),
        "DELETE_FOR_ME.full": f.DeleteForMe(
            client_message_id=CMID, not_after=SENT, conversation_id=CHAT, target_seq=41
        ),
    }  # fmt: skip


def _groups_and_rooms() -> dict[str, WireFrame]:
    return {
        "CREATE_GROUP.full": f.CreateGroup(
            client_message_id=CMID, not_after=SENT, members=(7, 8, 2**64 - 1), name="gruppe", meta=b"\x01"
        ),
        "CREATE_GROUP.least": f.CreateGroup(client_message_id=CMID, not_after=0, members=()),
        "GROUP_ADD.full": f.GroupAdd(client_message_id=CMID, not_after=SENT, conversation_id=CHAT, members=(9,)),
        "GROUP_REMOVE.full": f.GroupRemove(
            client_message_id=CMID, not_after=SENT, conversation_id=CHAT, members=(9,)
        ),
        "LEAVE_GROUP.full": f.LeaveGroup(client_message_id=CMID, not_after=SENT, conversation_id=CHAT),
        "GROUP_OK.full": f.GroupOk(
            client_message_id=CMID, conversation_id=CHAT, version=2, control_seq=5, noop=True
        ),
        "GROUP_OK.least": f.GroupOk(client_message_id=CMID, conversation_id=CHAT, version=1, control_seq=1),
        "MEMBERS.full": f.Members(conversation_id=CHAT, since_version=1),
        "MEMBERS.least": f.Members(conversation_id=CHAT),
        "MEMBERS_BATCH.full": f.MembersBatch(
            conversation_id=CHAT, version=3, since_version=1, added=(9,), removed=(8,), name="gruppe", creator=7,
            full=False, meta=b"\x01",
        ),
        "MEMBERS_BATCH.least": f.MembersBatch(
            conversation_id=CHAT, version=1, since_version=0, added=(7,), removed=(), name="", creator=7, full=True
        ),
        "ROOM_JOIN.full": f.RoomJoin(conversation_id=CHAT, room_seq=1 << 48),
        "ROOM_JOIN.least": f.RoomJoin(conversation_id=CHAT),
        "ROOM_STATE.full": f.RoomState(
            conversation_id=CHAT, room_seq=(1 << 48) + 1, replay=(SAID,), replay_truncated=True, present=12
        ),
        "ROOM_STATE.least": f.RoomState(conversation_id=CHAT, room_seq=0, replay=(), replay_truncated=False),
        "ROOM_EVENT.full": f.RoomEvent(conversation_id=CHAT, message=SAID),
        "ROOM_LEAVE.full": f.RoomLeave(conversation_id=CHAT),
    }  # fmt: skip


SAMPLES: dict[str, WireFrame] = {
    **_connection(),
    **_messages(),
    **_history(),
    **_groups_and_rooms(),
}


def golden_text() -> str:
    """`NAME.variant hex`, a line a frame, in the order of opcodes."""
    rows = sorted(SAMPLES.items(), key=lambda item: (item[1].OPCODE, item[0]))
    lines = [f"{name} {encode_frame(frame, request=REQUEST).hex()}" for name, frame in rows]
    return "\n".join(
        ["# Encoded frames of qim/1. A change here is a change of the wire.", *lines, ""]
    )
