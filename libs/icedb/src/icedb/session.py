"""What the tables of a lake share in this process: the client, the gate of staging, the engine, a name, time."""

import logging
import os
from collections.abc import Mapping
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Final

from icedb_client.client import Client
from icedb_client.settings import ClientSettings
from icedb_log.clock import Clock, SystemClock
from icedb_log.commit.table import Table, name_owner
from icedb_log.errors import InvalidRequest
from icedb_log.feed.views import read_source_schema
from icedb_log.table.table_config import TableConfig
from icedb_log.warehouse import Warehouse

if TYPE_CHECKING:
    from icedb_engine.local_engine import LocalEngine

_LAKES: Final = count()


class _LocalClient(Client):
    """A client that wakes nobody."""

    def _wake(self, table: str) -> bool:
        del table
        return False


class LakeSession:
    """An open warehouse. Thread-safe.

    Args:
        settings: Where the store is; nothing else of them counts.
        clock: Time and ids; another one only in tests.
        warehouse: An open warehouse instead; only in tests.
    """

    def __init__(
        self, settings: ClientSettings, *, clock: Clock | None = None, warehouse: Warehouse | None = None
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        # A front end or snapshot service that the environment names is not asked: here is the store.
        here = settings.model_copy(update={"address": None, "snapshot_address": None})
        self.client: Client = _LocalClient(settings=here, clock=self.clock, warehouse=warehouse)
        self.warehouse: Warehouse = self.client.warehouse
        self.gate = self.client.gate
        self.owner = f"{name_owner('embedded')}.{next(_LAKES)}"  # F6: each waits for the others, of one process, too
        self._process_id = os.getpid()

    def __repr__(self) -> str:
        return f"Lake({self.client.settings.store!r})"

    def require_own_process(self) -> None:
        """Raise InvalidRequest in a child that was forked: it has its parent's name, and locks that nobody lets go."""
        if os.getpid() != self._process_id:
            raise InvalidRequest("this lake was opened before the process was forked: call connect() in the child")

    @cached_property
    def engine(self) -> "LocalEngine":
        """What reads and writes rows, loaded when the first are written."""
        import structlog  # noqa: PLC0415 - it is slow to load, and for those who write
        from icedb_engine.local_engine import LocalEngine  # noqa: PLC0415 - and so are DuckDB and Arrow

        if not structlog.is_configured():
            # A library prints nothing on its own account; a program that has set structlog up sees all of it.
            structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
        return LocalEngine(self.warehouse.store, clock=self.clock)

    def check_queries(self, config: TableConfig, schema: Mapping[str, str] | None = None) -> Mapping[str, str]:
        """Check queries as :func:`icedb_engine.sql.checks.check_queries`; NotFound: a view's source is not there."""
        from icedb_engine.sql import checks  # noqa: PLC0415 - DuckDB is for those who need it

        def read_source(name: str) -> Mapping[str, str]:
            return read_source_schema(Table.open(self.warehouse.table(name), clock=self.clock))

        return checks.check_queries(config, schema or {}, read_source=read_source)
