"""What the SDK's calls give and raise."""

from enum import StrEnum

from msgspec import Struct

from qim.core.client.vocabulary import ClientState, StateChanged
from qim.core.contract.errors import ErrorCode
from qim.core.contract.kinds import KickReason
from qim.core.ports.local_store import Coordinates, LocalMessage


class SendStatus(StrEnum):
    """Where a send stands."""

    PENDING = "pending"
    ACKED = "acked"
    FAILED = "failed"


class Sent(Struct, frozen=True, kw_only=True):
    """``coordinates`` only when ACKED (None for membership changes), ``code`` (ErrorCode name) only when FAILED.

    ``message``: the server's words for people, while the process lives that heard them.
    """

    client_message_id: bytes
    status: SendStatus
    coordinates: Coordinates | None = None
    code: str = ""
    message: str = ""


class GroupResult(Struct, frozen=True, kw_only=True):
    """A settled membership change; version 0: done, but the version was not told."""

    conversation_id: bytes
    version: int
    control_seq: int
    noop: bool


class Conversation(Struct, frozen=True, kw_only=True):
    """One row of the list. kind: ConversationKind (0: not known); peer_user_id: the other side of a single chat, else 0.

    preview: the newest message that may be shown. unread: what counts beyond read_seq; without ``unread_exact`` at least
    so many (200: as many or more). muted_until: wall ms, 0: for ever. hidden: until something newer comes.
    """

    conversation_id: bytes
    kind: int
    peer_user_id: int
    last_activity_id: bytes
    preview: LocalMessage | None
    unread: int
    unread_exact: bool
    read_seq: int
    newest_seq: int
    pinned: bool = False
    muted: bool = False
    muted_until: int = 0
    hidden: bool = False
    marked_unread: bool = False
    draft: str = ""


class Unread(Struct, frozen=True, kw_only=True):
    """The badge: unread of all conversations that are not muted; not ``exact``: at least so many."""

    count: int
    exact: bool


class SendFailed(Exception):
    """Refused for good, by the server or here before it was kept; ``code`` (ErrorCode) says why, ``message`` in words."""

    def __init__(self, code: int, message: str = "") -> None:
        self.code = code
        self.message = message
        super().__init__(f"{code_name(code)}: {message}" if message else code_name(code))


class StillPending(TimeoutError):
    """Not settled in time: kept here under ``client_message_id`` and sent until it is; ``Client.settled`` tells its end."""

    def __init__(self, client_message_id: bytes, text: str) -> None:
        self.client_message_id = client_message_id
        super().__init__(f"{text}; it stays pending as {client_message_id.hex()}")


class NotConnected(Exception):
    """No connection in time, or one that can't be had: the state and its reason are in the message.

    ``refused``: the server or the user's own act ended it, waiting longer won't help.
    """

    def __init__(self, text: str, *, refused: bool = False) -> None:
        self.refused = refused
        super().__init__(text)


def code_name(code: int) -> str:
    """The ErrorCode's name; a newer server's code by its number."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"ERROR_{code}"


def state_text(state: StateChanged) -> str:
    """A state with its reason, for people."""
    told = ClientState(state.state).name
    if not state.reason:
        return told
    if state.refused:
        words = f": {state.detail}" if state.detail else ""
        return f"{told}, refused with {code_name(state.reason)}{words}"
    try:
        return f"{told}, kicked: {KickReason(state.reason).name}"
    except ValueError:
        return f"{told}, kicked: reason {state.reason}"
