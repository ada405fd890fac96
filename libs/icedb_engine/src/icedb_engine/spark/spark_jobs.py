"""Jobs on a Spark session: started, watched, and their errors told as ours.

A session is given a plain function to run (an RDD): to plan a DataFrame takes its JVM longer than a small unit works.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import pyarrow as pa
from icedb_log.errors import JobCrashed, Unavailable
from icedb_log.store_settings import StoreSettings
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from icedb_engine.spark.spark_tasks import Answer, Chunks, TaskUnits
from icedb_engine.spark.spark_watch import JobWatch, WatchRules

_SHOWN_CHARS: Final = 500
_ENDED: Final = ("Python worker exited unexpectedly", "exited caused by one of the running tasks")
"""What Spark says of a task's process that was killed or has crashed, and of an executor that its tasks have ended."""
WARM_UP_LIMIT_MS: Final = 120_000
"""How long a cluster may take to give this application its first cores."""


class SparkJobs:
    """Runs jobs on one session against one store, and watches them.

    Args:
        spark: The session.
        store: How tasks reach the store.
        rules: How jobs are watched.
        check_alive: Raises if the run should stop; its jobs are interrupted then.

    Attributes:
        spark: The session.
        store: How tasks reach the store.
    """

    def __init__(
        self,
        spark: SparkSession,
        store: StoreSettings,
        *,
        rules: WatchRules | None = None,
        check_alive: Callable[[], None] | None = None,
    ) -> None:
        self.spark = spark
        self.store = store
        self._rules = rules or WatchRules()
        self._check_alive = check_alive

    def collect(self, answer: Callable[[int], Answer], units: "TaskUnits") -> list[Any]:
        """Return the answers of some units, in any order: what a function returns of their numbers, each in a task."""
        # WARN: each task reads its number, though Spark would tell it that of its partition, too: the process of a task
        # that leaves its input unread ends with it, and the next task waits seconds for another one.
        numbers = self.spark.sparkContext.parallelize(units.numbers, len(units.numbers))
        return list(numbers.map(answer).collect())

    @contextmanager
    def job(self, what: str) -> Iterator[None]:
        """Watch a job (:meth:`watch`), and turn Spark's errors into Unavailable."""
        with spark_errors(what), self.watch(what):
            yield

    def watch(self, what: str, *, is_users: bool = False, doing: str = "") -> AbstractContextManager[None]:
        """Watch what a block does on the session; see :class:`JobWatch`.

        Goes inside of what turns Spark's errors into ours: ``with spark_errors(what), runner.watch(what):``.

        Args:
            what: The job, in words.
            is_users: A user's query that somebody waits for: at the time limit InvalidRequest, not Unavailable.
            doing: What who follows the work is told, beside how many tasks are done; empty: nothing.
        """
        return JobWatch(
            self.spark, what, rules=self._rules, check_alive=self._check_alive, is_users=is_users, doing=doing
        )

    def make_units(self, units: "TaskUnits") -> Any:
        """Return a DataFrame with one row and one partition for each unit: its number."""
        return self.spark.range(units.first, units.first + len(units.bodies), 1, len(units.bodies))


@contextmanager
def spark_errors(what: str) -> Iterator[None]:
    """Turn Spark's errors into Unavailable, which names the job; JobCrashed if a process of its tasks has ended."""
    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:
        # Spark has no class for it, only these words; a process that it ends itself is a job that was interrupted.
        is_crash = any(words in str(error) for words in _ENDED)
        kind = JobCrashed if is_crash else Unavailable
        raise kind(f"Spark lost {what}: {summarize(error)}") from error


def warm_up(spark: SparkSession) -> None:
    """Start Spark's Python workers and load the engine in them, so that the first real job does not pay for it.

    Raises:
        Unavailable: Spark lost the job, or no executor took it.
    """

    def load(chunks: Chunks) -> Chunks:
        from icedb_engine.units import flush_unit, merge_unit  # noqa: F401, PLC0415

        pa.array([0])  # Arrow loads pandas with the first array that it makes, which takes half a second
        yield from chunks

    what = "its first job (tasks need the Python and the packages of this process, see docs/spark.md)"
    rules = WatchRules(job_limit_ms=WARM_UP_LIMIT_MS)
    with spark_errors(what), JobWatch(spark, "the first Spark job, which waits for free cores", rules=rules):
        spark.range(0, 2, 1, 2).mapInArrow(load, schema="id BIGINT").collect()


def summarize(error: BaseException) -> str:
    """Return the last line of a Python traceback inside a Spark error, else its first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if ("Error: " in line or "Exception: " in line) and not line.startswith("at ")]
    return (raised[-1] if raised else (lines or [type(error).__name__])[0])[:_SHOWN_CHARS]
