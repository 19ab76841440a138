"""How a call to the store can fail, by what is known of its effect.

``NotSent``: surely not applied. ``ReplyLost``: may have been applied, may still be (``Unknown``). ``ServerError``: the
server read the call and answered an error; what that means for the effect is the code's business (``NOSCRIPT``, ``OOM``
and ``LOADING`` ran nothing).
"""


class CallFailed(Exception):
    """One of the three below."""


class NotSent(CallFailed):
    """No byte of the call left this process: it was surely not applied."""


class NotConnected(NotSent):
    """There is no connection now; one is being made in the background."""


class TooManyInFlight(NotSent):
    """More calls or bytes are under way than the connection's limits allow."""


class StoreResetError(NotSent):
    """The call names another server run than the one at the other end (pipeline.md §0)."""

    def __init__(self, *, expected: bytes, present: bytes) -> None:
        super().__init__(f"bound to run {expected!r}, connected to {present!r}")
        self.expected = expected
        self.present = present


class ReplyLost(CallFailed):
    """The call was sent and its reply will not come: it may have been applied, now or even later."""


class ServerError(CallFailed):
    """The server's own error reply; ``code`` is its first word."""

    @property
    def code(self) -> str:
        """``WRONGTYPE``, ``NOSCRIPT``, ``OOM``, …"""
        return str(self).partition(" ")[0]
