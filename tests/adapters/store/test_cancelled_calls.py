"""One store call in a hundred is given up by its caller under load: nobody ever gets another's reply.

Every message has a conversation, a key and a body of its own, so its caller knows each byte it may be told: a shifted reply
would be another's. Scripts are flushed meanwhile, so that NOSCRIPT and its repetition stand between the replies.
"""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from qim.adapters.redis.address import StoreAddress
from qim.adapters.redis.codec import decode, encode
from qim.adapters.redis.connection import ConnectionConfig
from qim.adapters.redis.outcomes import CallFailed
from qim.adapters.redis.store import RedisStore
from qim.core.contract.hashing import H
from qim.core.ports import store_message as message
from qim.core.ports import store_reads as reads
from tests.adapters.store.adapter_asked import PATIENT, READY_MS
from tests.adapters.store.requests import NOW, key, mid, record_of, single
from tests.adapters.store.samples import sample
from tests.integration.testbed.redis import RedisServer, valkey_binary

CALLERS = 48
ROUNDS = 120
CANCELLED = 0.015
AT_ONCE = 0.7
TURNS_MAX = 30
SECONDS_MAX = 240
"""Only ever reached where a reply has gone to nobody."""


class Caller:
    """Sends one message after another into its conversation and reads each back, some calls given up half way."""

    def __init__(self, store: RedisStore, incarnation: bytes, name: int) -> None:
        self._store = store
        self._incarnation = incarnation
        self._name = name
        self._dice = random.Random(name)
        self._op = name << 32
        self.calls = 0
        self.cancelled = 0
        self.judged = 0
        self.wrong: list[Any] = []

    async def run(self) -> None:
        """Reserve, look up, read the body: each reply is compared with the only right one."""
        for round_number in range(ROUNDS):
            number = self._name << 16 | round_number
            conversation = H("test.conversat", number)
            item = single(number, conversation_id=conversation)
            body = record_of(
                {name: getattr(item, name) for name in item.__struct_fields__}, b"%d" % number
            )
            item = single(number, conversation_id=conversation, record=body)
            reserved = await self._asked(self._bound(message.ReserveAndRecord, items=(item,)))
            if reserved is not None:
                self._judge(reserved.results[0].conversation_seq == 1, reserved)
            keys = (key(number), key(1 << 60))
            found = await self._asked(self._bound(message.LookupCommits, dedupe_keys=keys))
            if found is not None:
                first, absent = found.commits
                told = first and (first.message_id, first.conversation_id, first.stored[24:])
                self._judge(absent is None, found)
                self._judge(self._right(told, (mid(number), conversation, body), reserved), found)
            names = ((conversation, 1, mid(number)),)
            read = await self._asked(reads.ReadBodies(op=self._next(), names=names))
            if read is not None:
                told = read.stored[0] and read.stored[0][24:]
                self._judge(self._right(told, body, reserved), read)

    def _right(self, told: Any, expected: Any, reserved: Any) -> bool:
        # A given-up reservation may be stored or not (a forgotten script is not sent again for nobody).
        return told == expected or (told is None and reserved is None)

    def _judge(self, right: bool, reply: Any) -> None:
        self.judged += 1
        if not right:
            self.wrong.append(reply)

    def _bound(self, kind: Any, **fields: Any) -> Any:
        common = {"op": self._next(), "incarnation": self._incarnation, "now_wall": NOW}
        return sample(kind, **common, **fields)

    def _next(self) -> int:
        self._op += 1
        return self._op

    async def _asked(self, request: Any) -> Any:
        """The reply; None where this call was given up."""
        self.calls += 1
        through = self._by_port if self._dice.random() < 0.5 else self._by_connection
        task = asyncio.ensure_future(through(request))
        if self._dice.random() < CANCELLED:
            # Most at once, when no answer can be there yet; the others at any turn, also one at which it has come.
            at_once = self._dice.random() < AT_ONCE
            for _ in range(1 if at_once else 1 + self._dice.randrange(TURNS_MAX)):
                await asyncio.sleep(0)
            self.cancelled += task.cancel()
            await asyncio.wait([task])
            if task.cancelled():
                return None
        reply = await task
        self._judge(reply.op == request.op, reply)
        return reply

    async def _by_port(self, request: Any) -> Any:
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def answer(reply: Any) -> None:
            if not answered.done():
                answered.set_result(reply)

        self._store.submit(request, answer)
        return await answered

    async def _by_connection(self, request: Any) -> Any:
        connection = self._store.connection
        (raw,) = await connection.call_scripts([encode(request)])
        assert not isinstance(raw, CallFailed), raw
        return decode(request, connection.run_id, raw)


async def load(address: StoreAddress) -> list[Caller]:
    config = ConnectionConfig(address=address, look_ms=20, **PATIENT)
    store = await RedisStore.open(config, on_reset=lambda reset: None, ready_timeout_ms=READY_MS)
    meddler = await RedisStore.open(config, on_reset=lambda reset: None, ready_timeout_ms=READY_MS)
    opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    store.submit(sample(message.OpenShard), opened.set_result)
    incarnation = (await opened).incarnation
    callers = [Caller(store, incarnation, name) for name in range(1, CALLERS + 1)]
    running = [asyncio.ensure_future(caller.run()) for caller in callers]
    async with asyncio.timeout(SECONDS_MAX):
        while not all(task.done() for task in running):
            await meddler.connection.call(b"SCRIPT", b"FLUSH")
            await asyncio.wait(running, timeout=0.1)
        await asyncio.gather(*running)
    assert await store.connection.call(b"ECHO", b"the last") == b"the last"
    assert store.connection.connections_made == 1, "a cancel closes nothing"
    async with asyncio.timeout(SECONDS_MAX):
        while store.connection.inflight_calls:  # noqa: ASYNC110 - a look may be under way, and ends
            await asyncio.sleep(0)
    assert store.connection.scripts_reloaded > 0
    await meddler.close()
    await store.close()
    return callers


@pytest.mark.parametrize(
    "binary",
    [
        "valkey",
        pytest.param("redis", marks=(pytest.mark.servers, pytest.mark.xdist_group("redis"))),
    ],
)
def test_a_given_up_call_never_shifts_a_reply(binary: str, tmp_path: Path) -> None:
    server = RedisServer(tmp_path, binary=valkey_binary() if binary == "valkey" else None)
    server.start()
    try:
        callers = asyncio.run(load(StoreAddress.parse(server.address)))
    finally:
        server.kill()
    assert [caller.wrong for caller in callers if caller.wrong] == []
    calls, cancelled = (sum(getattr(c, name) for c in callers) for name in ("calls", "cancelled"))
    assert calls == CALLERS * ROUNDS * 3
    assert 0.005 < cancelled / calls < 0.02
    assert sum(caller.judged for caller in callers) > calls
