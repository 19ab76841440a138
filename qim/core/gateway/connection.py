"""One connection as the ConnectionNode remembers it; nothing of it survives the process.

Legality stands in table.py, bounds of what it is given in outbound.py. A connection holds no message and no cursor.
"""

from collections import deque

from qim.core.contract.actor import Actor
from qim.core.contract.frames import Auth
from qim.core.contract.params import Parameters
from qim.core.contract.rpc import SyncAnswer
from qim.core.contract.wire import FrameDecoder
from qim.core.gateway.outbound import Outbound
from qim.core.gateway.questions import Batch
from qim.core.gateway.table import ConnectionState
from qim.core.machine import Ms
from qim.core.ports.store_mailbox import PresenceHold


class Entering:
    """An AUTH on its way: AUTH_OK needs the mailbox's SyncAnswer, the presence entry, and the badge or its time-out."""

    __slots__ = ("actor", "badge", "badge_rid", "frame", "request", "rid", "sync")

    def __init__(self, frame: Auth, actor: Actor, *, request: int, rid: int) -> None:
        self.frame = frame
        self.actor = actor
        self.request = request
        self.rid = rid
        self.sync: SyncAnswer | None = None
        self.badge: int | None = None
        self.badge_rid = 0


class Connection:
    """Mutable state of one stream. ``seen``: the greatest mailbox_seq known of its user, for PONG and ONLINE_READY.

    ``token_ends_at``: when, by this node's time, the access token of the last AUTH is no longer good.
    """

    __slots__ = (
        "accepted_at",
        "actor",
        "attempt",
        "auth_attempts",
        "conn",
        "decoder",
        "entering",
        "held",
        "inflight",
        "inflight_batches",
        "last_heard",
        "out",
        "paused",
        "pinging",
        "seen",
        "session_epoch",
        "shard",
        "state",
        "sync_to_seq",
        "token_ends_at",
        "tokens_at",
        "tokens_milli",
    )

    def __init__(self, conn: int, now: Ms, parameters: Parameters, burst: int) -> None:
        self.conn = conn
        self.state = ConnectionState.AUTHENTICATING
        self.accepted_at = now
        self.last_heard = now
        self.decoder = FrameDecoder(parameters.frame_bytes_before_auth_max)
        self.out = Outbound(parameters)
        self.entering: Entering | None = None
        self.auth_attempts = 0
        self.actor: Actor | None = None
        self.shard = 0
        self.attempt = 0
        self.token_ends_at: Ms = 0
        self.session_epoch = 0
        self.sync_to_seq = 0
        self.seen = 0
        self.inflight = 0
        self.inflight_batches = 0
        self.held: deque[tuple[Batch, int, int]] = deque()
        self.paused = False
        self.pinging = False
        self.tokens_milli = burst * 1000
        self.tokens_at = now

    def move(self, state: ConnectionState) -> None:
        """Enter a state; CLOSING is final."""
        assert self.state is not ConnectionState.CLOSING, f"connection {self.conn} left CLOSING"
        self.state = state

    def authenticated(self) -> Actor:
        """Who speaks here; only after AUTH."""
        assert self.actor is not None, f"connection {self.conn} has no actor in {self.state!r}"
        return self.actor

    def is_live(self) -> bool:
        """AUTH_OK was sent and nothing has ended it: it may be answered and counts as online."""
        return ConnectionState.SYNCING <= self.state <= ConnectionState.ONLINE

    def admit(self, now: Ms, per_second: int, burst: int) -> int:
        """Take one token of the L1 bucket: 0, or the ms until there will be one (pipeline.md §1.1)."""
        self.tokens_milli = min(
            burst * 1000, self.tokens_milli + (now - self.tokens_at) * per_second
        )
        self.tokens_at = now
        if self.tokens_milli >= 1000:
            self.tokens_milli -= 1000
            return 0
        return -((self.tokens_milli - 1000) // per_second)

    def hold(self) -> PresenceHold:
        """The presence entry this connection keeps alive."""
        actor = self.authenticated()
        return PresenceHold(
            tenant_id=actor.tenant_id,
            user_id=actor.user_id,
            device_id=actor.device_id,
            conn=self.conn,
            session_epoch=self.session_epoch,
            attempt=self.attempt,
        )
