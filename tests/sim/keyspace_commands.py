"""Commands of every kind that scripts use, drawn from a few keys and members, and how a keyspace is given one."""

from hypothesis import strategies as st

from qim.sim.keyspace import Keyspace, ScriptError, ScriptRuntime

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


def simulated(keyspace: Keyspace, name: str, *args: bytes, keys: tuple[bytes, ...] = ()) -> object:
    try:
        return keyspace.call(name, keys, args)
    except ScriptError as error:
        return ("error", error.message)


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


RUNTIME = ScriptRuntime({"any": ANY_COMMAND, "batch": BATCH})
"""Compiled once: it holds no keyspace's state."""
