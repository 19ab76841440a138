"""Who asks: the gateway injects it into every question; a client never names itself (pipeline.md §6)."""

from msgspec import Struct


class Actor(Struct, frozen=True, array_like=True, gc=False):
    """Who asks, as the gateway authenticated it."""

    tenant_id: str
    user_id: int
    device_id: bytes
