"""The log of a table under ``icedb fsck``: read although it may be damaged, and what it says that cannot be.

Every log file is read on its own, so that the first damage hides no other; one that is refused counts as empty.
One read shows the log as it was at one moment (R1), so every finding here is certain without a second look. What a log
file that cannot be read may say is not known: whoever concludes something from what the log does *not* say has to ask
:attr:`CheckedLog.is_whole` first.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from icedb_log.errors import HaltError
from icedb_log.keys import TablePaths, parse_log_key
from icedb_log.log.codec import decode_log_file
from icedb_log.log.reader import LogReader, require_own_time
from icedb_log.log.widening import fixed_columns
from icedb_log.model import FileMarker, ListedLogFile, LogFile, LogTombstone, LogView
from icedb_log.repair.fsck_findings import Findings
from icedb_log.repair.wire_check import WireProblem, find_wire_problems, is_log_key
from icedb_log.store.object_store import ObjectInfo
from icedb_log.table.table_config import TableConfig

MAX_SKEW_MS: Final = 5 * 60 * 1000
"""Two clocks that differ by more than this are worth a word."""
LONG_LOG: Final = 500
MAX_LOG_FILES: Final = 1000
"""One of the existing readers asks for no second page."""
MINUTE_MS: Final = 60_000

_LINE: Final = re.compile(r"line (\d+)")


@dataclass(frozen=True, slots=True)
class CheckedLogFile(ListedLogFile):
    """A log file with what is wrong with it.

    Attributes:
        wire: What existing readers refuse or misread.
        damage: Why the decoder refuses it; empty: it is readable. ``log`` is empty then.
        damaged_line: The line, if one is named.
        is_misnamed: It is no log file at all, and was not read.
    """

    wire: tuple[WireProblem, ...] = ()
    damage: str = ""
    damaged_line: int | None = None
    is_misnamed: bool = False

    @property
    def is_readable(self) -> bool:
        """Whether the decoder takes it."""
        return not self.damage and not self.is_misnamed


class CheckedLog:
    """A log as one consistent read of a :class:`LogChecker` found it, and what follows from it."""

    def __init__(self, view: LogView) -> None:
        self.store_now_ms: Final = view.store_now_ms
        self.files: Final[tuple[CheckedLogFile, ...]] = tuple(
            file for file in view.files if isinstance(file, CheckedLogFile)
        )
        self.readable: Final[tuple[CheckedLogFile, ...]] = tuple(file for file in self.files if file.is_readable)

    @property
    def is_whole(self) -> bool:
        """Whether every log file could be read: what is not said here is said nowhere."""
        return len(self.files) == len(self.readable)

    @cached_property
    def dead_logs(self) -> frozenset[str]:
        """Log files that another one replaces."""
        return frozenset(tombstone.path for file in self.readable for tombstone in file.log.log_tombstones)

    @cached_property
    def remaining(self) -> tuple[CheckedLogFile, ...]:
        """The log files that are left when the janitor has deleted the dead ones."""
        return tuple(file for file in self.readable if file.key not in self.dead_logs)

    @cached_property
    def dead(self) -> frozenset[str]:
        """Data files with a tombstone anywhere (S1)."""
        return frozenset(
            marker.path for file in self.readable for marker in file.log.markers if marker.tombstoned_ms is not None
        )

    @cached_property
    def schema(self) -> Mapping[str, str]:
        """Column to SQL type as readers take it, what became wider being wider (S2); of a conflict the first one."""
        logged = {column: kind for file in reversed(self.readable) for column, kind in file.log.schema.items()}
        return {**logged, **{column: wide for file in self.readable for column, wide in file.log.widened.items()}}

    @cached_property
    def live(self) -> Mapping[str, FileMarker]:
        """Path to marker of the live data files (S1), one of them where there are several."""
        dead = self.dead
        return {marker.path: marker for file in self.readable for marker in file.log.markers if marker.path not in dead}


class LogChecker(LogReader):
    """Reads the log of one table and never stops at damage; keeps what it read by key and ETag. Thread-safe."""

    @property
    def paths(self) -> TablePaths:
        """Keys of the table."""
        return self._paths

    def check(self) -> CheckedLog:
        """Read the whole log. Raises Unavailable: the store did not answer, or the log never held still."""
        return CheckedLog(self.read())

    def _fetch_one(self, info: ObjectInfo) -> ListedLogFile:
        place = (info.key, info.etag, info.modified_ms, info.size_bytes)
        if not is_log_key(self._paths, info.key):
            return CheckedLogFile(*place, LogFile(time_ms=0), is_misnamed=True)
        body = self._store.get(info.key, if_match=info.etag).body  # R1
        wire = find_wire_problems(self._paths, info.key, body)
        try:
            log = decode_log_file(info.key, body)
            require_own_time(info.key, log)
        except HaltError as error:
            return CheckedLogFile(*place, LogFile(time_ms=0), wire, *_describe(error))
        return CheckedLogFile(*place, log, wire)


def _describe(error: HaltError) -> tuple[str, int | None]:
    """Return what is wrong without the key, and in which line."""
    text = str(error).partition(": ")[2] or str(error)
    found = _LINE.match(text)
    return (text, None) if found is None else (text.removeprefix(f"{found[0]}: "), int(found[1]))


def check_log(found: Findings, paths: TablePaths, log: CheckedLog, config: TableConfig | None) -> None:
    """Check all that the log alone can tell, and the configuration, if it can be read."""
    _check_files(found, log)
    if len(log.files) >= LONG_LOG:
        is_full = len(log.files) >= MAX_LOG_FILES
        found.add("log-count:full" if is_full else "log-count", paths.log_prefix, count=len(log.files))
    _check_times(found, log, config)
    _check_commits(found, log)
    _check_schema(found, paths, log, config)
    _check_listings(found, log)
    _check_order(found, log)
    _check_seals(found, log, config)
    if log.is_whole:
        _check_carried(found, log)
    else:
        found.add("not-checked", paths.log_prefix, count=len(log.files) - len(log.readable))


def _check_files(found: Findings, log: CheckedLog) -> None:
    """S3 and the wire: each log file by itself."""
    for file in log.files:
        if file.is_misnamed:
            found.add("log-misnamed", file.key)
            continue
        if file.damage:
            found.add("log-malformed", file.key, line=file.damaged_line, problem=file.damage)
        for each in file.wire:
            if not file.damage or each.line != file.damaged_line:
                found.add("foreign-path" if each.is_path else "wire", file.key, line=each.line, problem=each.message)


def _check_times(found: Findings, log: CheckedLog, config: TableConfig | None) -> None:
    """Clocks: what a committer's clock said, against the store's."""
    longest_ms = config.orphan_age_ms // 2 if config is not None else None
    latest_ms = log.store_now_ms + MAX_SKEW_MS
    for file in log.readable:
        name = parse_log_key(file.key)
        ahead_ms = name.time_ms - file.modified_ms
        # W3: no commit takes longer. Merges may have been stripped since (J3), so their LastModified says nothing, and
        # a seal comes when somebody settles an old commit (F1).
        may_be_late = longest_ms is not None and not (name.is_merged or file.log.is_seal)
        if ahead_ms > MAX_SKEW_MS:
            found.add("clock-skew", file.key, minutes=ahead_ms / MINUTE_MS)
        elif may_be_late and -ahead_ms > (longest_ms or 0) + MAX_SKEW_MS:
            found.add("clock-skew:late", file.key, minutes=-ahead_ms / MINUTE_MS)
        if file.log.horizon_ms is not None and file.log.horizon_ms > latest_ms:
            found.add("horizon", file.key, line=0, horizon_ms=file.log.horizon_ms)
        dead: list[LogTombstone | FileMarker] = [marker for marker in file.log.markers if not marker.is_live]
        dead = [*file.log.log_tombstones, *dead]
        late = [(each.path, max(each.tombstoned_ms or 0, each.landed_ms or 0)) for each in dead]
        late = [(path, time_ms) for path, time_ms in late if time_ms > latest_ms]
        if late:
            found.add("tombstone-time", file.key, count=len(late), path=late[0][0], time_ms=late[0][1])


def _check_commits(found: Findings, log: CheckedLog) -> None:
    """W2, I3, I5: a commit is one log file, and a batch is in one of them."""
    commits: dict[str, str] = {}
    committed: dict[str, str] = {}
    refused: dict[str, str] = {}
    for file in log.readable:
        commit_id = file.log.commit_id
        twin = commits.setdefault(commit_id, file.key) if commit_id is not None else file.key
        if twin != file.key:
            found.add("commit-not-unique", file.key, line=0, commit_id=commit_id, twin=twin)
            continue  # one commit under two names has the same batches, and its rows count once (S1)
        for batch_id in file.log.batch_ids:
            other = committed.setdefault(batch_id, file.key)
            if other != file.key:
                found.add("batch-twice", file.key, line=0, batch_id=batch_id, other=other)
        refused.update(dict.fromkeys(file.log.refused_ids, file.key))
    for batch_id in committed.keys() & refused.keys():
        found.add("batch-twice:refused", refused[batch_id], line=0, batch_id=batch_id, other=committed[batch_id])


def _check_schema(found: Findings, paths: TablePaths, log: CheckedLog, config: TableConfig | None) -> None:
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
            found.add("schema-conflict", next(iter(where.values())), line=1, column=column, types=said)
    for column in () if config is None else widened.keys() & fixed_columns(config):
        found.add("widening", widened[column], line=0, column=column)
    if log.is_whole and log.dead_logs:
        kept = {column for file in log.remaining for column in file.log.schema}
        kept_wide = {column for file in log.remaining for column in file.log.widened}
        for column in types.keys() - kept:
            found.add("schema-not-carried", paths.log_prefix, column=column)
        for column in (widened.keys() - kept_wide) & kept:
            found.add("schema-not-carried:wider", paths.log_prefix, column=column)


def _check_listings(found: Findings, log: CheckedLog) -> None:
    """S1: a data file is listed once, by the one log file that is not dead."""
    first: dict[str, tuple[FileMarker, str]] = {}
    for file in log.remaining:
        for line, marker in enumerate(file.log.markers, 2 + len(file.log.log_tombstones)):
            other, where = first.setdefault(marker.path, (marker, file.key))
            if other is marker:
                continue
            place = "twice here" if where == file.key else f"also by {where}"
            is_equal = other.size_bytes == marker.size_bytes
            is_equal = is_equal and len({marker.row_count, other.row_count} - {None}) <= 1
            found.add(
                "double-listing" if is_equal else "double-listing:unequal",
                file.key,
                line=line,
                path=marker.path,
                place=place,
                sizes=f"{marker.size_bytes} and {other.size_bytes}",
                rows=f"{marker.row_count} and {other.row_count}",
            )


def _check_order(found: Findings, log: CheckedLog) -> None:
    """S1: existing readers take the last marker in key order; it must say what the union says."""
    last: dict[str, str] = {}
    dead = log.dead
    for file in log.readable:  # ascending by key
        for marker in file.log.markers:
            if marker.path in dead:
                if marker.is_live:
                    last[marker.path] = file.key
                else:
                    last.pop(marker.path, None)
    for path, key in last.items():
        found.add("marker-order", key, path=path)


def _check_seals(found: Findings, log: CheckedLog, config: TableConfig | None) -> None:
    """F4: seals stay for long, and no merge takes one."""
    seals = [file for file in log.readable if file.log.is_seal]
    for file in seals:
        if file.key in log.dead_logs:
            found.add("seal:taken", file.key)
    if seals:
        oldest_ms = log.store_now_ms - min(file.modified_ms for file in seals)
        is_expired = config is not None and oldest_ms > config.seal_age_ms
        end = "; it is past its age, and goes with the next vacuum" if is_expired else ""
        found.add("seal", seals[0].key, count=len(seals), minutes=oldest_ms / MINUTE_MS, end=end)


def _check_carried(found: Findings, log: CheckedLog) -> None:
    """M1: when the dead log files are deleted, the others must say the same."""
    if len(log.remaining) == len(log.readable):
        return
    dead = {marker.path for file in log.remaining for marker in file.log.markers if not marker.is_live}
    after = {marker.path for file in log.remaining for marker in file.log.markers if marker.path not in dead}
    for path in sorted(log.live.keys() - after):
        found.add("marker-not-carried", path)
    for path in sorted(after - log.live.keys()):
        found.add("marker-not-carried:dead", path)
