"""The small enumerations that only frames carry; those of stored entities stand in entities.py.

Numbers are on the wire: never renumber, only append.
"""

from enum import IntEnum, IntFlag


class Tombstone(IntEnum):
    """Why an entry is delivered without its body."""

    NONE = 0
    EXPIRED = 1
    RECALLED = 2


class KickReason(IntEnum):
    """Why the server ends a connection. REPLACED is final until the user acts."""

    REPLACED = 1
    REVOKED = 2
    SHUTDOWN = 3
    SLOW_CONSUMER = 4
    IDLE = 5


class HistoryDirection(IntEnum):
    """Where PULL_HISTORY looks from its anchor."""

    OLDER = 0
    NEWER = 1
    AROUND = 2


class WritePolicy(IntEnum):
    """How history reaches members: by mailbox, or by reading alone (only there a seq gap means loss)."""

    WRITE_FANOUT = 0
    READ_FANOUT = 1


class StateFlag(IntFlag):
    """The user's own switches on a conversation."""

    PINNED = 1
    MUTED = 2
    ARCHIVED = 4
