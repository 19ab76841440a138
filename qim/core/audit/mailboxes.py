"""What stands in the mailboxes, read entry by entry, with a bounded memory of the last users read."""

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from qim.core.audit.reads import MailboxPage, Reads, UserKey
from qim.core.audit.run import AuditRun
from qim.core.audit.vocabulary import AuditConfig
from qim.core.contract.entities import decode_entry
from qim.core.contract.routing import lane
from qim.core.ports.store_mailbox import MailboxesRead, MailboxRead, ReadMailboxes


class _Mailbox(Struct):
    """Entries read so far: everything above trim up to ``read_to``."""

    read_to: int
    seqs: dict[bytes, list[int]] = {}
    entries: int = 0
    damaged: bool = False


class Mailboxes:
    """``seqs(user, message_id, up_to)``: where a message stands in a user's mailbox."""

    def __init__(self, reads: Reads, config: AuditConfig, run: AuditRun) -> None:
        self._reads = reads
        self._config = config
        self._run = run
        self._known: dict[UserKey, _Mailbox] = {}
        self._entries = 0

    def seqs(self, user: UserKey, message_id: bytes, up_to: int) -> list[int] | None:
        """mailbox_seqs ascending; None where the mailbox was not read that far, or can't be."""
        mailbox = self._known.get(user)
        if mailbox is None or mailbox.damaged or mailbox.read_to < up_to:
            return None
        return mailbox.seqs.get(message_id, [])

    def want(self, users: Iterable[UserKey]) -> None:
        """Read them up to their shard's watermark; users read longest ago are forgotten first."""
        wanted = dict.fromkeys(users)
        for user in list(self._known):
            if self._entries <= self._config.mailbox_cache_entries_max:
                break
            if user not in wanted:
                self._entries -= self._known.pop(user).entries
        for user in wanted:
            shard = self._run.shards[user[0]]
            mailbox = self._known.get(user)
            after = shard.trim if mailbox is None else mailbox.read_to
            if mailbox is None or after < shard.min_watermark:
                self._ask(MailboxPage(user, after, shard.min_watermark))

    def take(self, page: MailboxPage, reply: MailboxesRead) -> None:
        """One page; the next is asked for."""
        user, rows = page.user, reply.results[0]
        mailbox = self._known.setdefault(user, _Mailbox(read_to=page.after))
        shard = self._run.shards[user[0]]
        shard.trim = max(shard.trim, rows.trim)
        if page.after < rows.trim < page.cut:
            # Trim overtook the reading: nothing below it is told any more, and the receipt alone covers it.
            mailbox.read_to = rows.trim
            self._ask(MailboxPage(user, rows.trim, page.cut))
            return
        for encoded in rows.entries:
            if not self._entry(mailbox, encoded):
                self._damaged(user, mailbox)
                return
        mailbox.entries += len(rows.entries)
        self._entries += len(rows.entries)
        if rows.more:
            self._ask(MailboxPage(user, mailbox.read_to, page.cut))
        else:
            mailbox.read_to = page.cut

    def _entry(self, mailbox: _Mailbox, encoded: bytes) -> bool:
        try:
            entry = decode_entry(encoded)
        except (msgspec.DecodeError, msgspec.ValidationError):
            return False
        mailbox.seqs.setdefault(entry.message_id, []).append(entry.mailbox_seq)
        mailbox.read_to = entry.mailbox_seq
        return True

    def _damaged(self, user: UserKey, mailbox: _Mailbox) -> None:
        mailbox.damaged = True
        what = f"mailbox of user {user[2]} in shard {user[0]}"
        self._run.left_out(what, f"the entry behind {mailbox.read_to} can't be decoded")

    def _ask(self, page: MailboxPage) -> None:
        shard, tenant_id, user_id = page.user
        read = MailboxRead(
            tenant_id, user_id, lane(user_id), page.after, page.cut, self._config.mailbox_page_max
        )
        request = ReadMailboxes(
            op=0, shard=shard, incarnation=self._run.shards[shard].incarnation, reads=(read,)
        )
        self._reads.ask(request, page)
