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
from qim.client.tls import ClientTls, ClientTlsUnusable, client_tls, client_tls_from_environment

__all__ = [
    "Client",
    "ClientTls",
    "ClientTlsUnusable",
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
    "client_tls",
    "client_tls_from_environment",
]
