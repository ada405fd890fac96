"""The engine of a process: everything that runs jobs, through one runner."""

from icedb_log.clock import Clock, SystemClock

from icedb_engine.jobs.feed_driver import FeedDriver
from icedb_engine.jobs.flush_driver import FlushDriver
from icedb_engine.jobs.import_driver import ImportDriver
from icedb_engine.jobs.merge_driver import MergeDriver
from icedb_engine.jobs.runner import UnitRunner
from icedb_engine.limits import JobLimits


class JobEngine:
    """Drivers of all kinds of jobs; each operation uses those that it needs.

    Args:
        runner: Runs their units.
        clock: For durations in the log.
        limits: Bounds of jobs and their units.

    Attributes:
        writer: Runs flush jobs.
        merger: Runs merge jobs, with or without a change of rows, and tells what a change would do.
        changer: The merger, by its other name.
        importer: Runs the jobs of imports.
        feeder: Runs the jobs that feed views.
    """

    def __init__(self, runner: UnitRunner, *, clock: Clock | None = None, limits: JobLimits | None = None) -> None:
        clock = clock or SystemClock()
        self.writer = FlushDriver(runner, clock=clock, limits=limits)
        self.merger = self.changer = MergeDriver(runner, clock=clock, limits=limits)
        self.importer = ImportDriver(runner, clock=clock, limits=limits)
        self.feeder = FeedDriver(runner, clock=clock, limits=limits)

    def is_alive(self) -> bool:
        """Whether units can be run."""
        return True

    def has_died(self) -> bool:
        """Whether it will never run a unit again; waits for nothing."""
        return False

    def close(self) -> None:
        """Give back what the engine holds: nothing, unless a subclass holds something."""
