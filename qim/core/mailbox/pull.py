"""PULL_MAILBOX: the contiguous prefix of one user's mailbox, and the only place where a cursor moves (pipeline.md §3.3).

    asked --cursor judged--> reading rows --MailboxesRead--> joining bodies --all found, cut, or a miss--> answered
       |--refused                 |--trim passed the cursor, store lost: refused

A batch never crosses what isn't materialised: it ends at min(up_to, W[lane]) as the script saw W, at the limit, at 256 KiB,
or before an entry whose body neither store nor retention explains.
"""

from collections.abc import Sequence
from typing import assert_never

import msgspec
from msgspec import Struct

from qim.core.contract import ids, routing
from qim.core.contract.cursor import (
    Cursor,
    CursorOwner,
    CursorVerdict,
    ShardRange,
    decode_cursor,
    encode_cursor,
    judge,
)
from qim.core.contract.entities import UserMailboxEntry, decode_entry
from qim.core.contract.errors import ErrorCode, ProtocolError
from qim.core.contract.invariants import Invariant
from qim.core.contract.rpc import (
    Actor,
    AskPull,
    AskSync,
    AskWatermark,
    PullAnswer,
    PulledEntry,
    Refused,
    SyncAnswer,
    WatermarkAnswer,
)
from qim.core.contract.sequences import before_first
from qim.core.mailbox.bodies import Body, BodyCache, expired_body, joined_entry, name_of, read_body
from qim.core.mailbox.orders import Orders, What
from qim.core.mailbox.shard import Shard
from qim.core.mailbox.trim import read_back_seq
from qim.core.mailbox.vocabulary import BODY_MISMATCH, MailboxConfig
from qim.core.ports.network import Send
from qim.core.ports.observe import Count, Violation
from qim.core.ports.store_mailbox import (
    MailboxesRead,
    MailboxRead,
    MailboxRows,
    ReadMailboxes,
)
from qim.core.ports.store_message import BodiesRead, ReadBodies

Ask = AskPull | AskSync | AskWatermark
BodyName = tuple[bytes, int, bytes]
TRACES_MAX = 4


class Pull(Struct):
    """One PULL in progress. ``awaited``: names in flight for it; ``next_entry``: the first entry not yet joined."""

    source: str
    rid: int
    cursor: Cursor
    up_to: int
    limit: int
    watermark: int = 0
    more: bool = False
    entries: tuple[UserMailboxEntry, ...] = ()
    next_entry: int = 0
    awaited: int = 0
    found: dict[bytes, Body | None] = {}
    batch: list[PulledEntry] = []
    batch_bytes: int = 0


class Pulls:
    """All pulls of a node: judged, read, joined, answered. Bounded by ``pulls_inflight_max``."""

    def __init__(self, config: MailboxConfig, orders: Orders, cache: BodyCache) -> None:
        self._config = config
        self._orders = orders
        self._cache = cache
        self._waiting: dict[int, tuple[Shard, list[Pull]]] = {}
        """Pulls that join the next read of their shard, by shard number."""
        self._reads: dict[int, tuple[Shard, tuple[Pull, ...]]] = {}
        self._wanted: dict[BodyName, list[Pull]] = {}
        """Who waits for a body; in the order in which they are read."""
        self._unread: dict[BodyName, None] = {}
        self._body_reads: dict[int, tuple[BodyName, ...]] = {}
        self._count = 0

    # ------------------------------------------------------------ asked

    def on_ask(self, source: str, wall: int, ask: Ask, shard: Shard | None) -> None:
        """``shard`` is the one routing names, None where this node doesn't hold it."""
        if shard is not None and not shard.running():
            self._refuse(source, ask.rid, ErrorCode.UNAVAILABLE, "the shard is being opened")
            return
        match ask:
            case AskWatermark():
                if shard is None:
                    self._refuse(source, ask.rid, ErrorCode.NOT_OWNER, "the shard is not here")
                    return
                marks = tuple(shard.watermark(routing.lane(user)) for user in ask.users)
                self._send(source, WatermarkAnswer(rid=ask.rid, watermarks=marks))
            case AskSync():
                self._on_sync(source, wall, ask, shard)
            case AskPull():
                cursor = self._judged(source, ask.rid, ask.actor, ask.cursor, shard)
                if cursor is not None and shard is not None:
                    self._on_pull(source, ask, cursor, shard)
            case _:
                assert_never(ask)

    def _on_sync(self, source: str, wall: int, ask: AskSync, shard: Shard | None) -> None:
        if ask.cursor is None:
            if shard is None:
                self._refuse(source, ask.rid, ErrorCode.NOT_OWNER, "the shard is not here")
                return
            cursor = self._first_cursor(ask.actor, shard, wall)
        else:
            judged = self._judged(source, ask.rid, ask.actor, ask.cursor, shard)
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
        self, source: str, rid: int, actor: Actor, data: bytes, shard: Shard | None
    ) -> Cursor | None:
        """The cursor if it is good; a refusal has been sent where it isn't."""
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
        code = verdict.error_code
        self._refuse(source, rid, ErrorCode.NOT_OWNER if code is None else code, verdict.value)
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
        while self._unread:
            names = tuple(self._unread)[: self._config.bodies_max]
            for name in names:
                del self._unread[name]
            op = self._orders.op(What.BODIES)
            self._body_reads[op] = names
            self._orders.give(ReadBodies(op=op, names=names))

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

    def on_rows(self, wall: int, event: MailboxesRead) -> None:
        """Rows of one shard's pulls."""
        _, pulls = self._reads.pop(event.op)
        for pull, rows in zip(pulls, event.results, strict=True):
            self._take_rows(wall, pull, rows)

    def on_read_failed(self, op: int) -> Shard:
        """A read is harmless: the client may simply ask again. Answers whose mailboxes it was about."""
        shard, pulls = self._reads.pop(op)
        for pull in pulls:
            self._drop(pull, ErrorCode.UNAVAILABLE, "the mailbox store did not answer")
        return shard

    def _take_rows(self, wall: int, pull: Pull, rows: MailboxRows) -> None:
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
        pull.batch = []
        self._join(wall, pull)

    # ------------------------------------------------------------ bodies

    def _join(self, wall: int, pull: Pull) -> None:
        """Join as far as bodies are at hand; ask for the next ones; answer when the batch ends."""
        while pull.next_entry < len(pull.entries):
            ahead = pull.entries[pull.next_entry : pull.next_entry + self._config.bodies_max]
            pull.found = {entry.message_id: self._cache.find(entry.message_id) for entry in ahead}
            missing = [entry for entry in ahead if pull.found[entry.message_id] is None]
            if missing:
                self._want(pull, missing)
                return
            if self._extend(pull, ahead):
                return
        self._answer(pull, cut=pull.more, retry=False)

    def _want(self, pull: Pull, missing: Sequence[UserMailboxEntry]) -> None:
        for entry in missing:
            name = name_of(entry)
            if name not in self._wanted:
                self._wanted[name] = []
                self._unread[name] = None
            self._wanted[name].append(pull)
        pull.awaited = len(missing)

    def on_bodies(self, wall: int, event: BodiesRead) -> None:
        """Every pull that waits for one of these goes on once it has all it asked for."""
        names = self._body_reads.pop(event.op)
        for name, stored in zip(names, event.stored, strict=True):
            for pull in self._wanted.pop(name):
                self._take_body(wall, pull, name, stored)

    def on_bodies_failed(self, op: int) -> None:
        """Not a miss: nothing is known. The pull is refused, the client asks again."""
        names = self._body_reads.pop(op)
        for name in names:
            for pull in self._wanted.pop(name):
                pull.awaited -= 1
                pull.found[name[2]] = None
                if pull.awaited == 0:
                    self._extend(pull, self._ahead(pull), failed=True)

    def _ahead(self, pull: Pull) -> tuple[UserMailboxEntry, ...]:
        return pull.entries[pull.next_entry : pull.next_entry + self._config.bodies_max]

    def _take_body(self, wall: int, pull: Pull, name: BodyName, stored: bytes | None) -> None:
        entry = next(entry for entry in self._ahead(pull) if name_of(entry) == name)
        body = self._explained(wall, entry, stored)
        if body is not None and body.body is not None:
            self._cache.keep(entry.message_id, body)
        pull.found[entry.message_id] = body
        pull.awaited -= 1
        if pull.awaited == 0 and not self._extend(pull, self._ahead(pull)):
            self._join(wall, pull)

    def _explained(self, wall: int, entry: UserMailboxEntry, stored: bytes | None) -> Body | None:
        """The body, a tombstone where retention explains its absence, None for a miss."""
        if stored is not None:
            body = read_body(stored, entry)
            if body is None:
                detail = f"message {entry.message_id.hex()}: another's bytes under its name"
                self._orders.give(Violation(check=BODY_MISMATCH, detail=detail))
            return body
        sent_at = ids.unpack_message_id(entry.message_id).physical_ms
        if sent_at + self._config.default_retention_ms < wall:
            return expired_body(entry)
        self._orders.give(Count(name="mailbox_body_missing"))
        return None

    def _extend(self, pull: Pull, ahead: Sequence[UserMailboxEntry], failed: bool = False) -> bool:
        """Add entries to the batch; True where that ended it (and it was answered)."""
        for entry in ahead:
            body = pull.found[entry.message_id]
            if body is None:
                self._answer(pull, cut=True, retry=True)
                return True
            if pull.batch and pull.batch_bytes + body.size() > self._config.batch_bytes_max:
                self._answer(pull, cut=True, retry=False)
                return True
            pull.batch.append(joined_entry(entry, body))
            pull.batch_bytes += body.size()
            pull.next_entry += 1
        return False

    # ------------------------------------------------------------ answered

    def _answer(self, pull: Pull, *, cut: bool, retry: bool) -> None:
        """Cut: through the last entry of the batch. Else through min(up_to, W), never back behind the cursor."""
        before = pull.cursor.seq
        end = min(pull.up_to, pull.watermark) if pull.up_to else pull.watermark
        if cut:
            covered = pull.batch[-1].mailbox_seq if pull.batch else before
        else:
            covered = max(before, end)
        if not self._covers(pull, covered):
            self._drop(pull, ErrorCode.INTERNAL, "the batch has a gap")
            return
        self._count -= 1
        behind_log = before > pull.watermark or pull.up_to > pull.watermark
        wait = self._config.retry_after_ms if retry or (behind_log and not cut) else 0
        moved = msgspec.structs.replace(pull.cursor, seq=covered)
        answer = PullAnswer(
            rid=pull.rid,
            entries=tuple(pull.batch),
            covered_through_seq=covered,
            has_more=cut,
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

    def _send(self, source: str, message: SyncAnswer | WatermarkAnswer | Refused) -> None:
        self._orders.give(Send(address=source, message=message))

    def in_flight(self) -> int:
        """Pulls not answered yet."""
        return self._count

    def check(self) -> None:
        """Every pull waits for exactly one thing, and there are no more than allowed."""
        assert 0 <= self._count <= self._config.pulls_inflight_max
        assert all(name in self._wanted for name in self._unread)
