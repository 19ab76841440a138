"""The SDK: ``Client`` drives the pure client machine over TCP with a SQLite store of its own (pipeline.md §6).

How to embed it: docs/embedding.md. All that its calls take and give stands here.
"""

from qim.client.results import (
    Conversation,
    GroupResult,
    NotConnected,
    SendFailed,
    SendStatus,
    Sent,
    StillPending,
    Unread,
)
from qim.client.sdk import Client
from qim.client.store_file import (
    LocalStoreBusy,
    LocalStoreForeign,
    LocalStoreTooNew,
    LocalStoreUnusable,
)
from qim.client.tls import ClientTls, ClientTlsUnusable, client_tls, client_tls_from_environment
from qim.core.client.vocabulary import (
    ClientConfig,
    ClientState,
    HistoryArrived,
    MembersArrived,
    ReadByArrived,
    StateChanged,
)
from qim.core.contract.entities import ConversationKind, MessageKind, RetentionClass
from qim.core.contract.errors import ErrorCode
from qim.core.contract.kinds import HistoryDirection, KickReason, Tombstone
from qim.core.ports.local_store import Coordinates, LocalMessage

__all__ = [
    "Client",
    "ClientConfig",
    "ClientState",
    "ClientTls",
    "ClientTlsUnusable",
    "Conversation",
    "ConversationKind",
    "Coordinates",
    "ErrorCode",
    "GroupResult",
    "HistoryArrived",
    "HistoryDirection",
    "KickReason",
    "LocalMessage",
    "LocalStoreBusy",
    "LocalStoreForeign",
    "LocalStoreTooNew",
    "LocalStoreUnusable",
    "MembersArrived",
    "MessageKind",
    "NotConnected",
    "ReadByArrived",
    "RetentionClass",
    "SendFailed",
    "SendStatus",
    "Sent",
    "StateChanged",
    "StillPending",
    "Tombstone",
    "Unread",
    "client_tls",
    "client_tls_from_environment",
]
