"""Records of imports: which source files a commit made live, so that none is imported twice.

Owns ``_icedb/imports/<id>.json``. States and who writes them, always under the ``ingest`` fence::

    (nothing) ── put if absent, before the commit ──▶ pending ──▶ committed    by the same run, after its commit
                                                         │   └──▶ committed    by a later run that finds it in the log
                                                         └──────▶ lost         by a later run that knows it never landed

A pending record that a run finds, holding the fence, is settled before that run commits: the acquisition has sealed
the commit that was under way (F1), so it has landed or never will. Which of the two, the log tells (see
:func:`settle_records`). A record is never deleted.
"""

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import orjson

from icedb_log.errors import (
    CommitConflict,
    CommitOutcomeUnknown,
    CorruptLog,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    Unavailable,
)
from icedb_log.store.object_store import ObjectStore, create_record, list_all
from icedb_log.store.table_store import TableStore

RecordState = Literal["pending", "committed", "lost"]
Assumption = Literal["landed", "lost"]

FORMAT: Final = 1
READ_THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class ImportedSource:
    """A source file of an import, and the data file that holds its rows.

    Attributes:
        url: Where it was.
        etag: Version of its content.
        path: Key of the data file; fresh for each import.
    """

    url: str
    etag: str
    path: str


@dataclass(frozen=True, slots=True)
class ImportRecord:
    """Content of a record.

    Attributes:
        import_id: Unique; names the record.
        state: See the module.
        commit_id: Of the commit that makes the files live.
        sources: At least one; none once it is known to be lost.
    """

    import_id: str
    state: RecordState
    commit_id: str
    sources: tuple[ImportedSource, ...]


@dataclass(frozen=True, slots=True)
class ListedRecord:
    """A record as it stands in the store."""

    record: ImportRecord
    etag: str


def read_records(table: TableStore) -> tuple[ListedRecord, ...]:
    """Read all records: a listing, and one GET for each.

    Raises:
        CorruptLog: A record cannot be read: without it, its files would be imported twice.
        Unavailable: The store did not answer.
    """

    def read(key: str) -> ListedRecord:
        stored = table.store.get(key)
        return ListedRecord(decode_record(key, stored.body), stored.info.etag)

    keys = [info.key for info in list_all(table.store, table.paths.imports_prefix).objects]
    if len(keys) < 2:  # noqa: PLR2004 - one needs no pool
        return tuple(read(key) for key in keys)
    with ThreadPoolExecutor(min(READ_THREADS, len(keys)), "icedb-import-records") as pool:
        return tuple(pool.map(read, keys))


def find_imported(records: Iterable[ImportRecord]) -> dict[str, set[str]]:
    """Return the ETags of the content that was imported, by URL."""
    found: dict[str, set[str]] = {}
    for record in records:
        if record.state == "committed":
            for source in record.sources:
                found.setdefault(source.url, set()).add(source.etag)
    return found


def put_record(table: TableStore, record: ImportRecord) -> str:
    """Create a pending record and return its ETag. When this raises, nothing of the import may be committed.

    Raises:
        CommitOutcomeUnknown: The store did not confirm it.
        Unavailable: The store did not take it.
    """
    return create_record(
        table.store,
        table.paths.import_key(record.import_id),
        _encode(record),
        otherwise=f"nothing was imported into table {table.name}, run it again",
    )


def mark_committed(table: TableStore, record: ImportRecord, *, etag: str) -> None:
    """Say that an import landed. Best effort: a record that stays pending is settled by the next run."""
    try:
        table.store.put_if_match(
            table.paths.import_key(record.import_id), _encode(replace(record, state="committed")), etag=etag
        )
    except (CommitConflict, CommitOutcomeUnknown, Unavailable):
        return


def settle_records(
    table: TableStore,
    records: Iterable[ListedRecord],
    *,
    named: Collection[str],
    assumed: Assumption | None = None,
) -> tuple[ImportRecord, ...]:
    """Find out what became of each pending import, write it down, and return all records (N3).

    The caller holds the ``ingest`` fence, has read the log after it, and the records after the log: so no commit of
    a record is under way any more (F1), and what landed is in the log. With P the data files of a record, which only
    its own commit can name:

    * one of P is named in the log, live or dead: it landed;
    * none is named, and one of P exists: it never landed. A data file that was ever live is named for as long as it
      exists (J2, M1);
    * otherwise nobody can tell: the files may have been merged and vacuumed, or swept as orphans.

    Args:
        table: Its store and keys.
        records: All, read after the log.
        named: Data files that any log file names.
        assumed: What a person says of those that nobody can tell.

    Raises:
        InvalidRequest: An import whose fate nobody can tell; says what to look at and which options there are.
        CommitOutcomeUnknown: What was found could not be written down.
    """
    settled: list[ImportRecord] = []
    for listed in records:
        record = listed.record
        if record.state == "pending":
            state = _find_state(table.store, record, named=named)
            if state is None and assumed is None:
                raise InvalidRequest(
                    f"table {table.name}: import {record.import_id} of {len(record.sources)} files (the first: "
                    f"{record.sources[0].url}) stopped before it knew whether it landed, and that is too long ago to "
                    "tell. Look whether their rows are in the table, then say so once: --assume-landed if they are, "
                    "--assume-lost if not"
                )
            state = state or ("committed" if assumed == "landed" else "lost")
            record = replace(record, state=state, sources=record.sources if state == "committed" else ())
            _replace(table, record, etag=listed.etag)
        settled.append(record)
    return tuple(settled)


def _find_state(store: ObjectStore, record: ImportRecord, *, named: Collection[str]) -> RecordState | None:
    paths = [source.path for source in record.sources]
    if any(path in named for path in paths):
        return "committed"
    return "lost" if any(_exists(store, path) for path in paths) else None


def _exists(store: ObjectStore, path: str) -> bool:
    try:
        store.head(path)
    except NotFound:
        return False
    return True


def _replace(table: TableStore, record: ImportRecord, *, etag: str) -> None:
    key, body = table.paths.import_key(record.import_id), _encode(record)
    try:
        table.store.put_if_match(key, body, etag=etag)
    except PreconditionFailed as error:
        if table.store.get(key).body != body:  # W2
            raise CommitConflict(f"{key}: another run settled it meanwhile; run the import again") from error


def _encode(record: ImportRecord) -> bytes:
    return orjson.dumps(
        {
            "format": FORMAT,
            "import_id": record.import_id,
            "state": record.state,
            "commit_id": record.commit_id,
            "sources": [{"url": each.url, "etag": each.etag, "path": each.path} for each in record.sources],
        }
    )


def decode_record(key: str, body: bytes) -> ImportRecord:
    """Parse a record. Raises CorruptLog."""
    try:
        value: dict[str, Any] = orjson.loads(body)
        sources: Sequence[dict[str, Any]] = value["sources"]
        if value["format"] != FORMAT or value["state"] not in ("pending", "committed", "lost"):
            raise ValueError(f"format {value['format']!r}, state {value['state']!r}")
        return ImportRecord(
            import_id=str(value["import_id"]),
            state=value["state"],
            commit_id=str(value["commit_id"]),
            sources=tuple(ImportedSource(str(s["url"]), str(s["etag"]), str(s["path"])) for s in sources),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptLog(
            f"{key}: not a record of an import ({type(error).__name__}: {str(error)[:100]}); restore it: without it "
            "its files would be imported twice"
        ) from error
