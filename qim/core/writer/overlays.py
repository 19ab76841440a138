"""Recall and delete-for-me: what an overlay may lie on, and who may lay it (pipeline.md §5).

RECALL: a present member; its sender within recall_window_ms of sending, or the group's creator at any time.
DELETE_FOR_ME: whoever sees the row, a former member too. Neither lies on control messages or on overlays.
Pure functions; the row was read as its actor sees it (scan.py), so what is not visible is simply not there.
"""

from typing import Final

from msgspec import Struct

from qim.core.contract.actor import Actor
from qim.core.contract.entities import MessageKind
from qim.core.contract.errors import ErrorCode
from qim.core.ports.store_reads import HistoryPage
from qim.core.writer.audience import Audience
from qim.core.writer.membership import Refusal
from qim.core.writer.scan import Row

COUNTED: Final = (MessageKind.TEXT, MessageKind.CUSTOM)
"""Kinds that can be unread and that an overlay may lie on."""
OVERLAYS: Final = (MessageKind.RECALL, MessageKind.DELETE_FOR_ME)


class Target(Struct, kw_only=True, eq=False):
    """The row an overlay is to lie on, as its actor sees it; ``row`` None: nothing visible there."""

    seq: int
    page: HistoryPage | None = None
    row: Row | None = None

    def wish(self) -> int:
        """There is one."""
        return 1

    def offer(self, row: Row) -> bool:
        """Found."""
        self.row = row
        return False


def overlay_body(target_seq: int) -> bytes:
    """The body of an overlay's record: target_seq, 8 bytes big-endian, so that devices learn it from any entry."""
    return target_seq.to_bytes(8, "big")


def overlay_of(kind: int, sender_id: int, target_seq: int) -> tuple[int, int] | None:
    """(user or 0 for everybody, target seq) as the store lays it; None for other kinds."""
    if kind == MessageKind.RECALL:
        return 0, target_seq
    if kind == MessageKind.DELETE_FOR_ME:
        return sender_id, target_seq
    return None


def judge_overlay(
    kind: int, actor: Actor, audience: Audience, target: Target, wall: int, recall_window_ms: int
) -> Refusal | None:
    """None: it may be laid."""
    assert target.page is not None
    if not target.page.intervals:
        return Refusal(code=ErrorCode.NOT_MEMBER, message="never a member of it")
    row = target.row
    if row is None or row.deleted:
        return Refusal(code=ErrorCode.NOT_FOUND, message="no such message")
    if row.record.kind not in COUNTED:
        return Refusal(code=ErrorCode.INVALID_ARGUMENT, message="only messages can be overlaid")
    if kind == MessageKind.DELETE_FOR_ME:
        return None
    if actor.user_id not in audience.present:
        return Refusal(code=ErrorCode.NOT_MEMBER, message="only members recall")
    if row.recalled:
        return Refusal(code=ErrorCode.NOT_FOUND, message="the message is recalled already")
    if actor.user_id == audience.creator:
        return None
    if row.record.sender_id != actor.user_id:
        text = "only its sender or the group's creator recalls a message"
        return Refusal(code=ErrorCode.FORBIDDEN, message=text)
    if wall > row.record.sent_at + recall_window_ms:
        return Refusal(code=ErrorCode.FORBIDDEN, message="the time to recall it has passed")
    return None
