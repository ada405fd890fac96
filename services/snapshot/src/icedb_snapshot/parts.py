"""What every handler class of the server is given."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from icedb_log.clock import Clock
from icedb_log.warehouse import Warehouse
from icedb_service.access.credentials import GrpcAccess
from icedb_service.readers import TableReads

from icedb_snapshot.metrics import SnapshotMetrics
from icedb_snapshot.settings import SnapshotSettings


@dataclass(frozen=True, slots=True)
class ServiceParts:
    """What handlers share.

    Attributes:
        warehouse: Where the tables lie.
        settings: Limits and defaults.
        metrics: Where calls and answers are counted.
        clock: For ages.
        reads: The state of tables, and threads for work that blocks (``reads.work``).
        access: Asked first by every handler.
    """

    warehouse: Warehouse
    settings: SnapshotSettings
    metrics: SnapshotMetrics
    clock: Clock
    reads: TableReads
    access: GrpcAccess


class Calls(Protocol):
    """Some methods of the service."""

    def methods(self) -> Mapping[str, Any]:
        """Return the handlers by the name of their method: what ``grpc.unary_unary_rpc_method_handler`` returns."""
        ...


@runtime_checkable
class EndlessCalls(Protocol):
    """Methods with streams that do not end by themselves."""

    def end(self) -> None:
        """End them all, for good: the server stops. Called on the event loop."""
        ...
