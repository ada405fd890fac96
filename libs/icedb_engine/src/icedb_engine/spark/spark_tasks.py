"""Units of work as Spark tasks: what travels to a task, and what it answers.

A row is nothing but a unit's number: the units, and the settings by which a task opens the store, travel inside the
function, so that no plan or log shows them, and a job is one stage that begins at once. A unit answers with a row: its
result, or one of our errors by name; what nobody foresaw is JobCrashed, and so is the end of the process of a task.

Tasks run in processes that nobody asks for metrics. Which requests they sent to the store, and which of these failed,
goes with the next answer of that process, and the driver reports it again, as if it had sent them. What a process had
noted is lost when it is killed, or when its task was interrupted: the run's outcome tells of that.
"""

import functools
import gc
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, Final, Self

import orjson
import pyarrow as pa
from icedb_log import errors
from icedb_log.clock import SystemClock
from icedb_log.errors import IceDBError, Unavailable
from icedb_log.store.object_store import ObjectStore
from icedb_log.store.request_costs import Price, RequestCost, listen_to_costs, report_cost
from icedb_log.store.request_failures import (
    OPERATIONS,
    REASONS,
    Operation,
    Reason,
    listen_to_failures,
    report_failure,
)
from icedb_log.store_settings import StoreSettings

from icedb_engine.work import UnitKind, decode_unit, encode

REQUESTS: Final = "requests"
"""The column in which they travel."""
MAX_STORES: Final = 4
"""That a process keeps open; a worker has one."""


class RequestTally:
    """What this process asked of the store since it was taken last, and what failed. Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures: Counter[tuple[str, str]] = Counter()
        self._costs: dict[tuple[str, Price], RequestCost] = {}

    def add_failure(self, operation: Operation, reason: Reason) -> None:
        """Note one failed request."""
        with self._lock:
            self._failures[operation, reason] += 1

    def add_cost(self, cost: RequestCost) -> None:
        """Note requests that were answered."""
        key = cost.table, cost.price
        with self._lock:
            known = self._costs.get(key, RequestCost(*key, count=0))
            self._costs[key] = RequestCost(
                *key,
                known.sent_bytes + cost.sent_bytes,
                known.received_bytes + cost.received_bytes,
                known.count + cost.count,
            )

    def take(self) -> str | None:
        """Return what was noted, as text, and forget it; ``None``: nothing."""
        with self._lock:
            failures, self._failures = self._failures, Counter()
            costs, self._costs = self._costs, {}
        if not (failures or costs):
            return None
        failed = [[*key, count] for key, count in failures.items()]
        return orjson.dumps({"failed": failed, "costs": [astuple(cost) for cost in costs.values()]}).decode()


@functools.cache
def watch_requests() -> RequestTally:
    """Return the tally of this process, which notes requests from the first call on. For tasks, not for drivers."""
    tally = RequestTally()
    listen_to_failures(tally.add_failure)
    listen_to_costs(tally.add_cost)
    return tally


@functools.cache
def freeze_gc() -> None:
    """Let searches for cycles in this process pass over all that there is when its first unit ends: mostly modules.

    Spark's daemon searches after each task, for 60 ms, and the process takes no other one meanwhile.
    """
    gc.collect()
    gc.freeze()


@functools.lru_cache(maxsize=MAX_STORES)
def open_kept(store: StoreSettings) -> ObjectStore:
    """Return a store of this process, the one of the unit before: its clients and connections stay."""
    return store.open().store


def report_again(answers: Sequence[Any]) -> None:
    """Report in this process what the tasks that sent some answers asked of the store; called once for each answer.

    Args:
        answers: Rows of Spark; those without the column come from tasks in this process, which has reported it.
    """
    for answer in answers:
        text = answer[REQUESTS] if REQUESTS in answer else None  # noqa: SIM401 - rows of Spark have no get
        said = orjson.loads(text) if text else {"failed": (), "costs": ()}
        for operation, reason, count in said["failed"]:
            if operation in OPERATIONS and reason in REASONS:
                for _ in range(count):
                    report_failure(operation, reason)
        for cost in said["costs"]:
            report_cost(RequestCost(*cost))


Chunks = Iterator[pa.RecordBatch]
Answer = dict[str, Any]
"""A row: number of the unit, outcome, its text, and what was asked of the store since."""
OK: Final = "ok"
ANSWER_SCHEMA: Final = f"unit INT, outcome STRING, body STRING, {REQUESTS} STRING"
_ARROW_ANSWER: Final = pa.schema(
    [("unit", pa.int32()), ("outcome", pa.string()), ("body", pa.string()), (REQUESTS, pa.string())]
)


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


def make_task(kind: UnitKind, store: StoreSettings, units: TaskUnits) -> Callable[[int], Answer]:
    """Return what a task runs: from the number of a unit to its answer."""

    def run_unit(number: int) -> Answer:
        watch_requests()
        answer = make_answer(number, *run_body(kind, units.read(number), store))
        freeze_gc()
        return answer

    return run_unit


def make_answer(unit: int, outcome: str, body: str) -> Answer:
    """Return the row that a unit answers with."""
    return {"unit": unit, "outcome": outcome, "body": body, REQUESTS: watch_requests().take()}


def read_numbers(chunks: Chunks) -> Iterator[int]:
    """Yield the numbers of the units of a task."""
    for chunk in chunks:
        yield from chunk.column(0).to_pylist()


def make_chunk(answer: Answer) -> pa.RecordBatch:
    """Return an answer as a DataFrame takes it."""
    return pa.RecordBatch.from_pylist([answer], schema=_ARROW_ANSWER)


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
