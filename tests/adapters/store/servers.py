"""The stores the conformance suite runs on: the simulator's keyspace and real servers, behind one pair of verbs."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import redis

from qim.adapters.redis import codec
from qim.adapters.redis.scripts import load_scripts, script_hashes
from qim.sim.keyspace import Keyspace, ScriptRuntime

RUN_ID = b"a" * 40
"""Stands for every server's run_id here: whether it changes is the connection's business, not a script's."""
LOCALE = "en_US.UTF-8"


class Store(Protocol):
    """What a test may do with a store."""

    name: str

    def raw(self, script: str, keys: list[bytes], args: list[bytes]) -> Any: ...

    def dump(self) -> dict[bytes, tuple[str, object]]: ...

    def flush(self) -> None: ...


def ask(store: Store, request: Any) -> Any:
    """One request through the codec, as the adapter and the simulator do it."""
    call = codec.encode(request)
    assert not codec.too_large(call)
    return codec.decode(request, RUN_ID, store.raw(*call))


class SimulatedStore:
    """The simulator's keyspace."""

    name = "simulator"

    def __init__(self, runtime: ScriptRuntime) -> None:
        self.keyspace = Keyspace(runtime)

    def raw(self, script: str, keys: list[bytes], args: list[bytes]) -> Any:
        return self.keyspace.call(script, keys, args)

    def dump(self) -> dict[bytes, tuple[str, object]]:
        return self.keyspace.dump()

    def flush(self) -> None:
        self.keyspace.flush()


class ServerStore:
    """A real server."""

    def __init__(self, name: str, client: redis.Redis) -> None:
        self.name = name
        self.client = client
        for source in load_scripts().values():
            client.script_load(source)

    def raw(self, script: str, keys: list[bytes], args: list[bytes]) -> Any:
        return self.client.execute_command(
            "EVALSHA", script_hashes()[script], len(keys), *keys, *args
        )

    def dump(self) -> dict[bytes, tuple[str, object]]:
        return {key: self._content(key) for key in sorted(self.client.keys("*"))}

    def _content(self, key: bytes) -> tuple[str, object]:
        kind = self.client.type(key).decode()
        if kind == "string":
            return kind, self.client.get(key)
        if kind == "hash":
            return kind, tuple(sorted(self.client.hgetall(key).items()))
        if kind == "zset":
            return kind, tuple(self.client.zrange(key, 0, -1))
        return kind, tuple(sorted(self.client.smembers(key)))

    def flush(self) -> None:
        self.client.flushall()


def has_locale() -> bool:
    """Whether this machine knows the locale in which Lua's own comparison goes wrong."""
    listed = subprocess.run(["locale", "-a"], capture_output=True, check=False).stdout
    return b"en_US.utf8" in listed


@contextmanager
def running(
    binary: str, *, locale: str = "C", settings: tuple[str, ...] = ()
) -> Iterator[redis.Redis]:
    """A private server on a Unix socket, without persistence unless ``settings`` say so."""
    folder = Path(tempfile.mkdtemp(prefix="qim-store-"))
    socket = folder / "s"
    arguments = ["--port", "0", "--unixsocket", str(socket), "--dir", str(folder)]
    arguments += ["--save", "", "--maxmemory-policy", "noeviction", *settings]
    process = subprocess.Popen(
        [binary, *arguments],
        env={**os.environ, "LC_ALL": locale},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "ready to accept connections" in line.lower():
                break
        client = redis.Redis(unix_socket_path=str(socket))
        with client:
            client.ping()
            yield client
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        shutil.rmtree(folder)
