"""A competitor in a process of its own, so that its memory is its own and all are bound to the same cores."""

import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, Final, Protocol

from bench.harness import Figure
from bench.memory import PeakMemory, read_cpu_s, sampled_memory

CORE_COUNT: Final = 2
END_LIMIT_S: Final = 60


class ProcessWork(Protocol):
    """What runs in the process. It travels there by pickle, before anything is open."""

    name: str

    def prepare(self) -> None:
        """Make fresh inputs; the first call opens what stays open. Not timed."""
        ...

    def run(self) -> None:
        """Do the work. Timed."""
        ...

    def check(self) -> Sequence[Figure]:
        """Check the result. Raises if a row is missing."""
        ...

    def close(self) -> None:
        """End what the first :meth:`prepare` opened."""
        ...


class SystemInProcess:
    """A :class:`bench.harness.System` whose work is done by a child process, with its peak memory and
    the time of its processors, of all its threads and children, as figures.

    Args:
        work: What to do there.
        is_split: Whether to report the memory of the process, its JVM and its workers apart, too.
    """

    def __init__(self, work: ProcessWork, *, is_split: bool = False) -> None:
        self.name = work.name
        self._is_split = is_split
        self._peak = PeakMemory()
        self._cpu_s = 0.0
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, work), name=f"bench-{work.name}")
        self._process.start()
        theirs.close()

    def prepare(self) -> None:
        """Make fresh inputs."""
        self._ask("prepare")

    def run(self) -> None:
        """Do the work, and watch the memory."""
        before_s = read_cpu_s(self._process.pid or 0)
        with sampled_memory(self._process.pid or 0) as self._peak:
            self._ask("run")
        self._cpu_s = read_cpu_s(self._process.pid or 0) - before_s

    def check(self) -> Sequence[Figure]:
        """Check the result, and add the memory and the time of the processors."""
        figures = [*self._ask("check"), Figure("peak_memory", "MiB", self._peak.total_mb)]
        figures.append(Figure("cpu_time", "s", self._cpu_s))
        if self._is_split:
            figures += [Figure(f"peak_{role}", "MiB", size_mb) for role, size_mb in self._peak.by_role_mb.items()]
        return figures

    def close(self) -> None:
        """End the process."""
        try:
            self._ask("close")
        finally:
            self._process.join(END_LIMIT_S)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()

    def _ask(self, what: str) -> Any:
        try:
            self._connection.send(what)
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise RuntimeError(f"{self.name}: its process died, exit code {self._process.exitcode}") from error
        if isinstance(answer, BaseException):
            raise answer
        return answer


def bind_to_cores() -> None:
    """Bind this process, and all that it starts, to the first cores that it may use."""
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:CORE_COUNT]))


def _serve(connection: Connection, work: ProcessWork) -> None:
    bind_to_cores()
    what = ""
    while what != "close":
        try:
            what = connection.recv()
        except EOFError:
            what = "close"
        try:
            answer = getattr(work, what)()
        except BaseException as error:  # noqa: BLE001 - it belongs to the process that asked
            answer = RuntimeError(f"{work.name}, {what}: {type(error).__name__}: {error}")
        try:
            connection.send(answer)
        except OSError:
            return
