"""Callers in processes of their own: what they measure is the answer, not each other's interpreter.

The processes are started once and serve every case: a caller travels to them by pickle, opens what it needs, calls once
without a clock, and then as often as the time allows.
"""

import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from time import perf_counter
from typing import Any, Final, Protocol

from bench.harness import Figure
from bench.processes import bind_to_cores

END_LIMIT_S: Final = 30
MS: Final = 1000
_CENTILES: Final = 100


class Caller(Protocol):
    """What is called again and again."""

    name: str

    def open(self) -> None:
        """Open what a user keeps open between calls."""
        ...

    def call(self) -> int:
        """Ask once; return how many data files the answer has."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn of some callers measured.

    Attributes:
        elapsed_s: From the first call to the end of the last.
        latencies_s: Of all calls.
        file_counts: What the answers had, each count once.
    """

    elapsed_s: float
    latencies_s: tuple[float, ...]
    file_counts: frozenset[int]


class CallerPool:
    """Processes that call. Use :func:`running_callers`."""

    def __init__(self, connections: Sequence[Connection]) -> None:
        self._connections = connections

    def run(self, caller: Caller, *, count: int, seconds: float) -> Turn:
        """Let ``count`` processes call side by side for some seconds, each at least once."""
        used = self._connections[:count]
        for connection in used:
            connection.send((caller, seconds))
        for connection in used:
            _receive(connection)
        began = perf_counter()
        for connection in used:
            connection.send("go")
        answers = [_receive(connection) for connection in used]
        elapsed_s = perf_counter() - began
        latencies_s = tuple(latency for latencies, _ in answers for latency in latencies)
        return Turn(elapsed_s, latencies_s, frozenset().union(*(counts for _, counts in answers)))


class CallersSystem:
    """A :class:`bench.harness.System`: some callers for some time.

    Args:
        caller: Who calls.
        pool: Where.
        count: How many at once.
        seconds: For how long.
        file_count: What each answer must have.
        name: Another name than the caller's.
    """

    def __init__(
        self, caller: Caller, *, pool: CallerPool, count: int, seconds: float, file_count: int, name: str | None = None
    ) -> None:
        self.name = name or caller.name
        self.row_count = 0
        self._caller = caller
        self._pool = pool
        self._count = count
        self._seconds = seconds
        self._file_count = file_count
        self._turn = Turn(0.0, (), frozenset())

    def prepare(self) -> None:
        """Nothing changes between turns."""

    def run(self) -> None:
        """Call."""
        self._turn = self._pool.run(self._caller, count=self._count, seconds=self._seconds)

    def check(self) -> Sequence[Figure]:
        """Look that every answer was whole; say how long they took."""
        if self._turn.file_counts != {self._file_count}:
            raise AssertionError(f"{self.name}: {set(self._turn.file_counts)} files, not {self._file_count}")
        self.row_count = len(self._turn.latencies_s)
        figures = latency_figures(self._turn.latencies_s)
        return (*figures, Figure("calls_per_second", "1/s", self.row_count / self._turn.elapsed_s))


def latency_figures(latencies_s: Sequence[float]) -> tuple[Figure, ...]:
    """Return median and 99th percentile; the latter is the slowest call where there are fewer than 100."""
    ordered = sorted(latencies_s)
    p99 = ordered[min(len(ordered) - 1, len(ordered) * (_CENTILES - 1) // _CENTILES)]
    return Figure("p50", "ms", ordered[len(ordered) // 2] * MS), Figure("p99", "ms", p99 * MS)


@contextmanager
def running_callers(count: int) -> Iterator[CallerPool]:
    """Run processes that wait for somebody to call."""
    context = multiprocessing.get_context("spawn")
    processes: list[SpawnProcess] = []
    connections: list[Connection] = []
    try:
        for number in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), name=f"bench-caller-{number}")
            process.start()
            theirs.close()
            processes.append(process)
            connections.append(ours)
        yield CallerPool(connections)
    finally:
        for connection in connections:
            connection.close()
        for process in processes:
            process.join(END_LIMIT_S)
            if process.is_alive():
                process.kill()
                process.join()


def _receive(connection: Connection) -> Any:
    try:
        answer = connection.recv()
    except EOFError as error:
        raise RuntimeError("a caller's process died") from error
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _serve(connection: Connection) -> None:
    bind_to_cores()
    while True:
        try:
            caller, seconds = connection.recv()
        except EOFError:
            return
        try:
            caller.open()
            caller.call()
            connection.send("ready")
            connection.recv()
            answer: object = _call(caller, seconds)
            caller.close()
        except Exception as error:  # noqa: BLE001 - it belongs to the process that asked
            answer = RuntimeError(f"{caller.name}: {type(error).__name__}: {error}")
        connection.send(answer)


def _call(caller: Caller, seconds: float) -> tuple[list[float], set[int]]:
    latencies: list[float] = []
    counts: set[int] = set()
    began = perf_counter()
    end = began + seconds
    while began < end or not latencies:
        counts.add(caller.call())
        ended = perf_counter()
        latencies.append(ended - began)
        began = ended
    return latencies, counts
