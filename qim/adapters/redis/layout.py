"""Key names and value layouts that both halves of the codec share (docs: architecture, "One meaning for the store").

Every key is a prefix, parts of fixed width, and at most one part of variable width at its end: no two things share a key
and no id can leave its place, whatever bytes it holds. Integers are unsigned big-endian. Ordered sets have score 0.

======================  ==============================================================================================
qim:incarnation         the marker of this keyspace
ws:shard4               writer shard: e fence8, i opener16, a applied8, f filter8, h HLC floor16, v coverage8, o run_id that is whole
wc:shard4               auditor: e fence8 of the coverage, i opener16
wp:shard4               pending intents, ordered: conversation16 seq8 message_id16
wi:shard4, wa:shard4    facts: ordered message_id16; message_id16 -> FACT
d:dedupe16              COMMIT; dx:shard4 orders them by not_after8 dedupe16
c:conversation16        s seq8 activity16, v VERSION control_seq8, u users16, o creator8, n name, m meta, h head40, f floor8
h:conversation16        history, ordered: seq8 activity16 record
gm:conversation16       members: user8 -> slot4 (joined8 left8)*
gv:conversation16       versions: version8 digest16 -> control_seq8 bitmap of slots
fs:partition4           fanout source: e fence8, i opener16, p position, f filter8
fr:, fd:partition4      receipts and dead letters, ordered: offset8 bytes
ms:shard4               mailbox shard: e fence8, i opener16, w watermarks, t trim8, p position, d (day4 first8)*, f + partition4 floor8
mh:shard4               the shard has begun: without its ms: it lost its counter
mc:shard4               claims: dispatch_id16 -> offset8 partition4 source_offset8, then count4 digest once finished
mx:shard4               claims with a source, ordered: partition4 source_offset8 dispatch_id16
mb:shard4 day4 user8 t  mailbox of a user (t = tenant), ordered: mailbox_seq8 entry
mu:shard4 day4          who has a mailbox that day, ordered: user8 tenant
dv:shard4 user8 tenant  delivered watermarks: device -> mailbox_seq8, of as many devices as are told
pr:user8 tenant         presence: device -> session_epoch8 attempt8 expires8 conn8 gateway
======================  ==============================================================================================
"""

from collections.abc import Callable
from struct import Struct as Packing
from typing import Final, NamedTuple

from qim.core.contract.params import DEFAULT
from qim.core.ports.log import Position

U64_MAX: Final = (1 << 64) - 1
EMPTY_DIGEST: Final = b"\0" * 16
INCARNATION_KEY: Final = b"qim:incarnation"
ARGUMENTS_MAX: Final = 7_000
"""Keys and arguments of one call: Lua's unpack has room for little more."""
DEDUPE_GRACE_MS: Final = DEFAULT.dedupe_window_ms
"""How long past not_after a dedupe entry is kept and answers (contract: at least 1 h): the default window, also where a
world compresses its own. A longer memory repeats nothing; one shorter than clocks stand apart would."""

Raw = "bytes | int | list[Raw] | None"


class Call(NamedTuple):
    """One script call: EVALSHA of ``script`` with these keys and arguments."""

    script: str
    keys: list[bytes]
    args: list[bytes]


class MalformedReply(Exception):
    """A script answered what no script answers: our own bug, or another program's data under our keys."""


def u32(value: int) -> bytes:
    """4 bytes big-endian; raises OverflowError outside u32."""
    return value.to_bytes(4, "big")


def u64(value: int) -> bytes:
    """8 bytes big-endian; raises OverflowError outside u64."""
    return value.to_bytes(8, "big")


number: Callable[[bytes], int] = int.from_bytes
"""Inverse of u32 and u64; b"" is 0. Big-endian is what it takes bytes for."""


def small(value: int) -> bytes:
    """A count or limit below 2^31 as the decimal a script reads."""
    assert 0 <= value < 1 << 31, value
    return b"%d" % value


def run_id_of(incarnation: bytes) -> bytes:
    """The server half of run_id ‖ b"/" ‖ key."""
    return incarnation.partition(b"/")[0]


def marker_of(incarnation: bytes) -> bytes:
    """The keyspace half: what stands under ``qim:incarnation`` (b"" for any marked keyspace)."""
    return incarnation.partition(b"/")[2]


def pack_position(position: Position) -> bytes:
    """offset8 width1 digest topic_id."""
    return b"%b%c%b%b" % (
        u64(position.offset),
        len(position.digest),
        position.digest,
        position.topic_id,
    )


def unpack_position(packed: bytes) -> Position | None:
    """Inverse of pack_position; b"" is None."""
    if not packed:
        return None
    width = packed[8]
    return Position(packed[9 + width :], number(packed[:8]), packed[9 : 9 + width])


INTENT: Final = Packing(">16s16sQQQ16s")
"""digest16 message_id16 sent_at8 not_after8 version8 conversation16: a dedupe entry without state, seq and activity."""
COMMIT: Final = Packing(">B16s16sQQQ16sQ16s")
"""A dedupe entry: state1, the intent, seq8 activity16."""
VERSION: Final = Packing(">BQ16s")
"""kind1 version8 digest16: the frozen audience a reservation is compared with."""
FACT: Final = Packing(">BBQ16sQ16s")
"""state1 rebuilt1 offset8 conversation16 seq8 dedupe16; offset 2^64-1: none."""
MEMBER: Final = Packing(">16sQ16s")
"""conversation16 seq8 message_id16: a row of the pending index."""
