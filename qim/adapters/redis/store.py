"""The store port on Redis or Valkey: a request is one script call on the multiplexed connection.

Message store and mailbox store may be one server or two: one RedisStore a server, told the ``roles`` it plays, each with
an incarnation of its own and resets of its own.

An adapter translates and never decides: each request is answered exactly once, with its typed reply or a completion.
What surely did not run is Failed; what was sent and not answered is Unknown and is never sent again from here, but for
NOSCRIPT, which the server answers instead of running anything.
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from qim.adapters import breakage
from qim.adapters.redis.address import StoreAddress
from qim.adapters.redis.codec import MalformedReply, decode, encode, run_id_named, too_large
from qim.adapters.redis.connection import (
    NO_SCRIPT,
    Command,
    ConnectionConfig,
    RedisConnection,
)
from qim.adapters.redis.first_exchange import FilePutOff
from qim.adapters.redis.layout import Call, marker_of
from qim.adapters.redis.outcomes import (
    CallFailed,
    NotConnected,
    NotSent,
    ReplyLost,
    ServerError,
    StoreResetError,
    TooManyInFlight,
    wrote_nothing,
)
from qim.adapters.redis.scripts import load_scripts, script_hashes
from qim.adapters.redis.startup import (
    advice,
    check_server,
    judge_server,
    refusal_told_by,
    refuse_unsafe_elsewhere,
)
from qim.core.ports.completion import (
    Completion,
    Failed,
    FailReason,
    StoreReset,
    StoreRole,
    Unknown,
)
from qim.core.ports.store import StoreReply, StoreRequest, store_role
from qim.core.ports.store_history import ArchiveOpened
from qim.core.ports.store_mailbox import MailboxOpened
from qim.core.ports.store_message import ShardOpened
from qim.core.ports.store_session import SessionOpened
from qim.core.ports.store_source import SourceOpened

Answer = Callable[[Any], None]
"""Called once with a StoreReply or a Completion."""

READY_TIMEOUT_MS: Final = 10_000
READY_LOOK_MS: Final = 250
SNAPSHOT_MS_MAX: Final = 600_000
"""So long a start also waits for a server that makes a snapshot, as for a replica that came with it."""
LOOK_AGAIN_SECONDS: Final = 0.05
BOTH: Final = (StoreRole.MESSAGE, StoreRole.MAILBOX)

# The replies that name the incarnation as the script found or made it.
_OPENED: Final = (ShardOpened, SourceOpened, ArchiveOpened, MailboxOpened, SessionOpened)


class RedisStore:
    """Make it with ``open``; ``submit`` and ``close`` belong to the event loop's thread."""

    def __init__(
        self,
        config: ConnectionConfig,
        *,
        on_reset: Callable[[StoreReset], None],
        roles: tuple[StoreRole, ...] = BOTH,
    ) -> None:
        self._config = config
        self._on_reset = on_reset
        self._roles = roles
        self._hashes = script_hashes()
        self._repeats: set[asyncio.Task[None]] = set()
        self.connection = RedisConnection(
            config,
            scripts=load_scripts(),
            hashes=self._hashes,
            on_incarnation_changed=self._another_incarnation,
        )
        self.waived: tuple[str, ...] = ()
        """What ``unsafe_dev`` let pass, as words for a warning; () where everything is as it must be."""
        self.advice: tuple[tuple[str, str], ...] = ()
        """(What was found, what to do) of what is no reason to refuse."""
        self.malformed_replies = 0
        self.unknown_answers = 0
        self.overloaded_answers = 0
        self.resets_noticed = 0
        self.last_error = ""

    @classmethod
    async def open(
        cls,
        where: StoreAddress | ConnectionConfig | Path,
        *,
        on_reset: Callable[[StoreReset], None],
        roles: tuple[StoreRole, ...] = BOTH,
        unsafe_dev: bool = False,
        ready_timeout_ms: int = READY_TIMEOUT_MS,
    ) -> "RedisStore":
        """Connect and check the server. ``where``: a server, the path of its Unix socket, or a whole configuration.

        ``unsafe_dev`` lets a server on this machine lose data (startup.py). Raises StartRefused with what to do, NotConnected
        after ``ready_timeout_ms``. Nothing is written.
        """
        if isinstance(where, Path):
            where = StoreAddress(unix_path=str(where))
        config = where if isinstance(where, ConnectionConfig) else ConnectionConfig(address=where)
        if unsafe_dev:
            refuse_unsafe_elsewhere(config.address)
        store = cls(config, on_reset=on_reset, roles=roles)
        store.connection.open()
        try:
            await store._checked(ready_timeout_ms, unsafe_dev=unsafe_dev)
        except BaseException:
            await store.close()
            raise
        return store

    async def _checked(self, timeout_ms: int, *, unsafe_dev: bool) -> None:
        """Connected and judged; a connection that is lost between the two is waited for again, until time is up."""
        loop, address = asyncio.get_running_loop(), self._config.address
        deadline = loop.time() + timeout_ms / 1000
        while True:
            await self._ready(max(READY_LOOK_MS, int((deadline - loop.time()) * 1000)))
            try:
                self.waived = await check_server(self.connection, address, unsafe_dev=unsafe_dev)
                self.advice = advice(self.connection.facts, address)
                self.connection.judge = partial(
                    judge_server, address=address, unsafe_dev=unsafe_dev
                )
                return
            except (NotConnected, ReplyLost) as lost:
                if loop.time() >= deadline:
                    raise NotConnected(f"{address}: lost while it was looked at: {lost}") from None
            # The connection hears of its own end on a later turn of the loop.
            await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def _ready(self, timeout_ms: int) -> None:
        """Wait for the connection, but not for a server that will never do."""
        address, connection = self._config.address, self.connection
        waits, snapshots = max(1, timeout_ms // READY_LOOK_MS), SNAPSHOT_MS_MAX // READY_LOOK_MS
        while waits > 0:
            try:
                await connection.ready(min(timeout_ms, READY_LOOK_MS))
                return
            except NotConnected:
                refused = refusal_told_by(connection.failure, address)
                if refused is not None:
                    raise refused from None
            if isinstance(connection.failure, FilePutOff) and snapshots > 0:
                snapshots -= 1
            else:
                waits -= 1
        why = connection.last_failure or "no answer to the first exchange"
        raise NotConnected(f"{address}: not within {timeout_ms} ms: {why}")

    def gauges(self) -> Iterator[tuple[str, str, float]]:
        """(name, label, value) at this moment; the label is the role, ``both`` where one server plays both."""
        label = "both" if len(self._roles) > 1 else str(self._roles[0])
        config, connection = self._config, self.connection
        yield "store_connected", label, connection.connected
        yield "store_calls_inflight", label, connection.inflight_calls
        yield "store_calls_inflight_max", label, config.inflight_calls_max
        yield "store_bytes_buffered", label, connection.buffered_bytes
        yield "store_bytes_buffered_max", label, config.buffered_bytes_max
        yield "store_connections", label, connection.connections_made
        yield "store_scripts_reloaded", label, connection.scripts_reloaded
        yield "store_answers_unknown", label, self.unknown_answers
        yield "store_answers_overloaded", label, self.overloaded_answers
        yield "store_replies_malformed", label, self.malformed_replies
        yield "store_resets_noticed", label, self.resets_noticed

    async def close(self) -> None:
        """End the connection; what is under way is answered Unknown."""
        await self.connection.close()
        if self._repeats:
            await asyncio.wait(self._repeats)

    def submit(self, request: StoreRequest, answer: Answer) -> None:
        """Send one request; requests of one turn of the loop leave in one write, in order."""
        call = encode(request)
        if too_large(call):
            answer(Failed(op=request.op, why=FailReason.TOO_LARGE))
            return
        command: Command = (
            b"EVALSHA",
            self._hashes[call.script],
            len(call.keys),
            *call.keys,
            *call.args,
        )
        try:
            (future,) = self.connection.send((command,), run_id=run_id_named(request))
        except NotSent as error:
            answer(self._failure(request, error))
            return
        future.add_done_callback(
            partial(self._answered, request, call, answer, self.connection.run_id)
        )

    def _answered(
        self,
        request: StoreRequest,
        call: Call,
        answer: Answer,
        run_id: bytes,
        future: "asyncio.Future[Any]",
    ) -> None:
        outcome, loop = future.result(), future.get_loop()
        what = f"the answer to {type(request).__name__}"
        if isinstance(outcome, ServerError) and outcome.code == NO_SCRIPT:
            task = breakage.begin(loop, self._repeat(request, call, answer, run_id), what)
            self._repeats.add(task)
            task.add_done_callback(self._repeats.discard)
            return
        with breakage.telling(loop, what):
            answer(self._meaning(request, run_id, outcome))

    async def _repeat(
        self, request: StoreRequest, call: Call, answer: Answer, run_id: bytes
    ) -> None:
        """The server forgot the script and ran nothing: load and send again, to the same run only."""
        try:
            (outcome,) = await self.connection.call_scripts((call,), run_id=run_id)
        except NotSent as error:
            outcome = error
        answer(self._meaning(request, run_id, outcome))

    def _meaning(
        self, request: StoreRequest, run_id: bytes, outcome: Any
    ) -> StoreReply | Completion:
        if isinstance(outcome, CallFailed):
            self.connection.heard(outcome)
            return self._failure(request, outcome)
        try:
            reply = decode(request, run_id, outcome)
        except MalformedReply as error:
            # It may well have been applied.
            self.malformed_replies += 1
            self.unknown_answers += 1
            self.last_error = str(error)
            return Unknown(op=request.op)
        self._learn(reply)
        return reply

    def _learn(self, reply: StoreReply | Completion) -> None:
        """What a reply tells about the keyspace: the machines that asked nothing must hear of it too."""
        if isinstance(reply, StoreReset):
            self.connection.look()
        elif isinstance(reply, _OPENED):
            self.connection.saw_incarnation(marker_of(reply.incarnation))

    def _failure(self, request: StoreRequest, error: CallFailed) -> Completion:
        self.last_error = str(error)
        op = request.op
        if isinstance(error, StoreResetError):
            return StoreReset(op=op, store=store_role(request))
        if isinstance(error, TooManyInFlight):
            self.overloaded_answers += 1
            return Failed(op=op, why=FailReason.OVERLOADED)
        if isinstance(error, NotSent):
            return Failed(op=op, why=FailReason.UNREACHABLE)
        reason = wrote_nothing(error) if isinstance(error, ServerError) else None
        if reason is not None:
            return Failed(op=op, why=reason)
        self.unknown_answers += 1
        return Unknown(op=op)

    def _another_incarnation(self, run_id: bytes, incarnation_key: bytes) -> None:
        self.resets_noticed += 1
        for role in self._roles:
            self._on_reset(StoreReset(op=None, store=role))
