"""What is said to a session projection, and what it asks of writers: lists, unread, marks, states (pipeline.md §4; rpc.py)."""

from msgspec import Struct

from qim.core.contract.actor import Actor


class SummaryAsk(Struct, frozen=True, array_like=True, gc=False):
    """One conversation of one user: what is visible beyond ``read_seq``, and what the list shows."""

    conversation_id: bytes
    read_seq: int


class AskSummaries(Struct, frozen=True, kw_only=True, tag="summarise", gc=False):
    """Session to writer (all of one writer shard): definitional unread and head, from the same rows history shows (§4).

    Unread looks at the first ``window`` + 1 visible records with seq > read_seq: at most ``window`` of them: the exact
    count of sender ≠ user, not control, not recalled, not deleted, no overlay record; else ``window``, exact False.
    """

    rid: int
    actor: Actor
    window: int
    items: tuple[SummaryAsk, ...]


class Summary(Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """``known`` False: no such conversation, or never a member. head: stored record of the newest visible row that is

    neither recalled nor deleted nor an overlay record (b"": none). last_activity_id is that of the newest visible row.
    Retention leaves head and unread as they are while the wall clock is below ``valid_until`` (ms); 0 for who has left, whom
    no dispatch tells of a recall.
    """

    conversation_id: bytes
    known: bool
    conversation_kind: int
    peer_user_id: int
    unread: int
    unread_exact: bool
    head: bytes
    last_activity_id: bytes
    valid_until: int = 2**63 - 1


class SummariesAnswer(Struct, frozen=True, kw_only=True, tag="summaries", gc=False):
    """Writer to session: one a SummaryAsk, in order."""

    rid: int
    summaries: tuple[Summary, ...]


class AskSessionList(Struct, frozen=True, kw_only=True, tag="sessions", gc=False):
    """Gateway to session: PULL_SESSION_LIST; revision 0 freezes a new snapshot, ``after`` is the page key."""

    rid: int
    actor: Actor
    revision: int
    after: bytes
    limit: int


class SessionRow(Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """One conversation of the list (frames SessionEntry)."""

    conversation_id: bytes
    conversation_kind: int
    peer_user_id: int
    last_activity_id: bytes
    head: bytes
    unread: int
    unread_exact: bool
    read_seq: int
    state_version: int
    state_flags: int
    state_value: bytes


class SessionListAnswer(Struct, frozen=True, kw_only=True, tag="sessionlist", gc=False):
    """Session to gateway: falling last_activity_id; ``after`` b"" at the end; badge: sum of unread, muted ones excluded."""

    rid: int
    rows: tuple[SessionRow, ...]
    revision: int
    after: bytes
    projected_through: int
    badge: int


class SubmitRead(Struct, frozen=True, kw_only=True, tag="read", gc=False):
    """Gateway to session: MARK_READ; answered by StateDone once the user-state log holds it."""

    rid: int
    actor: Actor
    conversation_id: bytes
    read_seq: int


class SubmitState(Struct, frozen=True, kw_only=True, tag="state", gc=False):
    """Gateway to session: SET_STATE; (version, device_id) orders."""

    rid: int
    actor: Actor
    conversation_id: bytes
    version: int
    flags: int
    value: bytes


class StateDone(Struct, frozen=True, kw_only=True, tag="statedone", gc=False):
    """Session to gateway: durable in the user-state log."""

    rid: int


class AskStates(Struct, frozen=True, kw_only=True, tag="states", gc=False):
    """Gateway to session: STATE_SYNC since a revision (offset in the user-state log)."""

    rid: int
    actor: Actor
    since_revision: int
    limit: int


class StateRow(Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """One conversation's user state and read mark."""

    conversation_id: bytes
    version: int
    device_id: bytes
    read_seq: int
    flags: int
    value: bytes


class DeviceRow(Struct, frozen=True, array_like=True, gc=False):
    """Up to which mailbox_seq a device of the user has the mailbox, at least."""

    device_id: bytes
    delivered_through: int


class StatesAnswer(Struct, frozen=True, kw_only=True, tag="statelist", gc=False):
    """Session to gateway. ``devices``: the user's own."""

    rid: int
    rows: tuple[StateRow, ...]
    revision: int
    has_more: bool
    devices: tuple[DeviceRow, ...] = ()


class AskReadBy(Struct, frozen=True, kw_only=True, tag="readby", gc=False):
    """Gateway to session: which members have read up to ``conversation_seq``; capped for large groups."""

    rid: int
    actor: Actor
    conversation_id: bytes
    conversation_seq: int


class ReadByAnswer(Struct, frozen=True, kw_only=True, tag="readers", gc=False):
    """Session to gateway."""

    rid: int
    users: tuple[int, ...]
    has_more: bool
