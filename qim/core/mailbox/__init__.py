"""MailboxNode: from dispatches to mailboxes, pulls and pushes (pipeline.md §3)."""

from qim.core.mailbox.machine import MailboxNode
from qim.core.mailbox.vocabulary import MailboxConfig, MailboxEffect, MailboxEvent

__all__ = ["MailboxConfig", "MailboxEffect", "MailboxEvent", "MailboxNode"]
