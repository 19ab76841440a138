"""What a server must be before anything is stored in it, asked once when a store is opened; nothing is written.

Each refusal names what was found, what is needed and the command that puts it right. The comparison self-test runs the
shared Lua routines on the server at hand: its locale decides how Lua orders strings, and a wrong order would let a stale
epoch through.
"""

import re
from itertools import pairwise
from typing import Any, Final

from msgspec import Struct

from qim.adapters.redis.address import StoreAddress
from qim.adapters.redis.blocking import parse_info
from qim.adapters.redis.connection import RedisConnection
from qim.adapters.redis.first_exchange import NotAMaster, ServerFacts, ServerSaid
from qim.adapters.redis.layout import INCARNATION_KEY, Call
from qim.adapters.redis.outcomes import CallFailed
from qim.adapters.start_refused import StartRefused

VERSION_MIN: Final = (7, 0, 0)
SYNCED_IN_ORDER: Final = (7, 2, 0)
"""From here on a server syncs the file it leaves before the one it began."""
_VERSION_LINES: Final = re.compile(rb"^redis_version:([^\r\n]*)", re.MULTILINE)
_VERSION: Final = re.compile(r"^(\d+)\.(\d+)\.(\d+)(?:-[0-9A-Za-z.]+)?$")
_TLS_REASONS: Final = (
    "CERTIFICATE_VERIFY_FAILED",
    "CERTIFICATE_REQUIRED",
    "UNKNOWN_CA",
    "WRONG_VERSION_NUMBER",
    "HANDSHAKE_FAILURE",
)
_DEBIAN: Final = "apt-get install redis-server"
RIGHTS: Final = "+@read +@write +@scripting +@connection +info '+config|get' +bgrewriteaof"


class StoreRefused(StartRefused):
    """The server can't be the hot store."""


class _Setting(Struct, frozen=True):
    """One CONFIG value: its refusal's code, what is needed, and why."""

    code: str
    name: str
    needed: tuple[str, ...]
    why: str


SETTINGS: Final = (
    _Setting("redis_aof_off", "appendonly", ("yes",), "answered writes vanish at a restart"),
    _Setting(
        "redis_appendfsync_no",
        "appendfsync",
        ("everysec", "always"),
        "how much a power cut takes has no limit",
    ),
    _Setting(
        "redis_evicts", "maxmemory-policy", ("noeviction",), "an evicted key is a lost message"
    ),
)


def judge_server(
    facts: ServerFacts, address: StoreAddress, *, unsafe_dev: bool = False
) -> tuple[str, ...]:
    """Raises StoreRefused for the first thing that is wrong (pure). The settings that ``unsafe_dev`` let pass."""
    _judge_version(facts.info, address)
    fields = parse_info(facts.info)
    mode = fields.get("redis_mode") or fields.get("server_mode", "")  # Valkey renamed it
    if mode != "standalone":
        raise not_standalone(mode, address)
    if facts.unreadable and not unsafe_dev:
        raise _unreadable(facts.unreadable, address)
    waived: list[str] = []
    for setting in SETTINGS:
        got = facts.settings.get(setting.name, "")
        if got in setting.needed:
            continue
        if not unsafe_dev:
            raise _setting_refused(setting, got, address)
        waived.append(f"{setting.name} {got or 'unknown'}: {setting.why}")
    return tuple(waived)


def advice(facts: ServerFacts, address: StoreAddress) -> tuple[tuple[str, str], ...]:
    """(What was found, what to do) of all that is no reason to refuse (pure; decision 0024)."""
    fields = parse_info(facts.info)
    told = _VERSION.match(fields.get("redis_version", ""))
    old = told is not None and tuple(map(int, told.groups())) < SYNCED_IN_ORDER
    if "valkey_version" in fields or not old or facts.settings.get("appendfsync") != "everysec":
        return ()
    found = (
        f"{address} is Redis {fields['redis_version']} with appendfsync everysec: a power cut while it rewrites its "
        "file may leave a hole in the middle"
    )
    cli = address.operators_cli
    return ((found, f"Redis 7.2 or newer, any Valkey, or `{cli} config set appendfsync always`"),)


def _judge_version(info: bytes, address: StoreAddress) -> None:
    told = [line.decode("utf-8", "replace").strip() for line in _VERSION_LINES.findall(info)]
    found = _VERSION.match(told[0]) if len(told) == 1 else None
    if found is None:
        raise StoreRefused(
            "redis_version_unproven",
            f"redis_version in INFO server of {address}",
            got=" and ".join(map(repr, told)) or "absent",
            expected="one x.y.z",
            command=f"{address.redis_cli} info server",
        )
    if tuple(map(int, found.groups())) < VERSION_MIN:
        raise StoreRefused(
            "redis_version_old",
            f"redis_version of {address}",
            got=told[0],
            expected="7.0.0 or newer, or any Valkey",
            command=_DEBIAN,
        )


def _unreadable(said: str, address: StoreAddress) -> StoreRefused:
    return StoreRefused(
        "redis_config_unreadable",
        f"CONFIG GET on {address}",
        got=said,
        expected="an answer, so that durability can be checked",
        command=f"{address.operators_cli} acl setuser {address.username or 'default'} '+config|get'",
    )


def _setting_refused(setting: _Setting, got: str, address: StoreAddress) -> StoreRefused:
    cli, name, value = address.operators_cli, setting.name, setting.needed[0]
    return StoreRefused(
        setting.code,
        f"{name} of {address} ({setting.why})",
        got=got or "unknown",
        expected=" or ".join(setting.needed),
        command=f"{cli} config set {name} {value} && {cli} config rewrite",
    )


def refuse_unsafe_elsewhere(address: StoreAddress) -> None:
    """Raises StoreRefused where data that may be lost is hardly a developer's own (pure)."""
    if not address.on_this_machine:
        raise StoreRefused(
            "redis_unsafe_dev_elsewhere",
            f"QIM_REDIS_ALLOW_UNSAFE_DEV for {address}",
            got="set",
            expected="unset unless the address is a literal loopback one, localhost or a Unix socket",
            command="export QIM_REDIS_ALLOW_UNSAFE_DEV=0",
        )


def not_standalone(mode: str, address: StoreAddress) -> StoreRefused:
    """The refusal of Redis Cluster: one script spans many keys, so they must all live on one server."""
    return StoreRefused(
        "redis_cluster",
        f"the mode of {address}",
        got=mode or "unknown",
        expected="standalone (every script spans many keys), one server a store",
        command="redis-server --appendonly yes --cluster-enabled no",
    )


def refusal_told_by(failure: Exception | None, address: StoreAddress) -> StoreRefused | None:
    """A failure of the first exchange that no waiting will mend: a cluster answers so before it can be asked its mode."""
    if isinstance(failure, ServerSaid):
        return _said(failure, address)
    if isinstance(failure, NotAMaster):
        return StoreRefused(
            "redis_replica",
            f"the role of {address}",
            got=str(failure),
            expected="the master: what a replica holds may be behind, and nothing can be written to it",
            command=f"{address.redis_cli} role",
        )
    # In words alone: what a server minds about our certificate comes as the end of a connection that stood.
    if any(reason in str(failure) for reason in _TLS_REASONS):
        return StoreRefused(
            "redis_tls",
            f"TLS with {address}",
            got=str(failure),
            expected="a certificate for this host from ca=FILE, and cert=FILE&key=FILE where it wants one of ours",
            command=f"{address.redis_cli} ping",
        )
    return None


def _said(failure: ServerSaid, address: StoreAddress) -> StoreRefused | None:
    words = str(failure)
    if failure.code in ("CLUSTERDOWN", "MOVED", "ASK", "CROSSSLOT"):
        return not_standalone("cluster", address)
    if failure.code in ("NOAUTH", "WRONGPASS", "NOPERM") or words.startswith("ERR AUTH"):
        return StoreRefused(
            "redis_login",
            f"the login to {address}",
            got=words,
            expected=f"a user with every key, {RIGHTS}",
            command=f"{address.operators_cli} acl setuser {address.username or 'qim'} on '>SECRET' '~*' {RIGHTS}",
        )
    if failure.code == "ERR" and "max number of clients" not in words:
        return StoreRefused(
            "redis_first_exchange",
            f"the first exchange with {address}",
            got=words,
            expected="INFO, GET, SCRIPT LOAD and BGREWRITEAOF answered",
            command=f"{address.redis_cli} info server",
        )
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


def judge_self_test(call: Call, raw: Any, address: StoreAddress) -> None:
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
        listed = raw if isinstance(raw, list) else []
        wrong = sum(a != b for a, b in zip(listed, expected, strict=False))
        wrong += abs(len(expected) - len(listed))
        raise StoreRefused(
            "redis_comparison",
            f"the comparison self-test on {address}",
            got=f"{wrong} wrong answers",
            expected="none; this server's Lua is not one that this version knows, please report it",
            command=f"{address.redis_cli} info server",
        )


async def check_server(
    connection: RedisConnection, address: StoreAddress, *, unsafe_dev: bool = False
) -> tuple[str, ...]:
    """Ask and judge; what ``unsafe_dev`` let pass. Raises StoreRefused; NotConnected or ReplyLost when the server goes away."""
    waived = judge_server(connection.facts, address, unsafe_dev=unsafe_dev)
    call = self_test_call()
    (raw,) = await connection.call_scripts([call])
    if isinstance(raw, CallFailed):
        raise raw
    judge_self_test(call, raw, address)
    return waived
