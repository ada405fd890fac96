"""Publishes tables for engines that speak Iceberg, when one asks, and keeps what was published last.

A publication is made by :mod:`icedb_log.publish` with the writer of :mod:`icedb_iceberg`: that owns what is written and
in which order; asked for a state that is published already, it writes nothing. Here stands only when it is asked: for
each table by one thread at a time, and not more often than callers accept the age of what is known. Who comes while a
run is under way waits for it if it began late enough, else for the next one.

:class:`PublishLoop` asks for tables that are set to ``iceberg = on-commit``, for engines that read metadata files
without a catalog. It asks as an engine asks: a table in which nothing has changed costs a few requests and writes
nothing, and of two gateways that publish at once one loses. Commits know nothing of it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import orjson
from cachetools import LRUCache
from icedb_iceberg import find_held_back
from icedb_log.commit.table import Table, name_owner
from icedb_log.errors import (
    BelowHorizon,
    CommitConflict,
    CommitOutcomeUnknown,
    HaltError,
    IceDBError,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unavailable,
    crashes_told,
)
from icedb_log.holds.leases import acquire_lease
from icedb_log.intervals import Backoff, Intervals
from icedb_log.table.stored_config import read_table_config
from icedb_log.units import MINUTE_MS, SECOND_MS
from icedb_service.logs import get_logger
from icedb_service.readers import LogReaders, SharedWork

from icedb_gateway.requests import GatewayParts

if TYPE_CHECKING:
    from icedb_log.publish.model import Publication

Publish = Callable[[Table], "Publication"]
"""Makes sure that the newest state of a table is published, and returns that publication; safe to ask again."""

HOLDER: Final = "the Iceberg catalog"
"""Who holds a lease that was taken for an engine, as `icedb status` shows it."""
HELD_BACK: Final = "icedb.held-back"
"""Property of a table that says why a newer state is not shown."""
_SNAPSHOTS: Final = "snapshots"
_PROPERTIES: Final = "properties"


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """What the catalog answers about a table.

    Attributes:
        publication: The newest publication.
        metadata: Its table metadata.
        metadata_uri: Where that lies.
        location: Where the table lies: what URIs of all its files begin with.
        started_ms: When the look began that found it, by the monotonic clock: every commit before is in it.
        held_back: Why a newer state than this one is not shown; empty: there is none.
    """

    publication: "Publication"
    metadata: dict[str, Any] = field(repr=False)
    metadata_uri: str
    location: str
    started_ms: int = 0
    held_back: str = ""

    def shown(self, *, refs_only: bool) -> dict[str, Any]:
        """Return the metadata with all snapshots, or with those alone that a branch or a tag names."""
        shown = self.metadata
        if self.held_back:
            shown = {**shown, _PROPERTIES: {**shown.get(_PROPERTIES, {}), HELD_BACK: self.held_back}}
        if not refs_only:
            return shown
        named = {ref["snapshot-id"] for ref in shown.get("refs", {}).values()}
        kept = [each for each in shown.get(_SNAPSHOTS, ()) if each["snapshot-id"] in named]
        return {**shown, _SNAPSHOTS: kept}


@dataclass(slots=True)
class _Held:
    """Until when the files of a table's publications are held, from which time on, and who may look next."""

    at_ms: int = 0
    until_ms: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class PublishedTables:
    """Knows the newest publications. Use it from one event loop.

    Args:
        parts: Of the gateway.
        publish: Publishes a table; runs in a thread.
    """

    def __init__(self, parts: GatewayParts, publish: Publish) -> None:
        self._warehouse = parts.warehouse
        self._work = parts.reads.work
        self._clock = parts.clock
        self._metrics = parts.metrics
        self._publish = publish
        self._staleness_ms = parts.settings.gateway_staleness_ms
        self._readers = LogReaders(parts.clock)
        self._known: LRUCache[str, PublishedTable] = LRUCache(parts.settings.read_max_tables)
        self._runs: SharedWork[PublishedTable] = SharedWork()
        self._held: LRUCache[str, _Held] = LRUCache(parts.settings.read_max_tables)
        self._is_probed = False

    async def read(self, name: str) -> PublishedTable:
        """Return the newest publication of a table, at most the staleness of the settings old.

        Raises:
            NotFound: No such table, or it is dropped.
            InvalidRequest: Its state cannot be published; says what has to be done first.
            Overloaded: Too many calls wait for the store.
            Unavailable: It was not published in time; the work goes on, ask again.
            HaltError: The log is damaged.
        """
        needed_ms = self._clock.monotonic_ms() - self._staleness_ms
        remedy = "; the first time takes long for a large table: try again"
        async with self._work.in_time(f"table {name}: it was not published", remedy):
            while True:
                known = self._known.get(name)
                if known is not None and known.started_ms >= needed_ms:
                    return known
                run = self._runs.find(name) or self._start(name)
                if self._runs.begun_ms(name) >= needed_ms:
                    return await asyncio.shield(run)
                await asyncio.wait((run,))

    async def hold(self, name: str, found: PublishedTable, *, until_ms: int, ttl_ms: int) -> None:
        """Let a lease hold what a publication shows as its newest state, for an engine that has just been given a key.

        One lease does for all that ask until it is too short. Where none is to be had, the grace period holds alone.

        Args:
            name: The table.
            found: What the engine is shown.
            until_ms: When its key ends, by this host's clock.
            ttl_ms: How long a new lease is to last: no key lasts longer.

        Raises:
            NotFound: The table was dropped meanwhile.
            Fenced: It is another one of that name meanwhile.
            Unavailable: The store did not answer.
            HaltError: The log is damaged.
        """
        at_ms = found.publication.as_of_ms
        held = self._held.setdefault(name, _Held())

        def take() -> None:
            table = self._readers.open(self._warehouse.table(name), owner=name_owner("gateway"))
            acquire_lease(table, ttl_ms=ttl_ms, at_ms=at_ms, holder=HOLDER)

        async with held.turn:
            if held.at_ms <= at_ms and until_ms <= held.until_ms:
                return
            try:
                await self._work.run_blocking(name, take)
            except (BelowHorizon, CommitConflict, CommitOutcomeUnknown, Overloaded) as error:
                get_logger().warning("lease_not_taken", table=name, reason=str(error), instead="grace period")
                return
            held.at_ms, held.until_ms = at_ms, until_ms

    def _start(self, name: str) -> "asyncio.Task[PublishedTable]":
        before = self._known.get(name)

        async def run() -> PublishedTable:
            found = await self._work.run_blocking(name, lambda: self._look(name, before))
            self._known[name] = found
            return found

        return self._runs.start(name, run(), begun_ms=self._clock.monotonic_ms())

    def _look(self, name: str, before: PublishedTable | None) -> PublishedTable:
        started_ms = self._clock.monotonic_ms()
        outcome = "failed"
        try:
            self._probe()
            table = self._readers.open(self._warehouse.table(name), owner=name_owner("gateway"))
            publication = self._publish(table)
            held_back = find_held_back(table)
            is_same = before is not None and before.publication.publication_id == publication.publication_id
            found = before if before is not None and is_same else self._read(table, publication)
        except (InvalidRequest, NotFound):
            outcome = "refused"
            raise
        except HaltError as error:
            get_logger().error("publication_halted", table=name, reason=str(error))
            raise
        else:
            outcome = "held_back" if held_back else "same" if is_same else "published"
            return replace(found, started_ms=started_ms, held_back=held_back)
        finally:
            self._metrics.count_publication(outcome, duration_ms=self._clock.monotonic_ms() - started_ms)

    def _probe(self) -> None:
        """See once that the store keeps conditions, before anything is written to it. Raises UnsupportedFormat."""
        if not self._is_probed:
            self._warehouse.store.probe()
            self._is_probed = True

    @staticmethod
    def _read(table: Table, publication: "Publication") -> PublishedTable:
        try:
            body = table.store.get(publication.metadata_key).body
        except NotFound as error:
            raise Unavailable(
                f"table {table.name}: publication {publication.publication_id} was withdrawn meanwhile: try again"
            ) from error
        metadata = orjson.loads(body)
        location = metadata["location"].rstrip("/")
        uri = location + publication.metadata_key.removeprefix(table.paths.prefix)
        return PublishedTable(publication, metadata, uri, location)


CONFIG_AGE_MS: Final = MINUTE_MS
"""How old the configuration of a table may be: a table that is altered is published from then on."""
AT_ONCE: Final = 4


class PublishLoop:
    """Looks at all tables, again and again. Use it from one event loop."""

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
                # WARN: an error that is none of ours would end the group, and with it the publications of all tables.
                with crashes_told(f"table {name}: its publication"):
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
