"""What a log says that cannot be, or should not be: pure checks over one consistent read of it.

One read shows the log as it was at one moment (R1), so every finding here is certain without a second look. What a log
file that cannot be read may say is not known: checks that conclude something from what the log does *not* say are left
out then.
"""

from collections import defaultdict
from collections.abc import Set as AbstractSet
from typing import Final

from icedb_log.keys import TablePaths, parse_log_key
from icedb_log.log.widening import fixed_columns
from icedb_log.model import FileMarker, ListedLogFile
from icedb_log.repair.fsck_log import CheckedLog, CheckedLogFile
from icedb_log.repair.fsck_report import Findings
from icedb_log.table.table_config import TableConfig

MAX_SKEW_MS: Final = 5 * 60 * 1000
"""Two clocks that differ by more than this are worth a word."""
LONG_LOG: Final = 500
MAX_LOG_FILES: Final = 1000
"""One of the existing readers asks for no second page."""


def check_log(found: Findings, paths: TablePaths, log: CheckedLog, config: TableConfig | None) -> None:
    """Check all that the log alone can tell.

    Args:
        found: Takes the findings.
        paths: Keys of the table.
        log: Its log.
        config: Its configuration, if it can be read.
    """
    check_log_files(found, log)
    check_length(found, paths, log)
    check_times(found, log, config)
    check_commits(found, log)
    check_schema(found, paths, log, config)
    check_listings(found, log)
    check_order(found, log)
    check_seals(found, log, config)
    if log.is_whole:
        check_carried(found, log)
    else:
        unread = len(log.files) - len(log.readable)
        found.add(
            "not-checked",
            paths.log_prefix,
            f"{unread} log files cannot be read: what they say is unknown, so neither dangling names nor orphans were "
            "looked for, nor what merges carry",
        )


def check_log_files(found: Findings, log: CheckedLog) -> None:
    """S3 and the wire: each log file by itself."""
    for file in log.files:
        if file.is_misnamed:
            found.add("log-misnamed", file.key, "only log files may stand below _log; every reader takes it for one")
            continue
        if file.damage:
            found.add("log-malformed", file.key, file.damage, line=file.damaged_line)
        for problem in file.wire:
            if not file.damage or problem.line != file.damaged_line:
                code = "foreign-path" if problem.is_path else "wire"
                found.add(code, file.key, problem.message, line=problem.line)


def check_length(found: Findings, paths: TablePaths, log: CheckedLog) -> None:
    """Wire: one of the existing readers sees no more than one page."""
    count = len(log.files)
    if count >= MAX_LOG_FILES:
        found.add(
            "log-count",
            paths.log_prefix,
            f"{count} log files: a reader that asks for one page of 1,000 misses rows",
            severity="error",
        )
    elif count >= LONG_LOG:
        found.add("log-count", paths.log_prefix, f"{count} log files; below 1,000 they have to stay")


def check_times(found: Findings, log: CheckedLog, config: TableConfig | None) -> None:
    """Clocks: what a committer's clock said, against the store's."""
    longest_ms = config.orphan_age_ms // 2 if config is not None else None
    latest_ms = log.store_now_ms + MAX_SKEW_MS
    for file in log.readable:
        name = parse_log_key(file.key)
        ahead_ms = name.time_ms - file.modified_ms
        if ahead_ms > MAX_SKEW_MS:
            found.add("clock-skew", file.key, f"its time is {_minutes(ahead_ms)} later than the store's at its commit")
        elif (
            longest_ms is not None and not (name.is_merged or file.log.is_seal) and -ahead_ms > longest_ms + MAX_SKEW_MS
        ):
            # W3: no commit takes longer. Merges may have been stripped since (J3), so their LastModified says nothing,
            # and a seal comes when somebody settles an old commit (F1).
            found.add(
                "clock-skew",
                file.key,
                f"its time is {_minutes(-ahead_ms)} earlier than the store's at its commit, or the table was copied",
                severity="note",
            )
        horizon_ms = file.log.horizon_ms
        if horizon_ms is not None and horizon_ms > latest_ms:
            found.add("horizon", file.key, f"no time before {horizon_ms} can be read", line=0)
        _check_tombstone_times(found, file, latest_ms)


def _check_tombstone_times(found: Findings, file: ListedLogFile, latest_ms: int) -> None:
    late = [
        (tombstone.path, tombstone.tombstoned_ms, tombstone.landed_ms or 0)
        for tombstone in file.log.log_tombstones
        if max(tombstone.tombstoned_ms, tombstone.landed_ms or 0) > latest_ms
    ]
    late += [
        (marker.path, marker.tombstoned_ms, marker.landed_ms or 0)
        for marker in file.log.markers
        if marker.tombstoned_ms is not None and max(marker.tombstoned_ms, marker.landed_ms or 0) > latest_ms
    ]
    if late:
        path, time_ms, landed_ms = late[0]
        found.add(
            "tombstone-time",
            file.key,
            f"{len(late)} tombstones lie in the store's future, the first is {path}: {max(time_ms, landed_ms)}",
        )


def check_commits(found: Findings, log: CheckedLog) -> None:
    """W2, I3, I5: a commit is one log file, and a batch is in one of them."""
    commits: dict[str, str] = {}
    committed: dict[str, str] = {}
    refused: dict[str, str] = {}
    for file in log.readable:
        commit_id = file.log.commit_id
        twin = commits.setdefault(commit_id, file.key) if commit_id is not None else file.key
        if twin != file.key:
            found.add("commit-not-unique", file.key, f"commit {commit_id} is also in {twin}", line=0)
            continue  # one commit under two names has the same batches, and its rows count once (S1)
        for batch_id in file.log.batch_ids:
            other = committed.setdefault(batch_id, file.key)
            if other != file.key:
                found.add("batch-twice", file.key, f"batch {batch_id} was committed by {other}, too", line=0)
        refused.update(dict.fromkeys(file.log.refused_ids, file.key))
    for batch_id in committed.keys() & refused.keys():
        found.add(
            "batch-twice",
            refused[batch_id],
            f"batch {batch_id} was refused here and committed by {committed[batch_id]}: a retry doubles its rows",
            line=0,
        )


def check_schema(found: Findings, paths: TablePaths, log: CheckedLog, config: TableConfig | None) -> None:
    """S2: a column has one type, every commit carries it, and only other columns become wider."""
    types: dict[str, dict[str, str]] = defaultdict(dict)
    widened: dict[str, str] = {}
    for file in log.readable:
        for column, sql_type in file.log.schema.items():
            types[column].setdefault(sql_type, file.key)
        for column in file.log.widened:
            widened.setdefault(column, file.key)
    for column, where in types.items():
        if len(where) > 1:
            said = "; ".join(f"{sql_type} in {key}" for sql_type, key in where.items())
            found.add("schema-conflict", next(iter(where.values())), f"column {column!r} is {said}", line=1)
    if config is not None:
        for column in widened.keys() & fixed_columns(config):
            found.add("widening", widened[column], f"column {column!r} lays out data files and became wider", line=0)
    if log.is_whole and log.dead_logs:
        _check_schema_carried(found, paths, log, columns=types.keys(), widened=widened.keys())


def _check_schema_carried(
    found: Findings, paths: TablePaths, log: CheckedLog, *, columns: AbstractSet[str], widened: AbstractSet[str]
) -> None:
    kept = {column for file in log.remaining for column in file.log.schema}
    kept_wide = {column for file in log.remaining for column in file.log.widened}
    for column in columns - kept:
        found.add("schema-not-carried", paths.log_prefix, f"column {column!r} stands in dead log files only")
    for column in (widened - kept_wide) & kept:
        found.add("schema-not-carried", paths.log_prefix, f"dead log files alone say that column {column!r} is wider")


def check_listings(found: Findings, log: CheckedLog) -> None:
    """S1: a data file is listed once, by the one log file that is not dead."""
    first: dict[str, tuple[FileMarker, CheckedLogFile]] = {}
    for file in log.remaining:
        for number, marker in enumerate(file.log.markers, _first_marker_line(file)):
            known = first.setdefault(marker.path, (marker, file))
            if known[0] is not marker:
                _report_twin(found, marker, file, number, known)


def _report_twin(
    found: Findings, marker: FileMarker, file: CheckedLogFile, line: int, known: tuple[FileMarker, CheckedLogFile]
) -> None:
    other, where = known
    counts = {marker.row_count, other.row_count} - {None}
    place = "twice here" if where.key == file.key else f"also by {where.key}"
    if other.size_bytes != marker.size_bytes or len(counts) > 1:
        found.add(
            "double-listing",
            file.key,
            f"{marker.path} is listed {place}, with another size or number of rows: {marker.size_bytes} and "
            f"{other.size_bytes} bytes, {marker.row_count} and {other.row_count} rows",
            line=line,
            severity="error",
        )
    else:
        found.add("double-listing", file.key, f"{marker.path} is listed {place}", line=line)


def check_order(found: Findings, log: CheckedLog) -> None:
    """S1: existing readers take the last marker in key order; it must say what the union says."""
    last: dict[str, CheckedLogFile] = {}
    dead = log.dead
    for file in log.readable:  # ascending by key
        for marker in file.log.markers:
            if marker.path in dead:
                if marker.tombstoned_ms is None:
                    last[marker.path] = file
                else:
                    last.pop(marker.path, None)
    for path, file in last.items():
        found.add("marker-order", file.key, f"{path} is live here, behind the log file that holds its tombstone")


def check_seals(found: Findings, log: CheckedLog, config: TableConfig | None) -> None:
    """F4: seals stay for long, and no merge takes one."""
    seals = [file for file in log.readable if file.log.is_seal]
    for file in seals:
        if file.key in log.dead_logs:
            found.add(
                "seal", file.key, "a merge took this seal, so that it may be deleted too early", severity="warning"
            )
    if seals:
        oldest_ms = log.store_now_ms - min(file.modified_ms for file in seals)
        expired = config is not None and oldest_ms > config.seal_age_ms
        found.add(
            "seal",
            seals[0].key,
            f"{len(seals)} seals, the oldest for {_minutes(oldest_ms)}"
            + ("; it is past its age, and goes with the next vacuum" if expired else ""),
        )


def check_carried(found: Findings, log: CheckedLog) -> None:
    """M1: when the dead log files are deleted, the others must say the same."""
    if len(log.remaining) == len(log.readable):
        return
    dead = {marker.path for file in log.remaining for marker in file.log.markers if marker.tombstoned_ms is not None}
    after = {marker.path for file in log.remaining for marker in file.log.markers if marker.path not in dead}
    for path in sorted(log.live.keys() - after):
        found.add("marker-not-carried", path, "is live, but only dead log files list it: its rows will be lost")
    for path in sorted(after - log.live.keys()):
        found.add("marker-not-carried", path, "is dead, but only dead log files say so: its rows will come back")


def _first_marker_line(file: ListedLogFile) -> int:
    return 2 + len(file.log.log_tombstones)


def _minutes(duration_ms: int) -> str:
    return f"{duration_ms / 60_000:,.0f} min"
