"""The data path in the caller's process: units of work run where they are asked for, one after the other.

The drivers, the units and their checks are those of the services; only the tasks of Spark are not there. A flush is one
unit: what it has no room for stays staged, and is taken by the next flush. SQL of users runs in a process of its own,
here as everywhere (:mod:`icedb_engine.sql`).
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from icedb_log.clock import Clock, SystemClock
from icedb_log.jobs import CheckAlive
from icedb_log.phases import tell_progress
from icedb_log.store.object_store import ObjectStore
from icedb_log.units import GIB

from icedb_engine.imports.import_unit import OpenSource
from icedb_engine.jobs.engine import JobEngine
from icedb_engine.limits import EngineLimits, FlushUnitLimits, JobLimits
from icedb_engine.machine import find_core_count, find_memory_bytes
from icedb_engine.units.run_unit import run_unit
from icedb_engine.units.work import DOING, UnitKind

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
