"""A reader of the wire rules, written from the text of docs/protocol.md alone ("Objects", "Wire", S1, S2, S3).

It shares no code with icedb_log, on purpose: what both conclude from the same bytes is the proof that a table can
be read by others. It takes the last marker of a data file in key order, as the existing readers do, matches field
names as Go's JSON does, and refuses whatever the text does not allow.

Run it on a directory store: ``python strict_reader.py ROOT PREFIX`` prints live files and schema as JSON, or the
complaint on stderr with exit status 1.
"""

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MAX_LOG_FILES = 1000
MAX_INTEGER = 2**63 - 1
LOG_NAME = re.compile(r"([0-9]{13})_(?:m_)?[A-Za-z0-9]([A-Za-z0-9._-]{0,198}[A-Za-z0-9])?\.jsonl")
PARTITION = re.compile(r"[A-Za-z0-9_.-]+=[A-Za-z0-9_.-]+")
FILE_NAME = re.compile(r"[A-Za-z0-9_.-]+\.parquet")

METADATA = ("v", "t", "sch", "f", "tmb")
TOMBSTONE = ("p", "t")
MARKER = ("p", "b", "t", "tmb")
ALL_NAMES = frozenset(METADATA + TOMBSTONE + MARKER)


class WireError(Exception):
    """The table breaks a rule of the wire."""


@dataclass(frozen=True)
class StrictTable:
    """What the log says.

    Attributes:
        live: Full keys of the live data files.
        dead: Full keys of data files whose last marker has a tombstone.
        schema: Column to SQL type.
        row_count: Sum of ``n`` of the live files; ``None`` if one does not say.
    """

    live: frozenset[str]
    dead: frozenset[str]
    schema: dict[str, str]
    row_count: int | None


def read_strict(prefix: str, objects: Iterable[tuple[str, bytes]]) -> StrictTable:
    """Read all objects whose key begins with ``<prefix>/_log``, given in any order."""
    schema: dict[str, str] = {}
    alive: dict[str, bool] = {}
    rows: dict[str, int | None] = {}
    ordered = sorted(objects, key=lambda item: item[0].encode())
    if len(ordered) >= MAX_LOG_FILES:
        raise WireError(f"{len(ordered)} objects below {prefix}/_log: a reader that never pages misses some")
    if len({key for key, _ in ordered}) != len(ordered):
        raise WireError("a key is listed twice")
    for key, body in ordered:
        log = _read_log_file(prefix, key, body)
        for column, sql_type in log.schema.items():
            if schema.setdefault(column, sql_type) != sql_type:
                raise WireError(f"{key}: column {column} is {sql_type}, an earlier log file says {schema[column]}")
        for marker in log.markers:
            alive[marker.path] = marker.is_live  # the last marker in key order wins
            rows[marker.path] = marker.rows
    live = frozenset(path for path, is_live in alive.items() if is_live)
    counts = [rows[path] for path in live]
    return StrictTable(
        live,
        frozenset(alive) - live,
        schema,
        None if None in counts else sum(count for count in counts if count is not None),
    )


def read_strict_directory(root: Path, prefix: str) -> StrictTable:
    """Read a table of a directory store: an object is a file whose path below ``root`` is the key."""
    folder = root / prefix
    entries = [entry for entry in folder.iterdir() if entry.name.startswith("_log")]
    files = [file for entry in entries for file in (entry.rglob("*") if entry.is_dir() else [entry]) if file.is_file()]
    return read_strict(prefix, [(file.relative_to(root).as_posix(), file.read_bytes()) for file in files])


@dataclass(frozen=True)
class _Marker:
    path: str
    is_live: bool
    rows: int | None


@dataclass(frozen=True)
class _LogFile:
    schema: dict[str, str]
    markers: list[_Marker]


def _read_log_file(prefix: str, key: str, body: bytes) -> _LogFile:
    folder, _, name = key.rpartition("/")
    match = LOG_NAME.fullmatch(name)
    if folder != f"{prefix}/_log" or match is None:
        raise WireError(f"{key}: begins like a log file but is not named like one")
    lines = [_object(key, number, line) for number, line in enumerate(body.split(b"\n"))]
    if len(lines) < 2:
        raise WireError(f"{key}: no schema line")
    metadata = _fields(key, 0, lines[0], METADATA)
    if _integer(key, 0, metadata, "v") != 1:
        raise WireError(f"{key}: version {metadata['v']}")
    if _integer(key, 0, metadata, "t") != int(match[1]):
        raise WireError(f"{key}: t is {metadata['t']}")
    if _integer(key, 0, metadata, "sch") != 1:
        raise WireError(f"{key}: the schema line is not line 1")
    first = _integer(key, 0, metadata, "f")
    tombstones = _integer(key, 0, metadata, "tmb") if "tmb" in metadata else None
    if tombstones is not None and not (tombstones == 2 and first > tombstones):
        raise WireError(f"{key}: tmb is {tombstones} and f is {first}")
    if (tombstones is None and first != 2) or first > len(lines):
        raise WireError(f"{key}: f is {first} of {len(lines)} lines")
    schema = {column: _type(key, column, value) for column, value in _unique(key, 1, lines[1]).items()}
    for number in range(2, first):
        _check_tombstone(prefix, key, number, _fields(key, number, lines[number], TOMBSTONE))
    markers = [_read_marker(prefix, key, number, lines[number]) for number in range(first, len(lines))]
    return _LogFile(schema, markers)


def _check_tombstone(prefix: str, key: str, number: int, fields: dict) -> None:
    path = fields.get("p")
    folder, _, name = path.rpartition("/") if isinstance(path, str) else ("", "", "")
    if folder != f"{prefix}/_log" or not LOG_NAME.fullmatch(name):
        raise WireError(f"{key}: line {number}: {path!r} is no log file of this table")
    _integer(key, number, fields, "t")


def _read_marker(prefix: str, key: str, number: int, pairs: list) -> _Marker:
    fields = _fields(key, number, pairs, MARKER)
    path = fields.get("p")
    start = f"{prefix}/_data/"
    if not isinstance(path, str) or not path.startswith(start):
        raise WireError(f"{key}: line {number}: {path!r} is no data file of this table")
    *partition, name = path[len(start) :].split("/")
    if not all(PARTITION.fullmatch(part) for part in partition) or not FILE_NAME.fullmatch(name):
        raise WireError(f"{key}: line {number}: {path!r} is not a Hive path of allowed characters")
    _integer(key, number, fields, "b")
    _integer(key, number, fields, "t")
    is_live = "tmb" not in fields
    if not is_live and _integer(key, number, fields, "tmb") == 0:
        raise WireError(f"{key}: line {number}: tmb is 0")
    rows = dict(pairs).get("n")
    return _Marker(path, is_live, rows if isinstance(rows, int) else None)


def _fields(key: str, number: int, pairs: list, names: tuple[str, ...]) -> dict:
    """Fill the fields of a struct as Go does: without regard to case, a later pair over an earlier one.

    A second pair for one field, or any name of the wire in another case, is refused: readers would not agree.
    """
    found: dict = {}
    for name, value in pairs:
        folded = name.casefold()
        if folded in ALL_NAMES and (name != folded or name in found):
            raise WireError(f"{key}: line {number}: {name!r} overwrites {folded!r} in a reader that ignores case")
        if folded in names:
            found[folded] = value
    return found


def _object(key: str, number: int, line: bytes) -> list:
    """Parse a line into its name and value pairs, in order."""
    try:
        pairs = json.loads(line.decode(), object_pairs_hook=_Pairs, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise WireError(f"{key}: line {number} is not JSON: {error}") from error
    if not isinstance(pairs, _Pairs):
        raise WireError(f"{key}: line {number} is not an object")
    return pairs


class _Pairs(list):
    """The pairs of a JSON object."""


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _unique(key: str, number: int, pairs: list) -> dict:
    if len(dict(pairs)) != len(pairs):
        raise WireError(f"{key}: line {number}: a column is named twice")
    return dict(pairs)


def _type(key: str, column: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise WireError(f"{key}: the type of column {column} is {value!r}")
    return value


def _integer(key: str, number: int, fields: dict, name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_INTEGER:
        raise WireError(f"{key}: line {number}: {name} is {value!r}, not an integer")
    return value


def _main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: strict_reader.py ROOT PREFIX", file=sys.stderr)
        return 2
    try:
        table = read_strict_directory(Path(arguments[0]), arguments[1])
    except (WireError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps({"live": sorted(table.live), "schema": table.schema, "rows": table.row_count}))
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
