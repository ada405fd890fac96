"""What users of IceDB install: enqueue events, read snapshots, query them; and the ``icedb`` command."""

from icedb_client.async_client import AsyncClient, AsyncSnapshot
from icedb_client.client import Client, QueryResult
from icedb_client.delivery import CommitReport, EnqueuedBatch, Undelivered, Wait
from icedb_client.producer import BufferFull, Producer, ProducerCounters, ProducerOptions, UnsentBatch, UnsentRows
from icedb_client.requests import Changes, LeaseInfo, SnapshotEvent, TableInfo
from icedb_client.settings import ClientSettings
from icedb_client.snapshots import DataFile, Snapshot

__all__ = [
    "AsyncClient",
    "AsyncSnapshot",
    "BufferFull",
    "Changes",
    "Client",
    "ClientSettings",
    "CommitReport",
    "DataFile",
    "EnqueuedBatch",
    "LeaseInfo",
    "Producer",
    "ProducerCounters",
    "ProducerOptions",
    "QueryResult",
    "Snapshot",
    "SnapshotEvent",
    "TableInfo",
    "Undelivered",
    "UnsentBatch",
    "UnsentRows",
    "Wait",
]
