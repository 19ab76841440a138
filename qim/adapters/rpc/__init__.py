"""The network between processes: framed messages over asyncio protocols, mTLS, and a table of who may say what."""

from qim.adapters.rpc.network import RpcNetwork
from qim.adapters.rpc.roles import ProcessRole
from qim.adapters.rpc.wiring import RpcLimits, RpcSecurity

__all__ = ["ProcessRole", "RpcLimits", "RpcNetwork", "RpcSecurity"]
