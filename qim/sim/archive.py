"""The archive's fake: what a distributed store may do to a batch, and what it may not.

Ways to fail: reply lost after apply, applied after the caller gave up, applied in part (and the rest later or never),
unreachable, slow. A read may miss what no confirmed write has promised; a confirmed row is seen by every later read.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, assert_never

from msgspec import Struct

from qim.core.ports.archive import (
    ArchiveBodiesRead,
    ArchivedConversationsRead,
    ArchiveExpired,
    ArchiveRead,
    ArchiveReply,
    ArchiveRequest,
    ArchiveWritten,
    ExpireArchive,
    ReadArchive,
    ReadArchiveBodies,
    ReadArchivedConversations,
    WriteArchive,
)
from qim.core.ports.completion import Failed, FailReason, Unknown
from qim.sim.archive_rows import ArchiveRows
from qim.sim.choice import TIEBREAK_SHIFT, Way, fault_level
from qim.sim.network import Cuts
from qim.sim.node import Host
from qim.sim.sites import ARCHIVE, ARCHIVE_LATE

if TYPE_CHECKING:
    from qim.sim.world import World

REPLY_TIMEOUT_MS: Final = 2_000
LATE_MAX_MS: Final = 20_000

Heard = Callable[[Host, ArchiveRequest, Any], None]


class Rates(Struct, kw_only=True):
    """Rates of 65,536 for one request, while a fault's window is open."""

    reply_lost: int = 0
    late: int = 0
    partial: int = 0
    unreachable: int = 0
    stale: int = 0
    extra_ms: int = 0


class Archive:
    """One archive for all partitions."""

    name = "archive"

    def __init__(self, world: "World", cuts: Cuts, *, base_ms: int, spread_ms: int) -> None:
        self.world = world
        self.cuts = cuts
        self.way = Way(base_ms, spread_ms)
        self.rows = ArchiveRows()
        self.rates = Rates()
        self.rated = False
        self.rated_windows = 0
        self.heard: Heard | None = None
        self.counts: dict[str, int] = {}

    def request(self, host: Host, effect: ArchiveRequest) -> None:
        """Exactly one completion comes back."""
        world = self.world
        traces = getattr(effect, "traces", ())
        draw = world.dice.draw(ARCHIVE[type(effect)], traces[0] if traces else host.identity)
        tiebreak = draw >> TIEBREAK_SHIFT
        arrival = world.now + self.way.there(draw) + host.node.slow_ms
        fate = "applied"
        if self.rated:
            arrival += self.rates.extra_ms
            fate = self._fate(draw, effect)
        world.at(arrival, tiebreak, self._arrive, (host, effect, draw, world.now, fate))

    def _fate(self, draw: int, effect: ArchiveRequest) -> str:
        level = fault_level(draw)
        rates = self.rates
        writing = isinstance(effect, WriteArchive | ExpireArchive)
        for fate, rate in (
            ("late", rates.late if writing else 0),
            ("partial", rates.partial if writing else 0),
            ("stale", 0 if writing else rates.stale),
            ("unreachable", rates.unreachable),
            ("reply_lost", rates.reply_lost),
        ):
            if level < rate:
                self._count(f"archive.{fate}")
                return fate
            level -= rate
        return "applied"

    # ------------------------------------------------------------ at the server

    def _arrive(self, payload: tuple[Host, ArchiveRequest, int, int, str]) -> None:
        host, effect, draw, sent, fate = payload
        world = self.world
        give_up = sent + REPLY_TIMEOUT_MS
        if fate == "unreachable":
            failed = Failed(op=effect.op, why=FailReason.UNREACHABLE)
            world.at(world.now + 1, 0, host.take, failed)
            return
        if self.cuts and self.cuts.between(host.node.name, self.name):
            self._count("archive.cut")
            world.at(give_up, 0, host.take, Unknown(op=effect.op))
            return
        if fate in ("late", "partial"):
            self._in_part(host, effect, draw, fate)
            world.at(give_up, 0, host.take, Unknown(op=effect.op))
            return
        answer = self._apply(host, effect, stale=fate == "stale")
        if fate == "reply_lost" or (self.cuts and self.cuts.between(self.name, host.node.name)):
            world.at(give_up, 0, host.take, Unknown(op=effect.op))
            return
        world.at(world.now + self.way.back(draw), draw >> TIEBREAK_SHIFT, host.take, answer)

    def _in_part(self, host: Host, effect: ArchiveRequest, draw: int, fate: str) -> None:
        """Some rows now (none when late); the whole batch long after the caller gave up, or never."""
        late = self.world.dice.draw(ARCHIVE_LATE, host.identity)
        if fate == "partial" and isinstance(effect, WriteArchive):
            chosen = late >> TIEBREAK_SHIFT
            rows = [row for at, row in enumerate(effect.rows) if chosen >> at % 20 & 1]
            self.rows.insert(effect.partition, rows, settled=False)
        if fate == "late" or late & 1:
            at = self.world.now + REPLY_TIMEOUT_MS + (late >> 1) % LATE_MAX_MS
            self.world.at(at, draw >> TIEBREAK_SHIFT, self._apply_late, (host, effect))

    def _apply_late(self, payload: tuple[Host, ArchiveRequest]) -> None:
        self._apply(*payload, stale=False)

    def _apply(self, host: Host, effect: ArchiveRequest, *, stale: bool) -> ArchiveReply:
        answer = self.ask(effect, stale=stale)
        if self.heard is not None:
            self.heard(host, effect, answer)
        return answer

    def ask(self, effect: ArchiveRequest, *, stale: bool = False) -> ArchiveReply:
        """Apply at once, outside of time and of every fault."""
        rows = self.rows
        match effect:
            case WriteArchive():
                return ArchiveWritten(op=effect.op, reused=rows.write(effect))
            case ReadArchive():
                stored, more = rows.page(
                    effect.conversation_id,
                    effect.low,
                    effect.high,
                    newest_first=effect.newest_first,
                    limit=effect.limit,
                    stale=stale,
                )
                return ArchiveRead(op=effect.op, stored=stored, more=more)
            case ReadArchiveBodies():
                bodies = tuple([rows.body(name, stale=stale) for name in effect.names])
                return ArchiveBodiesRead(op=effect.op, stored=bodies, let_go=rows.let_go)
            case ReadArchivedConversations():
                found, more = rows.archived(effect.partition, effect.after, effect.limit)
                position = rows.positions.get(effect.partition, 0)
                return ArchivedConversationsRead(
                    op=effect.op, conversations=found, more=more, position=position
                )
            case ExpireArchive():
                removed, more = rows.expire(effect.before_wall, effect.limit)
                return ArchiveExpired(op=effect.op, removed=removed, more=more)
            case _:
                assert_never(effect)

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1
