"""Jobs of imports: footers and copies spread over units when there are many.

A few files are not worth another process. Units open sources with the credentials and the endpoint of the worker; the
caller has no say in that.
"""

from dataclasses import replace
from typing import Final

import structlog
from icedb_log.jobs import CopyOutput, InspectedFile, InspectJob, InspectOutput
from icedb_log.keys import TablePaths
from icedb_log.units import MIB

from icedb_engine.jobs.runner import Driver
from icedb_engine.work import CopyUnit, pack

DIRECT_FILES: Final = 64
"""Up to so many footers are read, or small files copied, in this process."""
DIRECT_BYTES: Final = 64 * MIB
FOOTERS_PER_UNIT: Final = 250
COPIES_PER_UNIT: Final = 100
COPY_UNIT_BYTES: Final = 2048 * MIB

_log = structlog.get_logger(__name__)


class ImportDriver(Driver):
    """Runs the jobs of imports: a :class:`icedb_log.jobs.FileImporter`."""

    def inspect_files(self, job: InspectJob) -> InspectOutput:
        """Read the footers of a job's files. Raises Unavailable when a store or the engine did not answer."""
        started_ms = self._clock.monotonic_ms()
        parts = pack(job.sources, lambda _: 1, max_bytes=FOOTERS_PER_UNIT)
        units = [replace(job, sources=part) for part in parts]
        results: list[InspectOutput] = self._runner.run("inspect", units, is_small=len(job.sources) <= DIRECT_FILES)
        output = InspectOutput(
            tuple(file for result in results for file in result.files),
            tuple(refused for result in results for refused in result.refused),
        )
        _log.info(
            "footers read",
            table=job.paths.name,
            files=len(job.sources),
            refused=len(output.refused),
            duration_ms=self._clock.monotonic_ms() - started_ms,
        )
        return output

    def copy_files(self, paths: TablePaths, files: tuple[InspectedFile, ...]) -> CopyOutput:
        """Copy files, each to a fresh key. Not idempotent. Raises Unavailable as :meth:`inspect_files` does."""
        started_ms = self._clock.monotonic_ms()
        size_bytes = sum(file.source.size_bytes for file in files)
        parts = pack(files, lambda file: file.source.size_bytes, max_bytes=COPY_UNIT_BYTES, max_count=COPIES_PER_UNIT)
        units = [CopyUnit(paths, part, self._limits.engine) for part in parts]
        is_small = len(files) <= DIRECT_FILES and size_bytes <= DIRECT_BYTES
        results: list[CopyOutput] = self._runner.run("copy", units, is_small=is_small)
        output = CopyOutput(
            tuple(placed for result in results for placed in result.files),
            tuple(refused for result in results for refused in result.refused),
        )
        _log.info(
            "files copied",
            table=paths.name,
            files=len(output.files),
            size_bytes=sum(placed.size_bytes for placed in output.files),
            refused=len(output.refused),
            duration_ms=self._clock.monotonic_ms() - started_ms,
        )
        return output
