"""The log of a table under ``icedb fsck``: read although it may be damaged, and what it says that cannot be.

Every log file is read on its own, so that the first damage hides no other; one that is refused counts as empty.
One read shows the log as it was at one moment (R1), so every finding here is certain without a second look. What a log
file that cannot be read may say is not known: whoever concludes something from what the log does *not* say has to ask
:attr:`CheckedLog.is_whole` first.

The rules of the wire are checked strictly: what the two existing v3 readers refuse or misread, although ours takes it.
They are those of ``docs/protocol.md``, section "Wire"; ``tests/compat/strict_reader.py`` is written from the same text
and shares no code, and a test holds both together. Unlike the decoder this does not stop at the first line that is
wrong.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import orjson

from icedb_log.batch_ids import name_of
from icedb_log.errors import CorruptLog, HaltError
from icedb_log.keys import TablePaths, parse_log_key
from icedb_log.log.codec import WIRE_NAMES, decode_log_file, show
from icedb_log.log.reader import LogReader, require_own_time
from icedb_log.log.widening import fixed_columns
from icedb_log.model import FORMAT_VERSION, FileMarker, ListedLogFile, LogFile, LogTombstone, LogView
from icedb_log.repair.fsck_findings import Findings
from icedb_log.store.object_store import ObjectInfo
from icedb_log.table.table_config import TableConfig
from icedb_log.units import MINUTE_MS

MAX_PROBLEMS: Final = 50
"""Lines of one log file that are listed."""

_FIRST_TOMBSTONE: Final = 2
_PATH: Final = re.compile(r"([A-Za-z0-9_.-]+=[A-Za-z0-9_.-]+/)*[A-Za-z0-9_.-]+\.parquet")
_DOTS: Final = re.compile(r"(^|/)\.\.?(/|$)")
_SHOWN: Final = 120


@dataclass(frozen=True, slots=True)
class WireProblem:
    """One line that breaks a rule.

    Attributes:
        line: Its number, counted from 0.
        message: What is wrong.
        is_path: Whether it is a name that is no file of this table.
    """

    line: int
    message: str
    is_path: bool = False


def is_log_key(paths: TablePaths, key: str) -> bool:
    """Return whether a key is that of a log file of the table."""
    if key.rpartition("/")[0] != paths.log_prefix.rstrip("/"):
        return False
    try:
        parse_log_key(key)
    except CorruptLog:
        return False
    return True


def find_wire_problems(paths: TablePaths, key: str, body: bytes) -> tuple[WireProblem, ...]:
    """Return what is wrong with a log file, line by line; at most :data:`MAX_PROBLEMS`.

    Args:
        paths: Keys of the table.
        key: Key of the log file, well-formed.
        body: Its bytes.
    """
    return tuple(_WireCheck(paths, key, body).run())


class _WireCheck:
    """Checks one log file."""

    def __init__(self, paths: TablePaths, key: str, body: bytes) -> None:
        self._paths = paths
        self._key = key
        self._lines = body.split(b"\n")
        self._problems: list[WireProblem] = []

    def run(self) -> list[WireProblem]:
        lines = self._lines
        metadata = self._load(0)
        first_marker = self._check_metadata(metadata) if metadata is not None else None
        if len(lines) > 1 and (schema := self._load(1, is_schema=True)) is not None:
            self._check_schema(schema)
        if first_marker is None:
            return self._problems  # nobody can tell markers and log tombstones apart
        for number in range(_FIRST_TOMBSTONE, len(lines)):
            if len(self._problems) >= MAX_PROBLEMS:
                break
            line = self._load(number)
            if line is None:
                continue
            if number < first_marker:
                self._check_tombstone(number, line)
            else:
                self._check_marker(number, line)
        return self._problems

    def _add(self, number: int, message: str, *, is_path: bool = False) -> None:
        self._problems.append(WireProblem(number, message, is_path))

    def _load(self, number: int, *, is_schema: bool = False) -> dict[str, Any] | None:
        text = self._lines[number]
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            self._add(number, f"is not JSON: {error}")
            return None
        if not isinstance(value, dict):
            self._add(number, "is not a JSON object")
            return None
        # What our own encoder writes comes back byte for byte: then no name stands there twice.
        try:
            if orjson.dumps(value) != text:
                self._check_unique(number, text)
        except orjson.JSONEncodeError:
            self._add(number, "is nested too deeply: it could not be written again")
            return None
        if not is_schema:
            for name in value:
                folded = name.casefold()
                if folded != name and folded in WIRE_NAMES:
                    self._add(number, f"{name[:_SHOWN]!r} overwrites {folded!r} in a reader that ignores case")
        return value

    def _check_unique(self, number: int, text: bytes) -> None:
        try:
            names = [name for name, _ in json.loads(text, object_pairs_hook=list)]
        except (ValueError, RecursionError) as error:
            self._add(number, f"is not JSON for every reader: {error}")
            return
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            self._add(number, f"names {min(twice)[:_SHOWN]!r} twice: readers would not agree which counts")

    def _check_metadata(self, metadata: dict[str, Any]) -> int | None:
        if metadata.get("v") != FORMAT_VERSION or not _is_integer(metadata.get("v")):
            self._add(0, f"v is {show(metadata.get('v'))}, not the integer {FORMAT_VERSION}")
        time_ms = parse_log_key(self._key).time_ms
        if metadata.get("t") != time_ms or not _is_integer(metadata.get("t")):
            self._add(0, f"t is {show(metadata.get('t'))}, the name says {time_ms}")
        if metadata.get("sch") != 1 or not _is_integer(metadata.get("sch")):
            self._add(0, f"sch is {show(metadata.get('sch'))}: the schema line is line 1")
        first = metadata.get("f")
        has_tombstones = "tmb" in metadata
        if has_tombstones and not (_is_integer(metadata["tmb"]) and metadata["tmb"] == _FIRST_TOMBSTONE):
            self._add(0, f"tmb is {show(metadata['tmb'])}: log tombstones begin in line {_FIRST_TOMBSTONE}")
        if not isinstance(first, int) or isinstance(first, bool) or not _FIRST_TOMBSTONE <= first <= len(self._lines):
            self._add(0, f"f is {show(first)} of {len(self._lines)} lines")
            return None
        if has_tombstones == (first == _FIRST_TOMBSTONE):
            self._add(0, f"f is {first} and tmb is {'there' if has_tombstones else 'not there'}")
        return first

    def _check_schema(self, schema: dict[str, Any]) -> None:
        for column, sql_type in schema.items():
            if not isinstance(sql_type, str) or not sql_type:
                self._add(1, f"the type of column {show(column)} is {show(sql_type)}")

    def _check_tombstone(self, number: int, line: dict[str, Any]) -> None:
        path = line.get("p")
        if not isinstance(path, str) or not is_log_key(self._paths, path):
            self._add(number, f"{show(path)} is no log file of this table", is_path=True)
        self._check_integers(number, line, "t")

    def _check_marker(self, number: int, line: dict[str, Any]) -> None:
        path = line.get("p")
        problem = find_path_problem(self._paths, path)
        if problem:
            self._add(number, problem, is_path=True)
        self._check_integers(number, line, "b", "t", *(("tmb",) if "tmb" in line else ()))
        if line.get("tmb") == 0:
            self._add(number, "tmb is 0, which readers take for live")

    def _check_integers(self, number: int, line: dict[str, Any], *names: str) -> None:
        for name in names:
            value = line.get(name)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
                self._add(number, f"{name} is {show(value)}, not an integer from 0 to 2^63 - 1")


def find_path_problem(paths: TablePaths, path: object) -> str | None:
    """Return why a marker's path is none of a data file of the table; ``None`` if it is one."""
    if not isinstance(path, str) or not path.startswith(paths.data_prefix):
        return f"{show(path)} is no data file of this table: it lies outside {paths.data_prefix}"
    rest = path[len(paths.data_prefix) :]
    if _DOTS.search(rest):
        return f"{show(path)} has a component '.' or '..'"
    if not _PATH.fullmatch(rest):
        return f"{show(path)} is not a Hive path of the characters A-Z a-z 0-9 - _ . that ends with .parquet"
    return None


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


MAX_SKEW_MS: Final = 5 * MINUTE_MS
"""Two clocks that differ by more than this are worth a word."""
LONG_LOG: Final = 500
MAX_LOG_FILES: Final = 1000
"""One of the existing readers asks for no second page."""

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
        wide = ((column, kind) for file in self.readable for column, (kind, _) in file.log.widened.items())
        return {**logged, **dict(wide)}

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

    def _fetch_body(self, info: ObjectInfo) -> bytes:
        return super()._fetch_body(info) if is_log_key(self._paths, info.key) else b""

    def _parse(self, info: ObjectInfo, body: bytes) -> ListedLogFile:
        place = (info.key, info.etag, info.modified_ms, info.size_bytes)
        if not is_log_key(self._paths, info.key):
            return CheckedLogFile(*place, LogFile(time_ms=0), is_misnamed=True)
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
            other = committed.setdefault(name_of(batch_id), file.key)
            if other != file.key:
                found.add("batch-twice", file.key, line=0, batch_id=batch_id, other=other)
        refused.update(dict.fromkeys(file.log.refused_ids, file.key))
    for batch_id, key in refused.items():
        if name_of(batch_id) in committed:
            found.add("batch-twice:refused", key, line=0, batch_id=batch_id, other=committed[name_of(batch_id)])


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
