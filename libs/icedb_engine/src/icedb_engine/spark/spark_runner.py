"""Runs units of work as Spark tasks: one row, one partition, one task for each unit.

A session of this process is given a plain function to run (an RDD): to plan a DataFrame takes its JVM longer than a
small unit works. A Spark Connect server takes DataFrames only, and is given one. A row is nothing but a unit's number:
the units, and the settings by which a task opens the store, travel inside the function, so that no plan or log shows
them, and a job is one stage that begins at once. A unit answers with a row: its result, or one of our errors by name;
anything else fails the task, which Spark tries again.

Tasks run in processes that nobody asks for metrics. Requests to the store that failed in one of them go with the next
answer of that process, and the driver reports them again, as if they had failed there. What a process had noted is lost
when it is killed, or when its task was interrupted: the run's outcome tells of that.
"""

import functools
import gc
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self

import orjson
import pyarrow as pa
from icedb_log import errors
from icedb_log.clock import SystemClock
from icedb_log.errors import IceDBError, Unavailable
from icedb_log.store.object_store import ObjectStore
from icedb_log.store.request_failures import (
    OPERATIONS,
    REASONS,
    Operation,
    Reason,
    listen_to_failures,
    report_failure,
)
from icedb_log.store.stores import StoreSettings
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from icedb_engine.spark.spark_session import is_remote
from icedb_engine.spark.spark_watch import JobWatch, WatchRules
from icedb_engine.units.work import DOING, UnitKind, decode_result, decode_unit, encode

if TYPE_CHECKING:
    from icedb_engine.spark.spark_blobs import SparkBlobs

FAILURES: Final = "failures"
"""The column in which they travel."""
MAX_STORES: Final = 4
"""That a process of tasks keeps open; a worker has one."""


class FailureTally:
    """What failed in this process since it was taken last. Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, operation: Operation, reason: Reason) -> None:
        """Note one failed request."""
        with self._lock:
            self._counts[operation, reason] += 1

    def take(self) -> str | None:
        """Return what was noted, as text, and forget it; ``None``: nothing."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        rows = [[operation, reason, count] for (operation, reason), count in counts.items()]
        return orjson.dumps(rows).decode() if rows else None


@functools.cache
def watch_failures() -> FailureTally:
    """Return the tally of this process, which notes what fails from the first call on. For tasks, not for drivers."""
    tally = FailureTally()
    listen_to_failures(tally.add)
    return tally


@functools.cache
def pass_over_modules() -> None:
    """Let searches for cycles in this process pass over all that there is when its first unit ends: mostly modules.

    Spark's daemon searches after each task, for 60 ms, and the process takes no other one meanwhile.
    """
    gc.collect()
    gc.freeze()


@functools.lru_cache(maxsize=MAX_STORES)
def open_kept(store: StoreSettings) -> ObjectStore:
    """Return a store of this process's tasks, the one of the task before: its clients and connections stay."""
    return store.open().store


def report_again(answers: Sequence[Any]) -> None:
    """Report in this process what failed in the tasks that sent some answers; called once for each answer.

    Args:
        answers: Rows of Spark; those without the column come from tasks in this process, which has reported it.
    """
    for answer in answers:
        text = answer[FAILURES] if FAILURES in answer else None  # noqa: SIM401 - rows of Spark have no get
        for operation, reason, count in orjson.loads(text) if text else ():
            if operation in OPERATIONS and reason in REASONS:
                for _ in range(count):
                    report_failure(operation, reason)


Chunks = Iterator[pa.RecordBatch]
Answer = dict[str, Any]
"""A row: number of the unit, outcome, its text, and the requests to the store that have failed since."""
OK: Final = "ok"
ANSWER_SCHEMA: Final = f"unit INT, outcome STRING, body STRING, {FAILURES} STRING"
_ARROW_ANSWER: Final = pa.schema(
    [("unit", pa.int32()), ("outcome", pa.string()), ("body", pa.string()), (FAILURES, pa.string())]
)
_SHOWN_CHARS: Final = 500
WARM_UP_LIMIT_MS: Final = 120_000
"""How long a cluster may take to give this application its first cores."""


class SparkRunner:
    """Runs units on one session against one store.

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

    def checking(self, check_alive: Callable[[], None] | None) -> "SparkRunner":
        """Return a runner for one run: its jobs stop when ``check_alive`` raises, with what that raised."""
        return SparkRunner(self.spark, self.store, rules=self._rules, check_alive=check_alive)

    def open_store(self) -> ObjectStore:
        """Return the store, opened in this process."""
        return self.store.open().store

    def open_blobs(self) -> "SparkBlobs":
        """Return what keeps the rows of a flush in Spark between its two jobs."""
        from icedb_engine.spark.spark_blobs import SparkBlobs  # noqa: PLC0415 - it imports this module

        return SparkBlobs(self)

    def run(self, kind: UnitKind, units: Sequence[Any], *, is_users: bool = False, is_small: bool = False) -> list[Any]:
        """Run units as :class:`icedb_engine.jobs.runner.UnitRunner` says."""
        if is_small:
            from icedb_engine.imports.import_unit import open_source  # noqa: PLC0415 - most drivers only submit
            from icedb_engine.local_engine import LocalRunner  # noqa: PLC0415

            here = LocalRunner(self.open_store(), clock=SystemClock(), sources=open_source(self.store.s3))
            return here.run(kind, units)
        bodies = encode_shared(units)
        word = "import" if kind in ("inspect", "copy") else kind
        what = f"a {word} job of {len(bodies)} units"
        with spark_errors(what), self.watch(what, is_users=is_users, doing=DOING[kind]):
            told = TaskUnits.of(bodies)
            rows = self.collect(make_task(kind, self.store, told), told)
            answers = read_answers(rows, range(len(bodies)))
        return [decode_result(kind, answer) for answer in answers]

    def collect(self, answer: Callable[[int], Answer], units: "TaskUnits") -> list[Any]:
        """Return the answers of some units, in any order: what a function returns of their numbers, each in a task."""
        if is_remote(self.spark):
            return list(self.make_units(units).mapInArrow(_in_chunks(answer), schema=ANSWER_SCHEMA).collect())
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


def encode_shared(units: Sequence[Any]) -> list[str]:
    """Return units as text, each with its share of the threads of the job: tasks run at once."""
    bounded = [unit for unit in units if hasattr(unit, "engine")]
    shared = [replace(unit, engine=unit.engine.shared_by(len(bounded))) for unit in bounded]
    return [encode(unit) for unit in shared or units]


@dataclass(frozen=True, slots=True)
class TaskUnits:
    """The units of a job, as they travel in the function that its tasks run: each task reads its own.

    Attributes:
        bodies: Their text, compressed: it is mostly paths.
        first: Number of the first one.
    """

    bodies: tuple[bytes, ...]
    first: int = 0

    @classmethod
    def of(cls, bodies: Sequence[str], *, first: int = 0) -> Self:
        """Return units that are text already."""
        return cls(tuple(zlib.compress(body.encode(), 1) for body in bodies), first)

    @property
    def numbers(self) -> list[int]:
        """The numbers of the units."""
        return list(range(self.first, self.first + len(self.bodies)))

    def read(self, number: int) -> str:
        """Return the text of a unit."""
        return zlib.decompress(self.bodies[number - self.first]).decode()


@contextmanager
def spark_errors(what: str) -> Iterator[None]:
    """Turn Spark's errors into Unavailable, which names the job."""
    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:
        raise Unavailable(f"Spark lost {what}: {summarize(error)}") from error


def read_answers(rows: Sequence[Any], units: Sequence[int]) -> list[str]:
    """Return the results of some units, in order, and report what failed in their tasks; called once for each answer.

    Raises what the first unit that failed raised, or Unavailable.
    """
    report_again(rows)
    answers = sorted(rows, key=lambda row: row["unit"])
    for answer in answers:
        if answer["outcome"] != OK:
            raise _find_error(answer["outcome"])(answer["body"])
    if [answer["unit"] for answer in answers] != list(units):
        raise Unavailable(f"Spark answered {len(answers)} of {len(units)} units: run the job again")
    return [answer["body"] for answer in answers]


def warm_up(spark: SparkSession, *, task_count: int = 2) -> None:
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
        spark.range(0, task_count, 1, task_count).mapInArrow(load, schema="id BIGINT").collect()


def make_task(kind: UnitKind, store: StoreSettings, units: TaskUnits) -> Callable[[int], Answer]:
    """Return what a task runs: from the number of a unit to its answer."""

    def run_unit(number: int) -> Answer:
        watch_failures()
        answer = make_answer(number, *run_body(kind, units.read(number), store))
        pass_over_modules()
        return answer

    return run_unit


def make_answer(unit: int, outcome: str, body: str) -> Answer:
    """Return the row that a unit answers with."""
    return {"unit": unit, "outcome": outcome, "body": body, FAILURES: watch_failures().take()}


def read_numbers(chunks: Chunks) -> Iterator[int]:
    """Yield the numbers of the units of a task."""
    for chunk in chunks:
        yield from chunk.column(0).to_pylist()


def make_chunk(answer: Answer) -> pa.RecordBatch:
    """Return an answer as a DataFrame takes it."""
    return pa.RecordBatch.from_pylist([answer], schema=_ARROW_ANSWER)


def _in_chunks(answer: Callable[[int], Answer]) -> Callable[[Chunks], Chunks]:
    return lambda chunks: (make_chunk(answer(number)) for number in read_numbers(chunks))


def run_body(kind: UnitKind, body: str, store: StoreSettings) -> tuple[str, str]:
    """Run one unit that is text; return ``ok`` and its result, or the name and message of one of our errors."""
    from icedb_engine.imports.import_unit import open_source  # noqa: PLC0415 - most drivers only submit
    from icedb_engine.units.run_unit import run_unit  # noqa: PLC0415

    try:
        unit = decode_unit(kind, body)
        return OK, encode(run_unit(kind, unit, open_kept(store), clock=SystemClock(), sources=open_source(store.s3)))
    except IceDBError as error:
        return type(error).__name__, str(error)


def _find_error(name: str) -> type[IceDBError]:
    found = getattr(errors, name, None)
    return found if isinstance(found, type) and issubclass(found, IceDBError) else Unavailable


def summarize(error: BaseException) -> str:
    """Return the last line of a Python traceback inside a Spark error, else its first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if ("Error: " in line or "Exception: " in line) and not line.startswith("at ")]
    raised = raised or [line for line in lines if line.startswith("details = ")]  # of a server that does not answer
    return (raised[-1] if raised else (lines or [type(error).__name__])[0])[:_SHOWN_CHARS]
