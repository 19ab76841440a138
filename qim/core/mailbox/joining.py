"""Joining entries with bodies: cache, hot store, then the dispatch itself, then what retention explains (pipeline.md §3.3).

    entries --ReadOverlays--> next entries: those recalled are joined as tombstones, their bodies never looked for
       |--of a writer shard whose store lost its tail, not yet through OPEN--> the batch ends before it
    next entries --all cached--> joined --> next entries
       |--missing--> ReadBodies --found--> joined
                         |--not hot--> ReadArchiveBodies --found--> joined
                         |--not there--> Fetch of the dispatch --inline body--> joined
                                          |--older than its class is kept--> joined as a tombstone
    found, but older than its class is kept --> joined as a tombstone: expiry hides at its time, whoever still holds a copy
                                          |--anything else--> the batch ends before it

A batch ends WHOLE, CUT (there is more, or it is full) or at a MISS. One read a distinct message is in flight; a miss is
never cached. Nothing here knows cursors: pull.py answers.
"""

from enum import IntEnum

from msgspec import Struct

from qim.core.contract import ids, routing
from qim.core.contract.cursor import Cursor
from qim.core.contract.entities import GroupDispatch, RetentionClass, UserMailboxEntry
from qim.core.contract.logvalue import Dispatched, read_dispatch
from qim.core.contract.rpc import PulledEntry
from qim.core.contract.sequences import split_mailbox_seq
from qim.core.dispatch_digest import body_digest
from qim.core.mailbox.bodies import (
    Body,
    BodyCache,
    body_of_dispatch,
    expired_body,
    joined_entry,
    name_of,
    read_body,
    recalled_body,
)
from qim.core.mailbox.orders import Orders, What
from qim.core.mailbox.vocabulary import BODY_MISMATCH, MailboxConfig
from qim.core.ports.archive import ArchiveBodiesRead, ReadArchiveBodies
from qim.core.ports.log import Fetch, Fetched, Topic
from qim.core.ports.observe import Count, Violation
from qim.core.ports.store_history import OverlaysRead, ReadOverlays
from qim.core.ports.store_reads import BodiesRead, ReadBodies
from qim.core.retention import retained_until

BodyName = tuple[bytes, int, bytes]
_USUAL = (RetentionClass.DEFAULT, RetentionClass.EPHEMERAL, RetentionClass.TENANT_CUSTOM)
"""Classes that end; a hold explains nothing."""


class End(IntEnum):
    """How a batch ended."""

    WHOLE = 1
    CUT = 2
    MISS = 3


class Pull(Struct):
    """One PULL in progress. ``next_entry``: the first not yet joined; ``awaited``: names in flight for it.

    ``read``: messages the hot store was asked for; ``looked_in_log``: the last entry whose dispatch was asked for.
    """

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
    read: dict[bytes, None] = {}
    found: dict[bytes, Body] = {}
    looked_in_log: int = -1
    recalled: dict[bytes, None] | None = None
    """Message ids of entries with a recall on them; None: not known yet, and nothing is joined before it is."""
    judged: int = 0
    """Entries before this one are judged: nobody knows of a recall on it before its writer shard's OPEN."""
    archive_asked: dict[bytes, None] = {}
    let_go: int = 0
    """Wall ms before which the archive let go by some clock: what was kept until earlier may be gone for good."""
    batch: list[PulledEntry] = []
    batch_bytes: int = 0


Ended = list[tuple[Pull, End]]


class Joining:
    """Bodies in flight and the pulls that wait for them."""

    def __init__(self, config: MailboxConfig, orders: Orders, cache: BodyCache) -> None:
        self._config = config
        self._orders = orders
        self._cache = cache
        self.wall = 0
        """Wall ms as of the present step, by which retention is judged."""
        self._waiting: dict[BodyName, list[Pull]] = {}
        self._unread: dict[BodyName, None] = {}
        """Names to be read at the end of this step."""
        self._reads: dict[int, tuple[BodyName, ...]] = {}
        self._fetches: dict[int, Pull] = {}
        self._judging: list[Pull] = []
        """Pulls whose overlays are read at the end of this step."""
        self._overlays: dict[int, tuple[Pull, ...]] = {}
        self._archived: dict[int, tuple[Pull, tuple[BodyName, ...]]] = {}

    def join(self, pull: Pull) -> End | None:
        """Join as far as bodies are at hand, and order what is missing; None while something is awaited."""
        assert not pull.awaited
        if pull.recalled is None and pull.entries:
            pull.awaited = 1
            self._judging.append(pull)
            return None
        recalled = pull.recalled or {}
        while pull.next_entry < len(pull.entries):
            entry = pull.entries[pull.next_entry]
            if pull.next_entry == pull.judged:
                self._orders.give(Count(name="mailbox_recalls_unknown"))
                return End.MISS
            if entry.message_id in recalled:
                body: Body | None = recalled_body(entry)
            else:
                body = pull.found.pop(entry.message_id, None) or self._cache.find(entry.message_id)
            if body is None:
                return self._look_for(pull, entry)
            if body.kept_until <= self.wall:
                body = expired_body(entry)
            if pull.batch and pull.batch_bytes + body.size() > self._config.batch_bytes_max:
                return End.CUT
            pull.batch.append(joined_entry(entry, body))
            pull.batch_bytes += body.size()
            pull.next_entry += 1
        return End.CUT if pull.more else End.WHOLE

    def _look_for(self, pull: Pull, entry: UserMailboxEntry) -> End | None:
        """First in the hot store, with those behind it; then archived; then in the log; then nowhere."""
        if entry.message_id not in pull.read:
            self._want(pull)
            return None
        if self._config.archived and entry.message_id not in pull.archive_asked:
            self._ask_archive(pull)
            return None
        if pull.looked_in_log < pull.next_entry:
            self._fetch(pull, entry)
            return None
        return End.MISS

    def _want(self, pull: Pull) -> None:
        ahead = pull.entries[pull.next_entry : pull.next_entry + self._config.bodies_max]
        for entry in ahead:
            if entry.message_id in (pull.recalled or {}) or entry.message_id in pull.read:
                continue
            if self._cache.find(entry.message_id) is not None:
                continue
            pull.read[entry.message_id] = None
            name = name_of(entry)
            if name not in self._waiting:
                self._waiting[name] = []
                self._unread[name] = None
            self._waiting[name].append(pull)
            pull.awaited += 1

    def _ask_archive(self, pull: Pull) -> None:
        """This entry, and those behind it that the hot store didn't have either."""
        ahead = pull.entries[pull.next_entry : pull.next_entry + self._config.bodies_max]
        missing = [
            entry
            for entry in ahead
            if entry.message_id in pull.read
            and entry.message_id not in pull.found
            and entry.message_id not in pull.archive_asked
        ]
        names = tuple(name_of(entry) for entry in missing)
        pull.archive_asked.update((entry.message_id, None) for entry in missing)
        pull.awaited = 1
        op = self._orders.op(What.ARCHIVE)
        self._archived[op] = (pull, names)
        self._orders.give(ReadArchiveBodies(op=op, names=names))

    def _fetch(self, pull: Pull, entry: UserMailboxEntry) -> None:
        pull.looked_in_log = pull.next_entry
        pull.awaited = 1
        op = self._orders.op(What.DISPATCH)
        self._fetches[op] = pull
        self._orders.give(
            Fetch(
                op=op,
                topic=Topic.DISPATCH,
                partition=pull.cursor.shard,
                offset=split_mailbox_seq(entry.mailbox_seq)[1],
                limit=1,
                bytes_max=1,
                wait_ms=0,
            )
        )

    def flush(self) -> None:
        """End of a step: read overlays, then what is missing, each message once."""
        self._read_overlays()
        while self._unread:
            names = tuple(self._unread)[: self._config.bodies_max]
            for name in names:
                del self._unread[name]
            op = self._orders.op(What.BODIES)
            self._reads[op] = names
            self._orders.give(ReadBodies(op=op, names=names))

    # ------------------------------------------------------------ overlays

    def _read_overlays(self) -> None:
        """One read for as many pulls as its arguments hold: a recalled body must not leave, wherever it is kept."""
        while self._judging:
            pulls: list[Pull] = []
            names: list[tuple[int, bytes, int]] = []
            while self._judging and (
                not pulls
                or len(names) + len(self._judging[0].entries) <= self._config.overlay_names_max
            ):
                pull = self._judging.pop(0)
                pulls.append(pull)
                names += [self._overlay_name(entry) for entry in pull.entries]
            op = self._orders.op(What.OVERLAYS)
            self._overlays[op] = tuple(pulls)
            self._orders.give(ReadOverlays(op=op, names=tuple(names)))

    def _overlay_name(self, entry: UserMailboxEntry) -> tuple[int, bytes, int]:
        count = self._config.outbox_partition_count
        shard = routing.writer_shard(entry.conversation_id, count)
        return shard, entry.conversation_id, entry.conversation_seq

    def on_overlays(self, event: OverlaysRead) -> Ended:
        """Which entries of these pulls are recalled."""
        ended: Ended = []
        at = 0
        for pull in self._overlays.pop(event.op):
            marks = event.recalled[at : at + len(pull.entries)]
            at += len(pull.entries)
            pull.recalled = {
                entry.message_id: None
                for entry, recall in zip(pull.entries, marks, strict=True)
                if recall
            }
            pull.judged = marks.index(None) if None in marks else len(marks)
            pull.awaited = 0
            self._go_on(pull, ended)
        return ended

    def on_overlays_failed(self, op: int) -> Ended:
        """Unknown whether anything is recalled: nothing may leave; the client asks again."""
        ended: Ended = []
        for pull in self._overlays.pop(op):
            pull.awaited = 0
            ended.append((pull, End.MISS))
        return ended

    # ------------------------------------------------------------ the archive

    def on_archived(self, event: ArchiveBodiesRead) -> Ended:
        """Bodies that the hot store trimmed."""
        pull, names = self._archived.pop(event.op)
        pull.awaited = 1
        pull.let_go = event.let_go
        for name, stored in zip(names, event.stored, strict=True):
            pull.awaited += 1
            self._take(pull, name, stored)
        pull.awaited = 0
        ended: Ended = []
        self._go_on(pull, ended)
        return ended

    def on_archive_failed(self, op: int) -> Ended:
        """Nothing is known, so nothing may be explained either."""
        pull, _ = self._archived.pop(op)
        pull.awaited = 0
        pull.looked_in_log = len(pull.entries)
        ended: Ended = []
        self._go_on(pull, ended)
        return ended

    # ------------------------------------------------------------ the hot store

    def on_bodies(self, event: BodiesRead) -> Ended:
        """Every pull that waits for one of these goes on once it has all it asked for."""
        names = self._reads.pop(event.op)
        ended: Ended = []
        for name, stored in zip(names, event.stored, strict=True):
            for pull in self._waiting.pop(name):
                self._take(pull, name, stored)
                self._go_on(pull, ended)
        return ended

    def on_bodies_failed(self, op: int) -> Ended:
        """Nothing is known, so nothing may be explained either: the batches end here and are asked for again."""
        ended: Ended = []
        for name in self._reads.pop(op):
            for pull in self._waiting.pop(name):
                pull.awaited -= 1
                pull.looked_in_log = len(pull.entries)
                self._go_on(pull, ended)
        return ended

    def _take(self, pull: Pull, name: BodyName, stored: bytes | None) -> None:
        pull.awaited -= 1
        if stored is None:
            return
        entry = next(entry for entry in pull.entries if name_of(entry) == name)
        body = read_body(stored, entry, self._config.retention)
        if body is None:
            self._mismatch(entry)
            return
        self._cache.keep(entry.message_id, body)
        pull.found[entry.message_id] = body

    # ------------------------------------------------------------ the dispatch

    def on_dispatch(self, op: int, event: Fetched | None) -> Ended:
        """The dispatch of the entry at which a pull stands; None where the log has it no more or did not answer."""
        pull = self._fetches.pop(op)
        pull.awaited = 0
        entry = pull.entries[pull.next_entry]
        dispatch = self._dispatch_in(event, entry)
        if dispatch is not None and dispatch.inline_body is not None:
            if body_digest(dispatch.inline_body) == dispatch.body_digest:
                body = body_of_dispatch(dispatch, self._config.retention)
                self._cache.keep(entry.message_id, body)
                pull.found[entry.message_id] = body
            else:
                self._mismatch(entry)
        elif self._explains(pull, entry, dispatch):
            pull.found[entry.message_id] = expired_body(entry)
        else:
            self._orders.give(Count(name="mailbox_body_missing"))
        ended: Ended = []
        self._go_on(pull, ended)
        return ended

    def _dispatch_in(self, event: Fetched | None, entry: UserMailboxEntry) -> GroupDispatch | None:
        if event is None or not event.records:
            return None
        read = read_dispatch(event.records[0].value)
        if isinstance(read, Dispatched) and read.dispatch.message_id == entry.message_id:
            return read.dispatch
        return None

    def _explains(
        self, pull: Pull, entry: UserMailboxEntry, dispatch: GroupDispatch | None
    ) -> bool:
        """Has retention taken the body? Without its dispatch only the longest usual retention explains an absence."""
        policy = self._config.retention
        # Gone is gone, though the clock of who let it go be ahead of this one.
        by = max(self.wall, pull.let_go - 1)
        if dispatch is not None:
            tenant, kept_as, sent_at = (
                dispatch.tenant_id,
                dispatch.retention_class,
                dispatch.sent_at,
            )
            return retained_until(policy, tenant, kept_as, sent_at) <= by
        sent_at = ids.unpack_message_id(entry.message_id).physical_ms
        longest = max(
            retained_until(policy, pull.cursor.tenant_id, kept_as, sent_at) for kept_as in _USUAL
        )
        return longest <= by

    # ------------------------------------------------------------ the batch

    def _go_on(self, pull: Pull, ended: Ended) -> None:
        """Join on once nothing is awaited any more."""
        if pull.awaited == 0:
            end = self.join(pull)
            if end is not None:
                ended.append((pull, end))

    def _mismatch(self, entry: UserMailboxEntry) -> None:
        detail = f"message {entry.message_id.hex()}: another's bytes under its name"
        self._orders.give(Violation(check=BODY_MISMATCH, detail=detail))

    def on_dispatch_failed(self, op: int) -> Ended:
        """The log did not answer, so nothing may be explained: the batch ends here and is asked for again."""
        pull = self._fetches.pop(op)
        pull.awaited = 0
        ended: Ended = []
        self._go_on(pull, ended)
        return ended

    def check(self) -> None:
        """Whatever is to be read is waited for."""
        for name in self._unread:
            assert name in self._waiting
        for pulls in self._waiting.values():
            for pull in pulls:
                assert pull.awaited
        for pull in self._fetches.values():
            assert pull.awaited == 1
