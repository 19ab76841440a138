"""The network port between services: messages of contract/rpc.py, lossy, doubled, delayed, never reordered in a connection.

Nothing is owed for a Send: an answer is another message with the same ``rid``; every wait for one has an end.
"""

from msgspec import Struct

from qim.core.contract.rpc import Message


class Send(Struct, frozen=True, kw_only=True):
    """Send ``message`` to the process at ``address``; no completion."""

    address: str
    message: Message
    traces: tuple[int, ...] = ()


class Received(Struct, frozen=True, kw_only=True):
    """``message`` came from ``source``; ``wall`` is this node's wall clock in ms when it was read."""

    source: str
    wall: int
    message: Message
