"""Joins row groups that were encoded apart, each as a Parquet file of its own, into one file.

Arrow encodes the row groups of a file one after the other. Encoded apart, by several threads, their bytes are the same
but for where they lie: a footer names the place of each column in its file. So the bytes are put one after the other,
and the places in the footers are moved. A footer is a Thrift struct in the compact protocol; what is not a place is
carried as it is. Source: https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift and
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

MAGIC: Final = b"PAR1"
TAIL_BYTES: Final = 8
"""Length of the footer, and the magic bytes."""

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_LONG_LIST: Final = 15
_MAX_DELTA: Final = 15

_MOVED: Final = "moved"
"""A place in the file."""
_COLUMN_META_DATA: Final = {9: _MOVED, 10: _MOVED, 11: _MOVED}
_COLUMN_CHUNK: Final = {2: _MOVED, 3: _COLUMN_META_DATA}
_ROW_GROUP: Final = {1: _COLUMN_CHUNK, 5: _MOVED}
_NUM_ROWS, _ROW_GROUPS, _KEY_VALUES = 3, 4, 5


@dataclass(frozen=True, slots=True)
class _Field:
    number: int
    kind: int
    start: int
    end: int


class FooterJoiner:
    """Gathers the footers of files of one row group each, all of one schema, and makes the footer of them together."""

    def __init__(self) -> None:
        self._first: tuple[bytes, list[_Field]] | None = None
        self._row_groups: list[bytes] = []
        self._row_count = 0

    def add(self, body: Any, *, row_count: int, place: int) -> memoryview:
        """Take the footer of one file in, and return the bytes of its row group.

        Args:
            body: The file.
            row_count: Its rows.
            place: Where its row group will begin in the joined file.
        """
        view = memoryview(body)
        end = len(view) - TAIL_BYTES
        footer = bytes(view[end - int.from_bytes(view[end : end + 4], "little") : end])
        fields = list(_read_fields(footer, 0))
        groups = next(field for field in fields if field.number == _ROW_GROUPS)
        count, _, start = _read_list_header(footer, groups.start)
        if count != 1:
            raise ValueError(f"a file of {count} row groups cannot be joined")
        self._row_groups.append(_move_struct(footer, start, _ROW_GROUP, place - len(MAGIC)))
        self._row_count += row_count
        self._first = self._first or (footer, fields)
        return view[len(MAGIC) : end - len(footer)]

    def make_footer(self, key_values: Mapping[str, str]) -> bytes:
        """Return what comes after the last row group: the footer, its length, the magic bytes."""
        if self._first is None:
            raise ValueError("a file without row groups has no schema")
        footer, fields = self._first
        values = {field.number: (field.kind, footer[field.start : field.end]) for field in fields}
        values[_NUM_ROWS] = (_I64, _zigzag(self._row_count))
        values[_ROW_GROUPS] = (_LIST, _list(_STRUCT, self._row_groups))
        pairs = [
            _struct({1: (_BINARY, _binary(key)), 2: (_BINARY, _binary(value))}) for key, value in key_values.items()
        ]
        if pairs:
            values[_KEY_VALUES] = (_LIST, _list(_STRUCT, pairs))
        joined = _struct(values)
        return joined + len(joined).to_bytes(4, "little") + MAGIC


def _move_struct(data: bytes, start: int, spec: Mapping[int, Any], shift: int) -> bytes:
    """Return a struct with its places moved."""
    values: dict[int, tuple[int, bytes]] = {}
    for field in _read_fields(data, start):
        rule = spec.get(field.number)
        value = data[field.start : field.end]
        if rule is _MOVED:
            place = _read_zigzag(data, field.start)
            value = _zigzag(place + shift) if place else value  # 0: not said
        elif rule is not None and field.kind == _LIST:
            count, kind, at = _read_list_header(data, field.start)
            items = []
            for _ in range(count):
                items.append(_move_struct(data, at, rule, shift))
                at = _skip(data, at, kind)
            value = _list(kind, items)
        elif rule is not None:
            value = _move_struct(data, field.start, rule, shift)
        values[field.number] = (field.kind, value)
    return _struct(values)


def _read_fields(data: bytes, at: int) -> Iterator[_Field]:
    """Yield the fields of a struct that begins at ``at``."""
    number = 0
    while data[at]:
        kind, delta = data[at] & 15, data[at] >> 4
        at += 1
        if delta:
            number += delta
        else:
            number, at = _read_zigzag(data, at), _skip_varint(data, at)
        end = at if kind in (_TRUE, _FALSE) else _skip(data, at, kind)
        yield _Field(number, kind, at, end)
        at = end


def _skip(data: bytes, at: int, kind: int) -> int:
    """Return where a value ends."""
    if kind in (_TRUE, _FALSE, _BYTE):  # of a list: in a struct a bool has no value of its own
        return at + 1
    if kind in (_I16, _I32, _I64):
        return _skip_varint(data, at)
    if kind == _DOUBLE:
        return at + 8
    if kind == _BINARY:
        return _skip_varint(data, at) + _read_varint(data, at)
    if kind == _STRUCT:
        for field in _read_fields(data, at):
            at = field.end
        return _end_of_struct(data, at)
    if kind in (_LIST, _SET):
        count, item_kind, at = _read_list_header(data, at)
        for _ in range(count):
            at = _skip(data, at, item_kind)
        return at
    raise ValueError(f"a Parquet footer has no value of kind {kind}")


def _end_of_struct(data: bytes, at: int) -> int:
    """Return the place after the byte that ends a struct; ``at``: the end of its last field, or its beginning."""
    if data[at]:
        raise ValueError("a Parquet footer has a struct without an end")
    return at + 1


def _read_list_header(data: bytes, at: int) -> tuple[int, int, int]:
    count, kind = data[at] >> 4, data[at] & 15
    if count == _LONG_LIST:
        return _read_varint(data, at + 1), kind, _skip_varint(data, at + 1)
    return count, kind, at + 1


def _read_varint(data: bytes, at: int) -> int:
    value = shift = 0
    while data[at] & 128:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
    return value | data[at] << shift


def _skip_varint(data: bytes, at: int) -> int:
    while data[at] & 128:
        at += 1
    return at + 1


def _read_zigzag(data: bytes, at: int) -> int:
    value = _read_varint(data, at)
    return (value >> 1) ^ -(value & 1)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:  # noqa: PLR2004 - seven bits a byte
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _zigzag(value: int) -> bytes:
    return _varint(value << 1 if value >= 0 else (-value << 1) - 1)


def _binary(text: str) -> bytes:
    data = text.encode()
    return _varint(len(data)) + data


def _list(kind: int, items: Sequence[bytes]) -> bytes:
    short = len(items) < _LONG_LIST
    header = bytes([len(items) << 4 | kind]) if short else bytes([_LONG_LIST << 4 | kind]) + _varint(len(items))
    return header + b"".join(items)


def _struct(values: Mapping[int, tuple[int, bytes]]) -> bytes:
    out = bytearray()
    before = 0
    for number, (kind, value) in sorted(values.items()):
        delta = number - before
        out += bytes([delta << 4 | kind]) if 0 < delta <= _MAX_DELTA else bytes([kind]) + _zigzag(number)
        out += value
        before = number
    out.append(0)
    return bytes(out)
