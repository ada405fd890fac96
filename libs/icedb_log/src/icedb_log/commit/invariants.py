"""One predicate for each rule that a commit could break: called before every commit, and in tests.

Pure. A violated invariant raises :class:`~icedb_log.errors.InvariantViolated` before anything is written, so a
bug in a planner or in the data path stops a table instead of losing rows.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from icedb_log.errors import CommitConflict, InvariantViolated
from icedb_log.jobs import MergedGroup
from icedb_log.keys import TablePaths, parse_log_key
from icedb_log.log.fold import fold_live_paths, newest_feed, union_schema
from icedb_log.log.live_files import Named, is_live
from icedb_log.log.markers import INDEX_BITS, markers_of
from icedb_log.log.requests import find_requests
from icedb_log.log.state import LogState
from icedb_log.log.widening import LoggedSchema, find_bad_widening
from icedb_log.model import EMPTY, FileMarker, ListedLogFile, LogFile, LogHeads, LogView, Widening
from icedb_log.table.table_config import TableConfig

MAX_LOG_FILES: Final = 950
"""From so many log files on nothing is appended: existing v3 readers list 1,000 and miss the rest (wire rule), and the
merges that bring the log down need room for commits of their own."""


def require_append(paths: TablePaths, log: LogFile, *, known: Collection[str]) -> None:
    """An append only adds: live data files of this table under fresh names, and no tombstone (S1, M1)."""
    if log.log_tombstones or any(not marker.is_live for marker in log.markers):
        raise InvariantViolated(f"table {paths.name}: an append may not hold tombstones")
    _require_fresh(paths, log.markers, known=known)


def require_known_paths(config: TableConfig, log: LogHeads) -> None:
    """Who commits knows every promoted path that the log knows (S4): else his data files may lack a column.

    Raises:
        CommitConflict: The configuration has grown since the run read it.
    """
    count = max((file.log.promoted_count for file in log.files), default=0)
    if count > len(config.promoted):
        raise CommitConflict(
            f"table {config.name}: {count} paths are promoted, and this run knows {len(config.promoted)} of them: the "
            "configuration has changed since it began; run again (S4)"
        )


def require_promoted(
    paths: TablePaths, config: TableConfig, schema: Collection[str], markers: Iterable[FileMarker]
) -> None:
    """A data file that becomes live has every promoted column that the schema has (S4)."""
    needed = config.count_promoted(schema)
    lacking = next((marker for marker in markers if marker.is_live and marker.promoted_count < needed), None)
    if lacking is not None:
        raise InvariantViolated(
            f"table {paths.name}: {lacking.path} has {lacking.promoted_count} of {needed} promoted columns that "
            "readers see; nothing was committed: write its rows again (S4)"
        )


def require_merge(
    paths: TablePaths,
    state: LogState,
    log: LogFile,
    *,
    merged: Sequence[MergedGroup],
    commit_key: str,
    shown: Mapping[str, str] = EMPTY,
) -> None:
    """A merge exchanges its inputs for its outputs and changes nothing else (S1, M1, M3, parity).

    Costs what the log files say that the merge folds, not what the whole log says: of data files that none of these
    names, and the merge neither, nothing changes (:attr:`LogState.inconsistent`).

    Args:
        paths: Keys of the table.
        state: The log as the merge was planned from.
        log: Of the commit.
        merged: What became of each group.
        commit_key: Of the commit.
        shown: Promoted columns that come into the schema (S4).
    """
    view = state.view
    for group in merged:
        require_row_parity(paths, group, may_change_rows=log.change not in (None, "append", "merge"))
        _require_one_partition(paths, group)
    inputs = {marker.path for group in merged for marker in group.group.inputs}
    outputs = [marker for group in merged for marker in group.outputs]
    missing = [path for path in inputs if state.live_marker(path) is None]
    if missing:
        raise InvariantViolated(f"table {paths.name}: {min(missing)} is merged but is not live (M1)")
    _require_fresh(paths, outputs, known={marker.path for marker in outputs if state.logs_naming(marker.path)})
    # M1: once the janitor has deleted the log files that died, the new one must say it all by itself.
    replaced = [file for t in log.log_tombstones if (file := state.held_log(t.path)) is not None]
    _require_exchanged(paths, state, log, replaced, inputs=inputs, outputs={marker.path for marker in outputs})
    _require_log_tombstones_kept(paths, state, log, replaced)
    dead = {tombstone.path for tombstone in log.log_tombstones}
    remaining = [file for file in view.files if file.key not in dead and not state.is_dead_log(file.key)]
    new = ListedLogFile(commit_key, "", view.store_now_ms, 0, log)
    known = union_schema(view.table, view.files)
    union_schema(view.table, (*view.files, new))  # S2: raises when the merge contradicts the log
    after = union_schema(view.table, (*remaining, new))
    if any(
        dict(now) != {**was, **shown} for was, now in ((known.effective, after.effective), (known.logged, after.logged))
    ):
        raise InvariantViolated(f"table {paths.name}: the merge changes the schema (S2)")
    require_schema_carried(paths, log, known=known)
    if newest_feed(file.log.feed for file in (*remaining, new)) != newest_feed(file.log.feed for file in view.files):
        raise InvariantViolated(f"table {paths.name}: the merge forgets what the view has taken of its source (V1)")
    known_ids = find_requests(view.files, now_ms=view.store_now_ms)
    if lost := known_ids.keys() - find_requests((*remaining, new), now_ms=view.store_now_ms).keys():
        raise InvariantViolated(f"table {paths.name}: the merge forgets that request {min(lost)} was carried out (M7)")
    _require_order(paths, view, log, commit_key=commit_key)


def _require_exchanged(
    paths: TablePaths,
    state: LogState,
    log: LogFile,
    replaced: Sequence[ListedLogFile],
    *,
    inputs: Collection[str],
    outputs: Collection[str],
) -> None:
    """The merge makes its outputs live and its inputs dead, now (S1) and without what it replaces (M1)."""
    said = markers_of("", log.markers)
    new_live, new_dead = Counter(said.live_paths()), Counter(said.dead_paths())
    touched = {*new_live, *new_dead, *inputs, *outputs, *state.inconsistent}
    wrong: dict[str, list[tuple[str, bool]]] = {"S1": [], "M1": []}
    lost: list[str] = []
    for path, named, gone in _look_at(paths, state, touched, replaced):
        left_live = named.held_live - gone.live_in + new_live[path]
        left_dead = named.held_dead - gone.dead_in + new_dead[path]
        expected = path in outputs or (named.is_live and path not in inputs)
        if is_live(named.live_in + new_live[path], named.dead_in + new_dead[path]) != expected:
            wrong["S1"].append((path, not expected))
        if is_live(left_live, left_dead) != expected:
            wrong["M1"].append((path, not expected))
        # Only what log files that are not dead themselves still say: a strip may have forgotten the rest for good.
        if named.held_dead and not left_dead:
            lost.append(path)
    for rule, found in wrong.items():
        if found:
            path, is_found_live = min(found)
            raise InvariantViolated(
                f"table {paths.name}: {path} would be {'live' if is_found_live else 'not live'} afterwards ({rule}); "
                f"{len(found)} files differ"
            )
    if lost:
        raise InvariantViolated(f"table {paths.name}: the merge drops the tombstone of {min(lost)} (M1)")


def _look_at(
    paths: TablePaths, state: LogState, touched: set[str], replaced: Sequence[ListedLogFile]
) -> Iterator[tuple[str, Named, Named]]:
    """Yield what is said of some data files, and of all that some log files name, and what these alone say of them."""
    numbers = {state.markers_in(file.key).number for file in replaced}
    unseen = sum(len(file.log.markers) for file in replaced)
    for chunk, path, locations in state.named_in(numbers):
        touched.discard(path)
        gone = [each for each in locations if each >> INDEX_BITS in numbers]
        unseen -= len(gone)
        yield path, chunk.count(locations), chunk.count(gone)
    for path in touched:
        yield path, state.named(path), Named()
    if unseen:  # what is not looked at could be lost, and nobody would notice
        raise InvariantViolated(
            f"table {paths.name}: the state of the log leaves out {unseen} of what the replaced log files name (M1)"
        )


def _require_log_tombstones_kept(
    paths: TablePaths, state: LogState, log: LogFile, replaced: Sequence[ListedLogFile]
) -> None:
    lost = {t.path for file in replaced for t in file.log.log_tombstones} - {t.path for t in log.log_tombstones}
    if lost:  # mostly none: only then the others are asked
        keys = {file.key for file in replaced}
        lost -= _dead_logs(file for file in state.files if file.key not in keys and not state.is_dead_log(file.key))
    if lost:
        raise InvariantViolated(f"table {paths.name}: the merge drops the tombstone of {min(lost)} (M1)")


def require_schema_carried(paths: TablePaths, log: LogFile, *, known: LoggedSchema) -> None:
    """A commit says all that the log knows of the schema: each column with its logged type, and its widening (S2)."""
    said = (("type", known.logged, log.schema), ("wider type", _show(known.widened), _show(log.widened)))
    for what, before, after in said:
        for column, value in before.items():
            if after.get(column) != value:
                raise InvariantViolated(
                    f"table {paths.name}: the {what} of column {column!r} is {value} in the log, but "
                    f"{after.get(column)} in the commit; every commit carries it (S2)"
                )
    problem = find_bad_widening(log.schema, log.widened)
    if problem:
        raise InvariantViolated(f"table {paths.name}: {problem} (S2)")


def _show(widened: Mapping[str, Widening]) -> dict[str, str]:
    return {column: f"{widening.sql_type} since {widening.since_ms}" for column, widening in widened.items()}


def require_row_parity(paths: TablePaths, merged: MergedGroup, *, may_change_rows: bool = False) -> None:
    """Rows in are rows out and rows removed, by independent counts.

    Args:
        paths: Keys of the table.
        merged: A group.
        may_change_rows: Whether the commit is a deletion, a rewrite or a removal (M3).
    """
    written = sum(marker.row_count or 0 for marker in merged.outputs)
    announced = [marker.row_count for marker in merged.group.inputs]
    expected = merged.rows_read if None in announced else sum(count or 0 for count in announced)
    where = f"table {paths.name}: partition {merged.group.partition or '(none)'}"
    if merged.rows_removed != 0 and not may_change_rows:
        raise InvariantViolated(f"{where}: a merge says that it removed rows, and nobody asked for that (M3)")
    if merged.rows_read != expected:
        raise InvariantViolated(
            f"{where}: the inputs hold {expected} rows by the log, {merged.rows_read} were read; nothing was committed"
        )
    if merged.rows_removed is not None and written + merged.rows_removed != expected:
        raise InvariantViolated(
            f"{where}: the inputs hold {expected} rows by the log, {merged.rows_removed} were removed and {written} "
            "written; nothing was committed"
        )


def _require_one_partition(paths: TablePaths, merged: MergedGroup) -> None:
    for marker in (*merged.group.inputs, *merged.outputs):
        if paths.partition_of(marker.path) != merged.group.partition:
            raise InvariantViolated(
                f"table {paths.name}: {marker.path} lies outside partition {merged.group.partition or '(none)'} (M1)"
            )


def require_same_live(paths: TablePaths, before: LogView, after: Iterable[ListedLogFile]) -> None:
    """A vacuum changes nothing that a reader of the newest state sees (J2, J3)."""
    live, expected = fold_live_paths(after), fold_live_paths(before.files)
    if wrong := sorted(live ^ expected):
        state = "live" if wrong[0] in live else "not live"
        raise InvariantViolated(
            f"table {paths.name}: {wrong[0]} would be {state} afterwards (J2); {len(wrong)} files differ"
        )


def require_strip(paths: TablePaths, before: ListedLogFile, after: LogFile, *, live: Collection[str]) -> None:
    """A strip forgets tombstones, and changes nothing else that a log file says (J2, J3, R3).

    Costs as much as the one log file: each strip of a run can be checked by itself, since a strip that is safe
    together with others is safe without them.

    Args:
        paths: Keys of the table.
        before: The log file as it stands.
        after: What is to replace it.
        live: Data files that at least one of the log files that remain lists as live, whatever the others say.
    """
    where = f"table {paths.name}: the strip of {before.key}"
    kept = {marker.path for marker in after.markers if not marker.is_live}
    forgotten = {marker.path for marker in before.log.markers if not marker.is_live} - kept
    revived = [path for path in forgotten if path in live]
    if revived:
        raise InvariantViolated(f"{where} would bring {min(revived)} back to life; {len(revived)} files (J2)")
    horizon_ms = after.horizon_ms or 0
    kept_logs = {tombstone.path for tombstone in after.log_tombstones}
    lost = [t for t in before.log.log_tombstones if t.path not in kept_logs and t.tombstoned_ms > horizon_ms]
    if lost or horizon_ms < (before.log.horizon_ms or 0):
        raise InvariantViolated(f"{where} does not record the horizon of what it forgets (R3)")
    nothing: dict[str, Any] = {"log_tombstones": (), "horizon_ms": None}
    still_live = [tuple(m for m in log.markers if m.tombstoned_ms is None) for log in (before.log, after)]
    told = [replace(log, markers=m, **nothing) for log, m in zip((before.log, after), still_live, strict=True)]
    if told[0] != told[1]:
        raise InvariantViolated(f"{where} changes more than tombstones (J3)")


def _dead_logs(files: Iterable[ListedLogFile]) -> set[str]:
    return {tombstone.path for file in files for tombstone in file.log.log_tombstones}


def _require_fresh(paths: TablePaths, markers: Iterable[FileMarker], *, known: Collection[str]) -> None:
    seen = set(known)
    for marker in markers:
        paths.partition_of(marker.path)
        if marker.path in seen:
            raise InvariantViolated(f"table {paths.name}: the new data file {marker.path} is already in the log")
        seen.add(marker.path)


def _require_order(paths: TablePaths, view: LogView, log: LogFile, *, commit_key: str) -> None:
    """Existing readers take the last marker in key order: a merge sorts after every log file that it read (S1)."""
    late = [file.key for file in view.files if not file.log.is_seal and file.key >= commit_key]
    if late or parse_log_key(commit_key).time_ms != log.time_ms:
        raise InvariantViolated(f"table {paths.name}: {commit_key} does not sort after {late[:1]} (S1)")
