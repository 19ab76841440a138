"""The registry port on etcd: leases with epochs, barriers, announcements and the numbers every process must share."""

from qim.adapters.etcd.connection import EtcdTls
from qim.adapters.etcd.registry import EtcdRegistry

__all__ = ["EtcdRegistry", "EtcdTls"]
