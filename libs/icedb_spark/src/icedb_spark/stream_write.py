"""A streaming sink: each micro-batch is one commit, which counts once however often Spark repeats it.

Spark asks for a writer twice for a micro-batch: before its tasks, and, in another process, for its commit. So what was
checked before the tasks travels with their messages. A repetition is known by the query's id, which lies in its
checkpoint, and the number of the micro-batch (I7): a query with a new checkpoint is another query.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from icedb_log.errors import InvalidRequest
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from icedb_spark.batch_write import WrittenFiles, collect_files, write_files
from icedb_spark.values import WritePlan

_QUERY_ID = "sql.streaming.queryId"
"""The property under which Spark tells tasks the id of their query."""


@dataclass(frozen=True)
class EpochFiles(WrittenFiles):
    """What one try of a task made for a micro-batch.

    Attributes:
        query_id: Of the streaming query, as its checkpoint has it.
        plan: What was checked before the tasks of the micro-batch.
    """

    query_id: str = ""
    plan: WritePlan | None = None


class IceDBStreamWriter(DataSourceStreamArrowWriter):
    """Appends the rows of each micro-batch.

    Args:
        plan: What the driver has checked, for the micro-batch that begins.
    """

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> EpochFiles:
        """Write the rows of a task. Each try makes files of its own.

        Raises:
            InvalidRequest: Spark does not say which query this is.
            Unavailable: The store did not answer, or memory and scratch did not suffice; Spark tries the task again.
        """
        context = TaskContext.get()
        query_id = None if context is None else context.getLocalProperty(_QUERY_ID)
        if not query_id:
            raise InvalidRequest("Spark does not tell its tasks the query's id: use foreachBatch with a writeId")
        written = write_files(self._plan, iterator)
        return EpochFiles(written.body, written.problem, written.misfit_count, query_id, self._plan)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - PySpark's name
        """Make the files of all tasks live: one commit, or nothing. Idempotent for a query and number, for a day.

        Raises as :meth:`~icedb_spark.batch_write.IceDBWriter.commit`.
        """
        from icedb_spark.driver import commit_write  # noqa: PLC0415 - only the driver needs it

        files, misfit_count = collect_files(self._plan.target.paths.name, messages)
        first = next((each for each in messages if isinstance(each, EpochFiles)), None)
        if first is None or first.plan is None or not files:
            return
        commit_write(first.plan, files, misfit_count=misfit_count, key=f"spark stream {first.query_id} {batchId}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - PySpark's name
        """Leave the files to the orphan sweep (J6), as a batch write does."""
