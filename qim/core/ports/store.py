"""The hot store's whole vocabulary, and which of the two stores a request belongs to."""

from typing import get_args

from qim.core.ports.completion import StoreRole
from qim.core.ports.store_audit import CoverageStoreReply, CoverageStoreRequest
from qim.core.ports.store_history import HistoryStoreReply, HistoryStoreRequest
from qim.core.ports.store_mailbox import MailboxStoreReply, MailboxStoreRequest
from qim.core.ports.store_message import MessageStoreReply, MessageStoreRequest
from qim.core.ports.store_operator import (
    OperatorMailboxRequest,
    OperatorMessageRequest,
    OperatorReply,
)
from qim.core.ports.store_session import SessionStoreReply, SessionStoreRequest

StoreRequest = (
    MessageStoreRequest
    | HistoryStoreRequest
    | CoverageStoreRequest
    | MailboxStoreRequest
    | SessionStoreRequest
    | OperatorMessageRequest
    | OperatorMailboxRequest
)
StoreReply = (
    MessageStoreReply
    | HistoryStoreReply
    | CoverageStoreReply
    | MailboxStoreReply
    | SessionStoreReply
    | OperatorReply
)

_MESSAGE_TYPES: tuple[type, ...] = get_args(
    MessageStoreRequest | HistoryStoreRequest | CoverageStoreRequest | OperatorMessageRequest
)
_MAILBOX_TYPES: tuple[type, ...] = get_args(
    MailboxStoreRequest | SessionStoreRequest | OperatorMailboxRequest
)
_ROLES: dict[type, StoreRole] = dict.fromkeys(_MESSAGE_TYPES, StoreRole.MESSAGE)
_ROLES.update(dict.fromkeys(_MAILBOX_TYPES, StoreRole.MAILBOX))


def store_role(request: StoreRequest) -> StoreRole:
    """MESSAGE or MAILBOX."""
    return _ROLES[type(request)]
