"""Data files that engines of Iceberg would read wrongly, or not at all: no state that is published names one.

Three kinds. *Numbered* ones have field ids of another writer (N6): engines look for columns by these, not by the names
that the table gives. *Narrow* ones are older than a widening that Iceberg does not know: of a column that is a DOUBLE
now they have integers, and some engines refuse them, some take their bytes for something else.
*Misspelt* ones of other writers have a column in other case than the log: our readers and DuckDB find it, some engines
read nulls.

The log does not say which files these are, their footers do, and files never change: each is read at most once by a
process, and only where the log proves nothing. A commit that calls itself an append has written all of its files,
without field ids (``chg``, N6); of a table with widened columns every file is looked at that the publication before
does not have. Nor does the log say how many rows a file of another writer has, if its marker does not. Engines take the
number of rows from a manifest (``count(*)`` asks for nothing else), so a guess would be a wrong answer: it is read from
the footer, too.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from cachetools import LRUCache
from icedb_log.errors import CorruptLog, InvalidRequest, NotFound
from icedb_log.log.fold import Snapshot
from icedb_log.model import FileMarker
from icedb_log.parquet.file_reads import FOOTER_THREADS, ParquetFooterReader
from icedb_log.parquet.footer import Footer
from icedb_log.parquet.schema import DamagedFile
from icedb_log.publish.model import Draft, Operation, Step
from icedb_log.store.object_store import ObjectInfo, ObjectStore, limit_reads

MAX_KEPT: Final = 200_000
"""Files of which it is kept what their footers said."""
MAX_FOUND: Final = 1000
"""So many unfit files are enough to know that a table cannot be published; files are looked at oldest first."""
_CHUNK: Final = 256
_REMEDY: Final = "icedb rewrite {table} --all --query 'select * from _rows'"
_MERGED: Final = "Merges rewrite those that are older than the wider type, before anything else. "
_NUMBERED: Final = "its columns have field ids of another writer"
_Facts = tuple[bool, Mapping[str, str]]
"""Whether a file has field ids, and its columns with their types."""
_Fault = tuple[str, bool]
"""Why a file is unfit, and whether it is only narrow, so that a merge mends it when it takes it."""


class UnfitFiles(InvalidRequest):
    """The newest state of a table has data files that engines of Iceberg would read wrongly: merge or rewrite them."""


def _describe(table: str, found: Mapping[str, _Fault]) -> str:
    """Return what keeps a table from being published, given why files are unfit, by path."""
    path, (reason, _) = next(iter(found.items()))
    count = f"{MAX_FOUND} or more" if len(found) >= MAX_FOUND else str(len(found))
    are_narrow = all(is_narrow for _, is_narrow in found.values())
    return (
        f"table {table}: {count} live data files cannot be read through Iceberg, the first is {path}: {reason}. "
        f"{_MERGED if are_narrow else ''}"
        f"To rewrite all of them now: `{_REMEDY.format(table=table)}`, or partition by partition with --partition"
    )


class Fitness:
    """Tells which data files are fit to be published, and remembers what their footers said. Thread-safe."""

    def __init__(self) -> None:
        self._known: LRUCache[tuple[str, str], _Facts] = LRUCache(MAX_KEPT)
        self._lock = threading.Lock()
        self._schemas: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}

    def leave_out_unfit(self, draft: Draft, *, trusts_base: bool) -> Draft:
        """Return what can be published: the draft, or one with a single step if states in between name unfit files.

        Args:
            draft: What is to be published.
            trusts_base: Whether all data files of the base are fit for the table as it is now.

        Raises:
            UnfitFiles: The newest state names some.
            InvalidRequest: A data file is damaged.
            NotFound: A data file is gone.
            Unavailable: The store did not answer.
        """
        wide = {name: kind for name, kind in draft.schema.items() if draft.logged_schema.get(name, kind) != kind}
        doubtful = {marker.path: marker for marker in _find_doubtful(draft.steps, wide)}
        is_doubtful_base = draft.base is not None and not trusts_base
        if is_doubtful_base:
            doubtful |= {marker.path: marker for marker in draft.live}
        unfit = self._find(draft, doubtful.values(), draft.schema, wide)
        live = {path: reason for path, reason in unfit.items() if draft.live.find(path) is not None}
        if live:
            raise UnfitFiles(_describe(draft.table.name, live))
        # Of a base whose files are not trusted the first states may have some that are not live any more.
        return replace(draft, steps=_unite(draft.steps)) if unfit or is_doubtful_base else draft

    def is_fit(self, draft: Draft, state: Snapshot) -> bool:
        """Whether engines read a state of the table rightly that is not part of the history. Raises as above."""
        wide = {name: kind for name, kind in state.schema.items() if state.logged_schema.get(name, kind) != kind}
        return not self._find(draft, state.live, state.schema, wide)

    def _find(
        self, draft: Draft, markers: Iterable[FileMarker], schema: Mapping[str, str], wide: Mapping[str, str]
    ) -> dict[str, _Fault]:
        """Return why files are unfit, by path: all of them, but of the live ones not many more than needed."""
        found: dict[str, _Fault] = {}
        spellings = {name.lower(): name for name in schema}
        ordered = sorted(markers, key=lambda marker: (marker.created_ms, marker.path))
        live_count = 0
        for start in range(0, len(ordered), _CHUNK):
            chunk = ordered[start : start + _CHUNK]
            for path, facts in self._learn(draft, chunk).items():
                fault = _judge(facts, spellings, wide)
                if fault is not None:
                    found[path] = fault
                    live_count += draft.live.find(path) is not None
            if live_count >= MAX_FOUND:
                break
        return found

    def _learn(self, draft: Draft, markers: Sequence[FileMarker]) -> dict[str, _Facts]:
        """Return what the footers of some files say, by path."""
        with self._lock:
            keys = {marker.path: (draft.chain, marker.path) for marker in markers}
            known = {path: self._known[key] for path, key in keys.items() if key in self._known}
        footers = read_footers(draft.table.store, [marker for marker in markers if marker.path not in known])
        with self._lock:
            for footer in footers:
                columns = {**footer.columns, **footer.odd_columns}
                shared = self._schemas.setdefault(tuple(columns.items()), columns)
                known[footer.info.key] = self._known[keys[footer.info.key]] = (footer.has_field_ids, shared)
        return known


def _judge(facts: _Facts, spellings: Mapping[str, str], wide: Mapping[str, str]) -> _Fault | None:
    """Return why a file is unfit; ``None``: it is fit."""
    has_field_ids, columns = facts
    if has_field_ids:
        return _NUMBERED, False
    for name in columns:
        wanted = spellings.get(name.lower(), name)
        if wanted != name:
            return f"column {wanted!r} is {name!r} in it, and only its writer can rename it", False
    narrow = ((name, columns[name], kind) for name, kind in wide.items() if columns.get(name, kind) != kind)
    reasons = (f"column {name!r} is {old} in it and {new} in the table" for name, old, new in narrow)
    reason = next(reasons, None)
    return None if reason is None else (reason, True)


def _find_doubtful(steps: Iterable[Step], wide: Mapping[str, str]) -> Iterable[FileMarker]:
    """Yield the added files of which the log does not prove that they are fit.

    A merge lists files of others among its own; and an append may have written its files before a column became wider.
    """
    for step in steps:
        if wide or not step.has_own_files:
            yield from step.added


def _unite(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return several steps as one."""
    added: dict[str, FileMarker] = {}
    removed: dict[str, None] = {}
    for step in steps:
        for path in step.removed:
            if added.pop(path, None) is None:
                removed[path] = None
        added |= {marker.path: marker for marker in step.added}
    if not (added or removed):
        return ()
    operation: Operation = "append" if not removed else "overwrite" if added else "delete"
    last = steps[-1]
    united = replace(last, operation=operation, log_name="", has_own_files=False, removed=tuple(removed))
    return (replace(united, added=tuple(added.values())),)


def read_footers(store: ObjectStore, markers: Iterable[FileMarker]) -> list[Footer]:
    """Return the footers of some files, in their order. One or two requests for each.

    Raises:
        InvalidRequest: A file is no Parquet file, or a damaged one.
        CorruptLog: A file is gone.
        Unavailable: The store did not answer.
    """
    reader = ParquetFooterReader(store)
    with ThreadPoolExecutor(limit_reads(store, FOOTER_THREADS), "icedb-footers") as pool:
        return list(pool.map(lambda marker: _read(reader, marker), markers))


def read_row_counts(store: ObjectStore, markers: Iterable[FileMarker]) -> dict[str, int]:
    """Return the rows of the files whose markers do not say, by path. Raises as above."""
    unknown = (marker for marker in markers if marker.row_count is None)
    return {footer.info.key: footer.row_count for footer in read_footers(store, unknown)}


def _read(reader: ParquetFooterReader, marker: FileMarker) -> Footer:
    try:
        return reader.require_footer(ObjectInfo(marker.path, "", marker.size_bytes, marker.created_ms))
    except DamagedFile as error:
        raise InvalidRequest(
            f"data file {marker.path}: {error}; what it holds has to be known to publish the table: "
            "`icedb fsck --deep` finds all such files"
        ) from error
    except NotFound as error:
        raise CorruptLog(f"data file {marker.path} is gone, but the log says that it is live: `icedb fsck`") from error
