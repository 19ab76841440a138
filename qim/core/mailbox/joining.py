"""Joining entries with bodies: cache, hot store, then the dispatch itself, then what retention explains (pipeline.md §3.3).

    next entries --all cached--> joined --> next entries
       |--missing--> ReadBodies --found--> joined
                         |--not hot--> Fetch of the dispatch --inline body--> joined
                                          |--older than its class is kept--> joined as a tombstone
                                          |--anything else--> the batch ends before it

A batch ends WHOLE, CUT (there is more, or it is full) or at a MISS. One read a distinct message is in flight; a miss is
never cached. Nothing here knows cursors: pull.py answers.
"""

from enum import IntEnum

from msgspec import Struct

from qim.core.contract import ids
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
)
from qim.core.mailbox.orders import Orders, What
from qim.core.mailbox.vocabulary import BODY_MISMATCH, MailboxConfig
from qim.core.ports.log import Fetch, Fetched, Topic
from qim.core.ports.observe import Count, Violation
from qim.core.ports.store_message import BodiesRead, ReadBodies

BodyName = tuple[bytes, int, bytes]


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
    batch: list[PulledEntry] = []
    batch_bytes: int = 0


Ended = list[tuple[Pull, End]]


class Joining:
    """Bodies in flight and the pulls that wait for them."""

    def __init__(self, config: MailboxConfig, orders: Orders, cache: BodyCache) -> None:
        self._config = config
        self._orders = orders
        self._cache = cache
        self._waiting: dict[BodyName, list[Pull]] = {}
        self._unread: dict[BodyName, None] = {}
        """Names to be read at the end of this step."""
        self._reads: dict[int, tuple[BodyName, ...]] = {}
        self._fetches: dict[int, Pull] = {}

    def join(self, pull: Pull) -> End | None:
        """Join as far as bodies are at hand, and order what is missing; None while something is awaited."""
        assert not pull.awaited
        while pull.next_entry < len(pull.entries):
            entry = pull.entries[pull.next_entry]
            body = pull.found.pop(entry.message_id, None) or self._cache.find(entry.message_id)
            if body is None:
                return self._look_for(pull, entry)
            if pull.batch and pull.batch_bytes + body.size() > self._config.batch_bytes_max:
                return End.CUT
            pull.batch.append(joined_entry(entry, body))
            pull.batch_bytes += body.size()
            pull.next_entry += 1
        return End.CUT if pull.more else End.WHOLE

    def _look_for(self, pull: Pull, entry: UserMailboxEntry) -> End | None:
        """First in the hot store, with those behind it; then in the log; then nowhere."""
        if entry.message_id not in pull.read:
            self._want(pull)
            return None
        if pull.looked_in_log < pull.next_entry:
            self._fetch(pull, entry)
            return None
        return End.MISS

    def _want(self, pull: Pull) -> None:
        ahead = pull.entries[pull.next_entry : pull.next_entry + self._config.bodies_max]
        for entry in ahead:
            known = entry.message_id in pull.read or self._cache.find(entry.message_id) is not None
            if known:
                continue
            pull.read[entry.message_id] = None
            name = name_of(entry)
            if name not in self._waiting:
                self._waiting[name] = []
                self._unread[name] = None
            self._waiting[name].append(pull)
            pull.awaited += 1

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
        """End of a step: read what is missing, each message once."""
        while self._unread:
            names = tuple(self._unread)[: self._config.bodies_max]
            for name in names:
                del self._unread[name]
            op = self._orders.op(What.BODIES)
            self._reads[op] = names
            self._orders.give(ReadBodies(op=op, names=names))

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
        body = read_body(stored, entry)
        if body is None:
            self._mismatch(entry)
            return
        self._cache.keep(entry.message_id, body)
        pull.found[entry.message_id] = body

    # ------------------------------------------------------------ the dispatch

    def on_dispatch(self, wall: int, op: int, event: Fetched | None) -> Ended:
        """The dispatch of the entry at which a pull stands; None where the log has it no more or did not answer."""
        pull = self._fetches.pop(op)
        pull.awaited = 0
        entry = pull.entries[pull.next_entry]
        dispatch = self._dispatch_in(event, entry)
        if dispatch is not None and dispatch.inline_body is not None:
            if body_digest(dispatch.inline_body) == dispatch.body_digest:
                body = body_of_dispatch(dispatch)
                self._cache.keep(entry.message_id, body)
                pull.found[entry.message_id] = body
            else:
                self._mismatch(entry)
        elif self._explains(wall, entry, dispatch):
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

    def _explains(self, wall: int, entry: UserMailboxEntry, dispatch: GroupDispatch | None) -> bool:
        """Has retention taken the body? Without its dispatch only the longest usual retention explains an absence."""
        config = self._config
        if dispatch is None:
            sent_at = ids.unpack_message_id(entry.message_id).physical_ms
            return sent_at + config.default_retention_ms < wall
        if dispatch.retention_class == RetentionClass.EPHEMERAL:
            return dispatch.sent_at + config.ephemeral_retention_ms < wall
        if dispatch.retention_class == RetentionClass.DEFAULT:
            return dispatch.sent_at + config.default_retention_ms < wall
        return False

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
        assert all(name in self._waiting for name in self._unread)
        assert all(pull.awaited for pulls in self._waiting.values() for pull in pulls)
        assert all(pull.awaited == 1 for pull in self._fetches.values())
