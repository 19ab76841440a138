"""The registry port on etcd: leases with epochs, barriers, announcements and the numbers every process must share."""

import os

# Read when gRPC is imported: its fork handlers break children between fork and exec, and ours never use gRPC.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from qim.adapters.etcd.registry import EtcdRegistry

__all__ = ["EtcdRegistry"]
