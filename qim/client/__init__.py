"""The SDK: ``Client`` drives the pure client machine over TCP with a SQLite store of its own (pipeline.md §6)."""

from qim.client.results import (
    Conversation,
    GroupResult,
    NotConnected,
    SendFailed,
    SendStatus,
    Sent,
    Unread,
)
from qim.client.sdk import Client
from qim.client.store_file import LocalStoreBusy, LocalStoreTooNew, LocalStoreUnusable

__all__ = [
    "Client",
    "Conversation",
    "GroupResult",
    "LocalStoreBusy",
    "LocalStoreTooNew",
    "LocalStoreUnusable",
    "NotConnected",
    "SendFailed",
    "SendStatus",
    "Sent",
    "Unread",
]
