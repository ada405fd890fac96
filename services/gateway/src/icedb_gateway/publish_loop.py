"""Publishes tables that are set to ``iceberg = on-commit``, for engines that read metadata files without a catalog.

Owns which tables these are. It asks as an engine asks: a table in which nothing has changed costs a few requests and
writes nothing, and of two gateways that publish at once one loses. Commits know nothing of it.
"""

import asyncio
from typing import Final

from icedb_log.errors import IceDBError, NotFound
from icedb_log.intervals import Backoff, Intervals
from icedb_log.table.stored_config import read_table_config
from icedb_log.units import MINUTE_MS, SECOND_MS
from icedb_service.logs import get_logger

from icedb_gateway.published import PublishedTables
from icedb_gateway.requests import GatewayParts

CONFIG_AGE_MS: Final = MINUTE_MS
"""How old the configuration of a table may be: a table that is altered is published from then on."""
AT_ONCE: Final = 4


class PublishLoop:
    """Looks at all tables, again and again. Use it from one event loop.

    Args:
        parts: Of the gateway.
        published: Publishes them.
    """

    def __init__(self, parts: GatewayParts, published: PublishedTables) -> None:
        self._parts = parts
        self._published = published
        self._interval_s = parts.settings.gateway_iceberg_publish_interval_ms / SECOND_MS
        self._configs = Intervals(parts.clock, CONFIG_AGE_MS)
        self._backoff = Backoff(parts.clock)
        self._chosen: set[str] = set()
        self._places = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            try:
                await self.look_once()
            except IceDBError as error:
                get_logger().warning("tables_not_listed", reason=str(error), mitigation="looks again")
            await asyncio.sleep(self._interval_s)

    async def look_once(self) -> None:
        """Publish what has changed in each table that is set so. Raises Overloaded, Unavailable: which there are."""
        names = await self._parts.names.read()
        self._chosen.intersection_update(names)
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(self._look(name))

    async def _look(self, name: str) -> None:
        if not self._backoff.is_due(name):
            return
        async with self._places:
            try:
                if self._configs.is_due(name):
                    await self._choose(name)
                if name in self._chosen:
                    await self._published.read(name)
            except NotFound:
                self._chosen.discard(name)
            except IceDBError as error:
                self._backoff.record_failure(name)
                get_logger().warning("table_not_published", table=name, reason=str(error), mitigation="tries again")
            else:
                self._backoff.record_success(name)

    async def _choose(self, name: str) -> None:
        place = self._parts.warehouse.table(name)
        config = await self._parts.reads.work.run_blocking(name, lambda: read_table_config(place))
        self._configs.note(name)
        (self._chosen.add if config.iceberg == "on-commit" else self._chosen.discard)(name)
