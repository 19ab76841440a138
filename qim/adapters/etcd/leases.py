"""Leases, epochs and barriers: what each request of the port is in etcd's own terms.

Every grant has an etcd lease of its own, so what a late or unanswered request left behind runs out by itself and giving
one grant back touches no other. A grant is one transaction: the epoch counter rises by one and the holder is written, if
neither has changed since both were read. etcd takes whole seconds, rounded up here, and revokes a moment late: a lease
never ends before its TTL, counted from when the request was sent.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from aetcd import rpc
from msgspec import Struct
from msgspec.structs import replace

from qim.adapters.etcd import calls
from qim.adapters.etcd.connection import EtcdConnection, LeaseUnknown, NotApplied, Unanswered
from qim.adapters.etcd.keys import (
    Holder,
    Keys,
    barrier_place,
    decode_epoch,
    decode_holder,
    encode_holder,
    range_end,
)
from qim.core.ports.registry import (
    BARRIERS_KEPT,
    Acquire,
    BarrierRegistered,
    Denied,
    EpochRaised,
    Granted,
    LeaseRead,
    RaiseEpoch,
    ReadLease,
    RegisterBarrier,
    Release,
    Released,
    Renew,
    Renewed,
    Resource,
)

NO_BARRIER: Final = (0, -1)
ANY_OFFSET: Final = 2**63 - 1
BARRIERS_PAGE: Final = 500
REVOKE_MS: Final = 5_000
PRUNE_MS: Final = 5_000
REVOKED_LATE_MS: Final = 1_000
"""etcd tells whole seconds that are left, rounded down."""


class Held(Struct, frozen=True, kw_only=True):
    """What stands for one resource, read at one revision. Revisions are 0 where the key is absent."""

    epoch: int
    epoch_revision: int
    holder: Holder | None
    holder_revision: int
    lease: int

    def is_grant(self, owner: str, epoch: int) -> bool:
        """Held by ``owner`` under exactly this epoch, whatever was raised since."""
        return self.holder is not None and self.holder.owner == owner and self.holder.epoch == epoch


Background = Callable[[Coroutine[Any, Any, None]], None]


class Leases:
    """Each method answers with the port's reply, or raises NotApplied or Unanswered."""

    def __init__(self, connection: EtcdConnection, keys: Keys, background: Background) -> None:
        self._connection = connection
        self._keys = keys
        self._background = background

    # ------------------------------------------------------------ taking

    async def acquire(self, request: Acquire, within: float) -> Granted | Denied:
        resource, lease = request.resource, 0
        try:
            while True:
                (held,) = await self.look((resource,), within)
                if held.holder is not None and held.holder.owner != request.owner:
                    remaining_ms = await self._remaining_ms(held, within)
                    if remaining_ms > 0:
                        return Denied(
                            op=request.op,
                            resource=resource,
                            owner=held.holder.owner,
                            remaining_ms=remaining_ms,
                        )
                    continue  # it ended while we asked
                lease = lease or await self.new_lease(request.ttl_ms, within)
                granted = await self._grant(request, held, lease, within)
                if granted is not None:
                    lease = held.lease  # the key has left it; nothing hangs on it any more
                    return granted
        finally:
            # Not granted, or nobody knows: without its lease a grant that comes late cannot stand.
            if lease:
                self._background(self._revoke(lease))

    async def _grant(
        self, request: Acquire, held: Held, lease: int, within: float
    ) -> Granted | None:
        """None where somebody else was faster."""
        resource, epoch = request.resource, held.epoch + 1
        holder = Holder(
            owner=request.owner, address=request.address, epoch=epoch, ttl_ms=request.ttl_ms
        )
        begin = self._keys.barriers(resource)
        answer = await self._connection.change(
            calls.TXN,
            calls.transaction(
                self._unchanged(resource, held),
                (
                    calls.put(self._keys.epoch(resource), b"%d" % epoch),
                    calls.put(self._keys.lease(resource), encode_holder(holder), lease),
                    rpc.RequestOp(request_range=calls.last_keys(begin, range_end(begin), 1)),
                ),
            ),
            within,
        )
        if not answer.succeeded:
            return None
        barriers = calls.found(answer, 2)
        barrier_epoch, barrier_offset = barrier_place(barriers[0].key) if barriers else NO_BARRIER
        return Granted(
            op=request.op,
            resource=resource,
            epoch=epoch,
            barrier_epoch=barrier_epoch,
            barrier_offset=barrier_offset,
        )

    async def renew(self, request: Renew, within: float) -> Renewed:
        """One look at all of them, then one stream of keep-alives: the look is the moment that counts."""
        resources = [resource for resource, _ in request.leases]
        held = await self.look(resources, within)
        kept: dict[Resource, int] = {}
        short: list[tuple[Resource, Held]] = []
        for (resource, epoch), one in zip(request.leases, held, strict=True):
            if one.holder is None or not one.is_grant(request.owner, epoch) or one.epoch != epoch:
                continue
            if one.holder.ttl_ms < request.ttl_ms:
                short.append((resource, one))
            else:
                kept[resource] = one.lease
        if short:
            kept.update(await self._lengthened(short, request.ttl_ms, within))
        stand = await self._connection.keep_alive(tuple(kept.values()), within) if kept else ()
        lost = tuple(resource for resource in resources if kept.get(resource, 0) not in stand)
        return Renewed(op=request.op, lost=lost)

    async def _lengthened(
        self, short: Sequence[tuple[Resource, Held]], ttl_ms: int, within: float
    ) -> dict[Resource, int]:
        """Those granted for less than is asked now, put on etcd leases of the new length; the lost ones left out."""
        longer: dict[Resource, int] = {}
        for resource, held in short:
            assert held.holder is not None
            value = encode_holder(replace(held.holder, ttl_ms=ttl_ms))
            try:
                lease = await self.new_lease(ttl_ms, within)
                written = (calls.put(self._keys.lease(resource), value, lease),)
                change = calls.transaction(self._unchanged(resource, held), written)
                answer = await self._connection.change(calls.TXN, change, within)
            except NotApplied as error:
                raise (Unanswered(str(error)) if longer else error) from error
            if answer.succeeded:
                longer[resource] = lease
        return longer

    async def release(self, request: Release, within: float) -> Released:
        """Each grant has its own lease: revoking it gives back that grant and no fresher one."""
        held = await self.look([resource for resource, _ in request.leases], within)
        ours = [
            one.lease
            for (_, epoch), one in zip(request.leases, held, strict=True)
            if one.is_grant(request.owner, epoch) and one.lease
        ]
        outcomes = await asyncio.gather(
            *(self._revoke(lease, within) for lease in ours), return_exceptions=True
        )
        troubles = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if troubles and len(troubles) == len(ours):
            if all(isinstance(trouble, NotApplied) for trouble in troubles):
                raise troubles[0]
        if troubles:
            raise Unanswered(str(troubles[0]))
        return Released(op=request.op)

    # ------------------------------------------------------------ epochs and barriers

    async def raise_epoch(self, request: RaiseEpoch, within: float) -> EpochRaised:
        key = self._keys.epoch(request.resource)
        while True:
            (held,) = await self.look((request.resource,), within)
            if held.epoch >= request.above:
                return EpochRaised(op=request.op)
            answer = await self._connection.change(
                calls.TXN,
                calls.transaction(
                    (calls.unchanged(key, held.epoch_revision),),
                    (calls.put(key, b"%d" % request.above),),
                ),
                within,
            )
            if answer.succeeded:
                return EpochRaised(op=request.op)

    async def register(self, request: RegisterBarrier, within: float) -> BarrierRegistered:
        key = self._keys.barrier(request.resource, request.epoch, request.offset)
        await self._connection.change(calls.PUT, rpc.PutRequest(key=key, value=b""), within)
        if request.log_start > 0:
            self._background(self._prune(request.resource, request.log_start))
        return BarrierRegistered(op=request.op)

    async def _prune(self, resource: Resource, log_start: int) -> None:
        """Drop what is less than the greatest BARRIERS_KEPT below the log's start; another OPEN finds what is left."""
        within = self._connection.within(PRUNE_MS)
        begin, end = self._keys.barriers(resource), range_end(self._keys.barriers(resource))
        kept = 0
        while True:
            request = calls.last_keys(begin, end, BARRIERS_PAGE)
            page = await self._connection.ask(calls.RANGE, request, within)
            for kv in page.kvs:
                kept += barrier_place(kv.key)[1] < log_start
                if kept == BARRIERS_KEPT:
                    less = rpc.DeleteRangeRequest(key=begin, range_end=kv.key)
                    await self._connection.change(calls.DELETE, less, within)
                    return
            if not page.more or not page.kvs:
                return
            end = page.kvs[-1].key

    async def read(self, request: ReadLease, within: float) -> LeaseRead:
        """Linearizable: OPEN asks so after its fence stands (pipeline.md §1.6 b)."""
        resource, below = request.resource, request.barriers_below
        begin = self._keys.barriers(resource)
        limit = 1 if below >= ANY_OFFSET else BARRIERS_PAGE
        page = calls.last_keys(begin, range_end(begin), limit)
        answer = await self._connection.ask(
            calls.TXN,
            calls.transaction(
                (),
                (
                    calls.read(self._keys.epoch(resource)),
                    calls.read(self._keys.lease(resource)),
                    rpc.RequestOp(request_range=page),
                ),
            ),
            within,
        )
        held = _held(calls.found(answer, 0), calls.found(answer, 1))
        barrier = await self._barrier_below(
            begin, below, answer.responses[2].response_range, within
        )
        return LeaseRead(
            op=request.op,
            resource=resource,
            epoch=held.epoch,
            owner=held.holder.owner if held.holder else "",
            address=held.holder.address if held.holder else "",
            barrier_epoch=barrier[0],
            barrier_offset=barrier[1],
        )

    async def _barrier_below(
        self, begin: bytes, below: int, page: Any, within: float
    ) -> tuple[int, int]:
        """Down the pages to the greatest one whose offset is below; a barrier may stand behind one of a higher epoch."""
        while True:
            for kv in page.kvs:
                epoch, offset = barrier_place(kv.key)
                if offset < below:
                    return epoch, offset
            if not page.more or not page.kvs:
                return NO_BARRIER
            request = calls.last_keys(begin, page.kvs[-1].key, BARRIERS_PAGE)
            page = await self._connection.ask(calls.RANGE, request, within)

    # ------------------------------------------------------------ parts of the above

    async def look(self, resources: Sequence[Resource], within: float) -> list[Held]:
        """What stands for each; one linearizable read for as many as fit into a transaction."""
        size = calls.TXN_OPS_MAX // 2
        if len(resources) <= size:
            return await self._look(resources, within)
        looks = [self._look(part, within) for part in _parts(resources, size)]
        return [held for part in await asyncio.gather(*looks) for held in part]

    async def _look(self, resources: Sequence[Resource], within: float) -> list[Held]:
        reads: list[Any] = []
        for resource in resources:
            reads += (
                calls.read(self._keys.epoch(resource)),
                calls.read(self._keys.lease(resource)),
            )
        answer = await self._connection.ask(calls.TXN, calls.transaction((), reads), within)
        return [
            _held(calls.found(answer, 2 * at), calls.found(answer, 2 * at + 1))
            for at in range(len(resources))
        ]

    def _unchanged(self, resource: Resource, held: Held) -> Sequence[Any]:
        return (
            calls.unchanged(self._keys.epoch(resource), held.epoch_revision),
            calls.unchanged(self._keys.lease(resource), held.holder_revision),
        )

    async def new_lease(self, ttl_ms: int, within: float) -> int:
        """An etcd lease that lives at least so long; with no key on it, it is nothing to the port."""
        request = rpc.LeaseGrantRequest(TTL=-(-ttl_ms // 1000), ID=0)
        return int((await self._connection.ask(calls.GRANT, request, within)).ID)

    async def _remaining_ms(self, held: Held, within: float) -> int:
        """How long the holder's lease may last yet; 0 where it ended since."""
        assert held.holder is not None
        if not held.lease:
            return held.holder.ttl_ms  # written by hand: ends when it is deleted
        request = rpc.LeaseTimeToLiveRequest(ID=held.lease)
        seconds = int((await self._connection.ask(calls.TIME_TO_LIVE, request, within)).TTL)
        return 0 if seconds < 0 else seconds * 1000 + REVOKED_LATE_MS

    async def _revoke(self, lease: int, within: float | None = None) -> None:
        within = self._connection.within(REVOKE_MS) if within is None else within
        with suppress(LeaseUnknown):  # it ran out before
            await self._connection.change(calls.REVOKE, rpc.LeaseRevokeRequest(ID=lease), within)


def _held(epochs: Sequence[Any], holders: Sequence[Any]) -> Held:
    holder = holders[0] if holders else None
    return Held(
        epoch=decode_epoch(epochs[0].value) if epochs else 0,
        epoch_revision=epochs[0].mod_revision if epochs else 0,
        holder=None if holder is None else decode_holder(holder.value),
        holder_revision=0 if holder is None else holder.mod_revision,
        lease=0 if holder is None else holder.lease,
    )


def _parts(resources: Sequence[Resource], size: int) -> Iterable[Sequence[Resource]]:
    return (resources[at : at + size] for at in range(0, len(resources), size))
