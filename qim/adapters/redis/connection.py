"""One multiplexed connection to the store: many callers, one socket, one write a turn of the event loop.

What it adds to the bytes (reply_pipeline.py):

- The first exchange of EVERY new connection reads the server's run id and the value of ``qim:incarnation`` and loads the
  scripts; only then is a call let through. A call that names another run id is refused unsent (pipeline.md §0).
- A lost connection answers what was under way with ReplyLost and never sends anything again by itself: repeating a
  script after a lost reply would apply it twice. Only a call the server answered with NOSCRIPT, which therefore did not
  run, is sent again after loading the script.
- It reconnects with bounded, jittered back-off for as long as it is open. Calls meanwhile fail at once with NotConnected
  instead of queueing: the machines hold the work, with limits of their own.
"""

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

import hiredis
from msgspec import Struct

from qim.adapters.redis.blocking import parse_info
from qim.adapters.redis.layout import INCARNATION_KEY, Call
from qim.adapters.redis.outcomes import (
    CallFailed,
    NotConnected,
    ServerError,
    StoreResetError,
    TooManyInFlight,
)
from qim.adapters.redis.reply_pipeline import Outcome, ReplyPipeline

Command = tuple[bytes | int | str, ...]
RunIdChanged = Callable[[bytes, bytes], None]

NO_SCRIPT: Final = "NOSCRIPT"
SCRIPT_LOADS_MAX: Final = 3
"""How often one batch's scripts are loaded anew before NOSCRIPT is handed to the caller."""


class ConnectionConfig(Struct, frozen=True, kw_only=True):
    """Where the store is, and every limit. ``unix_path`` or ``host`` and ``port``."""

    unix_path: str = ""
    host: str = ""
    port: int = 6379
    username: str = ""
    password: str = ""
    tls: ssl.SSLContext | None = None
    connect_timeout_ms: int = 2_000
    call_timeout_ms: int = 5_000
    backoff_first_ms: int = 10
    backoff_max_ms: int = 1_000
    inflight_calls_max: int = 16_384
    buffered_bytes_max: int = 64 << 20
    idle_ping_ms: int = 10_000


class HandshakeRefused(Exception):
    """The server answered the first exchange with an error (it is still loading, wants a password, …)."""


class RedisConnection:
    """``open`` it in a running loop, ``close`` it at the end; every method belongs to that loop's thread."""

    def __init__(
        self,
        config: ConnectionConfig,
        *,
        scripts: Mapping[str, str],
        hashes: Mapping[str, bytes],
        on_run_id_changed: RunIdChanged = lambda run_id, incarnation_key: None,
    ) -> None:
        self._config = config
        self._scripts = scripts
        self._hashes = hashes
        self._on_run_id_changed = on_run_id_changed
        self._pipeline: ReplyPipeline | None = None
        self._connected = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self.run_id = b""
        """Of the server last connected to; b"" before the first."""
        self.incarnation_key = b""
        """``qim:incarnation`` as the present connection found it; b"" for an unmarked keyspace."""
        self.server_info: Mapping[str, str] = {}
        """INFO server of the present connection (``redis_version``, …)."""
        self.last_failure = ""
        self.connections_made = 0
        self.scripts_reloaded = 0

    @property
    def connected(self) -> bool:
        """Whether a call would be sent now."""
        return self._pipeline is not None and self._pipeline.usable

    @property
    def server_mode(self) -> str:
        """``standalone``, ``cluster`` or ``sentinel``: Redis and Valkey name the field differently."""
        return self.server_info.get("redis_mode") or self.server_info.get("server_mode", "")

    def open(self) -> None:
        """Begin connecting; returns at once."""
        assert self._keeper is None, "opened already"
        self._keeper = asyncio.get_running_loop().create_task(self._keep_connected())
        self._keeper.add_done_callback(_say_if_broken)

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
                pipeline, info, marker = await self._connect()
            except (OSError, HandshakeRefused) as error:  # TimeoutError is an OSError
                self.last_failure = str(error) or type(error).__name__
            else:
                failures = 0
                self._enter(pipeline, info, marker)
                self._leave(await self._watch(pipeline))
            failures += 1
            await asyncio.sleep(self._backoff_s(failures))

    def _backoff_s(self, failures: int) -> float:
        config = self._config
        most = min(config.backoff_first_ms << min(failures - 1, 16), config.backoff_max_ms)
        return random.uniform(most / 2, most) / 1000

    async def _watch(self, pipeline: ReplyPipeline) -> str:
        """Why it was lost. An idle connection asks for a sign of life: a peer that vanished says nothing."""
        while not pipeline.lost.done():
            await asyncio.wait([pipeline.lost], timeout=self._config.idle_ping_ms / 1000)
            if pipeline.usable and not pipeline.inflight:
                pipeline.send([_pack(b"PING")])
        return pipeline.lost.result()

    async def _connect(self) -> "tuple[ReplyPipeline, Mapping[str, str], bytes]":
        pipeline: ReplyPipeline | None = None
        try:
            async with asyncio.timeout(self._config.connect_timeout_ms / 1000):
                pipeline = await self._dial()
                info, marker = await self._first_exchange(pipeline)
        except BaseException:
            if pipeline is not None:
                pipeline.abort("no first exchange")
            raise
        return pipeline, info, marker

    async def _dial(self) -> ReplyPipeline:
        config, loop = self._config, asyncio.get_running_loop()

        def make() -> ReplyPipeline:
            return ReplyPipeline(call_timeout_s=config.call_timeout_ms / 1000)

        dialled: Coroutine[Any, Any, tuple[Any, ReplyPipeline]]
        if config.unix_path:
            dialled = loop.create_unix_connection(make, config.unix_path)
        else:
            dialled = loop.create_connection(make, config.host, config.port, ssl=config.tls)
        return (await dialled)[1]

    async def _first_exchange(self, pipeline: ReplyPipeline) -> tuple[Mapping[str, str], bytes]:
        config = self._config
        commands = [
            _pack(b"INFO", b"server"),
            _pack(b"GET", INCARNATION_KEY),
            *(_pack(b"SCRIPT", b"LOAD", source) for source in self._scripts.values()),
        ]
        if config.password:
            names = [config.username] if config.username else []
            await _accepted(pipeline.send([_pack(b"AUTH", *names, config.password)]))
        info, marker, *loaded = await _accepted(pipeline.send(commands))
        if loaded != [self._hashes[name] for name in self._scripts]:
            raise HandshakeRefused("the server hashes our scripts otherwise than we do")
        fields = parse_info(info)
        if not fields.get("run_id"):
            raise HandshakeRefused("INFO names no run_id")
        return fields, marker or b""

    def _enter(
        self, pipeline: ReplyPipeline, info: Mapping[str, str], incarnation_key: bytes
    ) -> None:
        before, self.run_id = self.run_id, info["run_id"].encode()
        self.server_info = info
        self.incarnation_key = incarnation_key
        self._pipeline = pipeline
        self.last_failure = ""
        self.connections_made += 1
        self._connected.set()
        if before and before != self.run_id:
            self._on_run_id_changed(self.run_id, incarnation_key)

    def _leave(self, why: str) -> None:
        pipeline, self._pipeline = self._pipeline, None
        self._connected.clear()
        self.last_failure = why
        if pipeline is not None:
            pipeline.abort(why)


def _say_if_broken(keeper: asyncio.Task[None]) -> None:
    # it only ends by close(): anything else is our own bug (the callback's too) and must not pass in silence
    if not keeper.cancelled() and (error := keeper.exception()) is not None:
        context = {"message": "the store connection's keeper broke", "exception": error}
        keeper.get_loop().call_exception_handler(context)


def _pack(*command: bytes | int | str) -> bytes:
    packed: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]
    return packed


def _not_run(outcome: Outcome) -> bool:
    return isinstance(outcome, ServerError) and outcome.code == NO_SCRIPT


async def _accepted(futures: Sequence[Awaitable[Outcome]]) -> list[Any]:
    outcomes = [await future for future in futures]
    for outcome in outcomes:
        if isinstance(outcome, CallFailed):
            raise HandshakeRefused(str(outcome))
    return outcomes
