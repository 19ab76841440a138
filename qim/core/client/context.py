"""What the parts of a Client share: time, orders, the stream of the moment, waits for answers and for the local store."""

from enum import IntEnum
from typing import Final

from msgspec import Struct

from qim.core.client.vocabulary import ClientConfig, ClientEffect, ClientState, StateChanged
from qim.core.contract.frames import WireFrame, encode_frame
from qim.core.machine import Choose, Ms
from qim.core.ports.local_store import Coordinates, LocalMessage
from qim.core.ports.observe import Count
from qim.core.ports.sockets import CloseSocket, Write
from qim.core.wallclock import WallClock

_TRACES_MAX: Final = 4
_LIVE: Final = (ClientState.SYNCING, ClientState.ONLINE)


class WaitKind(IntEnum):
    """What an answer to a frame of ours would settle."""

    AUTH = 1
    SYNC_COMPLETE = 2
    PULL = 3
    SEND = 4
    LOOKUP = 5
    HISTORY = 6
    MEMBERS = 7
    WALK = 8
    SESSIONS = 9
    STATE_SYNC = 10
    MARK = 11
    READ_BY = 12


class Wait(Struct, frozen=True, kw_only=True):
    """A frame waits for its answer until ``deadline``; ``key``: the row's client_message_id or the conversation."""

    kind: WaitKind
    request: int
    deadline: Ms
    key: bytes = b""
    ticket: int = 0


class Loading(Struct, frozen=True, kw_only=True):
    """LoadLocal."""


class AttemptSaving(Struct, frozen=True, kw_only=True):
    """SaveAttempt for the dial ``conn``."""

    conn: int
    attempt: int


class RowSaving(Struct, frozen=True, kw_only=True):
    """SavePending."""

    client_message_id: bytes
    order: int


class NotAfterSaving(Struct, frozen=True, kw_only=True):
    """SaveNotAfter; 0 takes back."""

    rows: tuple[bytes, ...]
    not_after: int


class AckSaving(Struct, frozen=True, kw_only=True):
    """SaveAck or SaveGroupOk: then the row is settled with these coordinates."""

    coordinates: Coordinates
    version: int = 0
    noop: bool = False


class FailureSaving(Struct, frozen=True, kw_only=True):
    """SaveFailed; ``message``: the server's words."""

    client_message_id: bytes
    code: int
    message: str


class BatchSaving(Struct, frozen=True, kw_only=True):
    """SaveBatch."""

    conn: int
    messages: tuple[LocalMessage, ...]
    cursor: bytes
    covered_through: int
    settled: tuple[Coordinates, ...]
    has_more: bool
    retry_after_ms: int


class PushSaving(Struct, frozen=True, kw_only=True):
    """SavePush."""

    messages: tuple[LocalMessage, ...]


class HistorySaving(Struct, frozen=True, kw_only=True):
    """SaveHistory for a question of the user (ticket) or for a walk (ticket 0)."""

    ticket: int
    conversation_id: bytes
    messages: tuple[LocalMessage, ...]
    has_more: bool
    has_more_newer: bool = False
    write_policy: int = 0
    walk: int = 0


class StateSaving(Struct, frozen=True, kw_only=True):
    """SaveState."""

    state: int
    rebuild_target: int
    drop_cursor: bool


class RowsReading(Struct, frozen=True, kw_only=True):
    """ReadAnchors or ReadUnfilled for the walk of this number."""

    walk: int


class SessionsSaving(Struct, frozen=True, kw_only=True):
    """SaveSessions of the page that ends at page key ``after`` (None: the last)."""

    conn: int
    revision: int
    after: bytes | None
    projected_through: int


class StatesSaving(Struct, frozen=True, kw_only=True):
    """SaveStates of so many states."""

    conn: int
    revision: int
    count: int
    has_more: bool


class MarkSaving(Struct, frozen=True, kw_only=True):
    """SaveRead (read_seq) or SaveUserState (read_seq 0) for the user's ``ticket``."""

    ticket: int
    conversation_id: bytes
    read_seq: int


class SentSaving(Struct, frozen=True, kw_only=True):
    """SaveStateSent; ``code`` not 0: the server refuses it for good, and it isn't sent again."""

    conversation_id: bytes
    read_seq: int
    version: int
    code: int


class UnsentReading(Struct, frozen=True, kw_only=True):
    """ReadUnsent in this pass."""

    number: int


SessionOp = RowsReading | SessionsSaving | StatesSaving | MarkSaving | SentSaving | UnsentReading
PendingOp = (
    Loading
    | AttemptSaving
    | RowSaving
    | NotAfterSaving
    | AckSaving
    | FailureSaving
    | BatchSaving
    | PushSaving
    | HistorySaving
    | StateSaving
    | SessionOp
)


Repeated = Loading | RowSaving | StateSaving
"""Orders that can't be given up: they are given again until they succeed."""


class ClientContext:
    """One a machine. conn 0: no stream. ``waits`` all wait equally long, so their order is that of their deadlines."""

    def __init__(self, config: ClientConfig, choose: Choose) -> None:
        self.config = config
        self.choose = choose
        self.now: Ms = 0
        self.clock = WallClock()
        self.state = ClientState.OFFLINE
        self.conn = 0
        self.server_ahead: Ms = 0
        self.effects: list[ClientEffect] = []
        self.pending: dict[int, PendingOp] = {}
        self.waits: dict[int, Wait] = {}
        self._repeats: list[tuple[Ms, Repeated]] = []
        self._parts: list[bytes] = []
        self._traces: list[int] = []
        self._op = 0
        self._request = 0

    def is_live(self) -> bool:
        """Authenticated: frames beyond AUTH may be sent."""
        return self.state in _LIVE

    def server_time(self) -> Ms:
        """The server's wall clock now, as this connection's AUTH_OK and PONGs say."""
        return max(0, self.now + self.server_ahead)

    def move(
        self, state: ClientState, reason: int = 0, *, refused: bool = False, detail: str = ""
    ) -> None:
        """Enter a state and say so."""
        if state is not self.state:
            self.state = state
            self.effects.append(
                StateChanged(state=state, reason=reason, refused=refused, detail=detail)
            )

    def expect(self, pending: PendingOp) -> int:
        """The op number under which the local store's answer will find ``pending``."""
        self._op += 1
        self.pending[self._op] = pending
        return self._op

    def repeat(self, pending: Repeated) -> None:
        """Give this order again after the shortest pause; each is one of a bounded number of ops."""
        self._repeats.append((self.now + self.config.backoff_min_ms, pending))

    def take_repeats(self) -> list[Repeated]:
        """Those whose pause is over. All pauses are equally long, so the list is in their order."""
        if not self._repeats or self._repeats[0][0] > self.now:
            return []
        due = [pending for at, pending in self._repeats if at <= self.now]
        del self._repeats[: len(due)]
        return due

    def repeat_deadline(self) -> Ms | None:
        """The end of the first pause."""
        return self._repeats[0][0] if self._repeats else None

    def order(self, effect: ClientEffect) -> None:
        """Add an effect to this step."""
        self.effects.append(effect)

    def count(self, name: str, label: str = "") -> None:
        """Observe: counter ``client_<name>``."""
        self.effects.append(Count(name=f"client_{name}", label=label))

    def say(self, frame: WireFrame, *, request: int = 0, trace: int | None = None) -> None:
        """Write a frame behind all others of this step."""
        self._parts.append(encode_frame(frame, request=request))
        if trace is not None and len(self._traces) < _TRACES_MAX:
            self._traces.append(trace)

    def ask(
        self,
        frame: WireFrame,
        kind: WaitKind,
        *,
        key: bytes = b"",
        ticket: int = 0,
        trace: int | None = None,
    ) -> int:
        """Write a frame that wants an answer; its request number, under which the wait stands in ``waits``."""
        self._request = self._request % 0xFFFFFFFF + 1
        self.waits[self._request] = Wait(
            kind=kind,
            request=self._request,
            deadline=self.now + self.config.request_timeout_ms,
            key=key,
            ticket=ticket,
        )
        self.say(frame, request=self._request, trace=trace)
        return self._request

    def answered(self, request: int, kind: WaitKind) -> Wait | None:
        """The wait that this answer ends, if one of this kind stands under its number."""
        wait = self.waits.get(request)
        if wait is None or wait.kind is not kind:
            self.count("answers_ignored", kind.name)
            return None
        del self.waits[request]
        return wait

    def drop_stream(self) -> None:
        """Order the end of the stream; nothing of it is heard any more and no answer will come."""
        if self.conn:
            self.write()
            self.effects.append(CloseSocket(conn=self.conn))
        self.forget_stream()

    def forget_stream(self) -> None:
        """The stream is gone."""
        self.conn = 0
        self.waits.clear()
        self._parts.clear()
        self._traces.clear()

    def write(self) -> None:
        """One Write with all frames said since the last."""
        if self._parts and self.conn:
            self.effects.append(
                Write(conn=self.conn, data=b"".join(self._parts), traces=tuple(self._traces))
            )
        self._parts.clear()
        self._traces.clear()

    def backoff(self, site: str, tries: int, *key: int | bytes) -> Ms:
        """Doubling delay with jitter between its half and its whole; a benign choice gives the half."""
        config = self.config
        full = min(config.backoff_max_ms, config.backoff_min_ms << min(tries, 20))
        half = max(1, full // 2)
        chosen = self.choose(site, (config.user_id, config.device_id, tries, *key))
        return half + chosen % (half + 1)
