"""What users of IceDB install: enqueue events, read snapshots, query them; and the ``icedb`` command."""

from icedb_client.client import Client, CommitReport, EnqueuedBatch, QueryResult
from icedb_client.settings import ClientSettings
from icedb_client.snapshots import DataFile, Snapshot

__all__ = [
    "Client",
    "ClientSettings",
    "CommitReport",
    "DataFile",
    "EnqueuedBatch",
    "QueryResult",
    "Snapshot",
]
