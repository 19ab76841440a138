"""The moderation port: somebody outside is asked before a message is taken and told after it was (pipeline.md §1.2).

An ask is answered exactly once, with a verdict or by ports/completion.py, whose Failed and Unknown are both "not asked".
A notice is best effort: nothing is owed for it.
"""

from enum import StrEnum

from msgspec import Struct


class Verdict(StrEnum):
    """What the outside says; UNAVAILABLE: it was down, too slow, or said something that is no verdict."""

    ALLOW = "allow"
    REJECT = "reject"
    UNAVAILABLE = "unavailable"


class FailPolicy(StrEnum):
    """What happens to a message nobody could judge. OFF: nobody is asked at all."""

    OFF = "off"
    OPEN = "open"
    CLOSED = "closed"


class AskVerdict(Struct, frozen=True, kw_only=True, gc=False):
    """May this message be sent? ``dedupe_key`` names it: an ask that is repeated carries the same. Answers: VerdictGiven.

    ``peer_user_id``: the other user of a single chat, 0 in a group. ``sent_at`` is not known yet.
    """

    op: int
    dedupe_key: bytes
    tenant_id: str
    sender_id: int
    device_id: bytes
    client_message_id: bytes
    conversation_id: bytes
    conversation_kind: int
    peer_user_id: int
    kind: int
    custom_type: str
    body: bytes
    traces: tuple[int, ...] = ()


class VerdictGiven(Struct, frozen=True, kw_only=True, gc=False):
    """The verdict."""

    op: int
    verdict: Verdict


class NotifySent(Struct, frozen=True, kw_only=True, gc=False):
    """A message was committed: ``stored`` = seq ‖ activity ‖ record. After a fresh OPEN the same may be told again."""

    stored: bytes
    traces: tuple[int, ...] = ()


ModerationRequest = AskVerdict
ModerationReply = VerdictGiven
