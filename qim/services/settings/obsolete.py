"""QIM_ names that are no variables of `qim serve` and are met all the same: the seed's without a meaning here, other commands'."""

from typing import Final

from msgspec import Struct


class Obsolete(Struct, frozen=True, kw_only=True):
    """A variable of the seed without a meaning here. ``harmless``: this value, and with "*" any, is let pass."""

    name: str
    why: str
    instead: str
    harmless: str = "*"


OBSOLETE: Final[tuple[Obsolete, ...]] = (
    Obsolete(
        name="QIM_STORE_BACKEND",
        harmless="",
        why="the old global switch would leave open which of two stores it means",
        instead="QIM_MESSAGE_STORE_BACKEND and QIM_MAILBOX_STORE_BACKEND",
    ),
    Obsolete(
        name="QIM_TOKEN_LISTEN",
        harmless="",
        why="an endpoint that gives tokens to whoever asks is not in this server",
        instead="`qim token`, or your own issuer with QIM_AUTH_SECRET",
    ),
    Obsolete(
        name="QIM_SHARD_EPOCH",
        harmless="1",
        why="a shard's epoch is kept with its data and never comes from a process",
        instead="`qim shard bump`",
    ),
    Obsolete(
        name="QIM_OUTBOX_PARTITION",
        why="writers share the partitions by leases",
        instead="QIM_OUTBOX_PARTITION_COUNT",
    ),
    Obsolete(
        name="QIM_FANOUT_GROUP_ID",
        why="positions stand in the message store, fenced; there are no consumer groups",
        instead="nothing",
    ),
    Obsolete(
        name="QIM_FANOUT_TRANSACTIONAL_ID",
        why="no log transaction is used; epochs and claims make a repeat harmless",
        instead="nothing",
    ),
    Obsolete(
        name="QIM_ARCHIVER_GROUP_ID",
        why="positions stand in the message store, fenced; there are no consumer groups",
        instead="nothing",
    ),
    Obsolete(
        name="QIM_MESSAGE_STORE_CONNECTIONS",
        why="one multiplexed connection a store carries all calls: they share an fsync already",
        instead="nothing",
    ),
    Obsolete(
        name="QIM_WRITER_ADDR",
        why="gateways learn from the registry who holds a shard",
        instead="QIM_ETCD_ENDPOINTS",
    ),
    Obsolete(
        name="QIM_WRITER_ADDRS",
        why="gateways learn from the registry who holds a shard",
        instead="QIM_ETCD_ENDPOINTS",
    ),
)

ELSEWHERE: Final[dict[str, str]] = {
    "QIM_CONFIG": "the file that `qim serve` and `qim config` read; --config goes before it",
    "QIM_DATA": "data directory of `qim up` and the commands beside it",
    "QIM_TOKEN": "access token of client commands",
    "QIM_TLS_CA": "client commands: the CA that is trusted",
    "QIM_TLS_SNI": "client commands: the name expected of the server",
    "QIM_LOAD_RATE": "messages a second of the acceptance run",
    "QIM_HYPOTHESIS": "profile of the property tests",
}
"""Variables of other commands: `qim serve` lets them pass."""

OBSOLETE_BY_NAME: Final = {one.name: one for one in OBSOLETE}
TEST_PREFIX: Final = "QIM_TEST_"
