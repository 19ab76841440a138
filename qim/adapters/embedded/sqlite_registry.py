"""The registry port on SQLite, synchronous=FULL, for one process that owns its data directory (architecture.md, Embedded).

Epochs, barriers and the numbers every process must share are durable; who holds a lease until when lives in memory only,
since the directory's lock proves that every earlier holder is dead. Never in the hot store: its tail can vanish.

An epoch is told only once it is durable; one whose commit failed is burnt for this process and was told to nobody, so a
restart may grant it again, for the first time. What ReadLease says of epochs never falls.
"""

import sqlite3
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable
from pathlib import Path
from typing import Final, assert_never

from msgspec import Struct

from qim.adapters.embedded.data_directory import DataDirectoryDamaged
from qim.adapters.embedded.database_thread import DatabaseThread, mishap, open_database
from qim.core.ports.completion import Completion, Failed, FailReason
from qim.core.ports.registry import (
    BARRIERS_KEPT,
    Acquire,
    Announce,
    BarrierRegistered,
    Denied,
    EpochRaised,
    Granted,
    LeaseRead,
    Peers,
    RaiseEpoch,
    ReadLease,
    RegisterBarrier,
    RegistryReply,
    RegistryRequest,
    Release,
    Released,
    Renew,
    Renewed,
    Resource,
    Role,
)

Answer = Callable[[RegistryReply | Completion], None]

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS lease (resource TEXT PRIMARY KEY, epoch INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS barrier (resource TEXT, epoch INTEGER, place INTEGER,
  PRIMARY KEY (resource, epoch, place)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS shared (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


class SharedNumbersDiffer(Exception):
    """A process came with other shared parameters than the first start wrote (BR-008: refuse, never drift)."""

    def __init__(self, name: str, stored: str, given: str) -> None:
        super().__init__(
            f"{name}: the data was created with {stored!r}, this process has {given!r}. "
            f"Start with the stored value, or use another data directory."
        )


class _Holder(Struct):
    owner: str
    address: str
    epoch: int
    expires_at: float


def lease_clock() -> float:
    """Seconds on a clock that runs during suspend: a lease must not outlive a sleep (pipeline.md §0)."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class SqliteRegistry:
    """``submit`` a RegistryRequest from the event loop; ``answer`` is called on the loop exactly once."""

    def __init__(
        self, path: Path, loop: AbstractEventLoop, *, clock: Callable[[], float] = lease_clock
    ) -> None:
        self._now = clock
        self._database = DatabaseThread(path, loop, schema=_SCHEMA, name="qim-registry")
        self._holders: dict[Resource, _Holder] = {}
        self._epochs: dict[Resource, int] = {}
        self._alive: dict[tuple[Role, str], float] = {}
        self._database.at_start(self._load)

    def _load(self, connection: sqlite3.Connection) -> None:
        for name, epoch in connection.execute("SELECT resource, epoch FROM lease"):
            self._epochs[_resource(name)] = int(epoch)

    @property
    def waiting(self) -> int:
        """Jobs that wait for the database thread (metric)."""
        return self._database.waiting

    async def close(self) -> None:
        """Finish and answer what was submitted, close."""
        await self._database.close()

    def fix_shared(self, numbers: dict[str, str]) -> None:
        """Write the shared numbers at first start; refuse others later. Only before the first ``submit``."""

        def work(connection: sqlite3.Connection) -> None:
            for name, given in numbers.items():
                connection.execute("INSERT OR IGNORE INTO shared VALUES (?,?)", (name, given))
                (stored,) = connection.execute(
                    "SELECT value FROM shared WHERE name=?", (name,)
                ).fetchone()
                if stored != given:
                    raise SharedNumbersDiffer(name, stored, given)

        self._database.at_start(work)

    def submit(self, request: RegistryRequest, answer: Answer) -> None:
        """See ports/registry.py."""
        match request:
            case ReadLease():
                self._read(request, answer)
            case Acquire():
                self._acquire(request, answer)
            case Renew():
                self._renew(request, answer)
            case Release():
                self._release(request, answer)
            case RaiseEpoch():
                self._raise(request, answer)
            case RegisterBarrier():
                self._barrier(request, answer)
            case Announce():
                self._announce(request, answer)
            case _:
                assert_never(request)

    def _acquire(self, request: Acquire, answer: Answer) -> None:
        resource, now = request.resource, self._now()
        holder = self._holders.get(resource)
        if holder is not None and holder.owner != request.owner and holder.expires_at > now:
            remaining = int((holder.expires_at - now) * 1000) + 1
            answer(
                Denied(op=request.op, resource=resource, owner=holder.owner, remaining_ms=remaining)
            )
            return
        epoch = self._epochs.get(resource, 0) + 1
        self._epochs[resource] = epoch
        self._holders[resource] = _Holder(
            request.owner, request.address, epoch, now + request.ttl_ms / 1000
        )

        def work(connection: sqlite3.Connection) -> tuple[int, int]:
            _store_epoch(connection, resource, epoch)
            return _barrier_below(connection, resource, 2**63 - 1)

        def done(result: object) -> None:
            if isinstance(result, tuple):
                answer(
                    Granted(
                        op=request.op,
                        resource=resource,
                        epoch=epoch,
                        barrier_epoch=result[0],
                        barrier_offset=result[1],
                    )
                )
                return
            failed = mishap(request.op, result)
            holder = self._holders.get(resource)
            if isinstance(failed, Failed) and holder is not None and holder.epoch == epoch:
                # Nobody was granted anything, so nobody may be kept waiting for it.
                del self._holders[resource]
            answer(failed)

        self._database.submit(work, done)

    def _renew(self, request: Renew, answer: Answer) -> None:
        now = self._now()
        lost: list[Resource] = []
        for resource, epoch in request.leases:
            holder = self._held(resource, request.owner, epoch)
            if holder is None or holder.expires_at <= now or self._epochs[resource] != epoch:
                lost.append(resource)
            else:
                holder.expires_at = now + request.ttl_ms / 1000
        answer(Renewed(op=request.op, lost=tuple(lost)))

    def _release(self, request: Release, answer: Answer) -> None:
        """A late Release names an old epoch and must not give back what was taken afresh."""
        for resource, epoch in request.leases:
            if self._held(resource, request.owner, epoch) is not None:
                del self._holders[resource]
        answer(Released(op=request.op))

    def _held(self, resource: Resource, owner: str, epoch: int) -> _Holder | None:
        holder = self._holders.get(resource)
        if holder is None or holder.owner != owner or holder.epoch != epoch:
            return None
        return holder

    def _raise(self, request: RaiseEpoch, answer: Answer) -> None:
        epoch = max(self._epochs.get(request.resource, 0), request.above)
        self._epochs[request.resource] = epoch

        def work(connection: sqlite3.Connection) -> bool:
            _store_epoch(connection, request.resource, epoch)
            return True

        def done(result: object) -> None:
            answer(EpochRaised(op=request.op) if result is True else mishap(request.op, result))

        self._database.submit(work, done)

    def _read(self, request: ReadLease, answer: Answer) -> None:
        def work(connection: sqlite3.Connection) -> tuple[int, int]:
            return _barrier_below(connection, request.resource, request.barriers_below)

        def done(result: object) -> None:
            if not isinstance(result, tuple):
                answer(Failed(op=request.op, why=FailReason.UNREACHABLE))
                return
            holder = self._holders.get(request.resource)
            if holder is not None and holder.expires_at <= self._now():
                holder = None
            answer(
                LeaseRead(
                    op=request.op,
                    resource=request.resource,
                    epoch=self._epochs.get(request.resource, 0),
                    owner=holder.owner if holder else "",
                    address=holder.address if holder else "",
                    barrier_epoch=result[0],
                    barrier_offset=result[1],
                )
            )

        self._database.submit(work, done)

    def _barrier(self, request: RegisterBarrier, answer: Answer) -> None:
        def work(connection: sqlite3.Connection) -> bool:
            connection.execute(
                "INSERT OR REPLACE INTO barrier VALUES (?,?,?)",
                (_name(request.resource), request.epoch, request.offset),
            )
            _prune_barriers(connection, _name(request.resource), request.log_start)
            return True

        def done(result: object) -> None:
            ok = result is True
            answer(BarrierRegistered(op=request.op) if ok else mishap(request.op, result))

        self._database.submit(work, done)

    def _announce(self, request: Announce, answer: Answer) -> None:
        now = self._now()
        self._alive[request.role, request.owner] = now + request.ttl_ms / 1000
        self._alive = {key: until for key, until in self._alive.items() if until > now}
        owners = sorted(owner for role, owner in self._alive if role is request.role)
        answer(Peers(op=request.op, role=request.role, owners=tuple(owners)))


def shared_numbers(path: Path) -> dict[str, str]:
    """What the first start wrote; empty where there was none. Raises DataDirectoryDamaged."""
    if not path.exists():
        return {}
    connection = open_database(path, _SCHEMA)
    try:
        return dict(connection.execute("SELECT name, value FROM shared").fetchall())
    except sqlite3.Error as error:
        raise DataDirectoryDamaged(f"{path}: {error}") from error
    finally:
        connection.close()


def _name(resource: Resource) -> str:
    return f"{resource.role.value}/{resource.number}"


def _resource(name: str) -> Resource:
    role, _, number = name.partition("/")
    return Resource(role=Role(role), number=int(number))


def _store_epoch(connection: sqlite3.Connection, resource: Resource, epoch: int) -> None:
    connection.execute(
        "INSERT INTO lease VALUES (?,?) ON CONFLICT DO UPDATE SET epoch=max(epoch,excluded.epoch)",
        (_name(resource), epoch),
    )


def _prune_barriers(connection: sqlite3.Connection, resource: str, log_start: int) -> None:
    """What is less than the greatest BARRIERS_KEPT below the log's start."""
    least = connection.execute(
        "SELECT epoch, place FROM barrier WHERE resource=? AND place<? "
        "ORDER BY epoch DESC, place DESC LIMIT 1 OFFSET ?",
        (resource, log_start, BARRIERS_KEPT - 1),
    ).fetchone()
    if least is not None:
        connection.execute(
            "DELETE FROM barrier WHERE resource=? AND (epoch, place) < (?,?)", (resource, *least)
        )


def _barrier_below(
    connection: sqlite3.Connection, resource: Resource, below: int
) -> tuple[int, int]:
    row = connection.execute(
        "SELECT epoch, place FROM barrier WHERE resource=? AND place<? "
        "ORDER BY epoch DESC, place DESC LIMIT 1",
        (_name(resource), below),
    ).fetchone()
    return (int(row[0]), int(row[1])) if row else (0, -1)
