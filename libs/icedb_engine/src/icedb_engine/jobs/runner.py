"""The protocol by which a driver runs its units: in :mod:`icedb_engine.spark`, or in the process itself."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from icedb_log.clock import Clock
from icedb_log.jobs import CheckAlive
from icedb_log.model import FileMarker
from icedb_log.store.object_store import ObjectStore

from icedb_engine.limits import JobLimits
from icedb_engine.work import FlushUnit, UnitKind, UnitResult, WriteUnit


class FlushBlobs(AbstractContextManager["FlushBlobs"], Protocol):
    """The rows of a flush, between the units that read them and those that write them; forgotten at its end.

    Attributes:
        unit_count: Units so far; the next one has this number.
    """

    unit_count: int

    def parse(self, units: Sequence[FlushUnit]) -> list[UnitResult]:
        """Run units that read, keep their blobs, and return their results, in order. Raises as a runner does."""
        ...

    def write(self, units: Sequence[WriteUnit]) -> tuple[FileMarker, ...]:
        """Run units that write, each with the blobs that it was planned to take; return the markers of their files."""
        ...


class UnitRunner(Protocol):
    """Runs units against one store."""

    def open_store(self) -> ObjectStore:
        """Return the store, for what a driver reads itself."""
        ...

    def checking(self, check_alive: CheckAlive | None) -> "UnitRunner":
        """Return a runner for one run: its jobs stop when ``check_alive`` raises, with what that raised."""
        ...

    def run(self, kind: UnitKind, units: Sequence[Any], *, is_users: bool = False, is_small: bool = False) -> list[Any]:
        """Run units, the first ones first, and return their results in the same order.

        Args:
            kind: What the units are.
            units: At least one.
            is_users: A user waits for what it asked for: at a time limit InvalidRequest, not Unavailable.
            is_small: So little work that no other process is worth it.

        Raises:
            IceDBError: What the first unit that failed raised, as the same class; or why the run should stop.
            JobCrashed: A unit failed in a way that nobody foresaw, or the process that ran it has ended.
            Unavailable: The job was lost, or took too long.
        """
        ...

    def open_blobs(self) -> FlushBlobs | None:
        """Return what spreads a big flush over units that read and units that write; ``None``: it is one unit."""
        ...


class Driver:
    """Runs jobs of one kind."""

    def __init__(self, runner: UnitRunner, *, clock: Clock, limits: JobLimits | None = None) -> None:
        self._runner = runner
        self._clock = clock
        self._limits = limits or JobLimits()
