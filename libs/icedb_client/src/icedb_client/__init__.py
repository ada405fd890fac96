"""What users of IceDB install: enqueue events, read snapshots, query them; and the ``icedb`` command."""

from icedb_client.client import Client, QueryResult
from icedb_client.commits import CommitReport
from icedb_client.delivery import EnqueuedBatch, Undelivered, Wait
from icedb_client.producer import Producer
from icedb_client.producer_buffer import BufferFull, ProducerCounters, ProducerOptions, UnsentBatch, UnsentRows
from icedb_client.settings import ClientSettings
from icedb_client.snapshots import DataFile, Snapshot

__all__ = [
    "BufferFull",
    "Client",
    "ClientSettings",
    "CommitReport",
    "DataFile",
    "EnqueuedBatch",
    "Producer",
    "ProducerCounters",
    "ProducerOptions",
    "QueryResult",
    "Snapshot",
    "Undelivered",
    "UnsentBatch",
    "UnsentRows",
    "Wait",
]
