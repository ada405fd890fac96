"""Writes: tasks write data files, the driver makes them live in one commit, of a stream for each micro-batch.

Order: the check, before any task runs; the files, by the tasks, each try under fresh names; one commit by the driver,
of the files of exactly one try of each task, as Spark counts them. A write that fails anywhere has changed nothing: its
files are orphans. What the driver does is :mod:`icedb_spark.driver`; tasks do not import it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import orjson
import pyarrow as pa
from icedb_log.clock import SystemClock
from icedb_log.errors import IceDBError, InvalidRequest, Unavailable
from icedb_log.model import FileMarker
from pydantic import TypeAdapter
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from icedb_spark.values import WritePlan


@dataclass(frozen=True)
class WrittenFiles(WriterCommitMessage):
    """What one try of a task made, as it travels.

    Attributes:
        body: The markers of its data files, as text; ``None`` if it has none.
        problem: Why, if its rows do not fit: the driver says so once, and no task is tried again for it.
        misfit_count: Values that do not fit a promoted column, and are NULL there.
    """

    body: str | None = None
    problem: str | None = None
    misfit_count: int = 0

    @classmethod
    def of(cls, files: tuple[FileMarker, ...], misfit_count: int) -> "WrittenFiles":
        """Return what a task tells of its data files."""
        return cls(orjson.dumps(files, default=dict).decode(), misfit_count=misfit_count)

    def read(self) -> tuple[FileMarker, ...]:
        """Return the markers of the data files."""
        if self.body is None:
            return ()
        return TypeAdapter(tuple[FileMarker, ...]).validate_json(self.body)


def write_files(plan: WritePlan, batches: Iterator[pa.RecordBatch]) -> WrittenFiles:
    """Write the rows of a task. Each try makes files of its own.

    Raises:
        Unavailable: The store did not answer, or memory and scratch did not suffice; Spark tries the task again.
    """
    from icedb_engine.units.typed_rows import append_unit  # noqa: PLC0415 - only tasks need it
    from icedb_engine.work import WriteUnit  # noqa: PLC0415

    clock = SystemClock()
    place = plan.options.place
    unit = WriteUnit.of(plan.target, place.engine, time_ms=clock.now_ms())
    try:
        appended = append_unit(unit, batches, place.store.open().store, clock=clock)
        return WrittenFiles.of(appended.files, appended.misfit_count)
    except Unavailable:
        raise
    except IceDBError as error:
        return WrittenFiles(problem=str(error))


def collect_files(table: str, messages: list[WriterCommitMessage | None]) -> tuple[tuple[FileMarker, ...], int]:
    """Return the files of all tasks of a write, and how many values do not fit a promoted column.

    Raises:
        InvalidRequest: A row of one of them does not fit.
        Unavailable: Spark lost what a task told.
    """
    written = [message for message in messages if isinstance(message, WrittenFiles)]
    if len(written) != len(messages):
        raise Unavailable(f"table {table}: Spark lost what a task wrote; nothing was committed, write again")
    problem = next((each.problem for each in written if each.problem is not None), None)
    if problem is not None:
        raise InvalidRequest(problem)
    return tuple(file for each in written for file in each.read()), sum(each.misfit_count for each in written)


class IceDBWriter(DataSourceArrowWriter):
    """Appends the rows of a DataFrame.

    Args:
        plan: What the driver has checked.
    """

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        """Write the rows of a task. Each try makes files of its own.

        Raises:
            Unavailable: The store did not answer, or memory and scratch did not suffice; Spark tries the task again.
        """
        return WrittenFiles() if self._plan.is_done else write_files(self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the files of all tasks live: one commit, or nothing.

        Raises:
            InvalidRequest: A row does not fit, or the table has changed so that the columns do not fit any more.
            CommitOutcomeUnknown: Nobody knows whether it landed; with a ``writeId``, write again.
            Unavailable: The store did not answer, or the table takes no commit now.
            IceDBError: As :func:`icedb_log.ingest.append.append_files`.
        """
        from icedb_spark.driver import commit_write  # noqa: PLC0415 - only the driver needs it

        table = self._plan.target.paths.name
        files, misfit_count = collect_files(table, messages)
        commit_write(self._plan, files, misfit_count=misfit_count)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave the files to the orphan sweep (J6): only the janitor deletes, and a commit may have landed."""
