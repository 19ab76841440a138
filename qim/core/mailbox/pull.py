"""PULL_MAILBOX: the contiguous prefix of one user's mailbox, and the only place where a cursor moves (pipeline.md §3.3).

    asked --cursor judged--> reading rows --MailboxesRead--> joining bodies --all found, cut, or a miss--> answered
       |--refused                 |--trim passed the cursor, store lost: refused

A batch never crosses what isn't materialised: it ends at min(up_to, W[lane]) as the script saw W, at the limit, at 256 KiB,
or before an entry whose body neither store nor retention explains.
"""

from typing import assert_never

import msgspec

from qim.core.contract import routing
from qim.core.contract.actor import Actor
from qim.core.contract.cursor import (
    Cursor,
    CursorOwner,
    CursorVerdict,
    ShardRange,
    decode_cursor,
    encode_cursor,
    judge,
)
from qim.core.contract.entities import decode_entry
from qim.core.contract.errors import ErrorCode, ProtocolError
from qim.core.contract.invariants import Invariant
from qim.core.contract.rpc import (
    AskPull,
    AskSync,
    AskWatermark,
    PullAnswer,
    Refused,
    SyncAnswer,
    WatermarkAnswer,
)
from qim.core.contract.sequences import before_first
from qim.core.machine import Ms
from qim.core.mailbox.bodies import BodyCache
from qim.core.mailbox.delivered import Delivered
from qim.core.mailbox.joining import End, Ended, Joining, Pull
from qim.core.mailbox.orders import Orders, What
from qim.core.mailbox.shard import Shard
from qim.core.mailbox.trim import read_back_seq
from qim.core.mailbox.vocabulary import BODY_MISMATCH, MailboxConfig
from qim.core.ports.archive import ArchiveBodiesRead
from qim.core.ports.log import Fetched
from qim.core.ports.network import Send
from qim.core.ports.observe import Count, Violation
from qim.core.ports.store_history import OverlaysRead
from qim.core.ports.store_mailbox import (
    MailboxesRead,
    MailboxRead,
    MailboxRows,
    ReadMailboxes,
)
from qim.core.ports.store_reads import BodiesRead

Ask = AskPull | AskSync | AskWatermark


def shard_asked(ask: Ask, config: MailboxConfig) -> int:
    """The shard that routing names for a question."""
    if isinstance(ask, AskWatermark):
        return ask.shard
    return routing.shard(ask.actor.user_id, config.shard_count)


TRACES_MAX = 4


class Pulls:
    """All pulls of a node: judged, read, joined, answered. Bounded by ``pulls_inflight_max``."""

    def __init__(
        self, config: MailboxConfig, orders: Orders, cache: BodyCache, delivered: Delivered
    ) -> None:
        self._config = config
        self._orders = orders
        self._delivered = delivered
        self._joining = Joining(config, orders, cache)
        self._waiting: dict[int, tuple[Shard, list[Pull]]] = {}
        """Pulls that join the next read of their shard, by shard number."""
        self._reads: dict[int, tuple[Shard, tuple[Pull, ...]]] = {}
        self._count = 0

    # ------------------------------------------------------------ asked

    def on_ask(self, now: Ms, source: str, wall: int, ask: Ask, shard: Shard | None) -> None:
        """``shard`` is the one routing names, None where this node doesn't hold it."""
        if shard is not None and not shard.running():
            self._refuse(source, ask.rid, ErrorCode.UNAVAILABLE, "the shard is being opened")
            return
        match ask:
            case AskWatermark():
                if shard is None:
                    self._not_here(source, ask)
                    return
                marks = tuple(shard.watermark(routing.lane(user)) for user in ask.users)
                self._send(source, WatermarkAnswer(rid=ask.rid, watermarks=marks))
            case AskSync():
                self._on_sync(source, wall, ask, shard)
            case AskPull():
                cursor = self._judged(source, ask, ask.cursor, shard)
                if cursor is not None and shard is not None:
                    self._delivered.note(now, shard, cursor)
                    self._on_pull(source, ask, cursor, shard)
            case _:
                assert_never(ask)

    def _on_sync(self, source: str, wall: int, ask: AskSync, shard: Shard | None) -> None:
        if ask.cursor is None:
            if shard is None:
                self._not_here(source, ask)
                return
            cursor = self._first_cursor(ask.actor, shard, wall)
        else:
            judged = self._judged(source, ask, ask.cursor, shard)
            if judged is None or shard is None:
                return
            cursor = judged
        watermark = shard.watermark(cursor.lane)
        answer = SyncAnswer(
            rid=ask.rid,
            sync_to_seq=watermark,
            has_offline=cursor.seq < watermark,
            cursor=encode_cursor(cursor, self._config.secret),
        )
        self._send(source, answer)

    def _first_cursor(self, actor: Actor, shard: Shard, wall: int) -> Cursor:
        """A new device reads back some days, never from sync_to_seq (pipeline.md §6, REBUILD)."""
        lane = routing.lane(actor.user_id)
        seq = read_back_seq(shard, self._config, wall, lane)
        return Cursor(
            tenant_id=actor.tenant_id,
            user_id=actor.user_id,
            device_id=actor.device_id,
            shard=shard.number,
            shard_epoch=shard.shard_epoch,
            lane=lane,
            seq=max(seq, before_first(shard.shard_epoch, 0)),
        )

    def _judged(
        self, source: str, ask: AskSync | AskPull, data: bytes, shard: Shard | None
    ) -> Cursor | None:
        """The cursor if it is good; a refusal has been sent where it isn't."""
        rid, actor = ask.rid, ask.actor
        owner = CursorOwner(
            tenant_id=actor.tenant_id,
            user_id=actor.user_id,
            device_id=actor.device_id,
            shard=routing.shard(actor.user_id, self._config.shard_count),
            lane=routing.lane(actor.user_id),
        )
        known = None
        if shard is not None:
            known = ShardRange(
                shard_epoch=shard.shard_epoch, trim_seq=shard.trim, end_seq=shard.end_seq()
            )
        try:
            cursor = decode_cursor(data, self._config.secret)
        except ProtocolError as fault:
            self._refuse(source, rid, fault.code, fault.message)
            return None
        verdict = judge(cursor, owner=owner, shard=known)
        if verdict is CursorVerdict.GOOD:
            return cursor
        if verdict.error_code is None:
            self._not_here(source, ask)
        else:
            self._refuse(source, rid, verdict.error_code, verdict.value)
        return None

    def _on_pull(self, source: str, ask: AskPull, cursor: Cursor, shard: Shard) -> None:
        if self._count >= self._config.pulls_inflight_max:
            self._orders.give(Count(name="mailbox_pull_refused"))
            self._refuse(source, ask.rid, ErrorCode.UNAVAILABLE, "too many pulls in flight")
            return
        limit = ask.limit if ask.limit > 0 else self._config.page_default
        pull = Pull(
            source=source,
            rid=ask.rid,
            cursor=cursor,
            up_to=ask.up_to_seq,
            limit=min(limit, self._config.page_max),
        )
        self._count += 1
        self._waiting.setdefault(shard.number, (shard, []))[1].append(pull)

    # ------------------------------------------------------------ reading

    def flush(self) -> None:
        """End of a step: one read a shard for all who asked meanwhile, then the bodies that are missing."""
        for shard, pulls in self._waiting.values():
            for start in range(0, len(pulls), self._config.reads_max):
                self._read(shard, tuple(pulls[start : start + self._config.reads_max]))
        self._waiting.clear()
        self._joining.flush()

    def _read(self, shard: Shard, pulls: tuple[Pull, ...]) -> None:
        op = self._orders.op(What.READ)
        self._reads[op] = (shard, pulls)
        reads = tuple(
            MailboxRead(
                pull.cursor.tenant_id,
                pull.cursor.user_id,
                pull.cursor.lane,
                pull.cursor.seq,
                pull.up_to,
                pull.limit,
            )
            for pull in pulls
        )
        request = ReadMailboxes(
            op=op, shard=shard.number, incarnation=shard.incarnation, reads=reads
        )
        self._orders.give(request)

    def on_rows(self, event: MailboxesRead) -> None:
        """Rows of one shard's pulls."""
        _, pulls = self._reads.pop(event.op)
        for pull, rows in zip(pulls, event.results, strict=True):
            self._take_rows(pull, rows)

    def on_read_failed(self, op: int) -> Shard:
        """A read is harmless: the client may simply ask again. Answers whose mailboxes it was about."""
        shard, pulls = self._reads.pop(op)
        for pull in pulls:
            self._drop(pull, ErrorCode.UNAVAILABLE, "the mailbox store did not answer")
        return shard

    def _take_rows(self, pull: Pull, rows: MailboxRows) -> None:
        if pull.cursor.seq < rows.trim:
            self._drop(pull, ErrorCode.CURSOR_EXPIRED, CursorVerdict.EXPIRED.value)
            return
        pull.watermark = rows.watermark
        pull.more = rows.more
        try:
            pull.entries = tuple(decode_entry(row) for row in rows.entries)
        except msgspec.DecodeError as error:
            self._orders.give(Violation(check=BODY_MISMATCH, detail=f"mailbox row: {error}"))
            self._drop(pull, ErrorCode.INTERNAL, "a mailbox row can't be decoded")
            return
        end = self._joining.join(pull)
        if end is not None:
            self._answer(pull, end)

    # ------------------------------------------------------------ bodies

    def at(self, wall: int) -> None:
        """Wall ms of what follows: by it retention is judged."""
        self._joining.wall = wall

    def on_bodies(self, event: BodiesRead) -> None:
        """Bodies from the hot store."""
        self._answer_all(self._joining.on_bodies(event))

    def on_bodies_failed(self, op: int) -> None:
        """The hot store did not answer."""
        self._answer_all(self._joining.on_bodies_failed(op))

    def on_overlays(self, event: OverlaysRead) -> None:
        """Which entries are recalled."""
        self._answer_all(self._joining.on_overlays(event))

    def on_overlays_failed(self, op: int) -> None:
        """The hot store did not say."""
        self._answer_all(self._joining.on_overlays_failed(op))

    def on_archived(self, event: ArchiveBodiesRead) -> None:
        """Bodies from the archive."""
        self._answer_all(self._joining.on_archived(event))

    def on_archive_failed(self, op: int) -> None:
        """The archive did not answer."""
        self._answer_all(self._joining.on_archive_failed(op))

    def on_dispatch(self, op: int, event: Fetched | None) -> None:
        """A dispatch that was looked up for its body or its retention class."""
        self._answer_all(self._joining.on_dispatch(op, event))

    # ------------------------------------------------------------ answered

    def _answer_all(self, ended: Ended) -> None:
        for pull, end in ended:
            self._answer(pull, end)

    def _answer(self, pull: Pull, end: End) -> None:
        """WHOLE: through min(up_to, W), never back behind the cursor. Else through the last entry of the batch."""
        before, whole = pull.cursor.seq, end is End.WHOLE
        if whole:
            through = min(pull.up_to, pull.watermark) if pull.up_to else pull.watermark
            covered = max(before, through)
        else:
            covered = pull.batch[-1].mailbox_seq if pull.batch else before
        if not self._covers(pull, covered):
            self._drop(pull, ErrorCode.INTERNAL, "the batch has a gap")
            return
        self._count -= 1
        # The tail beyond W is being replayed, or a body is: worth asking again, but not at once.
        replaying = whole and max(before, pull.up_to) > pull.watermark
        wait = self._config.retry_after_ms if replaying or end is End.MISS else 0
        moved = msgspec.structs.replace(pull.cursor, seq=covered)
        answer = PullAnswer(
            rid=pull.rid,
            entries=tuple(pull.batch),
            covered_through_seq=covered,
            has_more=not whole,
            cursor=encode_cursor(moved, self._config.secret),
            retry_after_ms=wait,
        )
        traces = tuple(entry.trace_id for entry in pull.batch[:TRACES_MAX])
        self._orders.give(Send(address=pull.source, message=answer, traces=traces))

    def _covers(self, pull: Pull, covered: int) -> bool:
        """covered_through_gap: no batch may claim what W doesn't cover, skip an entry it read, or go backwards."""
        before = pull.cursor.seq
        seqs = [entry.mailbox_seq for entry in pull.entries]
        sound = before <= covered <= max(before, pull.watermark)
        sound = sound and all(a < b for a, b in zip([before, *seqs], seqs, strict=False))
        sound = sound and sum(seq <= covered for seq in seqs) == len(pull.batch)
        if not sound:
            detail = f"cursor {before}, covered {covered}, W {pull.watermark}, rows {len(seqs)}"
            self._orders.give(Violation(check=Invariant.COVERED_THROUGH_GAP, detail=detail))
        return sound

    def _drop(self, pull: Pull, code: ErrorCode, message: str) -> None:
        self._count -= 1
        self._refuse(pull.source, pull.rid, code, message)

    def _refuse(self, source: str, rid: int, code: ErrorCode, message: str) -> None:
        after = self._config.retry_after_ms if code is ErrorCode.UNAVAILABLE else 0
        self._send(source, Refused(rid=rid, code=code, message=message, retry_after_ms=after))

    def _not_here(self, source: str, ask: Ask) -> None:
        """NOT_OWNER names the owner where the registry noticed it (contract.md, Routing)."""
        refused = Refused(
            rid=ask.rid,
            code=ErrorCode.NOT_OWNER,
            message="the shard is not here",
            owner_address=self._orders.elsewhere.get(shard_asked(ask, self._config), ""),
        )
        self._send(source, refused)

    def _send(self, source: str, message: SyncAnswer | WatermarkAnswer | Refused) -> None:
        self._orders.give(Send(address=source, message=message))

    def on_dispatch_failed(self, op: int) -> None:
        """The log did not answer."""
        self._answer_all(self._joining.on_dispatch_failed(op))

    def in_flight(self) -> int:
        """Pulls not answered yet."""
        return self._count

    def check(self) -> None:
        """Every pull waits for exactly one thing, and there are no more than allowed."""
        assert 0 <= self._count <= self._config.pulls_inflight_max
        self._joining.check()
