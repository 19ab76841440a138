"""Bounds of a request's fields: what is outside them could never have been committed, so nothing is looked up.

Errors are Refusals with INVALID_ARGUMENT, UNSUPPORTED or TOO_MANY_MEMBERS; nothing here knows time or members.
"""

from qim.core.contract.actor import Actor
from qim.core.contract.entities import MembershipOp, MessageKind, RetentionClass
from qim.core.contract.errors import ErrorCode
from qim.core.contract.ids import (
    ID_BYTES,
    NIL_ID,
    group_conversation_id,
    single_conversation_id,
    tenant_id_is_valid,
)
from qim.core.contract.rpc import SubmitGroup, SubmitOverlay, SubmitSend
from qim.core.contract.sequences import U64_MAX
from qim.core.writer.membership import Refusal
from qim.core.writer.overlays import OVERLAYS
from qim.core.writer.vocabulary import WriterConfig

RESERVED_CUSTOM_TYPE = "qim."
"""Custom types the system itself writes: a client that could use them would forge membership control."""

NOT_AFTER_MAX = 2**53
DEVICE_ID_BYTES_MAX = 256


def _invalid(message: str) -> Refusal:
    return Refusal(code=ErrorCode.INVALID_ARGUMENT, message=message)


def _is_user(user_id: int) -> bool:
    return 1 <= user_id <= U64_MAX


def _common_fault(actor: Actor, client_message_id: bytes, not_after: int) -> Refusal | None:
    if not _is_user(actor.user_id) or not tenant_id_is_valid(actor.tenant_id):
        return _invalid("actor out of bounds")
    if len(actor.device_id) > DEVICE_ID_BYTES_MAX:
        return _invalid("device_id is too long")
    if len(client_message_id) != ID_BYTES or client_message_id == NIL_ID:
        return _invalid("client_message_id has 16 bytes, not all zero")
    if not 0 < not_after < NOT_AFTER_MAX:
        return _invalid("not_after out of bounds")
    return None


def _is_conversation(conversation_id: bytes) -> bool:
    return len(conversation_id) == ID_BYTES and conversation_id != NIL_ID


def send_fault(send: SubmitSend, config: WriterConfig) -> Refusal | None:
    """None: every field of the send is inside its bounds."""
    fault = _common_fault(send.actor, send.client_message_id, send.not_after)
    if fault is not None:
        return fault
    if send.conversation_id is None and send.peer_user_id is None:
        return _invalid("neither conversation nor peer")
    if send.conversation_id is not None and not _is_conversation(send.conversation_id):
        return _invalid("conversation_id has 16 bytes, not all zero")
    if send.peer_user_id is not None and not _is_user(send.peer_user_id):
        return _invalid("peer_user_id starts at 1")
    if send.kind not in (MessageKind.TEXT, MessageKind.CUSTOM):
        return Refusal(code=ErrorCode.UNSUPPORTED, message="this kind of message can't be sent")
    return _content_fault(send, config)


def _content_fault(send: SubmitSend, config: WriterConfig) -> Refusal | None:
    if len(send.body) > config.body_bytes_max:
        return _invalid(f"a body has at most {config.body_bytes_max} bytes")
    if _encoded_length(send.custom_type) > config.custom_type_bytes_max:
        return _invalid(f"custom_type has at most {config.custom_type_bytes_max} bytes of UTF-8")
    if send.custom_type.startswith(RESERVED_CUSTOM_TYPE):
        return _invalid("custom types that start with 'qim.' are the system's")
    if not RetentionClass.DEFAULT <= send.retention_class <= RetentionClass.COMPLIANCE_HOLD:
        return _invalid("no such retention_class")
    if send.conversation_id is not None and send.peer_user_id is not None:
        if send.conversation_id != conversation_of(send):
            return _invalid("conversation_id is not the single chat with this peer")
    return None


def _encoded_length(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        # A lone surrogate has no UTF-8 and is longer than any limit.
        return 2**31


def group_fault(group: SubmitGroup, config: WriterConfig) -> Refusal | None:
    """None: every field of the membership request is inside its bounds."""
    fault = _common_fault(group.actor, group.client_message_id, group.not_after)
    if fault is not None:
        return fault
    if group.op not in (
        MembershipOp.CREATE,
        MembershipOp.ADD,
        MembershipOp.REMOVE,
        MembershipOp.LEAVE,
    ):
        return _invalid("no such membership operation")
    if group.op == MembershipOp.CREATE:
        if group.conversation_id is not None:
            return _invalid("CREATE names no conversation")
    elif group.conversation_id is None or not _is_conversation(group.conversation_id):
        return _invalid("conversation_id has 16 bytes, not all zero")
    return _group_content_fault(group, config)


def _group_content_fault(group: SubmitGroup, config: WriterConfig) -> Refusal | None:
    if not all(_is_user(user_id) for user_id in group.members):
        return _invalid("user ids start at 1")
    if _encoded_length(group.name) > config.group_name_bytes_max:
        return _invalid(f"a name has at most {config.group_name_bytes_max} bytes of UTF-8")
    if len(group.meta) > config.group_meta_bytes_max:
        return _invalid(f"meta has at most {config.group_meta_bytes_max} bytes")
    if group.op == MembershipOp.LEAVE:
        return _invalid("LEAVE names no members") if group.members else None
    if group.op != MembershipOp.CREATE and not group.members:
        return _invalid("no members named")
    if len(frozenset(group.members)) > config.group_members_max:
        text = f"a group has at most {config.group_members_max} members"
        return Refusal(code=ErrorCode.TOO_MANY_MEMBERS, message=text)
    return None


def overlay_fault(overlay: SubmitOverlay) -> Refusal | None:
    """None: every field of a recall or delete-for-me is inside its bounds."""
    fault = _common_fault(overlay.actor, overlay.client_message_id, overlay.not_after)
    if fault is not None:
        return fault
    if not _is_conversation(overlay.conversation_id):
        return _invalid("conversation_id has 16 bytes, not all zero")
    if not 1 <= overlay.target_seq <= U64_MAX:
        return _invalid("target_seq starts at 1")
    if overlay.kind not in OVERLAYS:
        return Refusal(code=ErrorCode.UNSUPPORTED, message="no such overlay")
    return None


def conversation_of(message: SubmitSend | SubmitGroup | SubmitOverlay) -> bytes:
    """The conversation a valid request is about; computed where the request can't or needn't name it."""
    actor = message.actor
    if isinstance(message, SubmitOverlay):
        return message.conversation_id
    if isinstance(message, SubmitGroup):
        if message.conversation_id is not None:
            return message.conversation_id
        return group_conversation_id(actor.tenant_id, actor.user_id, message.client_message_id)
    if message.peer_user_id is not None:
        return single_conversation_id(actor.tenant_id, actor.user_id, message.peer_user_id)
    assert message.conversation_id is not None
    return message.conversation_id
