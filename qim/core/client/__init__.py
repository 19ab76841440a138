"""Client: the machine behind the SDK."""

from qim.core.client.machine import Client
from qim.core.client.vocabulary import ClientConfig, ClientEffect, ClientEvent, ClientState

__all__ = ["Client", "ClientConfig", "ClientEffect", "ClientEvent", "ClientState"]
