"""What one user was told by the services at the end of a world."""

from msgspec import Struct

from qim.core.contract.rpc import SessionRow


class Told(Struct, kw_only=True):
    """What one user was told: the list in its order, and each conversation's rows as (seq, recalled) from both ends."""

    rows: list[SessionRow] = []
    revision: int = 0
    newer: dict[bytes, list[tuple[int, bytes]]] = {}
    older: dict[bytes, list[tuple[int, bytes]]] = {}
    recalled: dict[bytes, dict[int, None]] = {}
    unanswered: list[str] = []
