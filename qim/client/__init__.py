"""The SDK: ``Client`` drives the pure client machine over TCP with a SQLite store of its own (pipeline.md §6)."""

from qim.client.sdk import Client, GroupResult, NotConnected, SendFailed, SendStatus, Sent

__all__ = ["Client", "GroupResult", "NotConnected", "SendFailed", "SendStatus", "Sent"]
