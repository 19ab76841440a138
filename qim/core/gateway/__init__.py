"""ConnectionNode: the gateway between clients and services."""

from qim.core.gateway.machine import ConnectionNode
from qim.core.gateway.vocabulary import GatewayConfig, GatewayEffect, GatewayEvent

__all__ = ["ConnectionNode", "GatewayConfig", "GatewayEffect", "GatewayEvent"]
