"""Which errors of a server mean that a script wrote nothing: asked of the real ones, where a wrong answer doubles a message.

A script isn't rolled back. So an error that may come after its first write must be Unknown, never Failed.
"""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hiredis
import pytest

from qim.adapters.redis.outcomes import ServerError, wrote_nothing
from qim.core.ports.completion import FailReason
from tests.integration.testbed.redis import RedisServer, redis_server_binary, valkey_binary

WRITES = "redis.call('SET', KEYS[1], 'new')"
MANY_BYTES = 3_000_000
MEMORY_MAX = 1_000_000


class Raw:
    """One connection that tells errors in the server's own words."""

    def __init__(self, server: RedisServer) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        self._reader = hiredis.Reader(replyError=ServerError)

    def __call__(self, *words: Any) -> Any:
        self._socket.sendall(hiredis.pack_command(tuple(map(str, words))))
        while (answer := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(65_536))
        return answer

    def script(self, text: str, *keys: str) -> Any:
        return self("EVAL", text, len(keys), *keys)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["redis", "valkey"])
def raw(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Raw]:
    binary = redis_server_binary() if request.param == "redis" else valkey_binary()
    server = RedisServer(tmp_path, binary=binary)
    server.start()
    connection = Raw(server)
    connection("SET", "a", "old")
    yield connection
    connection.close()
    server.kill()


def no_memory(raw: Raw) -> None:
    raw("SET", "big", "x" * MANY_BYTES)
    raw("CONFIG", "SET", "maxmemory", MEMORY_MAX)


def no_master(raw: Raw) -> None:
    raw("REPLICAOF", "127.0.0.1", 1)


def no_disk(raw: Raw) -> None:
    raw("CONFIG", "SET", "save", "3600 1")
    raw("CONFIG", "SET", "stop-writes-on-bgsave-error", "yes")
    folder = Path(raw("CONFIG", "GET", "dir")[1].decode())
    (folder / "dump.rdb" / "in the way").mkdir(parents=True)
    raw("BGSAVE")
    while b"rdb_last_bgsave_status:err" not in raw("INFO", "persistence"):
        pass


STATES = [
    (no_memory, "OOM", FailReason.OUT_OF_MEMORY),
    (no_master, "READONLY", FailReason.UNREACHABLE),
    (no_disk, "MISCONF", FailReason.UNREACHABLE),
]


@pytest.mark.servers
@pytest.mark.xdist_group("redis")
@pytest.mark.parametrize(("state", "code", "why"), STATES)
def test_a_server_that_takes_no_write_refuses_the_first_one(
    raw: Raw, state: Any, code: str, why: FailReason
) -> None:
    state(raw)
    error = raw.script(f"{WRITES} {WRITES}", "a")
    assert isinstance(error, ServerError), error
    assert (error.code, " script: " in str(error)) == (code, True)
    assert raw("GET", "a") == b"old"
    assert wrote_nothing(error) is why


@pytest.mark.servers
@pytest.mark.xdist_group("redis")
def test_a_script_that_has_written_goes_on_to_its_end_without_memory(raw: Raw) -> None:
    """A DEL needs none and is let through; the SET behind it would be refused alone, and half a script is worse."""
    no_memory(raw)
    assert raw.script(f"redis.call('DEL', KEYS[1]) {WRITES}", "a") is None
    assert raw("GET", "a") == b"new"


@pytest.mark.servers
@pytest.mark.xdist_group("redis")
@pytest.mark.parametrize("rights", ["~* +@all -zadd", "~a +@all"], ids=["command", "key"])
def test_a_right_that_lacks_in_the_middle_is_not_known(raw: Raw, rights: str) -> None:
    raw("ACL", "SETUSER", "half", "on", ">p", *rights.split())
    raw("AUTH", "half", "p")
    error = raw.script(f"{WRITES} redis.call('ZADD', 'b', 1, 'x')", "a")
    assert isinstance(error, ServerError), error
    assert raw("GET", "a") == b"new", "it wrote before it was refused"
    assert wrote_nothing(error) is None


@pytest.mark.servers
@pytest.mark.xdist_group("redis")
def test_a_right_that_lacks_for_the_call_ran_nothing(raw: Raw) -> None:
    raw("ACL", "SETUSER", "none", "on", ">p", "~*", "+@all", "-eval")
    raw("AUTH", "none", "p")
    error = raw.script(WRITES, "a")
    assert isinstance(error, ServerError), error
    assert wrote_nothing(error) is FailReason.UNAUTHORISED
    assert raw("GET", "a") == b"old"


@pytest.mark.parametrize(
    "text",
    [
        "ERR unknown command, script: 8a19, on @user_script:1.",
        "WRONGTYPE Operation against a key",
        "NOREPLICAS Not enough good replicas to write. script: 8a19, on @user_script:1.",
        "NOPERM this user may not 'zadd' script: 8a19, on @user_script:1.",
        "UNKILLABLE Sorry the script already executed write commands",
        "",
    ],
)
def test_whatever_else_a_server_says_may_have_written(text: str) -> None:
    assert wrote_nothing(ServerError(text)) is None


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("LOADING", FailReason.UNREACHABLE),
        ("MASTERDOWN", FailReason.UNREACHABLE),
        ("NOSCRIPT", FailReason.UNREACHABLE),
        ("BUSY", FailReason.OVERLOADED),
        ("NOAUTH", FailReason.UNAUTHORISED),
        ("NOPERM", FailReason.UNAUTHORISED),
    ],
)
def test_what_a_server_says_of_a_call_it_did_not_begin(code: str, why: FailReason) -> None:
    assert wrote_nothing(ServerError(f"{code} and why")) is why
