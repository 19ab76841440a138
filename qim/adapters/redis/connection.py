"""One multiplexed connection to the store: many callers, one socket, one write a turn of the event loop.

What it adds to the bytes (reply_pipeline.py):

- The first exchange of EVERY new connection reads which history the server writes on (first_exchange.py), its settings and
  the value of ``qim:incarnation``, and loads the scripts; only then is a call let through. A call that names another
  history is refused unsent (pipeline.md §0). Nor is one let through before the server writes into a file that this run
  began (append_only_file.py), or while it has settings that a start would have refused.
- An open connection looks at both again and again. So a keyspace emptied or replaced under the same run id (FLUSHALL, a
  failover and back) is told to those who ask nothing for hours, and a peer that vanished without a word is an overdue
  reply within ``look_ms`` + ``call_timeout_ms`` however quiet it was. A reply that says the server is no master ends the
  connection at once.
- A lost connection answers what was under way with ReplyLost and never sends anything again by itself: repeating a
  script after a lost reply would apply it twice. Only a call the server answered with NOSCRIPT, which therefore did not
  run, is sent again after loading the script.
- It reconnects with bounded, jittered back-off for as long as it is open. Calls meanwhile fail at once with NotConnected
  instead of queueing: the machines hold the work, with limits of their own.
"""

import asyncio
import random
import ssl
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final

import hiredis
from msgspec import Struct

from qim.adapters import breakage
from qim.adapters.redis import append_only_file
from qim.adapters.redis.address import StoreAddress
from qim.adapters.redis.blocking import parse_info
from qim.adapters.redis.first_exchange import (
    INFO_REPLICATION,
    QUESTIONS,
    FilePutOff,
    Greeting,
    HandshakeRefused,
    ServerFacts,
    accepted,
    greeting,
    run_of,
    told_of_its_role,
)
from qim.adapters.redis.layout import INCARNATION_KEY, Call
from qim.adapters.redis.outcomes import (
    CallFailed,
    NotConnected,
    ServerError,
    StoreResetError,
    TooManyInFlight,
)
from qim.adapters.redis.reply_pipeline import Outcome, ReplyPipeline
from qim.adapters.start_refused import StartRefused

Command = tuple[bytes | int | str, ...]
IncarnationChanged = Callable[[bytes, bytes], None]
"""Told the present run and value of ``qim:incarnation``."""
Judge = Callable[[ServerFacts], object]
"""Raises StartRefused for a server that a start would have refused."""

NO_SCRIPT: Final = "NOSCRIPT"
SCRIPT_LOADS_MAX: Final = 3
"""How often one batch's scripts are loaded anew before NOSCRIPT is handed to the caller."""


class ConnectionConfig(Struct, frozen=True, kw_only=True):
    """Where the store is, and every limit."""

    address: StoreAddress
    connect_timeout_ms: int = 2_000
    call_timeout_ms: int = 5_000
    backoff_first_ms: int = 10
    backoff_max_ms: int = 1_000
    inflight_calls_max: int = 16_384
    buffered_bytes_max: int = 64 << 20
    look_ms: int = 1_000


class RedisConnection:
    """``open`` it in a running loop, ``close`` it at the end; every method belongs to that loop's thread."""

    def __init__(
        self,
        config: ConnectionConfig,
        *,
        scripts: Mapping[str, str],
        hashes: Mapping[str, bytes],
        on_incarnation_changed: IncarnationChanged = lambda run_id, incarnation_key: None,
    ) -> None:
        self._config = config
        self._scripts = scripts
        self._hashes = hashes
        self._on_incarnation_changed = on_incarnation_changed
        self._tls: ssl.SSLContext | None = None
        self._looking = False
        self._pipeline: ReplyPipeline | None = None
        self._connected = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self.run_id = b""
        """The history of the server last connected to (first_exchange.py); b"" before the first."""
        self.incarnation_key = b""
        """``qim:incarnation`` as it was last seen; b"" for an unmarked keyspace."""
        self.facts = ServerFacts(info=b"", settings={})
        """Of the server last connected to."""
        self.judge: Judge = _taken
        """Asked at every further connection: a server that came back with other settings is none to write to."""
        self.failure: Exception | None = None
        """Why the last attempt to connect failed; None while connected, and after a connection that was lost."""
        self.last_failure = ""
        """The same in words, or why the connection was lost; "" while connected."""
        self.connections_made = 0
        self.scripts_reloaded = 0

    @property
    def connected(self) -> bool:
        """Whether a call would be sent now."""
        return self._pipeline is not None and self._pipeline.usable

    @property
    def inflight_calls(self) -> int:
        """Calls without their reply; at most ``inflight_calls_max``."""
        return 0 if self._pipeline is None else self._pipeline.inflight

    @property
    def buffered_bytes(self) -> int:
        """Bytes that the socket has not taken yet; calls are refused above ``buffered_bytes_max``."""
        return 0 if self._pipeline is None else self._pipeline.buffered_bytes

    def open(self) -> None:
        """Begin connecting; returns at once. Raises StartRefused for TLS files that can't be used."""
        assert self._keeper is None, "opened already"
        self._tls = self._config.address.tls_context()
        loop = asyncio.get_running_loop()
        self._keeper = breakage.begin(loop, self._keep_connected(), "the store connection's keeper")

    async def ready(self, timeout_ms: int) -> None:
        """Wait for a connection. Raises NotConnected, with the last failure, after ``timeout_ms``."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._connected.wait()
        except TimeoutError:
            raise NotConnected(f"not within {timeout_ms} ms: {self.last_failure}") from None

    async def close(self) -> None:
        """End it now; what is under way becomes ReplyLost."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])
        pipeline = self._pipeline
        self._leave("closed")
        if pipeline is not None:
            await pipeline.lost  # the socket is closed when this returns

    # Calls

    def send(
        self, commands: Sequence[Command], *, run_id: bytes = b""
    ) -> list[asyncio.Future[Outcome]]:
        """All commands in one write, a future each, resolved in order with a reply or an outcome (a value).

        ``run_id`` names the server run they are meant for, b"" any. Raises NotConnected,
        StoreResetError, TooManyInFlight: then none of them was sent.
        """
        return self._sendable(len(commands), run_id).send(
            [hiredis.pack_command(command) for command in commands]  # type: ignore[arg-type]
        )

    async def call(self, *command: bytes | int | str, run_id: bytes = b"") -> Any:
        """One reply. Raises what ``send`` does, ReplyLost, ServerError."""
        outcome = await self.send([command], run_id=run_id)[0]
        if isinstance(outcome, CallFailed):
            raise outcome
        return outcome

    async def call_many(self, commands: Sequence[Command], *, run_id: bytes = b"") -> list[Outcome]:
        """Every command's reply, ServerError or ReplyLost, as values. Raises what ``send`` does."""
        return [await future for future in self.send(commands, run_id=run_id)]

    async def call_scripts(self, calls: Sequence[Call], *, run_id: bytes = b"") -> list[Outcome]:
        """Every script call's outcome, as ``call_many``; scripts the server forgot are loaded again.

        Calls answered NOSCRIPT are sent again behind the rest of the batch: calls that must run in
        order must not share a batch unless their scripts can tell (they compare and set).
        """
        pipeline = self._sendable(len(calls), run_id)
        packed = [self._packed(call) for call in calls]
        outcomes = [await future for future in pipeline.send(packed)]
        for _ in range(SCRIPT_LOADS_MAX):
            missing = [place for place, outcome in enumerate(outcomes) if _not_run(outcome)]
            if not missing:
                break
            again = await self._load_and_repeat(
                pipeline, [calls[place].script for place in missing], [packed[at] for at in missing]
            )
            for place, outcome in zip(missing, again, strict=True):
                outcomes[place] = outcome
        return outcomes

    async def _load_and_repeat(
        self, pipeline: ReplyPipeline, scripts: Sequence[str], packed: Sequence[bytes]
    ) -> list[Outcome]:
        if pipeline is not self._pipeline or not pipeline.usable:
            # another connection, perhaps another run: they did not run on the one they were meant for
            return [NotConnected("lost before the script was loaded")] * len(packed)
        names = list(dict.fromkeys(scripts))
        self.scripts_reloaded += len(names)
        loads = [_pack(b"SCRIPT", b"LOAD", self._scripts[name]) for name in names]
        futures = pipeline.send([*loads, *packed])
        return [await future for future in futures][len(loads) :]

    def _packed(self, call: Call) -> bytes:
        return _pack(b"EVALSHA", self._hashes[call.script], len(call.keys), *call.keys, *call.args)

    def _sendable(self, calls: int, run_id: bytes) -> ReplyPipeline:
        pipeline = self._pipeline
        if pipeline is None or not pipeline.usable:
            raise NotConnected(self.last_failure or "not connected yet")
        if run_id and run_id != self.run_id:
            raise StoreResetError(expected=run_id, present=self.run_id)
        if pipeline.inflight + calls > self._config.inflight_calls_max:
            raise TooManyInFlight(f"{pipeline.inflight} calls in flight")
        if pipeline.buffered_bytes > self._config.buffered_bytes_max:
            raise TooManyInFlight(f"{pipeline.buffered_bytes} bytes wait for the socket")
        return pipeline

    # Connecting

    async def _keep_connected(self) -> None:
        failures = 0
        while True:
            try:
                pipeline, greeted = await self._connect()
            except TimeoutError as error:
                self.failure, self.last_failure = error, "no answer to the first exchange"
            except (OSError, HandshakeRefused) as error:
                self.failure, self.last_failure = error, str(error) or type(error).__name__
            else:
                failures = 0
                self._enter(pipeline, greeted)
                self._leave(await self._watch(pipeline))
            failures += 1
            await asyncio.sleep(self._backoff_s(failures))

    def _backoff_s(self, failures: int) -> float:
        config = self._config
        most = min(config.backoff_first_ms << min(failures - 1, 16), config.backoff_max_ms)
        return random.uniform(most / 2, most) / 1000

    async def _watch(self, pipeline: ReplyPipeline) -> str:
        """Why it was lost; looks at it meanwhile."""
        while not pipeline.lost.done():
            await asyncio.wait([pipeline.lost], timeout=self._config.look_ms / 1000)
            self.look()
        return pipeline.lost.result()

    def look(self) -> None:
        """Ask which history and incarnation stand, unless that question is under way."""
        pipeline = self._pipeline
        if pipeline is None or not pipeline.usable or self._looking:
            return
        self._looking = True
        marker, role = pipeline.send([_pack(b"GET", INCARNATION_KEY), _pack(*INFO_REPLICATION)])
        role.add_done_callback(partial(self._looked, pipeline, marker))

    def _looked(
        self,
        pipeline: ReplyPipeline,
        marker: "asyncio.Future[Outcome]",
        role: "asyncio.Future[Outcome]",
    ) -> None:
        self._looking = False
        found, replication = marker.result(), role.result()
        if isinstance(found, CallFailed) or isinstance(replication, CallFailed):
            return
        try:
            run = run_of(parse_info(self.facts.info)["run_id"], replication)
        except HandshakeRefused as refused:
            pipeline.abort(str(refused))
            return
        if pipeline is self._pipeline and run != self.run_id:
            pipeline.abort("the server writes on another history")
            return
        self.saw_incarnation(found or b"")

    def heard(self, outcome: Outcome) -> None:
        """A call's answer: one that tells of a replica ends the connection, before it is a master of older data."""
        if told_of_its_role(outcome) and self._pipeline is not None:
            self._pipeline.abort(str(outcome))

    def saw_incarnation(self, incarnation_key: bytes) -> None:
        """Somebody read ``qim:incarnation`` just now (an Open answers it too): another one than before is told at once."""
        before, self.incarnation_key = self.incarnation_key, incarnation_key
        if before and before != incarnation_key:
            self._tell_changed()

    def _tell_changed(self) -> None:
        # Who doesn't hear of it would go on with what another incarnation told.
        what = "telling of another incarnation of the store"
        with breakage.telling(asyncio.get_running_loop(), what):
            self._on_incarnation_changed(self.run_id, self.incarnation_key)

    async def _connect(self) -> tuple[ReplyPipeline, Greeting]:
        pipeline: ReplyPipeline | None = None
        try:
            async with asyncio.timeout(self._config.connect_timeout_ms / 1000):
                pipeline = await self._dial()
                greeted = await self._first_exchange(pipeline)
        except BaseException:
            if pipeline is not None:
                pipeline.abort("no first exchange")
            raise
        return pipeline, greeted

    async def _dial(self) -> ReplyPipeline:
        config, loop = self._config, asyncio.get_running_loop()
        address = config.address

        def make() -> ReplyPipeline:
            return ReplyPipeline(call_timeout_s=config.call_timeout_ms / 1000)

        dialled: Coroutine[Any, Any, tuple[Any, ReplyPipeline]]
        if address.unix_path:
            dialled = loop.create_unix_connection(make, address.unix_path)
        else:
            dialled = loop.create_connection(make, address.host, address.port, ssl=self._tls)
        return (await dialled)[1]

    async def _first_exchange(self, pipeline: ReplyPipeline) -> Greeting:
        """All of it is answered before anything else may be asked."""
        address = self._config.address
        if address.password:
            names = [address.username] if address.username else []
            (login,) = _sent(pipeline, [_pack(b"AUTH", *names, address.password)])
            accepted(await login)
        scripts = [_pack(b"SCRIPT", b"LOAD", source) for source in self._scripts.values()]
        questions = [_pack(*question) for question in QUESTIONS]
        answers = [await future for future in _sent(pipeline, [*questions, *scripts])]
        greeted = greeting(answers[: len(questions)])
        loaded = [accepted(answer) for answer in answers[len(questions) :]]
        if loaded != [self._hashes[name] for name in self._scripts]:
            raise HandshakeRefused("the server hashes our scripts otherwise than we do")
        if self.connections_made:
            try:
                self.judge(greeted.facts)
            except StartRefused as refused:
                raise HandshakeRefused(str(refused)) from None
        if append_only_file.must_begin_anew(greeted.persistence):
            await self._begin_file_anew(pipeline)
        return greeted

    async def _begin_file_anew(self, pipeline: ReplyPipeline) -> None:
        """Another connection may do the same: only whether it was done counts, not whose command did it."""
        commands = [_pack(*append_only_file.BEGIN_ANEW), _pack(*append_only_file.ASK)]
        begun, told = [await future for future in _sent(pipeline, commands)]
        if append_only_file.must_begin_anew(parse_info(accepted(told))):
            accepted(begun)
            raise FilePutOff("the append-only file is not begun anew yet: a snapshot is made")

    def _enter(self, pipeline: ReplyPipeline, greeted: Greeting) -> None:
        before, self.run_id = self.run_id, greeted.run
        self.facts = greeted.facts
        self._pipeline = pipeline
        self.failure, self.last_failure = None, ""
        self.connections_made += 1
        self._connected.set()
        if before and before != self.run_id:
            self.incarnation_key = greeted.incarnation_key
            self._tell_changed()
        else:
            self.saw_incarnation(greeted.incarnation_key)

    def _leave(self, why: str) -> None:
        pipeline, self._pipeline = self._pipeline, None
        self._connected.clear()
        self.failure, self.last_failure = None, why
        if pipeline is not None:
            pipeline.abort(why)


def _taken(facts: ServerFacts) -> None:
    pass


def _pack(*command: bytes | int | str) -> bytes:
    packed: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]
    return packed


def _not_run(outcome: Outcome) -> bool:
    return isinstance(outcome, ServerError) and outcome.code == NO_SCRIPT


def _sent(pipeline: ReplyPipeline, commands: list[bytes]) -> "list[asyncio.Future[Outcome]]":
    """A stream may end between its dial and the turn of the loop that speaks first. Raises HandshakeRefused then."""
    if not pipeline.usable:
        raise HandshakeRefused("the connection ended before anything was said")
    return pipeline.send(commands)
