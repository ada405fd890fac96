"""An import: existing Parquet files become data files of a table, each once, without being rewritten.

See ``docs/import.md``. The commit is an append under the ``ingest`` fence (F1 to F3, W1 to W3); instead of batch ids a
record says which sources it made live (:mod:`icedb_log.ingest.import_records`). The order is the point: copies, fence,
log, records, pending record, commit, committed record. Safe under any number of concurrent imports, flushes, merges and
janitors, without any lock.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final

from icedb_log.errors import CommitConflict, Fenced
from icedb_log.feed.views import require_takes_batches
from icedb_log.ingest.import_jobs import FileImporter, ImportMode, InspectedFile, InspectJob, PlacedFile, RefusedFile
from icedb_log.ingest.import_place import CopyPlacement, InPlacePlacement, Placement, named_in
from icedb_log.ingest.import_records import Assumption
from icedb_log.ingest.import_schema import settle_files
from icedb_log.ingest.import_sources import SourceFile
from icedb_log.log.fold import union_schema
from icedb_log.model import EMPTY, FileMarker
from icedb_log.table.commit import Added, AppendCommit
from icedb_log.table.table import Table
from icedb_log.units import MIB

COMMIT_ATTEMPTS: Final = 3
"""How often the same files are offered when another worker takes the fence in between."""


@dataclass(frozen=True, slots=True)
class ImportLimits:
    """Bounds of one commit; an import of more makes several.

    Attributes:
        max_files: Files in one commit.
        max_bytes: Bytes of these files; a single file may exceed it.
    """

    max_files: int = 10_000
    max_bytes: int = 256 * 1024 * MIB


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What is asked for.

    Attributes:
        mode: Copy the files below the table, or take them where they lie.
        partition: Values of partition fields that the caller vouches for, see :class:`InspectJob`.
        is_dry_run: Say what would be done; touch nothing.
        takes_changed: Import a file whose content changed since it was imported as a new one.
        assumed: What became of imports of which nobody can tell whether they landed.
    """

    mode: ImportMode = "copy"
    partition: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    is_dry_run: bool = False
    takes_changed: bool = False
    assumed: Assumption | None = None


@dataclass(slots=True)
class ImportResult:
    """What an import did with each file, or would do (``is_dry_run``).

    Attributes:
        is_dry_run: Whether nothing was touched.
        committed_keys: Log files of its commits.
        file_count: Files that it made live.
        row_count: Their rows.
        size_bytes: Their bytes.
        unsorted_count: Those among them that do not say to be sorted as the table is; merges sort them.
        partitions: Rows by encoded partition path.
        imported_before_count: Files that were imported already.
        empty_count: Files without rows: there is nothing to import.
        refused: Files that cannot be imported, with reasons.
    """

    is_dry_run: bool = False
    committed_keys: list[str] = field(default_factory=list)
    file_count: int = 0
    row_count: int = 0
    size_bytes: int = 0
    unsorted_count: int = 0
    partitions: Counter[str] = field(default_factory=Counter)
    imported_before_count: int = 0
    empty_count: int = 0
    refused: list[RefusedFile] = field(default_factory=list)

    def add(self, files: Sequence[PlacedFile]) -> None:
        """Count files as live."""
        for placed in files:
            self.file_count += 1
            self.row_count += placed.file.row_count
            self.size_bytes += placed.size_bytes
            self.unsorted_count += not placed.file.is_sorted
            self.partitions[placed.file.partition] += placed.file.row_count


def import_files(
    table: Table,
    importer: FileImporter,
    sources: Sequence[SourceFile],
    *,
    options: ImportOptions | None = None,
    limits: ImportLimits | None = None,
    hold: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> ImportResult:
    """Import files into a table, in one commit or in a few.

    Idempotent: a file that a commit of an earlier run has made live is skipped. A run that fails anywhere leaves
    each file imported or not, never half or twice; the next run finds out which.

    Args:
        table: The table.
        importer: Reads footers and copies objects.
        sources: The files, each once.
        options: What is asked for.
        limits: Bounds of one commit.
        hold: A lock that is held around each commit. Saves work only.

    Raises:
        InvalidRequest: The table is a view, a file lies where this mode cannot take it from, or nobody can tell
            whether an earlier import landed (``assumed``).
        Fenced: Other workers took the fence again and again; run again.
        CommitConflict: The same.
        CommitOutcomeUnknown: Nobody knows yet; the next run settles it.
        HaltError: The table needs a person.
        Unavailable: A server did not answer, or the copies took too long to be committed safely (W3).
    """
    options = options or ImportOptions()
    require_takes_batches(table.config)
    placement: Placement = (
        InPlacePlacement(table)
        if options.mode == "in_place"
        else CopyPlacement(table, importer, takes_changed=options.takes_changed, assumed=options.assumed)
    )
    run = _ImportRun(table, placement)
    run.result.is_dry_run = options.is_dry_run
    files = run.inspect(sources, importer, options)
    if options.is_dry_run:
        run.result.add([PlacedFile(file, file.source.url, file.source.size_bytes) for file in files])
        return run.result
    for chunk in _cut(files, limits or ImportLimits()):
        placed = placement.place(chunk)  # W1
        run.result.refused.extend(placed.refused)
        if placed.files:
            with hold():
                run.commit(placed.files)
    return run.result


class _ImportRun:
    """The state of one call of :func:`import_files`."""

    def __init__(self, table: Table, placement: Placement) -> None:
        self._table = table
        self._placement = placement
        self.result = ImportResult()

    def inspect(
        self, sources: Sequence[SourceFile], importer: FileImporter, options: ImportOptions
    ) -> tuple[InspectedFile, ...]:
        """Return the files that can be imported and are not yet, as far as can be told without the fence."""
        view = self._table.read_log()
        sorted_out = self._placement.sort_out(sources, view)
        self.result.refused.extend(sorted_out.refused)
        self.result.imported_before_count += sorted_out.imported_before_count
        if not sorted_out.wanted:
            return ()
        table = self._table
        job = InspectJob(table.paths, table.config, sorted_out.wanted, options.partition, options.mode)
        output = importer.inspect_files(job)
        self.result.refused.extend(output.refused)
        filled = [file for file in output.files if file.row_count]
        self.result.empty_count += len(output.files) - len(filled)
        problems = [(file, self._placement.find_problem(file)) for file in filled]
        self.result.refused.extend(RefusedFile(file.source.url, reason) for file, reason in problems if reason)
        good = [file for file, reason in problems if not reason]
        settled = settle_files(good, schema=union_schema(table.name, view.files).effective, config=table.config)
        self.result.refused.extend(settled.refused)
        return settled.files

    def commit(self, placed: Sequence[PlacedFile]) -> None:
        """Make files live; offer the same ones again if another worker takes the fence in between."""
        for attempt in range(1, COMMIT_ATTEMPTS + 1):
            try:
                self._commit_once(placed)
            except (Fenced, CommitConflict):
                # Certainly refused: no log file names these files. A record of this attempt stays pending, and the
                # next attempt settles it before it makes its own.
                if attempt == COMMIT_ATTEMPTS:
                    raise
            else:
                return

    def _commit_once(self, placed: Sequence[PlacedFile]) -> None:
        with AppendCommit(self._table, reads_whole_log=True) as commit:
            confirmed = self._placement.confirm(placed, commit.whole_log)
            files = [each.file for each in confirmed.files]
            settled = settle_files(files, schema=commit.known.effective, config=self._table.config)
            fitting = {file.source.url for file in settled.files}
            taken = [each for each in confirmed.files if each.file.source.url in fitting]
            if taken:
                added = Added(files=self._make_markers(taken), schema=settled.schema)
                log = commit.build(added, named=named_in(commit.whole_log))
                confirm_landed = self._placement.announce(taken, commit_id=commit.commit_id)
                committed = commit.land(log, last_check=confirmed.last_check)  # W3
                self.result.committed_keys.append(committed.key)
                confirm_landed()
        self.result.add(taken)
        self.result.imported_before_count += confirmed.imported_before_count
        self.result.refused.extend([*confirmed.refused, *settled.refused])

    def _make_markers(self, taken: Sequence[PlacedFile]) -> tuple[FileMarker, ...]:
        now_ms = self._table.clock.now_ms()
        return tuple(
            FileMarker(
                path=each.path,
                size_bytes=each.size_bytes,
                created_ms=now_ms,
                row_count=each.file.row_count,
                stats=each.file.stats,
                inexact=each.file.inexact,
            )
            for each in taken
        )


def _cut(files: tuple[InspectedFile, ...], limits: ImportLimits) -> Iterator[tuple[InspectedFile, ...]]:
    chunk: list[InspectedFile] = []
    chunk_bytes = 0
    for file in files:
        if chunk and (len(chunk) == limits.max_files or chunk_bytes + file.source.size_bytes > limits.max_bytes):
            yield tuple(chunk)
            chunk, chunk_bytes = [], 0
        chunk.append(file)
        chunk_bytes += file.source.size_bytes
    if chunk:
        yield tuple(chunk)
