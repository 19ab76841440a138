"""What one user was told by the services at the end of a world."""

from msgspec import Struct

from qim.core.contract.rpc import PulledEntry
from qim.core.contract.rpc_session import SessionRow
from qim.sim.visible import Clock


class Told(Struct, kw_only=True):
    """What one user was told: the list in its order, and each conversation's rows as (seq, recalled) from both ends."""

    rows: list[SessionRow] = []
    projections: list[tuple[int, int, int]] = []
    """(what the store had before the question, what the answer said, what the store had then)."""
    badge: int = 0
    states_end: int = 0
    """How many user-state records of its shard the list has seen."""
    newer: dict[bytes, list[tuple[int, bytes]]] = {}
    older: dict[bytes, list[tuple[int, bytes]]] = {}
    recalled: dict[bytes, dict[int, None]] = {}
    unanswered: list[str] = []
    clocks: dict[bytes, Clock] = {}
    """conversation -> when its owner answered, by its own wall clock."""
    listed: dict[bytes, Clock] = {}
    """Likewise for the list, whose summaries may be a little older."""
    first_cursor: bytes = b""
    """Where a new device was let begin: what lies before is read back from history alone."""
    mailbox: list[PulledEntry] = []
