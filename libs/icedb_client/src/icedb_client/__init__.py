"""What users of IceDB install: enqueue events, read snapshots, query them; and the ``icedb`` command."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from icedb_client.client import Client
    from icedb_client.delivery import Undelivered, Wait
    from icedb_client.describe import ColumnDescription, TableDescription
    from icedb_client.duck import QueryResult
    from icedb_client.producer import BufferFull, Producer, ProducerCounters, ProducerOptions, UnsentBatch, UnsentRows
    from icedb_client.requests import Changes, LeaseInfo, SnapshotEvent, TableInfo
    from icedb_client.settings import ClientSettings
    from icedb_client.snapshots import DataFile, Snapshot
    from icedb_client.transport import CommitReport, EnqueuedBatch

__all__ = [
    "BufferFull",
    "Changes",
    "Client",
    "ClientSettings",
    "ColumnDescription",
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
    "TableDescription",
    "TableInfo",
    "Undelivered",
    "UnsentBatch",
    "UnsentRows",
    "Wait",
]

_HOMES: Final = {
    "BufferFull": "producer",
    "Changes": "requests",
    "Client": "client",
    "ClientSettings": "settings",
    "ColumnDescription": "describe",
    "CommitReport": "transport",
    "DataFile": "snapshots",
    "EnqueuedBatch": "transport",
    "LeaseInfo": "requests",
    "Producer": "producer",
    "ProducerCounters": "producer",
    "ProducerOptions": "producer",
    "QueryResult": "duck",
    "Snapshot": "snapshots",
    "SnapshotEvent": "requests",
    "TableDescription": "describe",
    "TableInfo": "requests",
    "Undelivered": "delivery",
    "UnsentBatch": "producer",
    "UnsentRows": "producer",
    "Wait": "delivery",
}
"""The module of each name: it is imported when somebody asks for the name. All of them together take a second."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
