"""Client frames as questions to the services: the actor injected, the owner's resource computed (pipeline.md §6).

A client never names itself; what it may do is judged by the service that owns the conversation, not here.
"""

from typing import Final, assert_never

from qim.core.contract.actor import Actor
from qim.core.contract.entities import MembershipOp, MessageKind
from qim.core.contract.errors import ErrorCode, ProtocolError
from qim.core.contract.frames import (
    CreateGroup,
    DeleteForMe,
    GroupAdd,
    GroupRemove,
    LeaveGroup,
    MarkRead,
    Members,
    PullHistory,
    PullMailbox,
    PullSessionList,
    ReadBy,
    Recall,
    SendMessage,
    SetState,
    StateSync,
)
from qim.core.contract.ids import dedupe_key, group_conversation_id, single_conversation_id
from qim.core.contract.params import Parameters
from qim.core.contract.routing import shard, writer_shard
from qim.core.contract.rpc import (
    AskHistory,
    AskMembers,
    AskPull,
    AskSync,
    AskWatermark,
    SubmitGroup,
    SubmitOverlay,
    SubmitSend,
)
from qim.core.contract.rpc_session import (
    AskReadBy,
    AskSessionList,
    AskStates,
    SubmitRead,
    SubmitState,
)
from qim.core.ports.registry import Resource, Role

_STATES_PAGE_MAX: Final = 256
"""States of one STATE_BATCH: 256 values of the greatest size (1 KiB) fit a frame with room to spare."""

GroupFrame = CreateGroup | GroupAdd | GroupRemove | LeaveGroup
OverlayFrame = Recall | DeleteForMe
Submission = SendMessage | GroupFrame | OverlayFrame
Batch = PullMailbox | PullHistory | PullSessionList | StateSync
SessionFrame = PullSessionList | StateSync | MarkRead | SetState | ReadBy
Query = PullMailbox | PullHistory | Members | SessionFrame
Question = (
    SubmitSend
    | SubmitGroup
    | SubmitOverlay
    | AskHistory
    | AskMembers
    | AskPull
    | AskSync
    | AskWatermark
    | AskSessionList
    | SubmitRead
    | SubmitState
    | AskStates
    | AskReadBy
)


def trace_of(actor: Actor, client_message_id: bytes) -> int:
    """The u64 under which a message is traced: the first 8 bytes of its dedupe key, as the writer makes it."""
    key = dedupe_key(actor.tenant_id, actor.user_id, client_message_id)
    return int.from_bytes(key[:8], "big")


def mailbox_of(user_id: int, parameters: Parameters) -> Resource:
    """The MailboxShard of a user."""
    return Resource(role=Role.MAILBOX, number=shard(user_id, parameters.shard_count))


def session_of(user_id: int, parameters: Parameters) -> Resource:
    """The session shard of a user: a mailbox shard's number under a lease of its own."""
    return Resource(role=Role.SESSION, number=shard(user_id, parameters.shard_count))


def writer_of(conversation_id: bytes, parameters: Parameters) -> Resource:
    """The writer shard of a conversation."""
    number = writer_shard(conversation_id, parameters.outbox_partition_count)
    return Resource(role=Role.WRITER, number=number)


def conversation_of(frame: Submission, actor: Actor) -> bytes:
    """The conversation a submission names. Raises ProtocolError INVALID_ARGUMENT where its two names disagree."""
    if isinstance(frame, CreateGroup):
        return group_conversation_id(actor.tenant_id, actor.user_id, frame.client_message_id)
    if not isinstance(frame, SendMessage):
        return frame.conversation_id
    if frame.peer_user_id is None:
        assert frame.conversation_id is not None, "SendMessage.fault lets no such frame through"
        return frame.conversation_id
    single = single_conversation_id(actor.tenant_id, actor.user_id, frame.peer_user_id)
    if frame.conversation_id not in (None, single):
        raise ProtocolError(
            ErrorCode.INVALID_ARGUMENT,
            "conversation_id is not the single chat with peer_user_id",
            client_message_id=frame.client_message_id,
        )
    return single


def submission(
    rid: int, actor: Actor, frame: Submission
) -> SubmitSend | SubmitGroup | SubmitOverlay:
    """SEND_MESSAGE, an overlay or a membership change for the writer."""
    if isinstance(frame, Recall | DeleteForMe):
        recall = isinstance(frame, Recall)
        return SubmitOverlay(
            rid=rid,
            actor=actor,
            client_message_id=frame.client_message_id,
            not_after=frame.not_after,
            conversation_id=frame.conversation_id,
            target_seq=frame.target_seq,
            kind=MessageKind.RECALL if recall else MessageKind.DELETE_FOR_ME,
        )
    if not isinstance(frame, SendMessage):
        return _group_submission(rid, actor, frame)
    return SubmitSend(
        rid=rid,
        actor=actor,
        client_message_id=frame.client_message_id,
        conversation_id=frame.conversation_id,
        peer_user_id=frame.peer_user_id,
        kind=frame.kind,
        custom_type=frame.custom_type,
        body=frame.body,
        retention_class=frame.retention_class,
        not_after=frame.not_after,
    )


def _group_submission(rid: int, actor: Actor, frame: GroupFrame) -> SubmitGroup:
    conversation_id: bytes | None = None
    members: tuple[int, ...] = ()
    name, meta = "", b""
    match frame:
        case CreateGroup():
            op, members, name, meta = MembershipOp.CREATE, frame.members, frame.name, frame.meta
        case GroupAdd():
            op, conversation_id, members = MembershipOp.ADD, frame.conversation_id, frame.members
        case GroupRemove():
            op, conversation_id, members = MembershipOp.REMOVE, frame.conversation_id, frame.members
        case LeaveGroup():
            op, conversation_id = MembershipOp.LEAVE, frame.conversation_id
        case _:
            assert_never(frame)
    return SubmitGroup(
        rid=rid,
        actor=actor,
        op=op,
        client_message_id=frame.client_message_id,
        not_after=frame.not_after,
        conversation_id=conversation_id,
        members=members,
        name=name,
        meta=meta,
    )


def query(
    rid: int, actor: Actor, frame: Query, parameters: Parameters
) -> tuple[Question, Resource]:
    """A read, and who owns what it reads. Page limits are bounded here, 0 is the default page."""
    match frame:
        case PullMailbox():
            pull = AskPull(
                rid=rid,
                actor=actor,
                cursor=frame.cursor,
                up_to_seq=frame.up_to_seq,
                limit=page(frame.limit, parameters),
            )
            return pull, mailbox_of(actor.user_id, parameters)
        case PullHistory():
            history = AskHistory(
                rid=rid,
                actor=actor,
                conversation_id=frame.conversation_id,
                anchor=frame.anchor,
                direction=frame.direction,
                limit=page(frame.limit, parameters),
            )
            return history, writer_of(frame.conversation_id, parameters)
        case Members():
            members = AskMembers(
                rid=rid,
                actor=actor,
                conversation_id=frame.conversation_id,
                since_version=frame.since_version,
            )
            return members, writer_of(frame.conversation_id, parameters)
        case _:
            question = _session_query(rid, actor, frame, parameters)
            return question, session_of(actor.user_id, parameters)


def _session_query(rid: int, actor: Actor, frame: SessionFrame, parameters: Parameters) -> Question:
    match frame:
        case PullSessionList():
            return AskSessionList(
                rid=rid,
                actor=actor,
                revision=frame.revision,
                after=frame.after or b"",
                limit=page(frame.limit, parameters),
            )
        case StateSync():
            return AskStates(
                rid=rid,
                actor=actor,
                since_revision=frame.since_revision,
                limit=min(page(frame.limit, parameters), _STATES_PAGE_MAX),
            )
        case MarkRead():
            return SubmitRead(
                rid=rid,
                actor=actor,
                conversation_id=frame.conversation_id,
                read_seq=frame.read_seq,
            )
        case SetState():
            return SubmitState(
                rid=rid,
                actor=actor,
                conversation_id=frame.conversation_id,
                version=frame.version,
                flags=frame.flags,
                value=frame.value,
            )
        case ReadBy():
            return AskReadBy(
                rid=rid,
                actor=actor,
                conversation_id=frame.conversation_id,
                conversation_seq=frame.conversation_seq,
            )
        case _:
            assert_never(frame)


def page(limit: int, parameters: Parameters) -> int:
    """Entries a page: the default for 0, never above the maximum."""
    return min(limit or parameters.page_default, parameters.page_max)
