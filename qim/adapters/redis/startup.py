"""What a server must be before anything is stored in it, asked once when a store is opened.

Each refusal names what was found, what is expected and what to do. The comparison self-test runs the shared Lua routines
on the server at hand: its locale decides how Lua orders strings, and a wrong order would let a stale epoch through.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from msgspec import Struct

from qim.adapters.redis.connection import RedisConnection
from qim.adapters.redis.layout import INCARNATION_KEY, Call
from qim.adapters.redis.outcomes import CallFailed

VERSION_MIN: Final = (7, 0, 0)
_VERSION: Final = re.compile(r"^(\d+)\.(\d+)\.(\d+)")


class StoreRefused(Exception):
    """The server can't be the hot store."""

    def __init__(self, what: str, *, got: str, expected: str, advice: str) -> None:
        super().__init__(f"{what} is {got}, expected {expected}: {advice}")
        self.what = what
        self.got = got
        self.expected = expected
        self.advice = advice


class ServerFacts(Struct, frozen=True, kw_only=True):
    """What the checks look at; ``settings`` as CONFIG GET answers them."""

    info: Mapping[str, str]
    settings: Mapping[str, str]


SETTINGS: Final = ("appendonly", "appendfsync", "maxmemory-policy")


def judge_server(facts: ServerFacts) -> None:
    """Raises StoreRefused for the first thing that is wrong (pure)."""
    version = facts.info.get("redis_version", "")
    found = _VERSION.match(version)
    if found is None or tuple(map(int, found.groups())) < VERSION_MIN:
        raise StoreRefused(
            "the server's redis_version",
            got=version or "unknown",
            expected="7.0.0 or newer",
            advice="run Redis 7.0 or newer, or Valkey",
        )
    mode = facts.info.get("redis_mode") or facts.info.get("server_mode", "")  # Valkey renamed it
    if mode != "standalone":
        raise not_standalone(mode)
    for name, expected, advice in (
        ("appendonly", ("yes",), "set `appendonly yes`, or answered writes vanish at a restart"),
        ("appendfsync", ("everysec", "always"), "set `appendfsync everysec` or `always`"),
        (
            "maxmemory-policy",
            ("noeviction",),
            "set `maxmemory-policy noeviction`; an evicted key is a lost message",
        ),
    ):
        got = facts.settings.get(name, "")
        if got not in expected:
            raise StoreRefused(
                name, got=got or "unknown", expected=" or ".join(expected), advice=advice
            )


def not_standalone(mode: str) -> StoreRefused:
    """The refusal of Redis Cluster."""
    return StoreRefused(
        "the server's mode",
        got=mode or "unknown",
        expected="standalone",
        advice="one script spans many keys, so Redis Cluster is not supported; use one server a store",
    )


def refusal_told_by(failure: str) -> StoreRefused | None:
    """A failure of the first exchange that no waiting will mend: a cluster answers so before it can be asked its mode."""
    if failure.startswith(("CLUSTERDOWN", "MOVED", "CROSSSLOT")):
        return not_standalone("cluster")
    return None


def self_test_call() -> Call:
    """Pairs that tell a locale's order from the order of bytes, and carries that tell integers from doubles."""
    values = [bytes((high, low)) * 4 for high in (0x00, 0x41, 0x61, 0xE4) for low in range(256)]
    pairs = [*pairwise(values), *zip(values, reversed(values), strict=True)]
    for carry in range(8):
        pairs.append((b"a" * (8 - carry) + b"\xff" * carry, b"a" * 8))
    return Call(
        "comparison_self_test", [INCARNATION_KEY], [value for pair in pairs for value in pair]
    )


def judge_self_test(call: Call, raw: Any) -> None:
    """Raises StoreRefused when the server's Lua ordered or counted otherwise (pure)."""
    expected: list[bytes] = [b"K"]
    for first, second in zip(call.args[::2], call.args[1::2], strict=True):
        successor = (int.from_bytes(first, "big") + 1).to_bytes(9, "big")[1:]
        fits = first != b"\xff" * len(first)
        expected += (
            b"1" if first < second else b"0",
            max(first, second),
            successor if fits else b"",
        )
    if raw != expected:
        wrong = sum(a != b for a, b in zip(raw, expected, strict=False)) if raw else len(expected)
        raise StoreRefused(
            "the comparison self-test",
            got=f"{wrong} wrong answers",
            expected="none",
            advice="the server's Lua is not one this version knows; please report it with INFO server",
        )


async def check_server(connection: RedisConnection) -> None:
    """Ask and judge. Raises StoreRefused; NotConnected or ReplyLost when the server goes away meanwhile."""
    try:
        answered: Sequence[Any] = [
            await connection.call(b"CONFIG", b"GET", name) for name in SETTINGS
        ]
    except CallFailed as error:
        if getattr(error, "code", "") not in ("ERR", "NOPERM"):
            raise
        raise StoreRefused(
            "CONFIG GET",
            got=str(error),
            expected="an answer",
            advice="let this user run CONFIG GET, so that durability can be checked",
        ) from None
    settings = {pair[0].decode(): pair[1].decode() for pair in answered if pair}
    judge_server(ServerFacts(info=connection.server_info, settings=settings))
    call = self_test_call()
    (raw,) = await connection.call_scripts([call])
    if isinstance(raw, CallFailed):
        raise raw
    judge_self_test(call, raw)
