"""An import: existing Parquet files become data files of a table, each once, without being rewritten.

See ``docs/import.md``. The commit is an append under the ``ingest`` fence (F1 to F3, W1 to W3); instead of batch ids a
record says which sources it made live (:mod:`icedb_log.imports.import_records`). The order is the point: copies, fence,
log, records, pending record, commit, committed record. Safe under any number of concurrent imports, flushes, merges and
janitors, without any lock.

A file comes to lie below a table in two ways: as a copy (:class:`_Copies`), or because somebody put it there
(:class:`_InPlace`). Which of them fit the table's schema is decided by the rule of batches (``docs/types.md``), by the
types of columns instead of values: the log's schema and the declared columns come first, then the files in the order of
their URLs. A file that does not fit is refused, whole.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from icedb_log.commit.commit import Added, AppendCommit, Stopwatch
from icedb_log.commit.table import Table
from icedb_log.errors import CommitConflict, Fenced, InvalidRequest, NotFound
from icedb_log.imports.import_records import (
    Assumption,
    ImportedSource,
    ImportRecord,
    create_record,
    find_imported,
    mark_committed,
    read_records,
    settle_records,
)
from icedb_log.jobs import (
    CopyOutput,
    FileImporter,
    ImportMode,
    InspectedFile,
    InspectJob,
    PlacedFile,
    RefusedFile,
    SourceFile,
)
from icedb_log.log.fold import named_paths, union_schema
from icedb_log.log.widening import fixed_columns
from icedb_log.model import EMPTY, LogView
from icedb_log.store.object_store import limit_reads, map_each
from icedb_log.store.table_store import TableStore
from icedb_log.table.column_names import MAX_TABLE_COLUMNS, ColumnNames
from icedb_log.table.table_config import TableConfig, require_takes_batches
from icedb_log.units import MIB

COMMIT_ATTEMPTS: Final = 3
"""How often the same files are offered when another worker takes the fence in between."""

MAX_REASONS: Final = 100
MAX_PARTITIONS: Final = 1000
"""What the details of a result name one by one; they have the numbers of all."""
_MODES: Final = ("copy", "in_place")
_ASSUMPTIONS: Final = (None, "landed", "lost")
_HEAD_THREADS: Final = 16
_CLOCK_MARGIN_MS: Final = 2000
"""Stores tell times in whole seconds; an age must not be underestimated here."""
_CHANGED: Final = (
    "it was imported before, with other content: if it still holds the same events, they would be in the table twice. "
    "If all of it is new, import it with --changed"
)
_FIELD_IDS: Final = (
    "its columns have field ids (N6), by which engines that speak Iceberg would take one column for another: import it "
    "without --in-place from another folder, which copies it without them, or write it again without"
)


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

    @property
    def is_idle(self) -> bool:
        """Whether no file was imported or refused, or was to be."""
        return not (self.file_count or self.refused or self.is_dry_run)

    def details(self) -> dict[str, Any]:
        """Return it as the result of a task; the counts are of all, also of what it does not name."""
        return {
            "dry_run": self.is_dry_run,
            "commits": len(self.committed_keys),
            "files": self.file_count,
            "rows": self.row_count,
            "bytes": self.size_bytes,
            "unsorted": self.unsorted_count,
            "imported_before": self.imported_before_count,
            "empty": self.empty_count,
            "refused": len(self.refused),
            "reasons": [{"file": each.url, "reason": each.reason} for each in self.refused[:MAX_REASONS]],
            "partition_count": len(self.partitions),
            "partitions": [
                {"partition": partition, "rows": rows}
                for partition, rows in sorted(self.partitions.items())[:MAX_PARTITIONS]
            ],
        }


def make_options(
    config: TableConfig,
    mode: str,
    partition: Mapping[str, str] | None,
    *,
    dry_run: bool,
    changed: bool,
    assume: str | None,
) -> ImportOptions:
    """Return what a task asks for as options. Raises InvalidRequest."""
    partition = partition or {}
    names = [field.name for field in config.partition]
    unknown = next((name for name in partition if name not in names), None)
    if unknown is not None:
        raise InvalidRequest(
            f"table {config.name} has no partition {str(unknown)[:80]!r}, only {', '.join(names) or 'none at all'}"
        )
    if not all(isinstance(value, str) for value in partition.values()):
        raise InvalidRequest("partition values are text")
    if mode not in _MODES or assume not in _ASSUMPTIONS:
        raise InvalidRequest(f"mode is one of {', '.join(_MODES)}, assume landed or lost; not {mode!r} and {assume!r}")
    return ImportOptions(
        mode="in_place" if mode == "in_place" else "copy",
        partition=partition,
        is_dry_run=dry_run,
        takes_changed=changed,
        assumed="landed" if assume == "landed" else "lost" if assume == "lost" else None,
    )


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
        InvalidRequest: The table is a view; a file lies where this mode cannot take it from, or
            nobody can tell whether an earlier import landed (``assumed``).
        Fenced: Other workers took the fence again and again; run again.
        CommitConflict: The same.
        CommitOutcomeUnknown: Nobody knows yet; the next run settles it.
        HaltError: The table needs a person.
        Unavailable: A server did not answer, or the copies took too long to be committed safely (W3).
    """
    options = options or ImportOptions()
    require_takes_batches(table.config)
    result = ImportResult(is_dry_run=options.is_dry_run)
    way = (_InPlace if options.mode == "in_place" else _Copies)(table, importer, options)
    files = _inspect(way, sources, result)
    if options.is_dry_run:
        result.add([PlacedFile(file, file.source.url, file.source.size_bytes) for file in files])
        return result
    for chunk in _cut(files, limits or ImportLimits()):
        placed = way.place(chunk)  # W1
        result.refused.extend(placed.refused)
        if placed.files:
            with hold():
                _commit(way, placed.files, result)
    return result


@dataclass(frozen=True, slots=True)
class _Confirmed:
    """Files that may be committed under the fence; ``last_check`` raises when that comes too late (W3)."""

    files: Sequence[PlacedFile]
    refused: Sequence[RefusedFile]
    last_check: Callable[[], None]


class _Way(ABC):
    """How files come to lie below a table: which are imported already, what keeps one from it, what is checked."""

    def __init__(self, table: Table, importer: FileImporter, options: ImportOptions) -> None:
        self.table: Final = table
        self.importer: Final = importer
        self.options: Final = options
        self._own_url: Final = data_url(table)
        self._limit_ms: Final = table.config.orphan_age_ms // 2

    @abstractmethod
    def sort_out(self, sources: Sequence[SourceFile], view: LogView, result: ImportResult) -> tuple[SourceFile, ...]:
        """Return the sources that are worth a look. Advisory: what decides is :meth:`confirm`."""

    @abstractmethod
    def find_problem(self, file: InspectedFile) -> str | None:
        """Return why an inspected file cannot be placed; None if it can."""

    @abstractmethod
    def place(self, files: tuple[InspectedFile, ...]) -> CopyOutput:
        """Bring files below the table (W1)."""

    @abstractmethod
    def confirm(self, placed: Sequence[PlacedFile], commit: AppendCommit) -> _Confirmed:
        """Say which files may be committed, by the log as it was read under the fence (F2)."""

    @abstractmethod
    def announce(self, placed: Sequence[PlacedFile], *, commit_id: str) -> Callable[[], None]:
        """Write down that a commit is coming; returns what to call when it has landed."""


class _Copies(_Way):
    """Copies under fresh names, with a record of their sources.

    A name is never used again, not even for the same source: the orphan sweep may be deleting what lies there.
    """

    _stopwatch: Stopwatch

    def sort_out(self, sources: Sequence[SourceFile], view: LogView, result: ImportResult) -> tuple[SourceFile, ...]:
        del view  # committed records tell
        own = next((source.url for source in sources if source.url.startswith(self._own_url)), None)
        if own is not None:
            raise InvalidRequest(
                f"table {self.table.name}: {own} lies below the table's own data, and a copy of it would double rows; "
                "use --in-place for files that others have put there"
            )
        imported = find_imported(read_records(self.table))
        new = [source for source in sources if source.etag not in imported.get(source.url, ())]
        result.imported_before_count += len(sources) - len(new)
        result.refused.extend(RefusedFile(each.url, _CHANGED) for each in new if self._is_changed(each, imported))
        return tuple(source for source in new if not self._is_changed(source, imported))

    def _is_changed(self, source: SourceFile, imported: Collection[str]) -> bool:
        return source.url in imported and not self.options.takes_changed

    def find_problem(self, file: InspectedFile) -> str | None:
        del file  # a copy can lie in every partition
        return None

    def place(self, files: tuple[InspectedFile, ...]) -> CopyOutput:
        self._stopwatch = Stopwatch(self.table.clock)  # W3: the time until the commit is measured from here
        return self.importer.copy_files(self.table.paths, files)  # N1

    def confirm(self, placed: Sequence[PlacedFile], commit: AppendCommit) -> _Confirmed:
        """Settle what earlier runs left open, then leave out what they, or others meanwhile, have committed (N2).

        WARN: the records are read after the log, which is read after the fence. In another order a run writes its
        record and commits between the two reads, this one sees neither, and the files are in the table twice.
        """
        records = read_records(self.table)
        settled = settle_records(
            self.table,
            records,
            named=named_paths(commit.whole_log.files),
            confirm=commit.fence.confirm,
            assumed=self.options.assumed,
        )
        imported = find_imported(settled)
        new = [each for each in placed if each.file.source.etag not in imported.get(each.file.source.url, ())]
        changed = [each.file.source.url for each in new if self._is_changed(each.file.source, imported)]
        return _Confirmed(
            [each for each in new if not self._is_changed(each.file.source, imported)],
            [RefusedFile(url, _CHANGED) for url in changed],
            partial(self._stopwatch.require_within, self._limit_ms, table=self.table.name),  # W3
        )

    def announce(self, placed: Sequence[PlacedFile], *, commit_id: str) -> Callable[[], None]:
        record = ImportRecord(
            import_id=self.table.clock.new_id(),
            state="pending",
            commit_id=commit_id,
            sources=tuple(
                ImportedSource(url=each.file.source.url, etag=each.file.source.etag, path=each.path) for each in placed
            ),
        )
        create_record(self.table, record)
        return partial(mark_committed, self.table, record)


class _InPlace(_Way):
    """Files that others have put below the table's ``_data/``. The log itself is the record.

    A data file that was ever live is named by the log for as long as it exists (J2, M1). So one that exists and is not
    named, in a log read under the fence, was never live, and may be made live once.
    """

    def sort_out(self, sources: Sequence[SourceFile], view: LogView, result: ImportResult) -> tuple[SourceFile, ...]:
        outside = next((source.url for source in sources if not source.url.startswith(self._own_url)), None)
        if outside is not None:
            raise InvalidRequest(
                f"table {self.table.name}: {outside} does not lie below {self._own_url}, where files are taken in "
                "place: import it without --in-place"
            )
        named = named_paths(view.files)  # N4: live or dead
        wanted = tuple(source for source in sources if self._key_of(source) not in named)
        result.imported_before_count += len(sources) - len(wanted)
        return wanted

    def find_problem(self, file: InspectedFile) -> str | None:
        if file.has_field_ids:
            return _FIELD_IDS
        key = self._key_of(file.source)
        name = key.rpartition("/")[2].removesuffix(".parquet")
        try:
            expected = self.table.paths.data_key(partition=file.partition, file_id=name)
        except InvalidRequest as error:
            return str(error)
        if key == expected:
            return None
        return (
            f"its rows belong to partition {file.partition or '(none)'}: in place its key must be {expected}; move it "
            "there, or import it without --in-place from another folder"
        )

    def place(self, files: tuple[InspectedFile, ...]) -> CopyOutput:
        placed = (PlacedFile(file, self._key_of(file.source), file.source.size_bytes) for file in files)
        return CopyOutput(tuple(placed), ())

    def confirm(self, placed: Sequence[PlacedFile], commit: AppendCommit) -> _Confirmed:
        """Leave out what the log names now, what changed or went, and what the orphan sweep may delete (W3, J5)."""
        named = named_paths(commit.whole_log.files)
        unnamed = [each for each in placed if each.path not in named]
        stopwatch = Stopwatch(self.table.clock)
        # WARN: looked at after the log was read. The other way round: it is seen, then committed, merged and vacuumed
        # by others, and the log forgets it; it would be made live again, and is not even there.
        now_ms = self.table.read_store_clock() + _CLOCK_MARGIN_MS
        look = partial(self._find_age_ms, now_ms=now_ms)
        threads = limit_reads(self.table.store, _HEAD_THREADS)
        ages = map_each(look, unnamed, threads=threads, name="icedb-import-head")
        files, refused = [], []
        oldest_ms = 0
        for each, found in zip(unnamed, ages, strict=True):
            if isinstance(found, str):
                refused.append(RefusedFile(each.file.source.url, found))
                continue
            files.append(each)
            oldest_ms = max(oldest_ms, found)
        last_check = partial(stopwatch.require_within, self._limit_ms - oldest_ms, table=self.table.name)  # W3
        return _Confirmed(files, refused, last_check)

    def announce(self, placed: Sequence[PlacedFile], *, commit_id: str) -> Callable[[], None]:
        del placed, commit_id  # the commit says it all
        return lambda: None

    def _find_age_ms(self, placed: PlacedFile, now_ms: int) -> int | str:
        """Return how old a file is, or why it cannot be taken."""
        try:
            info = self.table.store.head(placed.path)
        except NotFound:
            return "it is gone: put it there again, under another name"
        if info.etag != placed.file.source.etag:
            return "it changed after its footer was read: data files are never edited; put it there under another name"
        age_ms = max(0, now_ms - info.modified_ms)
        if age_ms > self._limit_ms:
            return (
                f"it was written {age_ms} ms ago; in place a file must be younger than half the table's orphan age "
                f"({self._limit_ms} ms), or the orphan sweep may be deleting it: copy it to another name, or import it "
                "without --in-place from another folder"
            )
        return age_ms

    def _key_of(self, source: SourceFile) -> str:
        return self.table.paths.data_prefix + source.url.removeprefix(self._own_url)


def data_url(table: TableStore) -> str:
    """Return the URL of the folder that holds a table's data files, with a slash at its end."""
    uri = table.store.uri(table.paths.data_prefix.rstrip("/"))
    return f"file://{uri}/" if uri.startswith("/") else f"{uri}/"


def _inspect(way: _Way, sources: Sequence[SourceFile], result: ImportResult) -> Sequence[InspectedFile]:
    """Return the files that can be imported and are not yet, as far as can be told without the fence."""
    table = way.table
    view = table.read_log()
    wanted = way.sort_out(sources, view, result)
    if not wanted:
        return ()
    job = InspectJob(table.paths, table.config, wanted, way.options.partition, way.options.mode)
    output = way.importer.inspect_files(job)
    result.refused.extend(output.refused)
    filled = [file for file in output.files if file.row_count]
    result.empty_count += len(output.files) - len(filled)
    good: list[InspectedFile] = []
    for file in filled:
        reason = way.find_problem(file)
        if reason:
            result.refused.append(RefusedFile(file.source.url, reason))
        else:
            good.append(file)
    settled = _fit(good, schema=union_schema(table.name, view.files).effective, config=table.config)
    result.refused.extend(settled.refused)
    return settled.files


def _commit(way: _Way, placed: Sequence[PlacedFile], result: ImportResult) -> None:
    """Make files live; offer the same ones again if another worker takes the fence in between."""
    for attempt in range(1, COMMIT_ATTEMPTS + 1):
        try:
            _commit_once(way, placed, result)
        except (Fenced, CommitConflict):
            # Certainly refused: no log file names these files. A record of this attempt stays pending, and the
            # next attempt settles it before it makes its own.
            if attempt == COMMIT_ATTEMPTS:
                raise
        else:
            return


def _commit_once(way: _Way, placed: Sequence[PlacedFile], result: ImportResult) -> None:
    with AppendCommit(way.table, reads_whole_log=True) as commit:
        confirmed = way.confirm(placed, commit)
        files = [each.file for each in confirmed.files]
        settled = _fit(files, schema=commit.known.effective, config=way.table.config)
        fitting = {file.source.url for file in settled.files}
        taken = [each for each in confirmed.files if each.file.source.url in fitting]
        if taken:
            config, now_ms = way.table.config, way.table.clock.now_ms()
            markers = [
                replace(each.make_marker(now_ms), promoted_count=config.count_in(each.file.columns)) for each in taken
            ]
            added = Added(files=tuple(markers), schema=settled.schema)
            log = commit.build(added, named=named_paths(commit.whole_log.files))
            confirm_landed = way.announce(taken, commit_id=commit.commit_id)
            committed = commit.land(log, last_check=confirmed.last_check)  # W3
            result.committed_keys.append(committed.key)
            confirm_landed()
    result.add(taken)
    result.imported_before_count += len(placed) - len(confirmed.files) - len(confirmed.refused)
    result.refused.extend([*confirmed.refused, *settled.refused])


def _cut(files: Sequence[InspectedFile], limits: ImportLimits) -> Iterator[tuple[InspectedFile, ...]]:
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


# --- which files fit the schema -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Fitting:
    """Files that fit, files that do not, and the schema of the table with the former."""

    files: Sequence[InspectedFile]
    refused: Sequence[RefusedFile]
    schema: Mapping[str, str]


def _fit(files: Sequence[InspectedFile], *, schema: Mapping[str, str], config: TableConfig) -> _Fitting:
    """Return which files fit, one after the other, and the schema with them. ``schema``: as the log knows it."""
    grown = dict(schema)
    known = {**schema, **{name: kind for name, kind in config.declared.items() if name not in schema}}
    names = ColumnNames(config, known)
    fitting: list[InspectedFile] = []
    refused: list[RefusedFile] = []
    for file in files:
        reason = _find_misfit(file, known=known, names=names, config=config)
        if reason is None and config.count_in(file.columns) < config.count_promoted({*schema, *fixed_columns(config)}):
            # S4: as the files of an import are taken as they are.
            reason = (
                "it has the text of promoted columns that readers see, and lacks the columns: send it with "
                "`icedb ingest`, which makes them"
            )
        if reason is not None:
            refused.append(RefusedFile(file.source.url, reason))
            continue
        fitting.append(file)
        for name, sql_type in file.columns.items():
            known.setdefault(name, sql_type)
            grown.setdefault(name, sql_type)
            names.add(name)
    return _Fitting(fitting, refused, grown)


def _find_misfit(
    file: InspectedFile, *, known: Mapping[str, str], names: ColumnNames, config: TableConfig
) -> str | None:
    own = names.plus(file.columns)
    for name, sql_type in file.columns.items():
        problem = own.find_problem(name) or own.find_case_problem(name)
        if problem is not None:
            return f"{problem}: rename it in the file"
        problem = _find_type_problem(name, sql_type, known=known, config=config)
        if problem is not None:
            return problem
    if len(own) > MAX_TABLE_COLUMNS:
        return f"with its columns the table would have more than {MAX_TABLE_COLUMNS}: leave columns out"
    return None


def _find_type_problem(name: str, sql_type: str, *, known: Mapping[str, str], config: TableConfig) -> str | None:
    if config.evolution == "strict" and name not in config.declared:
        return f"column {name!r} is not declared, and the table's evolution is strict: leave it out of the file"
    if known.get(name, sql_type) == sql_type:
        return None
    return (
        f"column {name!r} is {known[name]} in the table (or in a file before it) and {sql_type} in this file: an "
        "import does not rewrite; send it with `icedb ingest`, or write the file with the table's type"
    )
