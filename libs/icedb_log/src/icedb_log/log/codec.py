"""Log files to bytes and back: the only place that knows the one-letter keys of the wire.

Layout (checked against both existing v3 readers, ``docs/protocol.md`` section "Wire"): line 0 is metadata,
line ``sch`` the schema, lines ``tmb`` to ``f - 1`` log tombstones, lines ``f`` to the end file markers, no
trailing newline. ``f`` is always written; ``tmb`` only when there are log tombstones (never 0 or null).
Anything else is :class:`~icedb_log.errors.CorruptLog`, with key and line, and never skipped (S3).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache, partial
from io import BytesIO
from itertools import chain
from typing import Annotated, Any, Final, cast

import msgspec
import orjson
from msgspec import Meta, Struct, field

from icedb_log.clock import parse_uuid7_ms
from icedb_log.errors import CorruptLog, InvalidRequest, InvariantViolated, UnsupportedFormat
from icedb_log.log.markers import DecodedMarkers, LineMarkers, MarkerBlock, paused_gc
from icedb_log.log.widening import find_bad_widening
from icedb_log.model import (
    EMPTY,
    FORMAT_VERSION,
    ColumnStats,
    FeedState,
    FileMarker,
    LogFile,
    LogHead,
    LogTombstone,
    Widening,
)
from icedb_log.table.promoted_paths import MAX_PROMOTED

WIRE_NAMES: Final = frozenset({"v", "t", "sch", "f", "tmb", "p", "b"})
"""Names that both v3 readers take, without regard to case: no other field may be spelt like one of them."""

MAX_INTEGER: Final = 2**63 - 1
"""What both existing readers can hold."""

HEAD_LINES: Final = 2
"""Lines of a log file's head: metadata and schema."""

_SHOWN_CHARS: Final = 120


def load_line(key: str, number: int, line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line. Raises CorruptLog."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise CorruptLog(f"{key}: line {number} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CorruptLog(f"{key}: line {number} is not a JSON object")
    return value


def read_line_number(key: str, metadata: dict[str, Any], name: str, low: int, high: int) -> int:
    """Return the number of a line within its bounds. Raises CorruptLog."""
    value = read_integer(key, 0, metadata, name)
    if not low <= value <= high:
        raise CorruptLog(f"{key}: line 0: {name} is {value}, not in {low}..{high}")
    return value


def read_integer(key: str, number: int, line: dict[str, Any], name: str, *, low: int = 0) -> int:
    """Return an integer of 64 bits, at least ``low``. Raises CorruptLog."""
    value = line.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= MAX_INTEGER:
        raise CorruptLog(f"{key}: line {number}: {name} is {show(value)}, not an integer from {low} to 2^63 - 1")
    return value


def read_optional_integer(key: str, number: int, line: dict[str, Any], name: str) -> int | None:
    """Return an integer, ``None`` if it is absent or null. Raises CorruptLog."""
    return None if line.get(name) is None else read_integer(key, number, line, name)


def read_text(key: str, number: int, line: dict[str, Any], name: str) -> str:
    """Return a text that is not empty. Raises CorruptLog."""
    value = line.get(name)
    if not isinstance(value, str) or not value:
        raise CorruptLog(f"{key}: line {number}: {name} is {show(value)}, not a string")
    return value


def read_optional_text(key: str, metadata: dict[str, Any], name: str) -> str | None:
    """Return a text of the metadata, ``None`` if it is absent or null. Raises CorruptLog."""
    return None if metadata.get(name) is None else read_text(key, 0, metadata, name)


def read_extra(key: str, number: int, line: dict[str, Any], known: frozenset[str]) -> Mapping[str, Any]:
    """Return the unknown fields. Raises CorruptLog for one that existing readers would take for theirs."""
    unknown = {name: value for name, value in line.items() if name not in known}
    for name, value in unknown.items():
        if name.casefold() in WIRE_NAMES:
            # Readers that ignore case, and readers that do not, would see two different tables.
            raise CorruptLog(f"{key}: line {number}: field {show(name)} overwrites a wire field in existing readers")
        if isinstance(value, list | dict):
            try:  # what can be read and not written could be neither merged nor stripped
                orjson.dumps({name: value})
            except orjson.JSONEncodeError as error:
                raise CorruptLog(
                    f"{key}: line {number}: field {show(name)} is nested too deeply to be carried on"
                ) from error
    return unknown or EMPTY


def show(value: object) -> str:
    """Return the beginning of a value, for messages."""
    try:
        return repr(value)[:_SHOWN_CHARS]
    except RecursionError:
        return f"a deeply nested {type(value).__name__}"


_METADATA_KEYS: Final = frozenset(
    {"v", "t", "sch", "f", "tmb", "cid", "ids", "h", "seal", "w", "nx", "rej", "fed", "dig", "chg", "rebuilt", "pr"}
    | {"req"}
)
MARKER_KEYS: Final = frozenset({"p", "b", "t", "tmb", "n", "s", "l", "pr"})
_TOMBSTONE_KEYS: Final = frozenset({"p", "t", "l"})
KNOWN_KEYS: Final = _METADATA_KEYS | MARKER_KEYS | _TOMBSTONE_KEYS
"""Of every kind of line; other fields are a later release's."""
_STATS_LENGTH: Final = 3
_NESTED: Final = (list, dict)
MAX_SCHEMAS: Final = 64
"""Schema lines that are remembered."""
_LARGE_BYTES: Final = 1 << 20
_BLOCK_BYTES: Final = 1 << 16
"""Marker lines that are decoded at once: their objects are freed before they leave the processor's cache."""
_MANY_MARKERS: Final = 10_000


_Integer = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
_Count = Annotated[int, Meta(ge=0, le=MAX_PROMOTED)]
_Scalar = str | Annotated[int, Meta(ge=-MAX_INTEGER - 1, le=MAX_INTEGER)] | float | bool | None


class _OrdinaryLine(Struct, forbid_unknown_fields=True, gc=False):
    """A marker line without any field that needs a closer check.

    Whatever this takes is taken by :func:`_decode_marker`, too, for the same; what this refuses that one judges.
    """

    path: Annotated[str, Meta(min_length=1)] = field(name="p")
    size_bytes: _Integer = field(name="b")
    created_ms: _Integer = field(name="t")
    # Absent or an integer, never null.
    tombstoned_ms: Annotated[int, Meta(ge=1, le=MAX_INTEGER)] = field(name="tmb", default=cast("int", None))
    row_count: _Integer | None = field(name="n", default=None)
    stats: dict[str, tuple[_Scalar, _Scalar, _Integer]] | None = field(name="s", default=None)
    landed_ms: _Integer | None = field(name="l", default=None)
    promoted_count: _Count = field(name="pr", default=0)


_ORDINARY: Final = msgspec.json.Decoder(_OrdinaryLine)
_NOT_ORDINARY: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def encode_log_file(log: LogFile) -> bytes:
    """Return the bytes of a log file: deterministic, so that equal values give equal bytes.

    Raises:
        InvariantViolated: An extra field would be taken for a wire field by an existing reader, or a tombstone
            has time 0, which they take for none, or a widened column is none of the schema line (S2).
    """
    tombstones, markers = map(_encode_tombstone, log.log_tombstones), map(_encode_marker, log.markers)
    stream = BytesIO()  # line by line: all lines at once take several times what the log file does
    stream.write(orjson.dumps(_encode_metadata(log)))
    with paused_gc() if len(log.markers) > _MANY_MARKERS else nullcontext():
        for line in chain((dict(log.schema),), tombstones, markers):
            stream.write(b"\n")
            stream.write(orjson.dumps(line))
    return stream.getvalue()


def decode_log_file(key: str, body: bytes, *, is_compact: bool = False) -> LogFile:
    """Parse a log file.

    Args:
        key: Its key, for error messages.
        body: Its bytes.
        is_compact: Check all markers, and keep their lines instead of what they decode to.

    Raises:
        CorruptLog: Malformed in any way; names the key and the line, counted from 0 (S3).
        UnsupportedFormat: Written by a newer format version.
    """
    # Line by line, as split() would cut them: the bytes of a million markers are not held a second time.
    line_count = body.count(b"\n") + 1
    stream = BytesIO(body)
    lines = [stream.readline() for _ in range(min(HEAD_LINES, line_count))]
    metadata = load_line(key, 0, lines[0])
    _check_version(key, metadata)
    schema_line = read_line_number(key, metadata, "sch", 1, min(1, line_count - 1))
    first_marker = read_line_number(key, metadata, "f", schema_line + 1, line_count)
    first_tombstone = first_marker
    if "tmb" in metadata:
        first_tombstone = read_line_number(key, metadata, "tmb", schema_line + 1, first_marker - 1)
    if first_tombstone != schema_line + 1:
        raise CorruptLog(f"{key}: line 0: lines {schema_line + 1} to {first_tombstone - 1} belong to no section")
    head = _decode_head(key, metadata, lines)
    with paused_gc() if len(body) > _LARGE_BYTES else nullcontext():
        log_tombstones = tuple(
            _decode_tombstone(key, number, load_line(key, number, stream.readline()))
            for number in range(first_tombstone, first_marker)
        )
        blocks = _decode_markers(key, first_marker, body, stream.tell()) if first_marker < line_count else ()
        markers: Sequence[FileMarker] = (
            LineMarkers(key, body, first_line=first_marker, blocks=blocks, decode=_decode_marker_line)
            if is_compact
            else DecodedMarkers(key, tuple(_whole(blocks)))
        )
    return LogFile(
        **head,
        log_tombstones=log_tombstones,
        markers=markers,
        horizon_ms=read_optional_integer(key, 0, metadata, "h"),
        extra=read_extra(key, 0, metadata, _METADATA_KEYS),
    )


def decode_log_head(key: str, body: bytes) -> LogHead:
    """Parse the metadata line and the schema line of a log file.

    What stands behind them is not looked at: a log file that is malformed further on has a head all the same.

    Args:
        key: Its key, for error messages.
        body: Its first bytes: the first two lines to their end, or all that there is.

    Raises:
        CorruptLog: One of the two lines is malformed; names the key and the line (S3).
        UnsupportedFormat: Written by a newer format version.
    """
    lines = body.split(b"\n", HEAD_LINES)
    metadata = load_line(key, 0, lines[0])
    _check_version(key, metadata)
    read_line_number(key, metadata, "sch", 1, min(1, len(lines) - 1))
    return LogHead(**_decode_head(key, metadata, lines))


def _check_version(key: str, metadata: dict[str, Any]) -> None:
    version = metadata.get("v")
    # The seed's type says string, its code writes an integer: both are version 1.
    if isinstance(version, int) and not isinstance(version, bool) and version > FORMAT_VERSION:
        raise UnsupportedFormat(
            f"{key}: line 0: log format version {version}; this release reads version {FORMAT_VERSION}: upgrade it"
        )
    if repr(version) not in (repr(FORMAT_VERSION), repr(str(FORMAT_VERSION))):  # 1.0 and true are not 1
        raise CorruptLog(f"{key}: line 0: version {show(version)} is not {FORMAT_VERSION}")


def _decode_head(key: str, metadata: dict[str, Any], lines: list[bytes]) -> dict[str, Any]:
    """Return the fields of a head."""
    is_seal = metadata.get("seal", False)
    if not isinstance(is_seal, bool):
        raise CorruptLog(f"{key}: line 0: seal is {is_seal!r}, not true or false")
    schema = _decode_schema(key, lines[1])
    return {
        "time_ms": read_integer(key, 0, metadata, "t"),
        "schema": schema,
        "commit_id": read_optional_text(key, metadata, "cid"),
        "batch_ids": _texts(key, metadata, "ids"),
        "is_seal": is_seal,
        "widened": _decode_widened(key, metadata, schema),
        "refused_ids": _texts(key, metadata, "rej"),
        "feed": _decode_feed(key, metadata),
        "contents": _decode_contents(key, metadata),
        "inexact": _decode_inexact(key, metadata),
        "change": _decode_change(key, metadata),
        "rebuilt": read_optional_text(key, metadata, "rebuilt"),
        "promoted_count": _read_promoted_count(key, 0, metadata),
        "requests": _decode_requests(key, metadata),
    }


def _read_promoted_count(key: str, number: int, line: dict[str, Any]) -> int:
    count = read_integer(key, number, line, "pr") if "pr" in line else 0
    if count > MAX_PROMOTED:
        raise CorruptLog(f"{key}: line {number}: pr is {count}, and a table has at most {MAX_PROMOTED} promoted paths")
    return count


def _texts(key: str, metadata: dict[str, Any], name: str) -> tuple[str, ...]:
    values = metadata.get(name, [])
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise CorruptLog(f"{key}: line 0: {name} is not a list of strings")
    return tuple(values)


def _encode_metadata(log: LogFile) -> dict[str, Any]:
    metadata: dict[str, Any] = {"v": FORMAT_VERSION, "t": log.time_ms, "sch": 1}
    first_marker_line = 2 + len(log.log_tombstones)
    if log.log_tombstones:
        metadata["tmb"] = 2
    metadata["f"] = first_marker_line
    if log.commit_id is not None:
        metadata["cid"] = log.commit_id
    if log.batch_ids:
        metadata["ids"] = list(log.batch_ids)
    if log.horizon_ms is not None:
        metadata["h"] = log.horizon_ms
    if log.is_seal:
        metadata["seal"] = True
    if log.widened:
        problem = find_bad_widening(log.schema, log.widened)
        if problem:
            raise InvariantViolated(f"a log file cannot say that {problem} (S2)")
        metadata["w"] = {column: list(widening) for column, widening in log.widened.items()}
    if log.refused_ids:
        metadata["rej"] = list(log.refused_ids)
    if log.feed is not None:
        metadata["fed"] = _encode_feed(log.feed)
    return _with_extra({**metadata, **_encode_contents(log), **_encode_change(log), **_encode_inexact(log)}, log.extra)


def _encode_contents(log: LogFile) -> dict[str, Any]:
    if not log.contents:
        return {}
    return {"dig": [log.contents.get(batch_id, "") for batch_id in log.batch_ids]}


def _encode_change(log: LogFile) -> dict[str, Any]:
    said: dict[str, Any] = {} if log.rebuilt is None else {"rebuilt": log.rebuilt}
    if log.change is not None:
        said["chg"] = log.change
    if log.promoted_count:
        said["pr"] = log.promoted_count
    if log.requests:
        said["req"] = {request_id: dict(outcome) for request_id, outcome in log.requests.items()}
    return said


def _encode_feed(feed: FeedState) -> dict[str, Any]:
    value: dict[str, Any] = {"seq": feed.sequence, "log": list(feed.names)}
    if feed.refused:
        value["rej"] = dict(feed.refused)
    if feed.backfilled:
        value["bf"] = list(feed.backfilled)
    return value


def _decode_feed(key: str, metadata: dict[str, Any]) -> FeedState | None:
    value = metadata.get("fed")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise CorruptLog(f"{key}: line 0: fed is {show(value)}, not an object")
    refused = value.get("rej", {})
    if not isinstance(refused, dict) or not all(isinstance(reason, str) for reason in refused.values()):
        raise CorruptLog(f"{key}: line 0: rej of fed is not an object of reasons")
    places = value.get("bf", [])
    if not isinstance(places, list) or not all(type(place) is int and place >= 0 for place in places):
        raise CorruptLog(f"{key}: line 0: bf of fed is not a list of places")
    sequence = read_integer(key, 0, value, "seq", low=1)
    return FeedState(sequence, _texts(key, value, "log"), refused or EMPTY, tuple(places))


def _decode_requests(key: str, metadata: dict[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    requests = metadata.get("req")
    if requests is None:
        return EMPTY
    problem = f"{key}: line 0: req is {show(requests)}, not an object of outcomes by ids of requests"
    if not isinstance(requests, dict) or not all(map(_is_outcome, requests.values())):
        raise CorruptLog(problem)
    try:
        for request_id in requests:
            parse_uuid7_ms(request_id)
    except InvalidRequest as error:
        raise CorruptLog(problem) from error
    return requests


def _is_outcome(value: object) -> bool:
    """Return whether this is what came of a request: plain values, among them what was asked for and the log file."""
    if not isinstance(value, dict) or not all(isinstance(each, int | str) for each in value.values()):
        return False
    return isinstance(value.get("of"), str) and isinstance(value.get("log"), str)


def _decode_contents(key: str, metadata: dict[str, Any]) -> Mapping[str, str]:
    if metadata.get("dig") is None:
        return EMPTY
    batch_ids, digests = _texts(key, metadata, "ids"), _texts(key, metadata, "dig")
    if len(batch_ids) != len(digests):
        raise CorruptLog(f"{key}: line 0: of {len(batch_ids)} ids dig tells the contents of {len(digests)}")
    return {batch_id: digest for batch_id, digest in zip(batch_ids, digests, strict=True) if digest}


def _encode_tombstone(tombstone: LogTombstone) -> dict[str, Any]:
    line: dict[str, Any] = {"p": tombstone.path, "t": tombstone.tombstoned_ms}
    if tombstone.landed_ms is not None:
        line["l"] = tombstone.landed_ms
    return _with_extra(line, tombstone.extra)


def _encode_marker(marker: FileMarker) -> dict[str, Any]:
    line: dict[str, Any] = {"p": marker.path, "b": marker.size_bytes, "t": marker.created_ms}
    if marker.tombstoned_ms is not None:
        if marker.tombstoned_ms == 0:
            raise InvariantViolated(f"{marker.path}: tmb would be 0, which existing readers take for live")
        line["tmb"] = marker.tombstoned_ms
    if marker.row_count is not None:
        line["n"] = marker.row_count
    if marker.stats:
        line["s"] = marker.stats if type(marker.stats) is dict else dict(marker.stats)
    if marker.landed_ms is not None:
        line["l"] = marker.landed_ms
    if marker.promoted_count:
        line["pr"] = marker.promoted_count
    return _with_extra(line, marker.extra) if marker.extra else line


def _with_extra(line: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in extra.items():
        if name.casefold() in WIRE_NAMES:
            raise InvariantViolated(f"field {show(name)} would overwrite a wire field in existing readers")
        line.setdefault(name, value)
    return line


def _decode_schema(key: str, line: bytes) -> Mapping[str, str]:
    try:
        return _known_schema(line)
    except CorruptLog:
        return _load_schema(key, line)  # raises, too, and says which log file


def _load_schema(key: str, line: bytes) -> Mapping[str, str]:
    schema = load_line(key, 1, line)
    for column, sql_type in schema.items():
        if not isinstance(sql_type, str) or not sql_type:
            raise CorruptLog(f"{key}: line 1: type of column {show(column)} is {show(sql_type)}, not a string")
    return schema


_known_schema = lru_cache(MAX_SCHEMAS)(partial(_load_schema, ""))
"""Mostly the log files of a table have the same schema line: then they have the same schema, once in memory."""


def _decode_widened(key: str, metadata: dict[str, Any], schema: Mapping[str, str]) -> Mapping[str, Widening]:
    said = metadata.get("w")
    if said is None:
        return EMPTY
    if not isinstance(said, dict):
        raise CorruptLog(f"{key}: line 0: w is {show(said)}, not an object")
    widened = {column: _decode_widening(key, column, value) for column, value in said.items()}
    problem = find_bad_widening(schema, widened)
    if problem:
        raise CorruptLog(f"{key}: line 0: w: {problem}; written by a faulty writer, or by a later release: upgrade")
    return widened


def _decode_widening(key: str, column: str, value: object) -> Widening:
    sql_type, since_ms = value if isinstance(value, list) and len(value) == len(Widening._fields) else (None, None)
    if not isinstance(sql_type, str) or type(since_ms) is not int or not 0 <= since_ms <= MAX_INTEGER:
        raise CorruptLog(f"{key}: line 0: w of {show(column)} is {show(value)}, not [wider type, unix ms]")
    return Widening(sql_type, since_ms)


def _encode_inexact(log: LogFile) -> dict[str, Any]:
    return {} if log.inexact is None else {"nx": dict(log.inexact)}


def _decode_inexact(key: str, metadata: dict[str, Any]) -> Mapping[str, bool] | None:
    value = metadata.get("nx")
    if value is None:
        return None
    if not isinstance(value, dict) or not all(isinstance(is_known, bool) for is_known in value.values()):
        raise CorruptLog(f"{key}: line 0: nx is {show(value)}, not an object of booleans")
    return value


def _decode_change(key: str, metadata: dict[str, Any]) -> str | None:
    return None if metadata.get("chg") is None else read_text(key, 0, metadata, "chg")


def _decode_tombstone(key: str, number: int, line: dict[str, Any]) -> LogTombstone:
    return LogTombstone(
        path=read_text(key, number, line, "p"),
        tombstoned_ms=read_integer(key, number, line, "t"),
        landed_ms=read_optional_integer(key, number, line, "l"),
        extra=read_extra(key, number, line, _TOMBSTONE_KEYS),
    )


def _decode_markers(key: str, number: int, body: bytes, start: int) -> Iterator[MarkerBlock]:
    """Decode the marker lines from one on to the end, a million of them in a second.

    Args:
        key: Of the log file.
        number: Of the first line.
        body: The log file.
        start: Where that line begins.
    """
    end = start
    while end >= 0:
        end = body.find(b"\n", start + _BLOCK_BYTES)
        block = body[start:] if end < 0 else body[start:end]
        lines = block.split(b"\n")
        yield start, lines, _decode_block(key, number, block, lines)
        start, number = end + 1, number + len(lines)


def _decode_block(key: str, number: int, block: bytes, lines: Sequence[bytes]) -> Sequence[_OrdinaryLine | FileMarker]:
    """Decode some marker lines: ordinary ones at once, and if one is not, all of them line by line, check by check."""
    try:
        said = _ORDINARY.decode_lines(block)
    except _NOT_ORDINARY:  # which line, and why, is said below
        said = []
    # One object in each line: neither a text nor the inside of an ordinary object has "}", a newline and "{" in it, so
    # where each newline stands so, each is between two objects, and as many as there are lines is one for each.
    if len(said) == len(lines) == block.count(b"}\n{") + 1:
        return said
    return [_decode_marker(key, at, load_line(key, at, line)) for at, line in enumerate(lines, number)]


def _whole(blocks: Iterable[MarkerBlock]) -> Iterator[FileMarker]:
    times: dict[int, int] = {}  # whatever one commit has killed died at one time: one number for all of it
    return (_whole_marker(said, times) for _, _, block in blocks for said in block)


def _whole_marker(said: _OrdinaryLine | FileMarker, times: dict[int, int]) -> FileMarker:
    if isinstance(said, FileMarker):
        return said
    dead_ms, landed_ms = said.tombstoned_ms, said.landed_ms
    stats = said.stats
    if stats:
        for column, (low, high, null_count) in stats.items():
            if type(low) is str and low == high:
                # One value where both are the same, as of a partition: statistics are most of a log in memory.
                stats[column] = (low, low, null_count)
    return FileMarker(
        said.path,
        said.size_bytes,
        said.created_ms,
        None if dead_ms is None else times.setdefault(dead_ms, dead_ms),
        said.row_count,
        EMPTY if stats is None else stats,
        None if landed_ms is None else times.setdefault(landed_ms, landed_ms),
        promoted_count=said.promoted_count,
    )


def _decode_marker_line(key: str, number: int, line: bytes) -> FileMarker:
    try:
        return _whole_marker(_ORDINARY.decode(line), {})
    except _NOT_ORDINARY:
        return _decode_marker(key, number, load_line(key, number, line))


def _decode_marker(key: str, number: int, line: dict[str, Any]) -> FileMarker:
    return FileMarker(
        read_text(key, number, line, "p"),
        read_integer(key, number, line, "b"),
        read_integer(key, number, line, "t"),
        read_integer(key, number, line, "tmb", low=1) if "tmb" in line else None,
        read_optional_integer(key, number, line, "n"),
        _decode_stats(key, number, line),
        read_optional_integer(key, number, line, "l"),
        read_extra(key, number, line, MARKER_KEYS),
        promoted_count=_read_promoted_count(key, number, line),
    )


def _decode_stats(key: str, number: int, line: dict[str, Any]) -> Mapping[str, ColumnStats]:
    stats = line.get("s")
    if stats is None:
        return EMPTY
    if not isinstance(stats, dict):
        raise CorruptLog(f"{key}: line {number}: s is not an object")
    for column, value in stats.items():
        low, high, null_count = value if type(value) is list and len(value) == _STATS_LENGTH else (None, None, None)
        if type(null_count) is not int or null_count < 0 or isinstance(low, _NESTED) or isinstance(high, _NESTED):
            raise CorruptLog(f"{key}: line {number}: statistics of {show(column)} are not [min, max, nulls]")
        # In place, and one value where both are the same, as of a partition: statistics are most of a log in memory.
        stats[column] = (low, low, null_count) if type(low) is str and low == high else (low, high, null_count)
    return stats
