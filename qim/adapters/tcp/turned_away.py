"""What a listener makes of a stream there is no room for."""

import asyncio
from typing import cast


class TurnedAway(asyncio.Protocol):
    """Cut as soon as it is there."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface without the base class.
        cast("asyncio.Transport", transport).abort()
