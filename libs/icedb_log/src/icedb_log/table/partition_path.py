"""Partition values as they stand in a key, and back.

The wire allows only ``A-Z a-z 0-9 - _ .`` in a partition value, without ``%``, ``+`` or space (existing readers
split and compare the text as it is). So each other character becomes ``_`` and two lower-case hex digits for
each of its UTF-8 bytes: ``São`` is ``S_c3_a3o``. Two texts never share one form:

* a literal ``_`` stays, unless two lower-case hex digits follow it: then it becomes ``_5f``;
* the empty text is ``_``, and the text ``_`` is ``_5f``;
* ``__HIVE_DEFAULT_PARTITION__``, which Hive readers take for null, gets its first ``_`` escaped.

Pure functions without dependencies, because readers of the log need them as much as its writers.
"""

import re
from dataclasses import dataclass
from typing import Final

from icedb_log.errors import InvalidRequest

HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_EMPTY: Final = "_"
_ESCAPED_UNDERSCORE: Final = "_5f"
_TO_ESCAPE: Final = re.compile(r"_(?=[0-9a-f]{2})|[^A-Za-z0-9._-]")
_ESCAPES: Final = re.compile(rb"_([0-9a-f]{2})")


@dataclass(frozen=True, slots=True)
class PartitionValue:
    """One level of a partition path.

    Attributes:
        name: Name of the partition field.
        value: Its value, decoded.
    """

    name: str
    value: str


def encode_partition_value(value: str) -> str:
    """Return the form of a partition value that a key may hold. Injective; never empty.

    Args:
        value: Any text that has a UTF-8 form (no lone surrogates).
    """
    if value in ("", "_"):
        return _ESCAPED_UNDERSCORE if value else _EMPTY
    encoded = _TO_ESCAPE.sub(_escape, value)
    return _ESCAPED_UNDERSCORE + encoded[1:] if encoded == HIVE_NULL else encoded


def decode_partition_value(encoded: str) -> str:
    """Return the value behind an encoded form.

    A form that :func:`encode_partition_value` does not produce (a table written by another v3 writer) stands for
    itself, so that every key can be read.
    """
    if encoded == _EMPTY:
        return ""
    try:
        value = _ESCAPES.sub(lambda match: bytes.fromhex(match[1].decode()), encoded.encode()).decode()
    except UnicodeDecodeError:
        return encoded
    return value if encode_partition_value(value) == encoded else encoded


def parse_partition_path(path: str) -> tuple[PartitionValue, ...]:
    """Split a Hive partition path such as ``d=2023-06-07/u=a`` into its decoded values; empty for ``""``.

    Raises:
        InvalidRequest: A component is not ``name=value``; the message names path and component.
    """
    values = []
    for component in path.split("/") if path else ():
        name, separator, encoded = component.partition("=")
        if not name or not separator:
            raise InvalidRequest(
                f"partition path {path[:120]!r}: {component[:80]!r} is not name=value; "
                "data files must lie in Hive partitions"
            )
        values.append(PartitionValue(name, decode_partition_value(encoded)))
    return tuple(values)


def _escape(match: re.Match[str]) -> str:
    return "".join(f"_{byte:02x}" for byte in match[0].encode())
