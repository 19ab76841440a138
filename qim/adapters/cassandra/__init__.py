"""The archive on Apache Cassandra or ScyllaDB, by cassandra-driver; nothing outside this package imports the driver.

``CassandraArchive`` is the port; ``schema`` makes the tables and judges what it finds. Rows that may be written again are
what makes it safe without a transaction: docs/decisions, "The archive holds rows that may be written again".
"""

from qim.adapters.cassandra.archive import CassandraArchive
from qim.adapters.cassandra.settings import CassandraSettings, settings_from

__all__ = ["CassandraArchive", "CassandraSettings", "settings_from"]
