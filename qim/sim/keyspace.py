"""The simulated hot store's memory: real scripts, run by Lua 5.1 over an in-process keyspace.

The scripts under ``lua/`` have one meaning (architecture.md, "One meaning for the store"): this runs
the same bytes with the same keys and arguments as a server would, so there is no second version of
what a script does. What Redis itself does is written in the three Lua files beside this one; here is
only the way in and out.

The undo log makes a lost AOF tail cheap: the state after any of the latest writing calls can be
restored, always whole calls, because a server writes a script to its AOF as one transaction and drops
an incomplete one when it loads.

Refuses: what our scripts may not use (redis_commands.lua), a call of more than ``ARGUMENTS_MAX`` keys
and arguments together, a rollback behind what has been forgotten.
"""

import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, TypeAlias

import lupa.lua51
import xxhash

Reply: TypeAlias = "bytes | int | list[Reply] | None"

ARGUMENTS_MAX = 7_000
"""Keys and arguments of one call: Lua's unpack has room for little more (architecture.md)."""
UNDO_WRITES_MAX = 262_144
"""Single writes remembered for rollback; beyond, the older half of the calls is forgotten."""

_UNDO_SLOTS_PER_WRITE = 4
_SCALAR, _FLAT, _NESTED, _ERROR, _WAITING = range(5)


class ScriptError(Exception):
    """The script raised or returned an error; what it had written until then stays written.

    ``message`` is the error as a server would answer it, its code first (``WRONGTYPE …``), without
    the place in the script that servers append.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ScriptRuntime:
    """One Lua state and the compiled scripts: 1–2 ms to make, so worlds of a process share it.

    It holds no keyspace. A script cannot leave anything behind in it: globals are read-only.
    """

    def __init__(self, scripts: Mapping[str, str]) -> None:
        lua = lupa.lua51.LuaRuntime(encoding=None, register_eval=False, register_builtins=False)
        space = lua.execute(_lua_source("redis_keyspace.lua"))
        commands = lua.execute(_lua_source("redis_commands.lua"), space)
        engine = lua.execute(_lua_source("redis_scripting.lua"), space, commands, _sha1hex)
        self.engine = engine
        self.chunks: dict[str, Any] = {}
        for name, source in scripts.items():
            compiled = engine[b"compile"](name.encode(), source.encode())
            if isinstance(compiled, tuple):
                raise ScriptError(f"ERR Error compiling script: {compiled[1].decode()}")
            self.chunks[name] = compiled


class Keyspace:
    """One keyspace and its undo log, with the scripts that may be called on it by name."""

    def __init__(
        self, scripts: Mapping[str, str] | ScriptRuntime, *, undo_writes_max: int = UNDO_WRITES_MAX
    ) -> None:
        runtime = scripts if isinstance(scripts, ScriptRuntime) else ScriptRuntime(scripts)
        engine = runtime.engine
        self.runtime = runtime
        self._engine = engine
        self._chunks = runtime.chunks
        self._call = engine[b"call"]
        self._take = engine[b"take"]
        self._space = engine[b"empty_space"](undo_writes_max * _UNDO_SLOTS_PER_WRITE)

    def call(self, name: str, keys: Sequence[bytes], args: Sequence[bytes]) -> Reply:
        """Run a script as EVALSHA does; a status comes as its bytes, an error as ScriptError."""
        if len(keys) + len(args) > ARGUMENTS_MAX:
            raise ScriptError(
                "ERR refused by the simulated keyspace: more arguments than unpack takes"
            )
        answer = self._call(self._space, self._chunks[name], len(keys), *keys, *args)
        # Lua hands over a single value bare and several as a tuple
        if type(answer) is not tuple:
            assert answer == _FLAT, answer
            return []
        kind = answer[0]
        if kind == _SCALAR:
            value: Reply = answer[1]
            return value
        if kind == _FLAT:
            return list(answer[1:])
        if kind == _NESTED:
            return _nested(answer, 1)[0]
        if kind == _WAITING:
            return _nested(self._taken(answer[1]), 0)[0]
        assert kind == _ERROR, kind
        raise ScriptError(answer[1].decode("utf-8", "replace"))

    def mark(self) -> int:
        """The present position: how many calls (and flushes) have written since the beginning."""
        position: int = self._engine[b"position"](self._space)
        return position

    def forgotten(self) -> int:
        """The least position that ``rollback_to`` still accepts."""
        position: int = self._engine[b"forgotten"](self._space)
        return position

    def rollback_to(self, position: int) -> None:
        """Restore the state exactly as of ``position``; later calls never happened, their positions
        are given out again."""
        if not self.forgotten() <= position <= self.mark():
            raise ValueError(f"position {position} outside [{self.forgotten()}, {self.mark()}]")
        self._engine[b"rollback_to"](self._space, position)

    def forget_before(self, position: int) -> None:
        """Nobody will roll back behind ``position`` (it is safe on disk): free what that would need."""
        self._engine[b"forget_before"](self._space, position)

    def flush(self) -> None:
        """Empty the keyspace, beyond recall: an AOF that is gone, or FLUSHALL."""
        self._engine[b"flush"](self._space)

    def dump(self) -> dict[bytes, tuple[str, object]]:
        """Everything, comparable with a real server's: key -> (type, content), keys in byte order.

        Content is bytes (string), pairs of field and value by field (hash), or members in byte order
        (zset, set).
        """
        pieces = self._pieces()
        dump: dict[bytes, tuple[str, object]] = {}
        at = 0
        while at < len(pieces):
            key, kind, count = pieces[at], pieces[at + 1].decode(), pieces[at + 2]
            content = tuple(pieces[at + 3 : at + 3 + count])
            at += 3 + count
            if kind == "string":
                dump[key] = (kind, content[0])
            elif kind == "hash":
                dump[key] = (kind, tuple(zip(content[::2], content[1::2], strict=True)))
            else:
                dump[key] = (kind, content)
        return dump

    def digest(self) -> str:
        """xxh3_128 in hex over everything the keyspace holds; equal iff the dumps are equal."""
        state = xxhash.xxh3_128()
        for piece in self._pieces():
            data = piece if isinstance(piece, bytes) else b"%d" % piece
            state.update(b"%d:" % len(data))
            state.update(data)
        return state.hexdigest()

    def _pieces(self) -> Sequence[Any]:
        return self._taken(self._engine[b"picture"](self._space))

    def _taken(self, length: int) -> list[Any]:
        taken: list[Any] = []
        while len(taken) < length:
            part = self._take(len(taken) + 1, min(len(taken) + ARGUMENTS_MAX, length))
            taken.extend(part if isinstance(part, tuple) else (part,))
        return taken


def _nested(flat: Sequence[Any], at: int) -> tuple[list[Reply], int]:
    """The array whose ``True, length`` stand at ``at``, and where it ends."""
    length = flat[at + 1]
    at += 2
    out: list[Reply] = list(flat[at : at + length])
    if True not in out:
        return out, at + length
    out = []
    for _ in range(length):
        if flat[at] is True:
            inner, at = _nested(flat, at)
            out.append(inner)
        else:
            out.append(flat[at])
            at += 1
    return out, at


def _lua_source(name: str) -> bytes:
    return files("qim.sim").joinpath(name).read_bytes()


def _sha1hex(text: bytes) -> bytes:
    return hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
