"""Records of imports: which source files a commit made live, so that none is imported twice.

Owns ``_icedb/imports/<id>.json``. States and who writes them, always under the ``ingest`` fence::

    (nothing) ── put if absent, before the commit ──▶ pending ──▶ committed    by the same run, after its commit
                                                         │   └──▶ committed    by a later run that finds it in the log
                                                         └──────▶ lost         by a later run that knows it never landed

A pending record that a run finds, holding the fence, is settled before that run commits: the acquisition has sealed
the commit that was under way (F1), so it has landed or never will. Which of the two, the log tells (see
:func:`settle_records`). A record is never deleted.
"""

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from icedb_log.errors import CommitConflict, CommitOutcomeUnknown, CorruptLog, InvalidRequest, NotFound, Unavailable
from icedb_log.store.object_store import ObjectStore, StoredObject, limit_reads, list_all, map_each
from icedb_log.store.records import CasObject, parse_record
from icedb_log.store.table_store import TableStore

RecordState = Literal["pending", "committed", "lost"]
Assumption = Literal["landed", "lost"]

_READ_THREADS: Final = 16


class ImportedSource(BaseModel):
    """A source file of an import, and the data file that holds its rows.

    Attributes:
        url: Where it was.
        etag: Version of its content.
        path: Key of the data file; fresh for each import.
    """

    model_config = ConfigDict(frozen=True)

    url: str
    etag: str
    path: str


class ImportRecord(BaseModel):
    """Content of a record.

    Attributes:
        import_id: Unique; names the record.
        state: See the module.
        commit_id: Of the commit that makes the files live.
        sources: At least one; none once it is known to be lost.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = 1
    import_id: str
    state: RecordState
    commit_id: str
    sources: tuple[ImportedSource, ...]

    def encode(self) -> bytes:
        """Return the bytes of the record."""
        return self.model_dump_json().encode()


def read_records(table: TableStore) -> tuple[ImportRecord, ...]:
    """Read all records: a listing, and one GET for each.

    Raises:
        CorruptLog: A record cannot be read: without it, its files would be imported twice.
        Unavailable: The store did not answer.
    """

    def read(key: str) -> ImportRecord:
        return decode_record(table.store.get(key))

    keys = [info.key for info in list_all(table.store, table.paths.imports_prefix).objects]
    return tuple(map_each(read, keys, threads=limit_reads(table.store, _READ_THREADS), name="icedb-import-records"))


def find_imported(records: Iterable[ImportRecord]) -> dict[str, set[str]]:
    """Return the ETags of the content that was imported, by URL."""
    found: dict[str, set[str]] = {}
    for record in records:
        if record.state == "committed":
            for source in record.sources:
                found.setdefault(source.url, set()).add(source.etag)
    return found


def create_record(table: TableStore, record: ImportRecord) -> None:
    """Announce an import.

    Raises:
        CommitOutcomeUnknown: The store did not confirm it; nothing was imported, run it again.
        Unavailable: The store did not take it.
    """
    try:
        _object_of(table, record).update(lambda found: found or record, is_likely_new=True)
    except CommitOutcomeUnknown as error:
        raise CommitOutcomeUnknown(f"table {table.name}: {error}; nothing was imported, run it again") from error


def mark_committed(table: TableStore, record: ImportRecord) -> None:
    """Say that an import landed. Best effort: a record that stays pending is settled by the next run."""
    with suppress(Unavailable, CommitOutcomeUnknown, CommitConflict):
        _replace(table, record, record.model_copy(update={"state": "committed"}))


def settle_records(
    table: TableStore,
    records: Collection[ImportRecord],
    *,
    named: Collection[str],
    confirm: Callable[[], None],
    assumed: Assumption | None = None,
) -> tuple[ImportRecord, ...]:
    """Find out what became of each pending import, write it down, and return all records (N3).

    The caller has acquired the ``ingest`` fence, read the log after that, and the records after the log. If the fence
    is still its own then, no commit of a record is under way any more (F1), and what landed is in the log. With P the
    data files of a record, which only its own commit can name:

    * one of P is named in the log, live or dead: it landed;
    * none is named, and one of P exists: it never landed. A data file that was ever live is named for as long as it
      exists (J2, M1);
    * otherwise nobody can tell: the files may have been merged and vacuumed, or swept as orphans.

    Args:
        table: The table.
        records: All, read after the log.
        named: Data files that any log file names.
        confirm: Proves that the fence is still held; called once, if a record is pending.
        assumed: What a person says of those that nobody can tell.

    Raises:
        InvalidRequest: An import whose fate nobody can tell; says what to look at and which options there are.
        Fenced: Another owner took over; nothing was written down.
        CommitOutcomeUnknown: What was found could not be written down.
    """
    # WARN: after the records were read. Otherwise a run that has slept since it read the log finds the record of the
    # next owner, whose commit is about to land, calls it lost, and its files are imported once more: rows twice.
    if any(record.state == "pending" for record in records):
        confirm()
    settled: list[ImportRecord] = []
    for found in records:
        record = found
        if record.state == "pending":
            state = find_import_state(table.store, record, named=named)
            if state is None and assumed is None:
                raise InvalidRequest(
                    f"table {table.name}: import {record.import_id} of {len(record.sources)} files (the first: "
                    f"{record.sources[0].url}) stopped before it knew whether it landed, and that is too long ago to "
                    "tell. Look whether their rows are in the table, then say so once: --assume landed if they are, "
                    "--assume lost if not"
                )
            state = state or ("committed" if assumed == "landed" else "lost")
            change = {"state": state, "sources": record.sources if state == "committed" else ()}
            record = record.model_copy(update=change)
            _replace(table, found, record)
        settled.append(record)
    return tuple(settled)


def find_import_state(store: ObjectStore, record: ImportRecord, *, named: Collection[str]) -> RecordState | None:
    """Return what a log that names some data files tells of an import; ``None``: nobody can tell."""
    paths = [source.path for source in record.sources]
    if any(path in named for path in paths):
        return "committed"
    for path in paths:
        with suppress(NotFound):
            store.head(path)
            return "lost"
    return None


def _replace(table: TableStore, found: ImportRecord, record: ImportRecord) -> None:
    def write(now: ImportRecord | None) -> ImportRecord:
        if now not in (found, record):
            raise CommitConflict(
                f"{table.paths.import_key(record.import_id)}: another run settled it meanwhile; run the import again"
            )
        return record

    _object_of(table, record).update(write)


def _object_of(table: TableStore, record: ImportRecord) -> CasObject[ImportRecord]:
    return CasObject(table.store, table.paths.import_key(record.import_id), decode_record, ImportRecord.encode)


def decode_record(stored: StoredObject) -> ImportRecord:
    """Parse a record. Raises CorruptLog."""
    says = "not a record of an import ({why}); restore it: without it its files would be imported twice"
    return parse_record(ImportRecord, stored, CorruptLog, says)
