"""The rules of the wire, strictly: what the two existing v3 readers refuse or misread, although ours takes it.

Pure. The rules are those of ``docs/protocol.md``, section "Wire"; ``tests/compat/strict_reader.py`` is written from the
same text and shares no code, and a test holds both together. Unlike the decoder this does not stop at the first line
that is wrong.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import orjson

from icedb_log.errors import CorruptLog
from icedb_log.keys import TablePaths, parse_log_key
from icedb_log.log.wire_values import show
from icedb_log.model import FORMAT_VERSION

MAX_PROBLEMS: Final = 50
"""Lines of one log file that are listed."""

_NAMES: Final = frozenset({"v", "t", "sch", "f", "tmb", "p", "b"})
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
                if folded != name and folded in _NAMES:
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
