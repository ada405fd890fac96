"""A batch write: tasks write data files, the driver makes them live in one commit.

Order: the check, before any task runs; the files, by the tasks, each try under fresh names; one commit by the driver,
of the files of exactly one try of each task, as Spark counts them (:mod:`icedb_log.ingest.append`). A write that fails
anywhere has changed nothing: its files are orphans.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import structlog
from icedb_log.clock import Clock, SystemClock
from icedb_log.errors import CommitOutcomeUnknown, IceDBError, InvalidRequest, Unavailable
from icedb_log.ingest.append import AppendJob, append_files, check_columns, make_batch_id, read_store_clock
from icedb_log.ingest.idempotency import Binding, bind_key, hash_content, mark_staged, read_binding
from icedb_log.keys import TablePaths
from icedb_log.log.fold import union_schema
from icedb_log.log.reader import LogReader
from icedb_log.model import FileMarker
from icedb_log.storage.object_store import ObjectStore
from icedb_log.tables.table_config import TableConfig, read_table_config
from icedb_log.views.views import require_takes_batches
from icedb_parts.query.query_types import read_output_columns
from icedb_parts.units.append_unit import AppendUnit, append_unit
from icedb_parts.units.flush_types import WriteUnitResult
from icedb_parts.units.work_units import WRITE_RESULTS, encode
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from icedb_spark.options import WriteOptions

MAX_TABLE_COLUMNS: Final = 2000
_WRITE_KEYS: Final = "spark write "
"""Begins the producer's key of a write, so that no key of a batch means the same."""
_CONTENT: Final = hash_content(b"", "spark write")

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class WrittenFiles(WriterCommitMessage):
    """What one try of a task made, as it travels.

    Attributes:
        body: The markers of its data files, as text; ``None`` if it has none.
        problem: Why, if its rows do not fit: the driver says so once, and no task is tried again for it.
    """

    body: str | None = None
    problem: str | None = None

    @classmethod
    def of(cls, files: tuple[FileMarker, ...]) -> "WrittenFiles":
        """Return what a task tells of its data files."""
        row_count = sum(marker.row_count or 0 for marker in files)
        return cls(encode(WriteUnitResult(files, row_count)))

    def read(self) -> tuple[FileMarker, ...]:
        """Return the markers of the data files."""
        return () if self.body is None else WRITE_RESULTS.validate_json(self.body).files


def plan_write(schema: Any, options: WriteOptions, *, clock: Clock) -> "IceDBWriter":
    """Check a write before any task runs.

    Raises:
        InvalidRequest: The table is a view, or a column does not fit.
        NotFound: No such table.
        HaltError: Its log cannot be read.
        Unavailable: The store did not answer.
    """
    warehouse = options.place.store.open()
    store, paths = warehouse.store, warehouse.table(options.place.table)
    config = read_table_config(store, paths)
    require_takes_batches(config)
    # W3: before any file is begun, by the store's clock.
    begun_ms = read_store_clock(store, paths)
    reader = LogReader(store, paths, clock=clock, max_refresh_ms=config.log_grace_ms // 2)
    known = union_schema(paths.name, reader.heads.read().files).effective
    columns = _read_columns(schema, paths, config, known)
    binding = None if options.write_id is None else read_binding(store, paths, key=_WRITE_KEYS + options.write_id)
    return IceDBWriter(
        options,
        paths,
        config,
        columns=columns,
        commit_id=clock.new_id(),
        begun_ms=begun_ms,
        is_done=binding is not None and binding.is_staged,
    )


def _read_columns(schema: Any, paths: TablePaths, config: TableConfig, known: Mapping[str, str]) -> dict[str, str]:
    table_columns = {**known, **{name: kind for name, kind in config.declared.items() if name not in known}}
    found = read_output_columns(
        schema, config, known=table_columns, max_columns=MAX_TABLE_COLUMNS, widens=True, what="write"
    )
    columns = {column.name: column.sql_type for column in found}
    check_columns(paths, columns, known=known, config=config)
    return columns


class IceDBWriter(DataSourceArrowWriter):
    """Appends the rows of a DataFrame.

    Args:
        options: Where to, and under which name.
        paths: Keys of the table.
        config: Its configuration.
        columns: Columns of the DataFrame in their order, with the types that the table stores.
        commit_id: Goes into the footers and the commit.
        begun_ms: The store's clock before any file was begun.
        is_done: Whether the write is committed already, under its name: the tasks have nothing to do.
    """

    def __init__(
        self,
        options: WriteOptions,
        paths: TablePaths,
        config: TableConfig,
        *,
        columns: Mapping[str, str],
        commit_id: str,
        begun_ms: int,
        is_done: bool,
    ) -> None:
        self._options = options
        self._paths = paths
        self._config = config
        self._columns = columns
        self._commit_id = commit_id
        self._begun_ms = begun_ms
        self._is_done = is_done

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        """Write the rows of a task. Each try makes files of its own.

        Raises:
            Unavailable: The store did not answer, or memory and scratch did not suffice; Spark tries the task again.
        """
        if self._is_done:
            return WrittenFiles()
        clock = SystemClock()
        place = self._options.place
        unit = AppendUnit(self._paths, self._config, self._columns, self._commit_id, clock.now_ms(), place.engine)
        try:
            return WrittenFiles.of(append_unit(unit, iterator, place.store.open().store, clock=clock))
        except Unavailable:
            raise
        except IceDBError as error:
            return WrittenFiles(problem=str(error))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the files of all tasks live: one commit, or nothing.

        Raises:
            InvalidRequest: A row does not fit, or the table has changed so that the columns do not fit any more.
            CommitOutcomeUnknown: Nobody knows whether it landed; with a ``writeId``, write again.
            Unavailable: The store did not answer, or the table takes no commit now.
            IceDBError: As :func:`icedb_log.ingest.append.append_files`.
        """
        if self._is_done:
            _log.info("write committed before", table=self._paths.name, write_id=self._options.write_id)
            return
        written = [message for message in messages if isinstance(message, WrittenFiles)]
        if len(written) != len(messages):
            raise Unavailable(
                f"table {self._paths.name}: Spark lost what a task wrote; nothing was committed, write again"
            )
        problem = next((message.problem for message in written if message.problem is not None), None)
        if problem is not None:
            raise InvalidRequest(problem)
        clock = SystemClock()
        store = self._options.place.store.open().store
        binding = self._bind(store, clock)
        batch_id = make_batch_id(clock, store_now_ms=read_store_clock(store, self._paths))
        job = AppendJob(
            files=tuple(file for message in written for file in message.read()),
            columns=self._columns,
            batch_id=batch_id if binding is None else binding.batch_id,
            commit_id=self._commit_id,
            begun_ms=self._begun_ms,
            incarnation=self._config.incarnation,
        )
        result = append_files(store, self._paths, job, clock=clock, owner="spark", wait_ms=self._options.wait_ms)
        if binding is not None:
            _remember(store, binding)
        _log.info(
            "write committed",
            table=self._paths.name,
            batch_id=job.batch_id,
            files=len(job.files),
            rows=sum(marker.row_count or 0 for marker in job.files),
            is_duplicate=result.is_duplicate,
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave the files to the orphan sweep (J6): only the janitor deletes, and a commit may have landed."""
        _log.warning("write aborted, its files are orphans", table=self._paths.name, tasks=len(messages))

    def _bind(self, store: ObjectStore, clock: Clock) -> Binding | None:
        if self._options.write_id is None:
            return None
        return bind_key(
            store,
            self._paths,
            key=_WRITE_KEYS + self._options.write_id,
            content_sha256=_CONTENT,
            clock=clock,
            preferred_id=make_batch_id(clock, store_now_ms=read_store_clock(store, self._paths)),
        )


def _remember(store: ObjectStore, binding: Binding) -> None:
    try:
        mark_staged(store, binding)
    except (Unavailable, CommitOutcomeUnknown) as error:
        # The log knows the id for its grace period; only a repetition after that is refused.
        _log.warning("write committed, but its name could not be marked", error=str(error))
