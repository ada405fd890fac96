"""The data path in the caller's process: units of work run where they are asked for, one after the other.

The drivers, the units and their checks are those of the services; only the tasks of Spark are not there. A flush is one
unit: what it has no room for stays staged, and is taken by the next flush. SQL of users runs in a process of its own,
here as everywhere (:mod:`icedb_engine.sql`).

It may use the memory and the cores of the machine, or of its container, if these are fewer. A container's limits are
control groups of Linux (version 2, and 1 where it is still used): those of the process's own group and of all groups
around it hold. Where there are none, or they cannot be read, the machine's figures count.
"""

import math
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from icedb_log.clock import Clock, SystemClock
from icedb_log.jobs import CheckAlive
from icedb_log.phases import tell_progress
from icedb_log.store.object_store import ObjectStore
from icedb_log.units import GIB

from icedb_engine.imports.import_unit import OpenSource
from icedb_engine.jobs.engine import JobEngine
from icedb_engine.limits import EngineLimits, FlushUnitLimits, JobLimits
from icedb_engine.units.run_unit import run_unit
from icedb_engine.work import DOING, UnitKind

MAX_MEMORY_BYTES: Final = 1 * GIB
MAX_THREADS: Final = 4
ASK_EACH_S: Final = 1.0
PARTS: Final = 4
"""A unit holds batches of so small a part of its memory, decoded: columns and the native engine need the rest."""


def choose_limits(*, memory_bytes: int | None = None, thread_count: int | None = None) -> JobLimits:
    """Return the bounds of units that run in this process.

    Args:
        memory_bytes: What one unit may take, about; a quarter of the memory that there is, of the machine or of its
            container, at most 1 GiB, unless told.
        thread_count: Threads of the native engine; as many as there are cores, counted alike, at most 4, unless told.
    """
    memory_bytes = memory_bytes or min(MAX_MEMORY_BYTES, find_memory_bytes() // 4)
    thread_count = thread_count or min(MAX_THREADS, find_core_count())
    return JobLimits(
        FlushUnitLimits(unit_decoded_bytes=memory_bytes // PARTS),
        EngineLimits(memory_bytes=memory_bytes, thread_count=thread_count),
        direct_bytes=2 * memory_bytes // PARTS,  # with a query, units of half of it
    )


class LocalRunner:
    """Runs units in this process; a :class:`icedb_engine.jobs.runner.UnitRunner`.

    Args:
        store: Of the tables.
        clock: For ids of new files.
        sources: Opens the store of a source of an import; as boto3 finds S3 unless told.
        check_alive: Raises if the run should stop; asked before each unit, and each second while it runs, which renews
            the run's claim on its fence (F6). A unit goes to its end before what that raised is raised.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        clock: Clock,
        sources: OpenSource | None = None,
        check_alive: CheckAlive | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._sources = sources
        self._check_alive = check_alive

    def open_store(self) -> ObjectStore:
        """Return the store."""
        return self._store

    def checking(self, check_alive: CheckAlive | None) -> "LocalRunner":
        """Return a runner for one run."""
        return LocalRunner(self._store, clock=self._clock, sources=self._sources, check_alive=check_alive)

    def run(self, kind: UnitKind, units: Sequence[Any], *, is_users: bool = False, is_small: bool = False) -> list[Any]:
        """Run units one after the other. Raises what a unit raises, or why the run should stop."""
        del is_users, is_small
        results: list[Any] = []
        for unit in units:
            tell_progress(DOING[kind], len(results), len(units))
            with _asked_beside(self._check_alive):
                results.append(run_unit(kind, unit, self._store, clock=self._clock, sources=self._sources))
        return results

    def open_blobs(self) -> None:
        """Return None: nothing is spread."""


@contextmanager
def _asked_beside(check_alive: CheckAlive | None) -> Iterator[None]:
    """Ask whether a run should go on, before a block and again and again beside it; raise why not when it has ended."""
    if check_alive is None:
        yield
        return
    check_alive()
    ended = threading.Event()
    problems: list[BaseException] = []

    def ask() -> None:
        while not problems and not ended.wait(ASK_EACH_S):
            try:
                check_alive()
            except BaseException as error:  # noqa: BLE001 - raised again where the run is
                problems.append(error)

    asker = threading.Thread(target=ask, name="icedb-check-alive", daemon=True)
    asker.start()
    try:
        yield
    finally:
        ended.set()
        asker.join()
    if problems:
        raise problems[0]


class LocalEngine(JobEngine):
    """The engine of a process that works itself. Opening it starts and holds nothing.

    Args:
        store: Of the tables.
        clock: For ids of new files, and durations in the log.
        limits: Bounds of jobs and their units; those of :func:`choose_limits` unless told.
        sources: Opens the store of a source of an import; as boto3 finds S3 unless told.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        clock: Clock | None = None,
        limits: JobLimits | None = None,
        sources: OpenSource | None = None,
    ) -> None:
        clock = clock or SystemClock()
        super().__init__(
            LocalRunner(store, clock=clock, sources=sources), clock=clock, limits=limits or choose_limits()
        )


_ROOT: Final = Path("/")
_GROUPS: Final = "sys/fs/cgroup"


def find_memory_bytes(root: Path = _ROOT) -> int:
    """Return the memory that this process may use. ``root`` is the file system's; another one in tests."""
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = (
        int(text)
        for folder in _group_folders(root, "memory")
        for name in ("memory.max", "memory.limit_in_bytes")
        if (text := _read(folder / name)).isdecimal()
    )
    return min([machine_bytes, *filter(None, limits)])


def find_core_count(root: Path = _ROOT) -> int:
    """Return how many cores this process may use at once, at least 1. ``root`` as of :func:`find_memory_bytes`."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _group_folders(root, "cpu"):
        told = (
            _read(folder / "cpu.max") or f"{_read(folder / 'cpu.cfs_quota_us')} {_read(folder / 'cpu.cfs_period_us')}"
        )
        with suppress(ValueError, ZeroDivisionError):  # "max", or no limit: -1
            quota, period = map(int, told.split())
            cores = min(cores, math.ceil(quota / period)) if quota > 0 else cores
    return max(1, cores)


def _group_folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the groups that bound this process by a controller, outermost first."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / _GROUPS / (controller if controllers else "")
        inner = Path(path.lstrip("/"))
        yield from (top / each for each in (*reversed(inner.parents), inner) if ".." not in each.parts)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
