"""Runs units of work as Spark tasks: one row, one partition, one task for each unit."""

from collections.abc import Callable, Sequence
from typing import Any, Self

from icedb_log.clock import SystemClock
from icedb_log.store.object_store import ObjectStore

from icedb_engine.spark.spark_blobs import SparkBlobs
from icedb_engine.spark.spark_jobs import SparkJobs, spark_errors
from icedb_engine.spark.spark_tasks import TaskUnits, encode_shared, make_task, open_kept, read_answers
from icedb_engine.work import DOING, UnitKind, decode_result


class SparkRunner(SparkJobs):
    """Runs units on one session against one store, as :class:`icedb_engine.jobs.runner.UnitRunner` says."""

    def checking(self, check_alive: Callable[[], None] | None) -> Self:
        """Return a runner for one run: its jobs stop when ``check_alive`` raises, with what that raised."""
        return type(self)(self.spark, self.store, rules=self._rules, check_alive=check_alive)

    def open_store(self) -> ObjectStore:
        """Return the store, opened in this process; the same one each time."""
        return open_kept(self.store)

    def open_blobs(self) -> SparkBlobs:
        """Return what keeps the rows of a flush in Spark between its two jobs."""
        return SparkBlobs(self)

    def run(self, kind: UnitKind, units: Sequence[Any], *, is_users: bool = False, is_small: bool = False) -> list[Any]:
        """Run units as :class:`icedb_engine.jobs.runner.UnitRunner` says."""
        if is_small:
            from icedb_engine.imports.import_unit import open_source  # noqa: PLC0415 - most drivers only submit
            from icedb_engine.local_engine import LocalRunner  # noqa: PLC0415

            sources = open_source(self.store.s3)
            here = LocalRunner(self.open_store(), clock=SystemClock(), sources=sources, check_alive=self._check_alive)
            return here.run(kind, units)
        bodies = encode_shared(units)
        word = "import" if kind in ("inspect", "copy") else kind
        what = f"a {word} job of {len(bodies)} units"
        with spark_errors(what), self.watch(what, is_users=is_users, doing=DOING[kind]):
            told = TaskUnits.of(bodies)
            rows = self.collect(make_task(kind, self.store, told), told)
            answers = read_answers(rows, range(len(bodies)))
        return [decode_result(kind, answer) for answer in answers]
