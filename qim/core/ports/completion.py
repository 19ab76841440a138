"""What a driver may answer instead of a typed result (architecture.md, "Correlation by op").

``Failed``: surely not applied. ``Unknown``: may have been applied, may still be, even later; never treated as Failed.
``Fenced``: a higher epoch stands for the resource. ``StoreReset``: another incarnation of the store (pipeline.md §0);
with ``op=None`` the adapter noticed it by itself and no request is answered by it.
"""

from enum import StrEnum

from msgspec import Struct


class FailReason(StrEnum):
    """The closed set of reasons to which adapters reduce vendor exceptions."""

    UNREACHABLE = "unreachable"
    OVERLOADED = "overloaded"
    OUT_OF_MEMORY = "out_of_memory"
    LEASE_LOST = "lease_lost"
    KEYSPACE_UNMARKED = "keyspace_unmarked"
    TOO_LARGE = "too_large"
    INVALID = "invalid"
    UNAUTHORISED = "unauthorised"
    CANCELLED = "cancelled"


class StoreRole(StrEnum):
    """Which hot store: conversations and commits, or mailboxes and presence. They may lose their tails apart."""

    MESSAGE = "message"
    MAILBOX = "mailbox"


class Failed(Struct, frozen=True, kw_only=True, gc=False):
    """The effect was surely not applied."""

    op: int
    why: FailReason


class Unknown(Struct, frozen=True, kw_only=True, gc=False):
    """The effect may have been applied, or may still be, even much later."""

    op: int


class Fenced(Struct, frozen=True, kw_only=True, gc=False):
    """A compare-and-set or fence refused: ``epoch`` is the highest the resource has seen (0 where only a position differed)."""

    op: int
    epoch: int


class StoreReset(Struct, frozen=True, kw_only=True, gc=False):
    """The store at hand is another incarnation than the one named; the request was not applied."""

    op: int | None
    store: StoreRole


Completion = Failed | Unknown | Fenced | StoreReset
