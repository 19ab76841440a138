"""A request on its way to COMMITTED, as plain mutable data: what was asked, what was frozen, who waits.

One Commit a dedupe key and shard at a time; later requests with the same key attach as waiters (pipeline.md §1.1).
"""

from msgspec import Struct

from qim.core.contract.actor import Actor
from qim.core.ports.moderation import Verdict
from qim.core.writer.audience import Audience
from qim.core.writer.membership import GroupChange, GroupRequest, NoOp, Refusal
from qim.core.writer.overlays import Target


class Ask(Struct, frozen=True, kw_only=True):
    """In a verdict's place: it may be sent if the outside agrees (moderating.py). ``peer_user_id``: 0 in a group."""

    conversation_kind: int
    peer_user_id: int


class Waiter(Struct, kw_only=True, eq=False):
    """An answer somebody waits for until ``deadline`` (monotonic ms); ``number``: the writer shard it was asked of."""

    address: str
    rid: int
    number: int
    deadline: int
    answered: bool = False
    commit: "Commit | None" = None


class Commit(Struct, kw_only=True, eq=False):
    """``sent``: a reservation of it was ever handed to the store, so nobody may be told that it surely failed.

    ``doubtful``: such a reservation was cut off by a fresh epoch and not yet looked up again.
    ``moderated``: the outside was asked about it and lets it pass; ``opinion``: its answer, until its turn has come.
    ``resumed``: an intent found by OPEN (e); nobody waits here and no dedupe entry of this machine points to it.
    """

    key: bytes
    digest: bytes
    actor: Actor
    client_message_id: bytes
    conversation_id: bytes
    peer_user_id: int = 0
    kind: int
    custom_type: str = ""
    body: bytes = b""
    retention_class: int = 0
    not_after: int
    group: GroupRequest | None = None
    target_seq: int = 0
    trace_id: int
    size: int = 0
    waiters: list[Waiter] = []
    sent: bool = False
    doubtful: bool = False
    resumed: bool = False
    refreezes: int = 0
    moderated: bool = False
    opinion: Verdict | None = None
    verdict: Refusal | NoOp | Ask | None = None
    # Frozen for one reservation; made anew when it is frozen again.
    audience: Audience | None = None
    target: Target | None = None
    change: GroupChange | None = None
    message_id: bytes = b""
    record: bytes = b""
    sent_at: int = 0
    conversation_seq: int = 0
    last_activity_id: bytes = b""
    version: int = 0
    offset: int = -1

    def thaw(self) -> None:
        """Back to what the client asked: nothing learnt from the store is kept (pipeline.md §0, Incarnation)."""
        self.doubtful = self.sent
        self.opinion = None
        self.verdict = None
        self.audience = None
        self.target = None
        self.change = None
        self.message_id = b""
        self.record = b""
        self.conversation_seq = 0
        self.last_activity_id = b""
        self.version = 0
        self.offset = -1
