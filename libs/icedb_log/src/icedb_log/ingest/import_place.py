"""The two ways in which a file comes to lie below a table: as a copy, or because it was put there.

Owns what is different between them: which files are imported already, what keeps a file from being imported, and what
is checked under the fence. :mod:`icedb_log.ingest.imports` owns the order of it all.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from icedb_log.clean.orphan_record import read_orphan_record
from icedb_log.errors import InvalidRequest, NotFound
from icedb_log.ingest.import_jobs import CopyOutput, FileImporter, InspectedFile, PlacedFile, RefusedFile
from icedb_log.ingest.import_records import (
    Assumption,
    ImportedSource,
    ImportRecord,
    find_imported,
    mark_committed,
    put_record,
    read_records,
    settle_records,
)
from icedb_log.ingest.import_sources import SourceFile
from icedb_log.model import LogView
from icedb_log.stopwatch import Stopwatch
from icedb_log.store.table_store import TableStore
from icedb_log.table.table import Table

HEAD_THREADS: Final = 16
_CHANGED: Final = (
    "it was imported before, with other content: if it still holds the same events, they would be in the table twice. "
    "If all of it is new, import it with --changed"
)
_ORPHAN: Final = (
    "an orphan sweep has found a file of this name that nothing named, and may be deleting it: put it there under "
    "another name, or import it without --in-place from another folder"
)
CLOCK_MARGIN_MS: Final = 2000
"""Stores tell times in whole seconds; an age must not be underestimated here."""


@dataclass(frozen=True, slots=True)
class SortedSources:
    """Sources that are to be inspected, those that are not, and how many are imported already."""

    wanted: tuple[SourceFile, ...]
    refused: tuple[RefusedFile, ...]
    imported_before_count: int


@dataclass(frozen=True, slots=True)
class ConfirmedFiles:
    """Files that may be committed now, under the fence.

    Attributes:
        files: They.
        refused: Others.
        imported_before_count: Still others, which somebody else has imported meanwhile.
        last_check: Raises when their commit comes too late (W3).
    """

    files: tuple[PlacedFile, ...]
    refused: tuple[RefusedFile, ...]
    imported_before_count: int
    last_check: Callable[[], None]


class Placement(Protocol):
    """One of the two ways; see the module."""

    def sort_out(self, sources: Sequence[SourceFile], view: LogView) -> SortedSources:
        """Say which sources are worth a look. Advisory: what decides is :meth:`confirm`."""
        ...

    def find_problem(self, file: InspectedFile) -> str | None:
        """Return why an inspected file cannot be placed; None if it can."""
        ...

    def place(self, files: tuple[InspectedFile, ...]) -> CopyOutput:
        """Bring files below the table (W1)."""
        ...

    def confirm(self, placed: Sequence[PlacedFile], view: LogView) -> ConfirmedFiles:
        """Say which files may be committed. The caller holds the fence; ``view`` was read after it (F2)."""
        ...

    def announce(self, placed: Sequence[PlacedFile], *, commit_id: str) -> Callable[[], None]:
        """Write down that a commit is coming; returns what to call when it has landed."""
        ...


class CopyPlacement:
    """Copies under fresh names, with a record of their sources.

    A name is never used again, not even for the same source: the orphan sweep may be deleting what lies there.
    """

    def __init__(
        self, table: Table, importer: FileImporter, *, takes_changed: bool, assumed: Assumption | None
    ) -> None:
        self._table = table
        self._store = table.store
        self._paths = table.paths
        self._importer = importer
        self._takes_changed = takes_changed
        self._assumed: Assumption | None = assumed
        self._stopwatch = Stopwatch(table.clock)

    def sort_out(self, sources: Sequence[SourceFile], view: LogView) -> SortedSources:
        """Leave out what committed records name. Raises InvalidRequest for the table's own files."""
        del view
        own_url = data_url(TableStore(self._store, self._paths))
        own = next((source.url for source in sources if source.url.startswith(own_url)), None)
        if own is not None:
            raise InvalidRequest(
                f"table {self._paths.name}: {own} lies below the table's own data, and a copy of it would double rows; "
                "use --in-place for files that others have put there"
            )
        records = read_records(TableStore(self._store, self._paths))
        imported = find_imported(listed.record for listed in records)
        new = [source for source in sources if source.etag not in imported.get(source.url, ())]
        changed = [] if self._takes_changed else [source for source in new if source.url in imported]
        return SortedSources(
            wanted=tuple(source for source in new if self._takes_changed or source.url not in imported),
            refused=tuple(RefusedFile(source.url, _CHANGED) for source in changed),
            imported_before_count=len(sources) - len(new),
        )

    def find_problem(self, file: InspectedFile) -> str | None:
        """Find none: a copy can lie in every partition."""
        del file
        return None  # the protocol asks for an answer

    def place(self, files: tuple[InspectedFile, ...]) -> CopyOutput:
        """Copy (N1). The time until the commit is measured from here (W3)."""
        self._stopwatch = Stopwatch(self._table.clock)
        return self._importer.copy_files(self._paths, files)

    def confirm(self, placed: Sequence[PlacedFile], view: LogView) -> ConfirmedFiles:
        """Settle what earlier runs left open, then leave out what they, or others meanwhile, have committed (N2).

        WARN: the records are read after the log, which is read after the fence. In another order a run writes its
        record and commits between the two reads, this one sees neither, and the files are in the table twice.
        """
        records = read_records(TableStore(self._store, self._paths))
        settled = settle_records(
            TableStore(self._store, self._paths), records, named=named_in(view), assumed=self._assumed
        )
        imported = find_imported(settled)
        new = tuple(each for each in placed if each.file.source.etag not in imported.get(each.file.source.url, ()))
        files = tuple(each for each in new if self._takes_changed or each.file.source.url not in imported)
        changed = (each.file.source.url for each in new if not self._takes_changed and each.file.source.url in imported)
        last_check = partial(
            self._stopwatch.require_within, self._table.config.orphan_age_ms // 2, table=self._paths.name
        )  # W3
        refused = tuple(RefusedFile(url, _CHANGED) for url in changed)
        return ConfirmedFiles(files, refused, len(placed) - len(new), last_check)

    def announce(self, placed: Sequence[PlacedFile], *, commit_id: str) -> Callable[[], None]:
        """Write the pending record. Raises CommitOutcomeUnknown, Unavailable: then nothing may be committed."""
        record = ImportRecord(
            import_id=self._table.clock.new_id(),
            state="pending",
            commit_id=commit_id,
            sources=tuple(
                ImportedSource(url=each.file.source.url, etag=each.file.source.etag, path=each.path) for each in placed
            ),
        )
        etag = put_record(TableStore(self._store, self._paths), record)
        return partial(mark_committed, TableStore(self._store, self._paths), record, etag=etag)


class InPlacePlacement:
    """Files that others have put below the table's ``_data/``. The log itself is the record.

    A data file that was ever live is named by the log for as long as it exists (J2, M1). So one that exists and is not
    named, in a log read under the fence, was never live, and may be made live once.
    """

    def __init__(self, table: Table) -> None:
        self._store = table.store
        self._paths = table.paths
        self._clock = table.clock
        self._limit_ms = table.config.orphan_age_ms // 2
        self._own_url = data_url(table)

    def sort_out(self, sources: Sequence[SourceFile], view: LogView) -> SortedSources:
        """Leave out what the log names, live or dead (N4). Raises InvalidRequest for files elsewhere."""
        outside = next((source.url for source in sources if not source.url.startswith(self._own_url)), None)
        if outside is not None:
            raise InvalidRequest(
                f"table {self._paths.name}: {outside} does not lie below {self._own_url}, where files are taken in "
                "place: import it without --in-place"
            )
        named = named_in(view)
        wanted = tuple(source for source in sources if self._key_of(source) not in named)
        return SortedSources(wanted, (), len(sources) - len(wanted))

    def find_problem(self, file: InspectedFile) -> str | None:
        """Say whether the file's key is that of a data file of its partition."""
        key = self._key_of(file.source)
        name = key.rpartition("/")[2]
        try:
            expected = self._paths.data_key(partition=file.partition, file_id=name.removesuffix(".parquet"))
        except InvalidRequest as error:
            return str(error)
        if key == expected:
            return None
        return (
            f"its rows belong to partition {file.partition or '(none)'}: in place its key must be {expected}; move it "
            "there, or import it without --in-place from another folder"
        )

    def place(self, files: tuple[InspectedFile, ...]) -> CopyOutput:
        """Take the files where they are."""
        placed = (PlacedFile(file, self._key_of(file.source), file.source.size_bytes) for file in files)
        return CopyOutput(tuple(placed), ())

    def confirm(self, placed: Sequence[PlacedFile], view: LogView) -> ConfirmedFiles:
        """Leave out what the log names now, what changed or went, and what the orphan sweep may delete (W3, J5)."""
        named = named_in(view)
        unnamed = [each for each in placed if each.path not in named]
        stopwatch = Stopwatch(self._clock)
        # WARN: looked at after the log was read. The other way round: it is seen, then committed, merged and vacuumed
        # by others, and the log forgets it; it would be made live again, and is not even there.
        now_ms = self._store.list_page(self._paths.log_prefix, limit=1).store_now_ms + CLOCK_MARGIN_MS
        with ThreadPoolExecutor(HEAD_THREADS, "icedb-import-head") as pool:
            ages = list(pool.map(lambda each: self._find_age_ms(each, now_ms), unnamed))
        # WARN: after that look, and by the name alone. A sweep writes down what it deletes before it does (J5); what
        # lay there is put there again, as young as can be, and the sweep deletes it when it is live.
        orphans = read_orphan_record(TableStore(self._store, self._paths)).sightings
        ages = [_ORPHAN if each.path in orphans else age for each, age in zip(unnamed, ages, strict=True)]
        files, refused = [], []
        oldest_ms = 0
        for each, age_ms in zip(unnamed, ages, strict=True):
            if isinstance(age_ms, str):
                refused.append(RefusedFile(each.file.source.url, age_ms))
                continue
            files.append(each)
            oldest_ms = max(oldest_ms, age_ms)
        last_check = partial(stopwatch.require_within, self._limit_ms - oldest_ms, table=self._paths.name)  # W3
        return ConfirmedFiles(tuple(files), tuple(refused), len(placed) - len(unnamed), last_check)

    def announce(self, placed: Sequence[PlacedFile], *, commit_id: str) -> Callable[[], None]:
        """Write nothing: the commit says it all."""
        del placed, commit_id
        return lambda: None

    def _find_age_ms(self, placed: PlacedFile, now_ms: int) -> int | str:
        """Return how old a file is, or why it cannot be taken."""
        try:
            info = self._store.head(placed.path)
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
        return self._paths.data_prefix + source.url.removeprefix(self._own_url)


def data_url(table: TableStore) -> str:
    """Return the URL of the folder that holds a table's data files, with a slash at its end."""
    uri = table.store.uri(table.paths.data_prefix.rstrip("/"))
    return f"file://{uri}/" if uri.startswith("/") else f"{uri}/"


def named_in(view: LogView) -> Mapping[str, None]:
    """Return the data files that a log names, live or dead."""
    return dict.fromkeys(marker.path for file in view.files for marker in file.log.markers)
