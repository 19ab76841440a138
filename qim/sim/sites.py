"""Numbers of the places where a draw is made: fixed for ever, since a renumbering reshuffles every saved seed."""

from typing import Final, get_args

from qim.core.contract.rpc import Message
from qim.core.ports.archive import ArchiveRequest
from qim.core.ports.local_store import LocalStoreRequest
from qim.core.ports.log import LogRequest
from qim.core.ports.registry import RegistryRequest
from qim.core.ports.store import StoreRequest
from qim.sim.choice import choose

_SITE_BITS: Final = 0xFFFFFFFF


def _numbers(family: str, union: object) -> dict[type, int]:
    """By name, not by place in the union: a new request must not move the others."""
    return {
        kind: choose(0, "site", (family, kind.__name__)) & _SITE_BITS for kind in get_args(union)
    }


RPC: Final = _numbers("rpc", Message)
STORE: Final = _numbers("store", StoreRequest)
LOG: Final = _numbers("log", LogRequest)
REGISTRY: Final = _numbers("registry", RegistryRequest)
LOCAL: Final = _numbers("local", LocalStoreRequest)
ARCHIVE: Final = _numbers("archive", ArchiveRequest)
RPC_REPEAT: Final = 1
SOCKET: Final = 2
SOCKET_DIAL: Final = 3
STORE_LATE: Final = 4
LOG_LATE: Final = 5
STORE_TAIL: Final = 6
REGISTRY_LATE: Final = 7
ARCHIVE_LATE: Final = 8
