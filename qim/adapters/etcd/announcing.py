"""Announcements: a key an instance and role, on an etcd lease that each Announce keeps alive."""

from aetcd import rpc

from qim.adapters.etcd import calls
from qim.adapters.etcd.connection import EtcdConnection
from qim.adapters.etcd.keys import Keys, name_in, range_end
from qim.adapters.etcd.leases import Leases
from qim.core.ports.registry import Announce, Peers, Role


class Announcements:
    """Remembers the etcd lease of each announcement made here; bounded by the roles and owners of one process."""

    def __init__(self, connection: EtcdConnection, keys: Keys, leases: Leases) -> None:
        self._connection = connection
        self._keys = keys
        self._leases = leases
        self._made: dict[tuple[Role, str, str, int], int] = {}
        self._roles: set[Role] = set()

    @property
    def roles(self) -> frozenset[Role]:
        """Roles that this process takes part in."""
        return frozenset(self._roles)

    async def announce(self, request: Announce, within: float) -> Peers:
        """Keep it alive, or write it; a TTL of 0 withdraws it."""
        role, owner = request.role, request.owner
        self._roles.add(
            role
        )  # before the write: the watch may tell of it before its answer is here
        key = self._keys.peer(role, owner)
        if request.ttl_ms <= 0:
            for made in [made for made in self._made if made[:2] == (role, owner)]:
                del self._made[made]
            await self._connection.change(
                calls.TXN, calls.transaction((), (calls.delete(key),)), within
            )
            return await self.peers(role, within, request.op)
        made = (role, owner, request.address, request.ttl_ms)
        lease = self._made.pop(made, 0)
        if lease and await self._connection.keep_alive((lease,), within):
            peers = await self.peers(role, within, request.op)
            if owner in peers.owners:
                self._made[made] = lease
                return peers
        lease = await self._leases.new_lease(request.ttl_ms, within)
        value = request.address.encode()
        write = calls.transaction((), (calls.put(key, value, lease),))
        await self._connection.change(calls.TXN, write, within)
        self._made[made] = lease
        return await self.peers(role, within, request.op)

    async def peers(self, role: Role, within: float, op: int = 0) -> Peers:
        """Who lives now."""
        begin = self._keys.peers(role)
        request = rpc.RangeRequest(
            key=begin,
            range_end=range_end(begin),
            keys_only=True,
            sort_order=rpc.RangeRequest.ASCEND,
            sort_target=rpc.RangeRequest.KEY,
        )
        answer = await self._connection.ask(calls.RANGE, request, within)
        names = [name_in(kv.key, begin) for kv in answer.kvs]
        owners = [name for name in names if name is not None]
        return Peers(op=op, role=role, owners=tuple(sorted(owners)))
