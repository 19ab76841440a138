"""Writer instance numbers: 16 bits of every message_id, so no two live writers may have the same (contract.md, Five sequences)."""

import asyncio
import hashlib
from typing import Final

from aetcd import rpc
from msgspec.structs import replace

from qim.adapters.etcd import calls
from qim.adapters.etcd.connection import EtcdConnection, NotApplied, Unanswered
from qim.adapters.etcd.keys import Keys, range_end
from qim.adapters.etcd.leases import Leases
from qim.adapters.start_refused import StartRefused
from qim.core.ports.registry import Acquire, Denied, Granted, Resource, Role

NUMBER_MAX: Final = 65_535
FREE_TRIES_MAX: Final = 32
LOOK_MS: Final = 250
LATE_MS: Final = 3_000
"""A predecessor's lease may end this much after its TTL."""


class InstanceNumbers:
    """One process's search; afterwards its LeaseKeeper pins the number and so keeps it."""

    def __init__(self, connection: EtcdConnection, keys: Keys, leases: Leases) -> None:
        self._connection = connection
        self._keys = keys
        self._leases = leases

    async def lease(
        self, owner: str, address: str, ttl_ms: int, number: int | None, call_ms: int
    ) -> tuple[int, int]:
        """(number, epoch). Raises StartRefused."""
        request = Acquire(
            op=0,
            resource=Resource(role=Role.INSTANCE, number=number or 0),
            owner=owner,
            address=address,
            ttl_ms=ttl_ms,
        )
        try:
            if number is not None:
                return await self._configured(request, call_ms)
            return await self._free(request, call_ms)
        except (NotApplied, Unanswered) as error:
            raise StartRefused(
                "etcd_unreachable",
                f"etcd at {self._connection.endpoint}",
                got=str(error),
                expected="a lease of a writer instance number",
                command=f"etcdctl --endpoints={self._connection.endpoint} endpoint health",
            ) from error

    async def _configured(self, request: Acquire, call_ms: int) -> tuple[int, int]:
        """A predecessor that died is waited for as long as its lease can last."""
        number = request.resource.number
        if not 1 <= number <= NUMBER_MAX:
            raise StartRefused(
                "writer_id_out_of_range",
                "QIM_WRITER_ID",
                got=str(number),
                expected=f"1..{NUMBER_MAX}",
                command="unset QIM_WRITER_ID",
            )
        until = self._connection.within(request.ttl_ms + LATE_MS)
        while True:
            answer = await self._asked(request, call_ms)
            if isinstance(answer, Granted):
                return number, answer.epoch
            if self._connection.within(LOOK_MS) >= until:
                raise StartRefused(
                    "writer_id_taken",
                    f"writer instance number {number} (QIM_WRITER_ID)",
                    got=f"leased by {answer.owner}",
                    expected="a number that no other live writer has",
                    command="unset QIM_WRITER_ID",
                )
            await asyncio.sleep(LOOK_MS / 1000)

    async def _free(self, request: Acquire, call_ms: int) -> tuple[int, int]:
        """Owners begin to look at different places, so that many that start together do not race for one number."""
        start = int.from_bytes(hashlib.blake2b(request.owner.encode(), digest_size=8).digest())
        taken = await self._taken(call_ms)
        tries = 0
        for step in range(NUMBER_MAX):
            number = (start + step) % NUMBER_MAX + 1
            if number in taken:
                continue
            resource = Resource(role=Role.INSTANCE, number=number)
            answer = await self._asked(replace(request, resource=resource), call_ms)
            if isinstance(answer, Granted):
                return number, answer.epoch
            tries += 1
            if tries >= FREE_TRIES_MAX:
                break
        raise StartRefused(
            "writer_ids_exhausted",
            "the number of free writer instance numbers",
            got=f"none of {NUMBER_MAX} ({len(taken)} are leased)",
            expected="at least one",
            command=f"etcdctl --endpoints={self._connection.endpoint} get --prefix "
            f"{self._keys.leases_of(Role.INSTANCE).decode()}",
        )

    async def _taken(self, call_ms: int) -> frozenset[int]:
        begin = self._keys.leases_of(Role.INSTANCE)
        request = rpc.RangeRequest(key=begin, range_end=range_end(begin), keys_only=True)
        answer = await self._connection.ask(calls.RANGE, request, self._connection.within(call_ms))
        leased = [self._keys.resource(kv.key) for kv in answer.kvs]
        return frozenset(resource.number for resource in leased if resource is not None)

    async def _asked(self, request: Acquire, call_ms: int) -> Granted | Denied:
        """An unanswered one is asked again: what it may have left is ours as well."""
        try:
            return await self._leases.acquire(request, self._connection.within(call_ms))
        except Unanswered:
            return await self._leases.acquire(request, self._connection.within(call_ms))
