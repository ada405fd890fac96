"""One snapshot for one DataFrame: which files its rows are in, decided once, when Spark asks for the schema.

Order: the lease, if one is asked for; the log; the files. What comes back travels through Spark as bytes, so that every
action of the DataFrame plans with the same files, whatever is committed meanwhile.
"""

import zlib
from collections.abc import Mapping
from typing import Final

import orjson
from icedb_engine.sql.checks import check_reader_condition
from icedb_log.clean.leases import acquire_lease
from icedb_log.clean.pins import read_pinned
from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest
from icedb_log.keys import TablePaths
from icedb_log.log.fold import fold
from icedb_log.model import Snapshot
from icedb_log.serving.selection import select_files
from icedb_log.table.table import Table
from icedb_log.table.table_config import unite_columns

from icedb_spark.options import ReadOptions
from icedb_spark.values import PinnedSnapshot

_LEVEL: Final = 1


def take_snapshot(options: ReadOptions, *, clock: Clock) -> PinnedSnapshot:
    """Decide which files a DataFrame reads.

    Raises:
        InvalidRequest: A wrong option: the condition, a column, a partition, a time, a pin.
        NotFound: No such table or pin.
        HaltError: The log cannot be read.
        Unavailable: The store did not answer.
    """
    table = Table.open(options.place.store.open().table(options.place.table), clock=clock)
    lease_id = None
    if options.lease_ms:
        # J4: before the log is read: what is live then, or at as_of, is held from here on.
        lease_id = acquire_lease(table, ttl_ms=options.lease_ms, at_ms=options.as_of_ms, holder="spark read").lease_id
    found = _read_snapshot(table, options)
    schema = unite_columns(found.schema, table.config)
    check_selection(options, table.paths, schema)
    files = select_files(table.paths, table.config, found, filters=options.filters, where=options.where)
    prefix = table.paths.data_prefix
    rows = [[marker.path.removeprefix(prefix), marker.size_bytes, marker.row_count] for marker in files]
    return PinnedSnapshot(table.paths, schema, zlib.compress(orjson.dumps(rows), _LEVEL), lease_id)


def check_selection(options: ReadOptions, paths: TablePaths, schema: Mapping[str, str]) -> None:
    """See that columns and condition fit a table.

    Raises:
        InvalidRequest: They do not, or the table has no columns yet.
    """
    if not schema:
        raise InvalidRequest(
            f"table {paths.name} has no columns yet: nothing was committed to it, and none is declared"
        )
    unknown = [name for name in options.columns or () if name not in schema]
    if unknown:
        raise InvalidRequest(
            f"option columns: table {paths.name} has no column {unknown[0]!r}; it has {', '.join(schema)[:300]}"
        )
    if options.where is not None:
        check_reader_condition(options.where, schema, table=paths.name)


def _read_snapshot(table: Table, options: ReadOptions) -> Snapshot:
    if options.pin is not None:
        return read_pinned(table, options.pin)[1]
    view = table.read_log()
    if options.as_of_ms is not None and options.as_of_ms > view.store_now_ms:
        raise InvalidRequest(
            f"option asOf: {options.as_of_ms} lies in the future: the store says {view.store_now_ms} (unix ms)"
        )
    return fold(view, as_of_ms=options.as_of_ms)
