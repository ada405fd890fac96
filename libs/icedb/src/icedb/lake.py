"""A warehouse in the caller's own process: no server, no queue, no JVM. See ``docs/embedded.md``.

Owns no rule of its own. Reads go through :class:`icedb_client.Client` straight to the store; writes are the operations
of :mod:`icedb_log`, which the services run, too, on the same tables and by the same protocol.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from icedb_client.client import Client
from icedb_client.requests import Parameters, Time
from icedb_client.settings import ClientSettings, load_client_settings
from icedb_log.clock import Clock
from icedb_log.errors import IceDBError, InvalidRequest
from icedb_log.feed.views import create_view
from icedb_log.table.promoted_paths import add_promotions, parse_promotions
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import (
    QUERIES,
    PartitionField,
    TableConfig,
    with_plausible_times,
)
from icedb_log.table.time_columns import parse_ranges
from icedb_log.units import parse_duration
from icedb_log.warehouse import Warehouse

from icedb.lake_table import LakeTable
from icedb.session import LakeSession

if TYPE_CHECKING:
    from icedb_client.duck import QueryResult

    from icedb.work import Done

_log: Final = logging.getLogger(__name__)


def connect(
    store: str | Path | None = None, *, clock: Clock | None = None, warehouse: Warehouse | None = None
) -> "Lake":
    """Open a warehouse in this process. Nothing is contacted or created before it is needed.

    Args:
        store: A folder, ``file:///abs/folder`` or ``s3://bucket/prefix``; ``ICEDB_STORE`` by default. How S3 is reached
            is read from the environment, as of every client.
        clock: Time and ids; another one only in tests.
        warehouse: An open warehouse instead; only in tests.

    Raises:
        InvalidRequest: No such store can be, or none is named.
    """
    settings = load_client_settings(store=store)
    return Lake(settings, clock=clock, warehouse=warehouse)


class Lake(LakeSession):
    """A warehouse: its tables, and queries over them. Thread-safe; a context manager.

    Args:
        settings: Where the store is; nothing else of them counts.
        clock: As of :func:`connect`.
        warehouse: See there.
    """

    def __init__(
        self, settings: ClientSettings, *, clock: Clock | None = None, warehouse: Warehouse | None = None
    ) -> None:
        super().__init__(settings, clock=clock, warehouse=warehouse)
        self._tables: dict[str, LakeTable] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close what is open. A closed lake may be used again."""
        self.client.close()

    def create_table(
        self,
        name: str,
        *,
        partition: Iterable[str] = (),
        sort: Iterable[str] = (),
        columns: Mapping[str, str] | None = None,
        plausible: Iterable[str] = (),
        promote: Iterable[str] = (),
        exist_ok: bool = False,
        **settings: Any,
    ) -> LakeTable:
        """Create a table. Its partitions, sort order and log grace period are fixed from then on.

        Args:
            name: 1 to 63 of a-z, 0-9 and _, beginning with a letter.
            partition: One level of partitions each: ``"d=day(ts)"``, ``"u=bucket[16](user_id)"``, ``"country"``.
            sort: Sort columns of data files.
            columns: Declared columns with their types; others are found in the rows.
            plausible: Times outside these ranges are bad rows: ``"ts:2020..2030-06-30"``, the end not included, or
                ``"ts:off"``. 1990 to 2100 for times that partitions come from, if nothing is said.
            promote: Columns of values inside JSON text: ``"properties.plan"``, ``"properties.price:DOUBLE"``,
                ``"context.page.url as page_url"``.
            exist_ok: Return the table that is there, whatever its configuration; a warning in the log says if it has
                other partitions or another sort order.
            settings: Further settings by their names (:class:`icedb_log.table.table_config.TableConfig`). Times may
                be said in words, without ``_ms``: ``log_grace="30s"``, ``retention="90d"``.

        Raises:
            InvalidRequest: A setting is unknown or wrong, a query does not fit, or the table exists.
            NotFound: A view's source is not there.
            Unavailable: The store did not answer.
        """
        place = self.warehouse.table(name)
        if place.store.list_page(place.paths.config_key, limit=1).objects and self.warehouse.has_table(name):
            if not exist_ok:
                raise InvalidRequest(
                    f"table {name!r} exists already: lake.table({name!r}) opens it, exist_ok=True takes it as it is"
                )
            self._tell_what_stays(name, partition=_texts("partition", partition), sort=_texts("sort", sort))
            return self.table(name)
        fields = dict(_read_setting(key, value) for key, value in settings.items())
        if ranges := parse_ranges(_texts("plausible", plausible), option="plausible"):
            times = fields.get("times", {})
            fields["times"] = {**times, **{name: {**times.get(name, {}), **ends} for name, ends in ranges.items()}}
        fields = {"declared": dict(columns or {}), **fields}
        promotions = parse_promotions(_texts("promote", promote), option="promote")
        config = TableConfig.create(
            name=name,
            partition=tuple(PartitionField.parse(text) for text in _texts("partition", partition)),
            sort=_texts("sort", sort),
            **add_promotions(fields, promotions, option="promote"),
        )
        config = with_plausible_times(config, said=fields.get("times"))
        place.store.probe()
        if any(getattr(config, query) is not None for query in QUERIES):
            found = self.check_queries(config)
            config = config.model_copy(update={"declared": {**found, **config.declared}})
        try:
            if config.view_of is None:
                create_table(place, config)
            else:
                create_view(place, config, clock=self.clock)
        except InvalidRequest:
            if not (exist_ok and self.warehouse.has_table(name)):
                raise
        else:
            if not config.has_backfill and (unfed := describe_unfed_rows(self.client, config)):
                _log.warning("%s", unfed)
        return self.table(name)

    def _tell_what_stays(self, name: str, *, partition: Sequence[str], sort: Sequence[str]) -> None:
        there = self.client.table_config(name)
        wanted = ([str(PartitionField.parse(text)) for text in partition], list(sort))
        found = ([str(field) for field in there.partition], list(there.sort))
        if (partition or sort) and wanted != found:
            words = "table %s is there already, with partitions %s and sort order %s: these stay, not %s and %s"
            _log.warning(words, name, *found, *wanted)

    def table(self, name: str) -> LakeTable:
        """Return a table. Raises InvalidRequest, NotFound, Unavailable."""
        self.client.table_config(name)
        with self._lock:
            table = self._tables.get(name)
            if table is None or table.place.paths != self.warehouse.table(name).paths:  # another one of this name (T4)
                table = self._tables[name] = LakeTable(self, name)
            return table

    def tables(self) -> tuple[str, ...]:
        """Return the names of the tables, ascending. Raises Unavailable."""
        return self.warehouse.list_tables()

    def drop_table(self, name: str) -> None:
        """Put a table into the trash, from which ``icedb table undrop`` takes it back. Idempotent.

        Raises:
            NotFound: No such table.
            InvalidRequest: It feeds views, or an erasure has not ended.
            Unavailable: The store did not answer.
        """
        from icedb_log.trash.drop import drop_table  # noqa: PLC0415 - only here

        drop_table(self.warehouse.table(name), clock=self.clock)

    def query(
        self,
        sql: str,
        *,
        parameters: Parameters | None = None,
        as_of: Time | None = None,
        tag: str | None = None,
    ) -> "QueryResult":
        """Run one reading statement over consistent snapshots of the tables it names; see :meth:`Client.query`."""
        return self.client.query(sql, parameters=parameters, as_of=as_of, tag=tag)

    def work(self, *, until_idle: bool = False, tell: "Callable[[Done], None]" = lambda _: None) -> None:
        """Do what is due on all tables: flush, feed views, merge, retention, erasures, vacuum, orphans, purges.

        Args:
            until_idle: Return once nothing is due any more, instead of going on until this is interrupted.
            tell: Told of each piece of work that was done, or could not be.
        """
        from icedb.work import Worker  # noqa: PLC0415 - for those who work here

        Worker(self, self.table).work(tell, until_idle=until_idle)


def describe_unfed_rows(client: Client, config: TableConfig) -> str:
    """Return what becomes of the rows that the source of a view had before it was made; nothing if it had none."""
    if config.view_of is None:
        return ""
    try:
        source = client.snapshot(config.view_of)
    except IceDBError:
        return ""  # the view is there all the same
    if not source.files:
        return ""
    rows = "rows" if source.row_count is None else f"{source.row_count:,} rows"
    if config.has_backfill:
        shows = f"`icedb status {config.name}` shows how far it is"
        return f"view {config.name} begins with the {rows} of {config.view_of}; {shows}"
    return (
        f"view {config.name} takes what is committed to {config.view_of} from now on; the {rows} that are there "
        "already are not in it (--set view_backfill=on begins with them)"
    )


def _read_setting(name: str, value: Any) -> tuple[str, Any]:
    """Return a setting by the name of its field; a time in words, or as a timedelta, in milliseconds."""
    field = f"{name}_ms" if f"{name}_ms" in TableConfig.model_fields else name
    if field.endswith("_ms") and isinstance(value, str):
        return field, parse_duration(value, option=name)
    if field.endswith("_ms") and isinstance(value, timedelta):
        return field, value // timedelta(milliseconds=1)
    return field, value


def _texts(name: str, values: Iterable[str]) -> tuple[str, ...]:
    if isinstance(values, str):
        raise InvalidRequest(f"{name}={values[:80]!r}: give a list, [{values[:80]!r}]")
    return tuple(values)
