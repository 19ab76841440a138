"""GroupMembership: what a group request really changes, who hears of it, which version it makes (pipeline.md §1.9).

Pure functions. Rights, kept small: any member may ADD; only the creator may REMOVE; a member may LEAVE (the creator
too, the group then has nobody who may remove); CREATE makes its sender a founder. The group never dissolves by itself.
It does not decide order or durability: that is the commit path's.
"""

from typing import Final

import msgspec
from msgspec import Struct

from qim.core.contract.actor import Actor
from qim.core.contract.entities import ConversationKind, MembershipDelta, MembershipOp
from qim.core.contract.errors import ErrorCode
from qim.core.contract.ids import NIL_ID, control_digest, membership_digest_next
from qim.core.contract.rpc import SubmitGroup
from qim.core.ports.store_message import MembershipWrite
from qim.core.writer.audience import Audience

_encoder: Final = msgspec.msgpack.Encoder()


class GroupRequest(Struct, frozen=True, kw_only=True):
    """A validated SubmitGroup: members without repeats, sorted; at CREATE with the creator among them."""

    op: int
    members: tuple[int, ...]
    name: str
    meta: bytes


class Refusal(Struct, frozen=True, kw_only=True, gc=False):
    """Ends a request without a commit, once no stored commit of it was found."""

    code: ErrorCode
    message: str


class NoOp(Struct, frozen=True, kw_only=True, gc=False):
    """The request changes nothing at this version; answered once that version is COMMITTED."""

    version: int
    control_seq: int


class GroupChange(Struct, frozen=True, kw_only=True):
    """A real step from ``before`` to version V+1: ``users`` really changed, ``recipients`` of its control message."""

    op: int
    users: tuple[int, ...]
    before: Audience
    members: tuple[int, ...]
    recipients: tuple[int, ...]


class GroupLimits(Struct, frozen=True, kw_only=True, gc=False):
    """contract.md, Parameters."""

    members_max: int
    broadcast_max: int
    recipients_max: int


def group_digest(actor: Actor, request: SubmitGroup) -> bytes:
    """Request digest of a membership request: over its operation and all fields as they came."""
    fields = (request.conversation_id, request.members, request.name, request.meta)
    return control_digest(actor.tenant_id, actor.user_id, request.op, _encoder.encode(fields))


def group_request(actor: Actor, request: SubmitGroup) -> GroupRequest:
    """The request's users as a sorted set; CREATE adds its creator, LEAVE means oneself."""
    if request.op == MembershipOp.LEAVE:
        members: tuple[int, ...] = (actor.user_id,)
    elif request.op == MembershipOp.CREATE:
        members = tuple(sorted({actor.user_id, *request.members}))
    else:
        members = tuple(sorted({*request.members}))
    return GroupRequest(op=request.op, members=members, name=request.name, meta=request.meta)


def plan_change(
    request: GroupRequest, user_id: int, before: Audience, limits: GroupLimits
) -> GroupChange | NoOp | Refusal:
    """What the request does to ``before`` (kind 0 at CREATE), asked by ``user_id``."""
    if request.op == MembershipOp.CREATE:
        return _grown(request, user_id, before, request.members, limits)
    denied = _denied(request, user_id, before)
    if denied is not None:
        return denied
    if request.op == MembershipOp.ADD:
        users = tuple(user for user in request.members if user not in before.present)
    else:
        users = tuple(user for user in request.members if user in before.present)
    if not users:
        return NoOp(version=before.version, control_seq=before.control_seq)
    return _grown(request, user_id, before, users, limits)


def _denied(request: GroupRequest, user_id: int, before: Audience) -> Refusal | None:
    if before.kind == 0:
        return Refusal(code=ErrorCode.NOT_FOUND, message="no such group")
    if before.kind != ConversationKind.GROUP:
        return Refusal(code=ErrorCode.INVALID_ARGUMENT, message="the conversation is no group")
    if user_id not in before.present:
        return Refusal(code=ErrorCode.NOT_MEMBER, message="only members change a group")
    if request.op == MembershipOp.REMOVE and user_id != before.creator:
        return Refusal(code=ErrorCode.FORBIDDEN, message="only the creator removes members")
    return None


def _grown(
    request: GroupRequest,
    user_id: int,
    before: Audience,
    users: tuple[int, ...],
    limits: GroupLimits,
) -> GroupChange | Refusal:
    changed = frozenset(users)
    if request.op in (MembershipOp.CREATE, MembershipOp.ADD):
        members = tuple(sorted(before.members + users))
    else:
        members = tuple(user for user in before.members if user not in changed)
    if len(members) > limits.members_max:
        return Refusal(
            code=ErrorCode.TOO_MANY_MEMBERS, message=f"a group has at most {limits.members_max}"
        )
    if len(members) <= limits.broadcast_max:
        recipients = tuple(sorted({*before.members, *members}))
    else:
        recipients = tuple(sorted({*users, user_id}))
    if len(recipients) > limits.recipients_max:
        # Only where the configured group size exceeds what one control message may name.
        return Refusal(
            code=ErrorCode.INVALID_ARGUMENT,
            message=f"one change reaches at most {limits.recipients_max} users",
        )
    return GroupChange(
        op=request.op, users=users, before=before, members=members, recipients=recipients
    )


def membership_write(
    change: GroupChange, request: GroupRequest, actor: Actor, message_id: bytes
) -> MembershipWrite:
    """The group's next version; its digest is chained over the control messages that made it."""
    before = change.before
    create = change.op == MembershipOp.CREATE
    name, meta = (request.name, request.meta) if create else ("", b"")
    version = before.version + 1
    digest = membership_digest_next(
        before.digest or NIL_ID,
        op=change.op,
        users=change.users,
        version=version,
        control=(message_id, actor.user_id, name, meta),
    )
    return MembershipWrite(
        operation=change.op,
        users=change.users,
        previous_version=before.version,
        previous_digest=before.digest,
        version=version,
        digest=digest,
        creator=actor.user_id if create else before.creator,
        name=name,
        meta=meta,
    )


def delta_of(change: GroupChange, write: MembershipWrite) -> MembershipDelta:
    """What the control message says it did."""
    return MembershipDelta(
        op=write.operation,
        users=write.users,
        previous_version=write.previous_version,
        version=write.version,
        digest=write.digest,
        count=len(change.members),
        name=write.name,
        meta=write.meta,
    )


def control_body(delta: MembershipDelta) -> bytes:
    """The delta as clients read it: the MessagePack array of MembershipDelta."""
    return _encoder.encode(delta)


def audience_after(change: GroupChange, write: MembershipWrite, control_seq: int) -> Audience:
    """The group as of the version just recorded."""
    create = change.op == MembershipOp.CREATE
    return Audience(
        kind=ConversationKind.GROUP,
        version=write.version,
        digest=write.digest,
        control_seq=control_seq,
        members=change.members,
        present=frozenset(change.members),
        creator=write.creator,
        name=write.name if create else change.before.name,
        meta=write.meta if create else change.before.meta,
    )
