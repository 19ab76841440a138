"""The messages that this package sends to etcd, built in one place each."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

from aetcd import rpc

from qim.adapters.etcd.connection import Method

RANGE: Final[Method] = attrgetter("kv.Range")
PUT: Final[Method] = attrgetter("kv.Put")
DELETE: Final[Method] = attrgetter("kv.DeleteRange")
TXN: Final[Method] = attrgetter("kv.Txn")
GRANT: Final[Method] = attrgetter("lease.LeaseGrant")
REVOKE: Final[Method] = attrgetter("lease.LeaseRevoke")
TIME_TO_LIVE: Final[Method] = attrgetter("lease.LeaseTimeToLive")
STATUS: Final[Method] = attrgetter("maintenance.Status")

TXN_OPS_MAX: Final = 120
"""etcd takes 128 operations in one transaction unless told otherwise."""


def unchanged(key: bytes, revision: int) -> Any:
    """The key was last written at ``revision``; 0: it does not exist."""
    return rpc.Compare(
        key=key, target=rpc.Compare.MOD, result=rpc.Compare.EQUAL, mod_revision=revision
    )


def read(key: bytes) -> Any:
    """One key, as part of a transaction."""
    return rpc.RequestOp(request_range=rpc.RangeRequest(key=key))


def last_keys(begin: bytes, end: bytes, limit: int) -> Any:
    """The greatest keys in [begin, end), greatest first."""
    return rpc.RangeRequest(
        key=begin,
        range_end=end,
        limit=limit,
        keys_only=True,
        sort_order=rpc.RangeRequest.DESCEND,
        sort_target=rpc.RangeRequest.KEY,
    )


def put(key: bytes, value: bytes, lease: int = 0) -> Any:
    """As part of a transaction."""
    return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=value, lease=lease))


def delete(key: bytes) -> Any:
    """As part of a transaction."""
    return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key))


def transaction(compare: Sequence[Any], success: Sequence[Any]) -> Any:
    """All of ``success`` if all of ``compare`` holds, else nothing."""
    return rpc.TxnRequest(compare=compare, success=success)


def found(answer: Any, at: int) -> Sequence[Any]:
    """The key-values of the read at this place of a transaction."""
    kvs: Sequence[Any] = answer.responses[at].response_range.kvs
    return kvs
