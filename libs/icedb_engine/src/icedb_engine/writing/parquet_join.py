"""Joins row groups that were encoded apart, each as a Parquet file of its own, into one file.

Arrow encodes the row groups of a file one after the other. Encoded apart, by several threads, their bytes are the same
but for where they lie: a footer names the place of each column in its file. So the bytes are put one after the other,
and the places in the footers are moved. A footer is a Thrift struct in the compact protocol; what is not a place is
carried as it is. Source: https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift and
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from icedb_log.parquet.footer import TAIL_BYTES
from icedb_log.parquet.thrift import BINARY, I64, LIST, STRUCT, ThriftReader

MAGIC: Final = b"PAR1"
_LONG_LIST: Final = 15
_MAX_DELTA: Final = 15

_MOVED: Final = "moved"
"""A place in the file."""
_COLUMN_META_DATA: Final = {9: _MOVED, 10: _MOVED, 11: _MOVED}
_COLUMN_CHUNK: Final = {2: _MOVED, 3: _COLUMN_META_DATA}
_ROW_GROUP: Final = {1: _COLUMN_CHUNK, 5: _MOVED}
_NUM_ROWS, _ROW_GROUPS, _KEY_VALUES = 3, 4, 5


class FooterJoiner:
    """Gathers the footers of files of one row group each, all of one schema, and makes the footer of them together."""

    def __init__(self) -> None:
        self._first: dict[int, tuple[int, bytes]] = {}
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
        groups: list[bytes] = []
        values: dict[int, tuple[int, bytes]] = {}
        reader = ThriftReader(footer)
        for number, kind in reader.fields():
            start = reader.position
            if number == _ROW_GROUPS:
                groups = [_move(reader, footer, _ROW_GROUP, place - len(MAGIC)) for _ in reader.items(kind)]
            else:
                reader.skip(kind)
                values[number] = (kind, footer[start : reader.position])
        if len(groups) != 1:
            raise ValueError(f"a file of {len(groups)} row groups cannot be joined")
        self._row_groups += groups
        self._row_count += row_count
        self._first = self._first or values
        return view[len(MAGIC) : end - len(footer)]

    def make_footer(self, key_values: Mapping[str, str]) -> bytes:
        """Return what comes after the last row group: the footer, its length, the magic bytes."""
        if not self._first:
            raise ValueError("a file without row groups has no schema")
        values = dict(self._first)
        values[_NUM_ROWS] = (I64, _zigzag(self._row_count))
        values[_ROW_GROUPS] = (LIST, _list(STRUCT, self._row_groups))
        pairs = [_struct({1: (BINARY, _binary(key)), 2: (BINARY, _binary(value))}) for key, value in key_values.items()]
        if pairs:
            values[_KEY_VALUES] = (LIST, _list(STRUCT, pairs))
        joined = _struct(values)
        return joined + len(joined).to_bytes(4, "little") + MAGIC


def _move(reader: ThriftReader, data: bytes, spec: Mapping[int, Any], shift: int) -> bytes:
    """Return the struct that begins here with its places moved."""
    values: dict[int, tuple[int, bytes]] = {}
    for number, kind in reader.fields():
        rule, start = spec.get(number), reader.position
        if rule is None:
            reader.skip(kind)
            value = data[start : reader.position]
        elif rule is _MOVED:
            place = reader.integer(kind)
            value = _zigzag(place + shift if place else 0)  # 0: not said
        elif kind == LIST:
            value = _list(STRUCT, [_move(reader, data, rule, shift) for _ in reader.items(kind)])
        else:
            value = _move(reader, data, rule, shift)
        values[number] = (kind, value)
    return _struct(values)


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
