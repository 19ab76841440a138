"""Membership versions read from the hot store, kept by name: the same waiting rule for fanout and mailbox (pipeline.md §2).

A version the store doesn't have, or has with another digest, is NotYet, never poison: it is asked for again with
back-off. Once ``applied`` of its writer shard has passed the record that names it, its absence is reported as unknown
(once) and the waiting goes on. Versions are immutable, so a kept one is never wrong; it is dropped only for room and with
the store's incarnation.

    wanted --next_names--> asked --found--> kept
                             |---NotYet---> wanted again, later
"""

from msgspec import Struct

from qim.core.audience import VersionAudience, VersionKey
from qim.core.machine import Ms
from qim.core.ports.store_reads import VersionsRead
from qim.core.timers import back_off

ShelfName = tuple[int, bytes, int, bytes]


class Want(Struct):
    """A version somebody waits for. ``waiters``: resource number -> greatest source offset that needs it (-1: unknown)."""

    writer_shard: int
    due: Ms
    attempts: int
    waiters: dict[int, int]
    reported: bool = False


class Shelf(Struct, frozen=True):
    """What an answer brought: how many names are NotYet, and those whose absence is now a Violation."""

    not_yet: int
    unknown: tuple[VersionKey, ...]


class VersionShelf:
    """Cache of VersionAudience by name, bounded by ``members_max``, and the one read in flight."""

    def __init__(
        self,
        *,
        shard_count: int,
        names_max: int,
        members_max: int,
        retry_first_ms: Ms,
        retry_most_ms: Ms,
    ) -> None:
        self._shard_count = shard_count
        self._names_max = names_max
        self._members_max = members_max
        self._retry_first_ms = retry_first_ms
        self._retry_most_ms = retry_most_ms
        self._kept: dict[VersionKey, VersionAudience] = {}
        self._members = 0
        self._wants: dict[VersionKey, Want] = {}
        self._asked: tuple[VersionKey, ...] = ()
        self._changed = False

    def find(self, key: VersionKey) -> VersionAudience | None:
        """The kept version, made the last to be dropped."""
        found = self._kept.pop(key, None)
        if found is not None:
            self._kept[key] = found
        return found

    def want(
        self, now: Ms, key: VersionKey, *, writer_shard: int, waiter: int, offset: int
    ) -> None:
        """Have ``key`` read for a record at ``offset`` of its outbox partition; asking again changes nothing."""
        want = self._wants.get(key)
        if want is None:
            want = self._wants[key] = Want(
                writer_shard=writer_shard, due=now, attempts=0, waiters={}
            )
        want.waiters[waiter] = max(offset, want.waiters.get(waiter, -1))

    def forget(self, waiter: int) -> None:
        """A resource is gone: nobody reads on its behalf any more."""
        for key in list(self._wants):
            waiters = self._wants[key].waiters
            waiters.pop(waiter, None)
            if not waiters:
                del self._wants[key]

    def clear(self) -> None:
        """Drop what was kept: it came from another incarnation (pipeline.md §0)."""
        self._kept.clear()
        self._members = 0
        self._changed = True

    def next_names(self, now: Ms) -> tuple[ShelfName, ...]:
        """Names to read now, at most ``names_max``; none while a read is in flight."""
        if self._asked or not self._wants:
            return ()
        due = [key for key, want in self._wants.items() if want.due <= now][: self._names_max]
        self._asked = tuple(due)
        return tuple((self._wants[key].writer_shard, *key) for key in due)

    def answered(self, now: Ms, reply: VersionsRead) -> Shelf:
        """Keep what was found, put off what is NotYet."""
        asked, self._asked = self._asked, ()
        assert len(asked) == len(reply.versions) == len(reply.applied), "one version a name"
        not_yet = 0
        unknown: list[VersionKey] = []
        self._make_room(sum(len(v.members) for v in reply.versions if v is not None))
        for key, version, applied in zip(asked, reply.versions, reply.applied, strict=True):
            want = self._wants.get(key)
            if version is not None:
                self._keep(key, VersionAudience(version, self._shard_count))
                self._wants.pop(key, None)
            elif want is not None:
                not_yet += 1
                self._put_off(now, want)
                if not want.reported and any(0 <= o < applied for o in want.waiters.values()):
                    want.reported = True
                    unknown.append(key)
        return Shelf(not_yet=not_yet, unknown=tuple(unknown))

    def failed(self, now: Ms) -> None:
        """The read gave nothing: a read is harmless, so Unknown and Failed alike are asked again."""
        asked, self._asked = self._asked, ()
        for key in asked:
            want = self._wants.get(key)
            if want is not None:
                self._put_off(now, want)

    def deadline(self) -> Ms | None:
        """When ``next_names`` may have more to give."""
        if self._asked or not self._wants:
            return None
        return min([want.due for want in self._wants.values()])

    def waiting(self) -> int:
        """How many names are wanted."""
        return len(self._wants)

    def check(self) -> None:
        """The count of members is that of what is kept (counted again only after a change: ``answered`` and ``clear``
        alone make one); every want has somebody waiting."""
        if self._changed:
            self._changed = False
            assert self._members == sum([kept.size for kept in self._kept.values()])
        for want in self._wants.values():
            assert want.waiters

    def _put_off(self, now: Ms, want: Want) -> None:
        want.attempts += 1
        want.due = now + back_off(want.attempts, self._retry_first_ms, self._retry_most_ms)

    def _keep(self, key: VersionKey, audience: VersionAudience) -> None:
        self._changed = True
        old = self._kept.pop(key, None)
        self._members += audience.size - (old.size if old is not None else 0)
        self._kept[key] = audience

    def _make_room(self, members: int) -> None:
        """Drop the longest unused first. What one answer brings always finds room: somebody waits for it."""
        for key in list(self._kept):
            if self._members + members <= self._members_max:
                return
            self._changed = True
            self._members -= self._kept.pop(key).size
