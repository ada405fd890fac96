"""What only the driver does: one snapshot for one DataFrame; of a write the check before any task runs, and one commit.

Which files the rows of a DataFrame are in is decided once, when Spark asks for the schema. Order: the lease, if one is
asked for; the log; the files. What comes back travels through Spark as bytes, so that every action of the DataFrame
plans with the same files, whatever is committed meanwhile. A write is committed when all of its tasks have ended.
"""

import zlib
from collections.abc import Mapping
from typing import Any, Final

import orjson
import structlog
from icedb_engine.sql.checks import check_reader_condition
from icedb_engine.sql.columns import OutputRules
from icedb_log.clock import Clock, SystemClock
from icedb_log.commit.table import Table, name_owner
from icedb_log.errors import CommitOutcomeUnknown, InvalidRequest, Unavailable
from icedb_log.holds.leases import acquire_lease
from icedb_log.holds.tags import read_tagged
from icedb_log.ingest.append import (
    AppendJob,
    append_files,
    check_columns,
    make_batch_id,
)
from icedb_log.ingest.idempotency import Binding, bind_key, mark_staged, read_binding
from icedb_log.jobs import Target
from icedb_log.keys import TablePaths
from icedb_log.log.fold import Snapshot, fold, union_schema
from icedb_log.model import FileMarker
from icedb_log.serving.selection import select_files
from icedb_log.store.object_store import ObjectStore
from icedb_log.store.table_store import TableStore
from icedb_log.table.column_names import MAX_TABLE_COLUMNS
from icedb_log.table.table_config import require_takes_batches, unite_columns

from icedb_spark.options import ReadOptions
from icedb_spark.values import PinnedSnapshot, WriteOptions, WritePlan, find_sql_type

_LEVEL: Final = 1


def take_snapshot(options: ReadOptions, *, clock: Clock) -> PinnedSnapshot:
    """Decide which files a DataFrame reads.

    Raises:
        InvalidRequest: A wrong option: the condition, a column, a partition, a time, a tag.
        NotFound: No such table or tag.
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
    named = check_selection(options, table.paths, schema)
    files = select_files(table.paths, table.config, found, filters=options.filters, where=options.where)
    prefix = table.paths.data_prefix
    rows = [[marker.path.removeprefix(prefix), marker.size_bytes, marker.row_count] for marker in files]
    return PinnedSnapshot(table.paths, schema, zlib.compress(orjson.dumps(rows), _LEVEL), lease_id, named)


def check_selection(options: ReadOptions, paths: TablePaths, schema: Mapping[str, str]) -> frozenset[str]:
    """See that columns and condition fit a table; return the names in the condition, in lower case.

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
    if options.where is None:
        return frozenset()
    return check_reader_condition(options.where, schema, table=paths.name)


def _read_snapshot(table: Table, options: ReadOptions) -> Snapshot:
    if options.tag is not None:
        return read_tagged(table, options.tag)[1]
    view = table.read_log()
    if options.as_of_ms is not None and options.as_of_ms > view.store_now_ms:
        raise InvalidRequest(
            f"option asOf: {options.as_of_ms} lies in the future: the store says {view.store_now_ms} (unix ms)"
        )
    return fold(view, as_of_ms=options.as_of_ms)


_WRITE_KEYS: Final = "spark write "
"""Begins the producer's key of a write, so that no key of a batch means the same."""

_log = structlog.get_logger(__name__)


def plan_write(schema: Any, options: WriteOptions, *, clock: Clock) -> WritePlan:
    """Check a write before any task runs.

    Raises:
        InvalidRequest: The table is a view, or a column does not fit.
        NotFound: No such table.
        HaltError: Its log cannot be read.
        Unavailable: The store did not answer.
    """
    warehouse = options.place.store.open()
    table = Table.open(warehouse.table(options.place.table), clock=clock, owner="spark")
    require_takes_batches(table.config)
    # W3: before any file is begun, by the store's clock.
    begun_ms = table.read_store_clock()
    known = union_schema(table.name, table.read_heads().files).effective
    columns = _read_columns(schema, table, known)
    key = _name_write(options)
    binding = None if key is None else read_binding(table, key=key)
    target = Target(
        paths=table.paths, config=table.config, schema=columns, commit_id=clock.new_id(), time_ms=clock.now_ms()
    )
    return WritePlan(options, target, begun_ms=begun_ms, is_done=binding is not None and binding.is_staged)


def _read_columns(schema: Any, table: Table, known: Mapping[str, str]) -> dict[str, str]:
    config = table.config
    table_columns = {**known, **{name: kind for name, kind in config.declared.items() if name not in known}}
    given = [(field.name, find_sql_type(field.name, field.dataType.simpleString())) for field in schema.fields]
    found = OutputRules(config, table_columns, "write", MAX_TABLE_COLUMNS).read(given)
    columns = {column.name: column.sql_type for column in found}
    check_columns(table, columns, known=known)
    return columns


def commit_write(
    plan: WritePlan, files: tuple[FileMarker, ...], *, misfit_count: int = 0, key: str | None = None
) -> None:
    """Make the files of a write live: one commit, or nothing.

    Args:
        plan: What was checked before any task ran.
        files: What the tasks wrote.
        misfit_count: Values in them that do not fit a promoted column, for the log.
        key: The name under which a repetition counts once; ``None``: what :attr:`WriteOptions.write_id` says.

    Raises as :meth:`~icedb_spark.batch_write.IceDBWriter.commit`.
    """
    target = plan.target
    name = target.paths.name
    if key is None:
        key = _name_write(plan.options)
    table = Table.open(
        TableStore(plan.options.place.store.open().store, target.paths),
        clock=SystemClock(),
        owner=name_owner("spark"),
    )
    batch_id = make_batch_id(table.clock, store_now_ms=table.read_store_clock())
    binding = None
    if key is not None:
        binding = bind_key(table, key=key, batch_id=batch_id, content_sha256="")
        if binding.is_staged:
            _log.info("write committed before", table=name, key=key)
            return
    job = AppendJob(
        files=files,
        columns=target.schema,
        batch_id=batch_id if binding is None else binding.batch_id,
        commit_id=target.commit_id,
        begun_ms=plan.begun_ms,
    )
    result = append_files(table, job, wait_ms=plan.options.wait_ms)
    if binding is not None:
        _remember(table.store, binding)
    _log.info(
        "write committed",
        table=name,
        batch_id=job.batch_id,
        files=len(job.files),
        rows=sum(marker.row_count or 0 for marker in job.files),
        misfits=misfit_count,
        is_duplicate=result.is_duplicate,
    )


def _name_write(options: WriteOptions) -> str | None:
    return None if options.write_id is None else _WRITE_KEYS + options.write_id


def _remember(store: ObjectStore, binding: Binding) -> None:
    try:
        mark_staged(store, binding)
    except (Unavailable, CommitOutcomeUnknown) as error:
        # The log knows the id for its grace period; only a repetition after that is refused.
        _log.warning("write committed, but its name could not be marked", error=str(error))
