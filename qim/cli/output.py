"""What commands print. JSON: ids as lowercase hex, every u64 as a string (numbers above 2^53 don't survive JSON readers,
and a field has one type), times in wall ms as numbers. Text of other people never reaches the terminal as it is.
"""

import base64
import json
import sys
from datetime import datetime
from typing import Any, Final

import msgspec

from qim.client import Conversation, GroupResult, Sent
from qim.core.client.vocabulary import MembersArrived
from qim.core.contract.entities import (
    MEMBERSHIP_CUSTOM_TYPE,
    ConversationKind,
    MembershipDelta,
    MembershipOp,
    MessageKind,
)
from qim.core.contract.kinds import Tombstone
from qim.core.ports.local_store import LocalMessage

SHORT_ID_DIGITS: Final = 8
USERS_SHOWN_MAX: Final = 8


def print_json(value: dict[str, Any]) -> None:
    """One object, one line, out at once."""
    print(json.dumps(value), flush=True)


def say(text: str) -> None:
    """Progress and remarks: standard error, so that standard output is only what was asked for."""
    print(text, file=sys.stderr, flush=True)


def sent_as_json(sent: Sent) -> dict[str, Any]:
    """What `qim send` prints. status: acked (with coordinates), pending, or failed (with ``code``)."""
    told: dict[str, Any] = {
        "status": str(sent.status),
        "client_message_id": sent.client_message_id.hex(),
    }
    at = sent.coordinates
    if at is not None:
        told["message_id"] = at.message_id.hex()
        told["conversation_id"] = at.conversation_id.hex()
        told["conversation_seq"] = str(at.conversation_seq)
        told["last_activity_id"] = at.last_activity_id.hex()
        told["sent_at"] = at.sent_at
    if sent.code:
        told["code"] = sent.code
    return told


def message_as_json(message: LocalMessage, user: int) -> dict[str, Any]:
    """A message; ``text`` null where it has none (a tombstone, or bytes that are no UTF-8: ``body_base64``)."""
    text = message_text(message)
    told: dict[str, Any] = {
        "message_id": message.message_id.hex(),
        "conversation_id": message.conversation_id.hex(),
        "conversation": _name(ConversationKind, message.conversation_kind)
        if message.conversation_kind
        else None,
        "conversation_seq": str(message.conversation_seq),
        "last_activity_id": message.last_activity_id.hex(),
        "sender_id": str(message.sender_id),
        "own": message.sender_id == user,
        "kind": _name(MessageKind, message.kind),
        "custom_type": message.custom_type,
        "text": text,
        "sent_at": message.sent_at,
        "trace_id": f"{message.trace_id:016x}",
    }
    if message.peer_user_id:
        told["peer_user_id"] = str(other_user(message, user))
    if message.client_message_id is not None:
        told["client_message_id"] = message.client_message_id.hex()
    target = overlay_target(message)
    if target is not None:
        told["target_seq"] = str(target)
        return told
    if message.tombstone:
        told["tombstone"] = _name(Tombstone, message.tombstone)
    delta = membership_of(message)
    if delta is not None:
        told["membership"] = {
            "operation": MembershipOp(delta.op).name.lower(),
            "users": [str(user) for user in delta.users],
            "version": str(delta.version),
            "count": delta.count,
            "name": delta.name,
        }
    elif text is None and message.body is not None:
        told["body_base64"] = base64.b64encode(message.body).decode()
    return told


def message_text(message: LocalMessage) -> str | None:
    """The body as text, None where it is none."""
    if message.body is None or message.kind not in (MessageKind.TEXT, MessageKind.CUSTOM):
        return None
    try:
        return message.body.decode()
    except UnicodeDecodeError:
        return None


def message_line(message: LocalMessage, user: int) -> str:
    """A message for people: time, where, who, what."""
    who = "you" if message.sender_id == user else str(message.sender_id)
    where = conversation_label(message, user)
    return f"{clock(message.sent_at)}  {where}  {who}: {shown_body(message)}"


def shown_body(message: LocalMessage) -> str:
    """What a person sees of a message's body, on one terminal safely."""
    if message.tombstone:
        return f"({_name(Tombstone, message.tombstone)})"
    target = overlay_target(message)
    if target is not None:
        done = "recalled" if message.kind == MessageKind.RECALL else "deleted for you"
        return f"({done}: message {target})"
    delta = membership_of(message)
    if delta is not None:
        return _membership_text(delta)
    text = message_text(message)
    if text is None:
        size = len(message.body or b"")
        return f"({size} bytes{f' of {message.custom_type}' if message.custom_type else ''})"
    return printable(text)


def overlay_target(message: LocalMessage) -> int | None:
    """The conversation_seq that a RECALL or DELETE_FOR_ME lies on; None for every other message."""
    if message.kind not in (MessageKind.RECALL, MessageKind.DELETE_FOR_ME):
        return None
    return int.from_bytes(message.body or b"", "big")


def conversation_as_json(row: Conversation, user: int) -> dict[str, Any]:
    """A row of the list; ``preview`` null where nothing may be shown."""
    return {
        "conversation_id": row.conversation_id.hex(),
        "conversation": _name(ConversationKind, row.kind),
        "peer_user_id": str(row.peer_user_id) if row.peer_user_id else None,
        "unread": row.unread,
        "unread_exact": row.unread_exact,
        "read_seq": str(row.read_seq),
        "newest_seq": str(row.newest_seq),
        "last_activity_id": row.last_activity_id.hex(),
        "preview": message_as_json(row.preview, user) if row.preview else None,
        "pinned": row.pinned,
        "muted": row.muted,
        "muted_until": row.muted_until,
        "hidden": row.hidden,
        "marked_unread": row.marked_unread,
        "draft": row.draft,
    }


def conversation_line(row: Conversation, user: int) -> str:
    """A row of the list for people."""
    marks = "".join(
        mark
        for mark, on in (
            ("*", row.pinned),
            ("-", row.muted),
            ("!", row.marked_unread),
            ("h", row.hidden),
        )
        if on
    )
    unread = f"{row.unread or ''}{'' if row.unread_exact else '+'}"
    label = f"@{row.peer_user_id}" if row.peer_user_id else f"#{row.conversation_id.hex()}"
    shown = row.preview
    if shown is None:
        text = ""
    else:
        who = "you" if shown.sender_id == user else str(shown.sender_id)
        text = f"{clock(shown.sent_at)}  {who}: {shown_body(shown)}"
    draft = f"  (draft: {printable(row.draft)})" if row.draft else ""
    return f"{unread:>5} {marks:<4} {label}  {text}{draft}".rstrip()


def membership_of(message: LocalMessage) -> MembershipDelta | None:
    """What a membership control message did; None for every other message."""
    if message.kind != MessageKind.CONTROL or message.custom_type != MEMBERSHIP_CUSTOM_TYPE:
        return None
    try:
        delta = msgspec.msgpack.decode(message.body or b"", type=MembershipDelta)
        MembershipOp(delta.op)
    except ValueError:  # a later version's, or no delta at all; DecodeError is one too
        return None
    return delta


def _membership_text(delta: MembershipDelta) -> str:
    users = ", ".join(map(str, delta.users[:USERS_SHOWN_MAX]))
    if len(delta.users) > USERS_SHOWN_MAX:
        users += f" and {len(delta.users) - USERS_SHOWN_MAX} more"
    told = {
        MembershipOp.CREATE: f"created {printable(delta.name) or 'the group'}: {users}",
        MembershipOp.ADD: f"added {users}",
        MembershipOp.REMOVE: f"removed {users}",
        MembershipOp.LEAVE: "left",
    }
    return f"({told[MembershipOp(delta.op)]}; {delta.count} members)"


def other_user(message: LocalMessage, user: int) -> int:
    """The other side of a single chat as ``user`` sees it, 0 where it isn't told (groups, pages of history)."""
    if not message.peer_user_id:
        return 0
    return message.peer_user_id if message.sender_id == user else message.sender_id


def conversation_label(message: LocalMessage, user: int) -> str:
    """A short name of the conversation."""
    other = other_user(message, user)
    return f"@{other}" if other else f"#{message.conversation_id.hex()[:SHORT_ID_DIGITS]}"


def group_as_json(result: GroupResult) -> dict[str, Any]:
    """A settled membership change."""
    return {
        "conversation_id": result.conversation_id.hex(),
        "version": str(result.version),
        "control_seq": str(result.control_seq),
        "noop": result.noop,
    }


def members_as_json(answer: MembersArrived) -> dict[str, Any]:
    """Who is in a group."""
    return {
        "conversation_id": answer.conversation_id.hex(),
        "name": answer.name,
        "creator": str(answer.creator),
        "version": str(answer.version),
        "members": [str(user) for user in sorted(answer.added)],
    }


def clock(wall_ms: int) -> str:
    """Local time of day, with the date where it isn't today's."""
    try:
        at = datetime.fromtimestamp(wall_ms / 1000).astimezone()
    except (OverflowError, OSError, ValueError):
        return "??:??:??"
    today = at.date() == datetime.now().astimezone().date()
    return at.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S")


def printable(text: str) -> str:
    """Another person's text without the characters that would drive the terminal."""
    return "".join(
        one if one.isprintable() else "⏎" if one == "\n" else f"\\x{ord(one):02x}" for one in text
    )


def _name(kind: type[ConversationKind] | type[MessageKind] | type[Tombstone], value: int) -> str:
    try:
        return kind(value).name.lower()
    except ValueError:
        return str(value)
