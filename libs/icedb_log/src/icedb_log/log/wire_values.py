"""Values of a log file's lines, checked: what is not as the wire wants it is CorruptLog (S3), with key and line."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from icedb_log.errors import CorruptLog
from icedb_log.model import EMPTY

WIRE_NAMES: Final = frozenset({"v", "t", "sch", "f", "tmb", "p", "b"})
"""Names that both v3 readers take, without regard to case: no other field may be spelt like one of them."""

MAX_INTEGER: Final = 2**63 - 1
"""What both existing readers can hold."""

_SHOWN_CHARS: Final = 120


def load_object(key: str, lines: list[bytes], number: int) -> dict[str, Any]:
    """Return the JSON object of a line by its number. Raises CorruptLog."""
    return load_line(key, number, lines[number])


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


def read_optional_text(key: str, number: int, line: dict[str, Any], name: str) -> str | None:
    """Return a text, ``None`` if it is absent or null. Raises CorruptLog."""
    return None if line.get(name) is None else read_text(key, number, line, name)


def read_extra(key: str, number: int, line: dict[str, Any], known: frozenset[str]) -> Mapping[str, Any]:
    """Return the fields that are not known. Raises CorruptLog for one that existing readers would take for theirs."""
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
