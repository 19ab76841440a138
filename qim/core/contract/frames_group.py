"""Frames of group membership (contract.md, Frames; pipeline.md §1.9).

Each change carries client_message_id and not_after and goes the same commit path as SEND_MESSAGE.
"""

from typing import ClassVar

from qim.core.contract.frame_fields import (
    U64,
    Direction,
    GroupMeta,
    GroupName,
    Id16,
    Ms,
    UserIds,
    WireFrame,
    conversation_fault,
    key_fault,
)
from qim.core.contract.wire import STREAM_QUERIES, STREAM_SENDS, Flag


class CreateGroup(WireFrame, frozen=True, kw_only=True):
    """Create a group of the sender and `members`; the group's id follows from client_message_id."""

    OPCODE: ClassVar[int] = 0x0050
    NAME: ClassVar[str] = "CREATE_GROUP"
    STREAM: ClassVar[int] = STREAM_SENDS
    DIRECTION: ClassVar[Direction] = "c→s"

    client_message_id: Id16
    not_after: Ms
    members: UserIds
    name: GroupName = ""
    meta: GroupMeta = b""

    def fault(self) -> str | None:
        return key_fault(self.client_message_id)


class GroupAdd(WireFrame, frozen=True, kw_only=True):
    """Add users; those already members are left as they are."""

    OPCODE: ClassVar[int] = 0x0051
    NAME: ClassVar[str] = "GROUP_ADD"
    STREAM: ClassVar[int] = STREAM_SENDS
    DIRECTION: ClassVar[Direction] = "c→s"

    client_message_id: Id16
    not_after: Ms
    conversation_id: Id16
    members: UserIds

    def fault(self) -> str | None:
        return key_fault(self.client_message_id, self.conversation_id)


class GroupRemove(WireFrame, frozen=True, kw_only=True):
    """Remove users; those who are no members are passed over."""

    OPCODE: ClassVar[int] = 0x0052
    NAME: ClassVar[str] = "GROUP_REMOVE"
    STREAM: ClassVar[int] = STREAM_SENDS
    DIRECTION: ClassVar[Direction] = "c→s"

    client_message_id: Id16
    not_after: Ms
    conversation_id: Id16
    members: UserIds

    def fault(self) -> str | None:
        return key_fault(self.client_message_id, self.conversation_id)


class LeaveGroup(WireFrame, frozen=True, kw_only=True):
    """Leave; what was visible until then stays readable."""

    OPCODE: ClassVar[int] = 0x0053
    NAME: ClassVar[str] = "LEAVE_GROUP"
    STREAM: ClassVar[int] = STREAM_SENDS
    DIRECTION: ClassVar[Direction] = "c→s"

    client_message_id: Id16
    not_after: Ms
    conversation_id: Id16

    def fault(self) -> str | None:
        return key_fault(self.client_message_id, self.conversation_id)


class GroupOk(WireFrame, frozen=True, kw_only=True):
    """The group stands at `version`, which is COMMITTED, made by the control message at control_seq.
    noop: the request changed nothing."""

    OPCODE: ClassVar[int] = 0x0054
    NAME: ClassVar[str] = "GROUP_OK"
    STREAM: ClassVar[int] = STREAM_SENDS
    FLAGS: ClassVar[int] = int(Flag.RESPONSE)
    DIRECTION: ClassVar[Direction] = "s→c"

    client_message_id: Id16
    conversation_id: Id16
    version: U64
    control_seq: U64
    noop: bool = False


class Members(WireFrame, frozen=True, kw_only=True):
    """Ask who is in the group; since_version 0 asks for all, another for the changes after it."""

    OPCODE: ClassVar[int] = 0x0055
    NAME: ClassVar[str] = "MEMBERS"
    STREAM: ClassVar[int] = STREAM_QUERIES
    DIRECTION: ClassVar[Direction] = "c→s"

    conversation_id: Id16
    since_version: U64 = 0

    def fault(self) -> str | None:
        return conversation_fault(self.conversation_id)


class MembersBatch(WireFrame, frozen=True, kw_only=True):
    """full: `added` is everyone at `version`; else the difference from since_version to version."""

    OPCODE: ClassVar[int] = 0x0056
    NAME: ClassVar[str] = "MEMBERS_BATCH"
    STREAM: ClassVar[int] = STREAM_QUERIES
    FLAGS: ClassVar[int] = int(Flag.RESPONSE)
    DIRECTION: ClassVar[Direction] = "s→c"

    conversation_id: Id16
    version: U64
    since_version: U64
    added: UserIds
    removed: UserIds
    name: GroupName
    creator: U64
    full: bool
    meta: GroupMeta = b""
