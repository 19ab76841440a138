"""What stands in the mailboxes, read entry by entry, with a bounded memory of the last users read."""

from collections.abc import Sequence

import msgspec

from qim.core.audit.reads import Reads
from qim.core.audit.vocabulary import AuditConfig
from qim.core.contract.entities import decode_entry
from qim.core.contract.routing import lane
from qim.core.ports.store_mailbox import MailboxesRead, MailboxRead, MailboxRows, ReadMailboxes

UserKey = tuple[int, str, int]
"""(shard, tenant, user)."""


class Mailboxes:
    """``seqs(key)[message_id]`` = the mailbox_seqs at which a message stands in a user's mailbox, from trim to the cut."""

    def __init__(self, reads: Reads, config: AuditConfig) -> None:
        self._reads = reads
        self._config = config
        self._known: dict[UserKey, dict[bytes, list[int]]] = {}
        self._entries = 0
        self.unreadable: list[str] = []

    def seqs(self, key: UserKey) -> dict[bytes, list[int]] | None:
        """None: not read (the read was given up)."""
        return self._known.get(key)

    def want(self, keys: Sequence[UserKey], cuts: dict[int, tuple[bytes, int, int]]) -> None:
        """Read those not known; ``cuts[shard]`` = (incarnation, trim, cut seq). Oldest known are forgotten first."""
        wanted = [key for key in dict.fromkeys(keys) if key not in self._known]
        for key in list(self._known):
            if self._entries <= self._config.mailbox_cache_entries_max:
                break
            if key not in keys:
                self._entries -= sum(len(at) for at in self._known.pop(key).values())
        for key in wanted:
            incarnation, trim, cut = cuts[key[0]]
            self._page(key, incarnation, trim, cut, {})

    def _page(
        self, key: UserKey, incarnation: bytes, after: int, cut: int, found: dict[bytes, list[int]]
    ) -> None:
        shard, tenant_id, user_id = key
        read = MailboxRead(
            tenant_id, user_id, lane(user_id), after, cut, self._config.mailbox_page_max
        )
        request = ReadMailboxes(op=0, shard=shard, incarnation=incarnation, reads=(read,))

        def done(reply: MailboxesRead) -> None:
            rows = reply.results[0]
            last = self._take(key, rows, found)
            if rows.more and last is not None:
                self._page(key, incarnation, last, cut, found)
                return
            self._known[key] = found
            self._entries += sum(len(at) for at in found.values())

        self._reads.ask(request, done, f"mailbox of user {user_id} in shard {shard}")

    def _take(self, key: UserKey, rows: MailboxRows, found: dict[bytes, list[int]]) -> int | None:
        last = None
        for encoded in rows.entries:
            try:
                entry = decode_entry(encoded)
            except (msgspec.DecodeError, msgspec.ValidationError) as error:
                self.unreadable.append(f"user {key[2]} in shard {key[0]}: {error}")
                return None
            found.setdefault(entry.message_id, []).append(entry.mailbox_seq)
            last = entry.mailbox_seq
        return last
