"""W=vacuum: dead data files of one table, found by the log and deleted; and a plan over very many of them.

Counts, where the server counts: all requests of a vacuum, its log files and its audit included.
"""

from collections.abc import Iterable, Iterator

from bench.counting_s3 import running_counting_s3
from bench.harness import Case, Workload
from bench.processes import SystemInProcess
from bench.vacuum_places import Bucket, Directory, Place
from bench.vacuum_systems import FILE_BYTES, DeltaRs, DeltaRsPlan, Floor, IceDB, IceDBMergePlan, IceDBPlan


class VacuumWorkload(Workload):
    """A directory, a bucket, and a plan that deletes nothing."""

    description = f"find dead data files of {FILE_BYTES} bytes by the log, and delete them, two cores"

    def cases(self) -> Iterable[Case]:
        """Make one case after the other ready."""
        count, marker_count = self.options.object_count, self.options.marker_count
        directory = f"a directory, {count:,} dead files"
        bucket = f"S3 over HTTP, {count:,} dead files"
        plan = f"a plan over {marker_count:,} markers, in a fresh process"
        if self.wants(directory):
            yield from _deletes(directory, Directory(self.folder / "directory"), count)
        if self.wants(bucket):
            with running_counting_s3(self.folder / "s3") as endpoint:
                yield from _deletes(bucket, Bucket(endpoint), count)
        if self.wants(plan):
            plans = [each(self.folder / f"plan-{each.name}", count=marker_count) for each in (IceDBPlan, DeltaRsPlan)]
            yield Case(name=plan, row_count=marker_count, systems=plans, warm_turn_count=0, unit="markers")
        dead_count = marker_count // 10
        mostly_live = f"a plan over {marker_count:,} live and {dead_count:,} dead files, in a fresh process"
        if self.wants(mostly_live):
            plans = [
                kind(self.folder / f"plan-live-{name}", count=dead_count, live_count=marker_count)
                for kind, name in ((IceDBPlan, "ours"), (IceDBMergePlan, "ours"), (DeltaRsPlan, "delta"))
            ]
            yield Case(name=mostly_live, row_count=marker_count, systems=plans, warm_turn_count=0, unit="markers")


def _deletes(name: str, place: Place, count: int) -> Iterator[Case]:
    systems: list[SystemInProcess | DeltaRs] = [
        SystemInProcess(IceDB(place, count=count)),
        DeltaRs(place, count=count),
        SystemInProcess(Floor(place, count=count)),
    ]
    try:
        yield Case(name=name, row_count=count, systems=systems, size_bytes=0, unit="objects")
    finally:
        for system in systems:
            system.close()
