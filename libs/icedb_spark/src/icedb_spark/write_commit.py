"""What the driver of a write does: the check before any task runs, and the one commit when all have ended."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog
from icedb_engine.sql.columns import OutputRules
from icedb_log.clock import Clock, SystemClock
from icedb_log.errors import CommitOutcomeUnknown, InvalidRequest, Unavailable
from icedb_log.feed.views import require_takes_batches
from icedb_log.ingest.append import (
    MAX_TABLE_COLUMNS,
    AppendJob,
    append_files,
    check_columns,
    make_batch_id,
)
from icedb_log.ingest.idempotency import Binding, bind_key, hash_body, mark_staged, read_binding
from icedb_log.jobs import Target
from icedb_log.log.fold import union_schema
from icedb_log.store.object_store import ObjectStore
from icedb_log.store.table_store import TableStore
from icedb_log.table.table import Table, name_owner

from icedb_spark.batch_write import IceDBWriter, WrittenFiles
from icedb_spark.values import WriteOptions, find_sql_type

_WRITE_KEYS: Final = "spark write "
"""Begins the producer's key of a write, so that no key of a batch means the same."""
_CONTENT: Final = hash_body(b"", "spark write")

_log = structlog.get_logger(__name__)


def plan_write(schema: Any, options: WriteOptions, *, clock: Clock) -> IceDBWriter:
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
    key = None if options.write_id is None else _WRITE_KEYS + options.write_id
    binding = None if key is None else read_binding(table, key=key)
    target = Target(
        paths=table.paths, config=table.config, schema=columns, commit_id=clock.new_id(), time_ms=clock.now_ms()
    )
    return IceDBWriter(options, target, begun_ms=begun_ms, is_done=binding is not None and binding.is_staged)


def _read_columns(schema: Any, table: Table, known: Mapping[str, str]) -> dict[str, str]:
    config = table.config
    table_columns = {**known, **{name: kind for name, kind in config.declared.items() if name not in known}}
    given = [(field.name, find_sql_type(field.name, field.dataType.simpleString())) for field in schema.fields]
    found = OutputRules(config, table_columns, "write", MAX_TABLE_COLUMNS).read(given)
    columns = {column.name: column.sql_type for column in found}
    check_columns(table, columns, known=known)
    return columns


def commit_write(writer: IceDBWriter, written: Sequence[WrittenFiles], task_count: int) -> None:
    """Make the files of a write live: one commit, or nothing. Raises as :meth:`IceDBWriter.commit`."""
    target, write_id = writer.target, writer.options.write_id
    name = target.paths.name
    if writer.is_done:
        _log.info("write committed before", table=name, write_id=write_id)
        return
    if len(written) != task_count:
        raise Unavailable(f"table {name}: Spark lost what a task wrote; nothing was committed, write again")
    problem = next((each.problem for each in written if each.problem is not None), None)
    if problem is not None:
        raise InvalidRequest(problem)
    table = Table.open(
        TableStore(writer.options.place.store.open().store, target.paths),
        clock=SystemClock(),
        owner=name_owner("spark"),
    )
    batch_id = make_batch_id(table.clock, store_now_ms=table.read_store_clock())
    binding = None
    if write_id is not None:
        binding = bind_key(table, key=_WRITE_KEYS + write_id, batch_id=batch_id, content_sha256=_CONTENT)
    job = AppendJob(
        files=tuple(file for each in written for file in each.read()),
        columns=target.schema,
        batch_id=batch_id if binding is None else binding.batch_id,
        commit_id=target.commit_id,
        begun_ms=writer.begun_ms,
        incarnation=target.config.incarnation,
    )
    result = append_files(table, job, wait_ms=writer.options.wait_ms)
    if binding is not None:
        _remember(table.store, binding)
    _log.info(
        "write committed",
        table=name,
        batch_id=job.batch_id,
        files=len(job.files),
        rows=sum(marker.row_count or 0 for marker in job.files),
        is_duplicate=result.is_duplicate,
    )


def _remember(store: ObjectStore, binding: Binding) -> None:
    try:
        mark_staged(store, binding)
    except (Unavailable, CommitOutcomeUnknown) as error:
        # The log knows the id for its grace period; only a repetition after that is refused.
        _log.warning("write committed, but its name could not be marked", error=str(error))
