"""What the client machine hears and orders (pipeline.md §6): commands of its user, the stream, the local store.

Wall times are ms. A command that can't be taken is answered at once by a notice; nothing is raised.
"""

from enum import IntEnum

from msgspec import Struct

from qim.core.contract.params import DEFAULT, Parameters
from qim.core.ports.completion import Failed, Unknown
from qim.core.ports.local import DrainRequested, Started
from qim.core.ports.local_store import (
    Coordinates,
    LocalMessage,
    LocalStoreReply,
    LocalStoreRequest,
)
from qim.core.ports.observe import Count, Gauge, StageReached, Violation
from qim.core.ports.sockets import (
    Backlog,
    BytesReceived,
    CloseSocket,
    Dial,
    Dialed,
    SocketClosed,
    Write,
)


class ClientConfig(Struct, frozen=True, kw_only=True):
    """Who this device is, where it connects (addresses are tried in turn), and its limits."""

    user_id: int
    device_id: bytes
    access_token: str
    addresses: tuple[str, ...]
    tenant_id: str = "default"
    client_info: str = ""
    parameters: Parameters = DEFAULT
    pending_max: int = 10_000
    unsaved_rows_max: int = 256
    sends_inflight_max: int = 256
    conversation_inflight_max: int = 1
    """Sends of one conversation on the wire at once. 1 keeps conversation_seq in the order of sending even when one
    of them is refused or lost between servers; more is faster and keeps only that order which nothing disturbs."""
    queries_max: int = 64
    pull_limit: int = 0
    history_limit: int = 0
    queries_inflight_max: int = 2
    request_timeout_ms: int = 15_000
    """End of every wait for an answer: of AUTH, pull, send and query."""
    pull_linger_ms: int = 250
    """A push that carried its body is applied already; the pull that moves the cursor may gather some more."""
    dial_timeout_ms: int = 10_000
    dead_peer_ms: int = 70_000
    backoff_min_ms: int = 500
    backoff_max_ms: int = 30_000
    redirects_max: int = 5
    pushes_unsaved_max: int = 64
    anchors_page: int = 100
    sessions_limit: int = 0
    marks_inflight_max: int = 8
    mark_tickets_max: int = 1_000
    state_sync_every_ms: int = 60_000
    """What the user's other devices read, pinned or muted is asked for so often while connected."""
    fill_tries_max: int = 5
    """So often a conversation is asked for whose history the server can't read; then its unread stays a lower bound."""
    settled_after_ms: int = 60_000
    """A message sent longer ago that a complete page of history doesn't show is visible no more (expired)."""


class OnlineWanted(Struct, frozen=True, kw_only=True, gc=False):
    """The user wants to be connected; also the act that ends a final KICKED."""

    wall: int


class OfflineWanted(Struct, frozen=True, kw_only=True, gc=False):
    """The user wants no connection; pending rows stay."""


class TokenRenewed(Struct, frozen=True, kw_only=True, gc=False):
    """A new access token; a connection that waits for one is tried again."""

    access_token: str
    wall: int


class SendRequested(Struct, frozen=True, kw_only=True, gc=False):
    """Send a message to a conversation, or to a peer. Answers: SendQueued then SendSettled, or SendRefused."""

    client_message_id: bytes
    conversation_id: bytes | None
    peer_user_id: int | None
    kind: int
    custom_type: str
    body: bytes
    retention_class: int
    wall: int


class GroupChangeRequested(Struct, frozen=True, kw_only=True, gc=False):
    """CREATE (conversation_id None), ADD, REMOVE, LEAVE (MembershipOp). Answers: SendQueued then GroupSettled, or SendRefused."""

    client_message_id: bytes
    operation: int
    conversation_id: bytes | None
    members: tuple[int, ...]
    name: str = ""
    meta: bytes = b""
    wall: int


class OverlayRequested(Struct, frozen=True, kw_only=True, gc=False):
    """RECALL or DELETE_FOR_ME (MessageKind). Answers: SendQueued then SendSettled, or SendRefused."""

    client_message_id: bytes
    kind: int
    conversation_id: bytes
    target_seq: int
    wall: int


class MarkReadRequested(Struct, frozen=True, kw_only=True, gc=False):
    """Read up to read_seq. Answers: StateKept then, whenever it is connected, StateSettled."""

    ticket: int
    conversation_id: bytes
    read_seq: int


class StateRequested(Struct, frozen=True, kw_only=True, gc=False):
    """Replace the user's own state (StateFlag, contract/user_state.py). Answers as MarkReadRequested."""

    ticket: int
    conversation_id: bytes
    flags: int
    value: bytes
    wall: int


class ReadByRequested(Struct, frozen=True, kw_only=True, gc=False):
    """READ_BY; ``ticket`` comes back in ReadByArrived or QueryFailed."""

    ticket: int
    conversation_id: bytes
    conversation_seq: int


class HistoryRequested(Struct, frozen=True, kw_only=True, gc=False):
    """PULL_HISTORY; ``ticket`` comes back in HistoryArrived or QueryFailed."""

    ticket: int
    conversation_id: bytes
    anchor: int
    direction: int
    limit: int = 0


class MembersRequested(Struct, frozen=True, kw_only=True, gc=False):
    """MEMBERS; ``ticket`` comes back in MembersArrived or QueryFailed."""

    ticket: int
    conversation_id: bytes
    since_version: int = 0


class SyncRequested(Struct, frozen=True, kw_only=True, gc=False):
    """Look once for what is new: a pull now if online (the answer is a CaughtUp), else at the next connection."""


ClientCommand = (
    OnlineWanted
    | OfflineWanted
    | TokenRenewed
    | SendRequested
    | GroupChangeRequested
    | OverlayRequested
    | MarkReadRequested
    | StateRequested
    | HistoryRequested
    | MembersRequested
    | ReadByRequested
    | SyncRequested
)


class ClientState(IntEnum):
    """Where the connection stands; the diagram is in core/client/machine.py."""

    OFFLINE = 1
    WAITING = 2
    DIALING = 3
    AUTHENTICATING = 4
    SYNCING = 5
    ONLINE = 6
    STOPPED = 7


class StateChanged(Struct, frozen=True, kw_only=True, gc=False):
    """``reason``: KickReason for a kick, ErrorCode for a refused AUTH (``refused``), else 0. STOPPED waits for the user.

    detail: the words that came with a refusal, for people.
    """

    state: int
    reason: int = 0
    refused: bool = False
    detail: str = ""


class SendQueued(Struct, frozen=True, kw_only=True, gc=False):
    """The row is durable: it will be sent, across restarts too, until it is settled."""

    client_message_id: bytes


class SendRefused(Struct, frozen=True, kw_only=True, gc=False):
    """Never stored, never sent (ErrorCode QUOTA_EXCEEDED, INVALID_ARGUMENT, UNAVAILABLE). ``message``: why, for people."""

    client_message_id: bytes
    code: int
    message: str = ""


class SendSettled(Struct, frozen=True, kw_only=True, gc=False):
    """Sent (coordinates), or failed for good (coordinates None, ``code`` an ErrorCode, ``message`` the server's words)."""

    client_message_id: bytes
    coordinates: Coordinates | None
    code: int = 0
    message: str = ""


class GroupSettled(Struct, frozen=True, kw_only=True, gc=False):
    """Done (code 0), or failed for good. version 0: done, but the version wasn't told (found in mailbox or history)."""

    client_message_id: bytes
    conversation_id: bytes
    version: int
    control_seq: int
    noop: bool = False
    code: int = 0
    message: str = ""


class MessageApplied(Struct, frozen=True, kw_only=True, gc=False):
    """A message stands durably in the local store for the first time; once a message_id, ever."""

    message: LocalMessage


class HistoryArrived(Struct, frozen=True, kw_only=True, gc=False):
    """The page asked for, rising by seq, and saved."""

    ticket: int
    conversation_id: bytes
    messages: tuple[LocalMessage, ...]
    has_more: bool
    write_policy: int
    has_more_newer: bool = False


class ReadByArrived(Struct, frozen=True, kw_only=True, gc=False):
    """Members that have read up to conversation_seq; has_more: not all of them are named."""

    ticket: int
    conversation_id: bytes
    conversation_seq: int
    users: tuple[int, ...]
    has_more: bool


class StateKept(Struct, frozen=True, kw_only=True, gc=False):
    """A read mark (version 0) or state is durable here, and goes to the server as soon as it can."""

    ticket: int
    version: int


class StateSettled(Struct, frozen=True, kw_only=True, gc=False):
    """The server has it (code 0), or refuses it for good, or the local store can't keep it. ``message``: why, for people."""

    ticket: int
    code: int = 0
    message: str = ""


class SessionsReady(Struct, frozen=True, kw_only=True, gc=False):
    """Session list, states and what unread needs are here, as of mailbox_seq projected_through: unread is exact."""

    projected_through: int


class DevicesTold(Struct, frozen=True, kw_only=True, gc=False):
    """(device_id, mailbox_seq) of the user's devices: up to where each has the mailbox, at least."""

    devices: tuple[tuple[bytes, int], ...]


class MembersArrived(Struct, frozen=True, kw_only=True, gc=False):
    """Who is in the group; ``full``: added is everyone."""

    ticket: int
    conversation_id: bytes
    version: int
    since_version: int
    added: tuple[int, ...]
    removed: tuple[int, ...]
    name: str
    creator: int
    full: bool


class QueryFailed(Struct, frozen=True, kw_only=True, gc=False):
    """A history, member or READ_BY request that got an error, no answer in time, or no connection."""

    ticket: int
    code: int
    retry_after_ms: int = 0
    message: str = ""


class CaughtUp(Struct, frozen=True, kw_only=True, gc=False):
    """Everything up to covered_through is applied, and nothing newer was known when this was said."""

    covered_through: int


ClientNotice = (
    StateChanged
    | SendQueued
    | SendRefused
    | SendSettled
    | GroupSettled
    | MessageApplied
    | HistoryArrived
    | MembersArrived
    | ReadByArrived
    | QueryFailed
    | StateKept
    | StateSettled
    | SessionsReady
    | DevicesTold
    | CaughtUp
)

ClientEvent = (
    ClientCommand
    | Dialed
    | BytesReceived
    | SocketClosed
    | Backlog
    | LocalStoreReply
    | Failed
    | Unknown
    | Started
    | DrainRequested
)
ClientEffect = (
    Dial
    | Write
    | CloseSocket
    | LocalStoreRequest
    | ClientNotice
    | Count
    | Gauge
    | StageReached
    | Violation
)
