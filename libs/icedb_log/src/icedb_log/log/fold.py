"""The fold: what a set of log files means (rules S1 to S3, R3). Pure.

A data file is live if some log file lists it without a tombstone and none lists it with one; the order of
log files does not matter. Must never drop a log file or a column silently.

Which commits are lost (F5) is told here, too: a fence says that they landed, and their log files are not there. A
history proves what it names and nothing else: it is short. Must never call a commit lost
that a merge replaced, or a vacuum deleted: so the log has to be read *after* the fences.
"""

import hashlib
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from icedb_log.clock import format_ms
from icedb_log.errors import BelowHorizon, SchemaConflict
from icedb_log.keys import find_log_name, is_log_folder, log_name, parse_log_key
from icedb_log.log.live_files import LiveFiles
from icedb_log.log.markers import markers_of
from icedb_log.log.state import LogState
from icedb_log.log.widening import LoggedSchema, columns_to_prove, unite_inexact
from icedb_log.model import FeedState, ListedLogFile, ListedLogHead, LogHead, LogView, Widening

LONGEST_COMMIT_MS = 60 * 60 * 1000
"""A time of travel older than this can get no further commits, whatever a committer's clock says (R3)."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The fold of a table's log at one time: what is live, and what is known about the dead.

    Attributes:
        table: Name of the table.
        snapshot_id: Equal for equal live files and schema, whichever log files say so.
        live: Live data files, ascending by path.
        schema: Column to SQL type: the union of all schema lines, widened columns with the wider type (S2).
        logged_schema: The same with the types of the schema lines, which never change.
        inexact: Columns of whose values nothing is proven, see :class:`~icedb_log.model.LogFile`.
        tombstoned_ms: Path of each dead data file still named, to the earliest tombstone time.
        log_tombstoned_ms: Key of each dead log file still named, to the earliest tombstone time.
        horizon_ms: Time travel below this time is refused (R3); 0 when nothing was deleted yet.
        last_commit_ms: Time of the newest commit that was folded; 0 for an empty log.
        log_file_count: Number of log files folded.
        as_of_ms: The time asked for; ``None`` for the newest state.
        is_stable: Whether a later read at the same ``as_of_ms`` must give the same answer (R3).
    """

    table: str
    snapshot_id: str
    live: LiveFiles
    schema: Mapping[str, str]
    logged_schema: Mapping[str, str]
    inexact: Mapping[str, bool]
    tombstoned_ms: Mapping[str, int]
    log_tombstoned_ms: Mapping[str, int]
    horizon_ms: int
    last_commit_ms: int
    log_file_count: int
    as_of_ms: int | None
    is_stable: bool

    @property
    def narrow_types(self) -> Mapping[str, str]:
        """Columns of which data files may have a narrower type, with that type.

        Widened ones, and each DOUBLE that an imported file may have as FLOAT, or with bounds that leave out NaN (S2).
        """
        widened = {name: kind for name, kind in self.logged_schema.items() if self.schema.get(name) != kind}
        return {**{name: "FLOAT" for name in self.inexact if self.schema.get(name) == "DOUBLE"}, **widened}

    @property
    def size_bytes(self) -> int:
        """Bytes of all live data files."""
        return self.live.size_bytes

    @property
    def row_count(self) -> int | None:
        """Rows of all live data files; ``None`` when some file does not say."""
        return self.live.row_count


def fold(
    view: LogView,
    *,
    as_of_ms: int | None = None,
    longest_commit_ms: int = LONGEST_COMMIT_MS,
    state: LogState | None = None,
) -> Snapshot:
    """Fold a table's log into a snapshot.

    Args:
        view: All log files of the table, read by :class:`icedb_log.log.reader.LogReader`.
        as_of_ms: Fold only commits up to this time (unix ms); ``None`` for the newest state.
        longest_commit_ms: Age from which an ``as_of_ms`` counts as stable.
        state: What is known of the log from an earlier time, brought up to date: then a fold costs what differs.

    Raises:
        SchemaConflict: A column has two types (S2).
        CorruptLog: A log file is misnamed (S3).
        BelowHorizon: ``as_of_ms`` lies below the horizon (R3); the message names the oldest possible time.
    """
    horizon_ms = read_horizon_ms(view)
    if as_of_ms is not None:
        _require_readable(view.table, as_of_ms, horizon_ms=horizon_ms)
    files = _files_until(view, as_of_ms)
    state = state or LogState()
    state.update(view if as_of_ms is None else replace(view, files=files))
    logged = union_schema(view.table, files)
    schema = logged.effective
    return Snapshot(
        table=view.table,
        snapshot_id=_snapshot_id(state.live, schema),
        live=state.live,
        schema=schema,
        logged_schema=logged.logged,
        inexact=logged.inexact,
        tombstoned_ms=state.tombstoned_ms,
        log_tombstoned_ms={
            # Of several tombstones of a log file the earliest stands last.
            path: -negated
            for negated, path in sorted((-t.tombstoned_ms, t.path) for f in files for t in f.log.log_tombstones)
        },
        horizon_ms=horizon_ms,
        last_commit_ms=max((file.log.time_ms for file in files if not file.log.is_seal), default=0),
        log_file_count=len(files),
        as_of_ms=as_of_ms,
        is_stable=as_of_ms is not None and as_of_ms + longest_commit_ms <= view.store_now_ms,
    )


def _files_until(view: LogView, as_of_ms: int | None) -> tuple[ListedLogFile, ...]:
    if as_of_ms is None:
        return view.files
    return tuple(file for file in view.files if parse_log_key(file.key).time_ms <= as_of_ms)


def named_paths(files: Iterable[ListedLogFile]) -> set[str]:
    """Return the data files that some log files name, live or dead."""
    return {path for file in files for path in markers_of(file.key, file.log.markers).paths()}


def fold_live_paths(files: Iterable[ListedLogFile]) -> set[str]:
    """Return the paths of the live data files (S1), without the rest of a fold."""
    said = [markers_of(file.key, file.log.markers) for file in files]
    live = {path for markers in said for path in markers.live_paths()}
    live.difference_update(path for markers in said for path in markers.dead_paths())
    return live


def read_horizon_ms(view: LogView) -> int:
    """Return the newest tombstone time of any log file already deleted (R3); 0 if none was.

    Recorded by the janitor when it strips (``horizon_ms``); between the delete and the strip it follows from
    the tombstones of log files that are not there any more. Merges of other writers say nothing of what their cleaner
    has deleted: nothing before the newest of them is certain.
    """
    recorded = [file.log.horizon_ms or 0 for file in view.files]
    return max(*recorded, *_vanished_ms(view), _newest_foreign_merge_ms(view), 0)


def _vanished_ms(view: LogView) -> list[int]:
    """Return when those log files died that are named as dead and not there: deleted, and not yet stripped (R3)."""
    # A seal may stand where a commit landed and was vacuumed (F1): the commit's log file is gone all the same.
    present = {file.key for file in view.files if not file.log.is_seal}
    return [
        tombstone.tombstoned_ms
        for file in view.files
        for tombstone in file.log.log_tombstones
        if tombstone.path not in present
    ]


def _require_readable(table: str, as_of_ms: int, *, horizon_ms: int) -> None:
    """Refuse a time of which log files are deleted: an answer would miss rows without saying so (R3)."""
    if as_of_ms < horizon_ms:
        raise BelowHorizon(
            f"table {table}: time {format_ms(as_of_ms)} lies before {format_ms(horizon_ms)} ({horizon_ms}), the oldest "
            "time still readable; ask for that or later. A table has the states of its last log_grace, 10 minutes by "
            "default; what is gone does not come back. To have more from now on: "
            f"`icedb tag create {table} NAME` keeps one; a table made with `--set log_grace=1d --set data_grace=1d` "
            "has a day, if it has fewer than 750 commits in one, each a log file"
        )


def _is_all_exact(log: LogHead) -> bool:
    """Whether a commit says of all its columns that their values are exact: one that says nothing proves nothing (S2).

    Mostly it is proven of all columns; a seal has none.
    """
    return log.inexact is not None and not log.inexact


def _newest_foreign_merge_ms(view: LogView) -> int:
    """Return the time of the newest merge of a writer that gives its commits no id; 0 if there is none.

    WARN: R3: such a writer's cleaner writes what it keeps of all merges into one new log file and deletes the others,
    tombstones and all. A state before that is missing rows, or has removed ones, and nothing in the log tells.
    """
    foreign = [file for file in view.files if file.log.commit_id is None and not file.log.is_seal]
    if not foreign:
        return 0
    # What a tag holds is folded as well, and its key is none of a log file.
    names = (parse_log_key(file.key) for file in foreign if is_log_folder(file.key))
    return max((name.time_ms for name in names if name.is_merged), default=0)


def newest_feed(states: Iterable[FeedState | None]) -> FeedState | None:
    """Return what a view has taken of its source (V1): the state with the highest number; ``None`` if there is none.

    Each feed commit says all that counts, so that nothing older has to be carried along.
    """
    return max((state for state in states if state is not None), key=lambda state: state.sequence, default=None)


def find_rebuilt(files: Iterable[ListedLogHead]) -> str | None:
    """Return which rebuild made a log anew last (B3); ``None``: none did."""
    return next(
        (file.log.rebuilt for file in sorted(files, key=lambda file: file.key, reverse=True) if file.log.rebuilt), None
    )


def union_schema(table: str, files: Iterable[ListedLogHead]) -> LoggedSchema:
    """Return the union of all schema lines, columns in order of first appearance, and what was widened (S2).

    Raises:
        SchemaConflict: Names the column, both types and both log files.
    """
    schema: dict[str, str] = {}
    origin: dict[str, str] = {}
    seen: Mapping[str, str] = {}
    # The codec takes only widenings of the type in the same log file's schema line, and each type has one: log files
    # can only differ in the time, of which the earliest counts.
    widened: dict[str, Widening] = {}
    said: list[tuple[AbstractSet[str], Mapping[str, bool] | None]] = []
    for file in files:
        log = file.log
        if not _is_all_exact(log):
            said.append((log.schema.keys(), log.inexact))
        for column, widening in log.widened.items():
            widened[column] = min(widened.get(column, widening), widening)
        if log.schema == seen:  # mostly; a thousand log files are compared at once
            continue
        seen = log.schema
        for column, sql_type in seen.items():
            known = schema.setdefault(column, sql_type)
            if known != sql_type:
                raise SchemaConflict(
                    f"table {table}: column {column!r} is {known} in {origin[column]} and {sql_type} in {file.key}; "
                    "one of the two log files was written by a faulty writer and has to be corrected: "
                    f"`icedb fsck {table}`, schema-conflict in docs/repair.md"
                )
            origin.setdefault(column, file.key)
    inexact = unite_inexact(said, columns_to_prove(schema) - widened.keys())
    return LoggedSchema(schema, widened, inexact)


def _snapshot_id(live: LiveFiles, schema: Mapping[str, str]) -> str:
    digest = hashlib.blake2b(b"%d %d" % (len(live), live.digest), digest_size=16)
    for column in sorted(schema):
        digest.update(f"\0{column}\0{schema[column]}".encode())
    return digest.hexdigest()


MAX_LANDED: Final = 100
"""So many commits a fence remembers. Each takes 51 bytes of an object that is written twice for each commit."""


def add_landed(landed: tuple[str, ...], key: str) -> tuple[str, ...]:
    """Return a history with one more commit that certainly landed, the newest last."""
    name = log_name(key)
    return (*(each for each in landed if each != name), name)[-MAX_LANDED:]


def find_lost(landed: Iterable[str], view: LogView) -> tuple[str, ...]:
    """Return the commits whose log files were lost, ascending.

    Args:
        landed: Names of log files of commits that landed, from fences.
        view: The log, read after the fences: what had landed by then is in it, or a merge replaced it before.
    """
    missing = drop_known(landed, view)
    if not missing:
        return ()
    # R3: a log file that the janitor has deleted was replaced by a merge with a later time (S1), which is part of the
    # horizon for as long as the table lives.
    horizon_ms = read_horizon_ms(view)
    parsed = ((name, find_log_name(name)) for name in missing)
    return tuple(sorted(name for name, found in parsed if found is not None and found.time_ms > horizon_ms))


def drop_known(names: Iterable[str], view: LogView) -> set[str]:
    """Return those of some log files that are not there (nor renamed, W2), not sealed and not dead by the log."""
    missing = set(names) - {log_name(file.key) for file in view.files}
    if not missing:
        return missing
    missing -= {log_name(tombstone.path) for file in view.files for tombstone in file.log.log_tombstones}
    commit_ids = {file.log.commit_id for file in view.files}
    parsed = ((name, find_log_name(name)) for name in missing)
    return {name for name, found in parsed if found is None or found.commit_id not in commit_ids}
