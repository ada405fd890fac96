"""Values of Thrift's compact protocol, read from bytes that may be damaged.

Pure Python on purpose: pyarrow 26 ends the process on some damaged Parquet footers, and this is what looks at damaged
files. Reads only forward; what nobody wants is skipped without making a value of it. Every malformed input is
:class:`ThriftError`, in time and memory bounded by its length.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from mmap import mmap
from typing import Any, Final

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)

_SIZES: Final = {TRUE: 1, FALSE: 1, BYTE: 1, DOUBLE: 8}
"""Bytes of values that always have the same number."""

_VARINTS: Final = frozenset((I16, I32, I64))
_CUT: Final = "it ends in the middle of a value"
_LONG_LIST: Final = 15
_MAX_VARINT_BITS: Final = 70
_MAX_DEPTH: Final = 32
_MAX_KEPT: Final = 1 << 20
"""Items of one list that are kept: no schema and no row group has so many columns."""


class ThriftError(Exception):
    """Bytes that are no Thrift value; the message says what is wrong with them."""


class ThriftReader:
    """Reads one value after another.

    Args:
        data: The bytes; a file may be mapped.
        start: Where in them the first value begins.

    Attributes:
        position: Where the next value begins.
    """

    def __init__(self, data: bytes | mmap, *, start: int = 0) -> None:
        self._data = data
        self.position = start

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield number and kind of each field of the struct that begins here.

        The value of each has to be read or skipped before the next one is asked for.
        """
        number = 0
        while head := self._byte():
            delta, kind = head >> 4, head & 15
            number = number + delta if delta else self.integer(I16)
            yield number, kind

    def read(self, shape: "Shape") -> dict[int, Any]:
        """Read the struct that begins here: the fields that a shape names; those that are not there are left out."""
        found: dict[int, Any] = {}
        data, at, number, head = self._data, self.position, 0, 0
        try:  # only for what is done here: what the shape calls raises no IndexError
            while head := data[at]:  # as fields() and the methods, without what a call costs: thousands of footers
                at += 1
                kind = head & 15
                if head > 15:  # noqa: PLR2004 - the upper four bits
                    number += head >> 4
                else:
                    number, at = _read_varint(data, at)
                    number = (number >> 1) ^ -(number & 1)
                wanted = shape.get(number)
                if wanted is None:
                    if kind in _VARINTS and data[at] < 128:  # noqa: PLR2004 - the last of seven bits a byte
                        at += 1
                    elif kind not in (TRUE, FALSE):
                        at = _find_end(data, at, kind, 0)
                elif wanted is ThriftReader.integer and kind in _VARINTS:
                    value, at = (data[at], at + 1) if data[at] < 128 else _read_varint(data, at)  # noqa: PLR2004 - as above
                    found[number] = (value >> 1) ^ -(value & 1)
                else:
                    self.position = at
                    found[number] = wanted(self, kind)
                    at = self.position
        except IndexError:
            raise ThriftError(_CUT) from None
        self.position = at + 1
        return found

    def items(self, kind: int) -> Iterator[int]:
        """Yield the kind of each item of the list that begins here; each has to be read or skipped."""
        if kind not in (LIST, SET):
            raise ThriftError(f"a list was expected, not kind {kind}")
        head = self._byte()
        count = head >> 4
        count = self._varint() if count == _LONG_LIST else count
        for _ in range(_require_items(self._data, self.position, count)):
            yield head & 15

    def integer(self, kind: int) -> int:
        """Read an integer."""
        if kind in _VARINTS:
            value = self._varint()
            return (value >> 1) ^ -(value & 1)
        if kind != BYTE:
            raise ThriftError(f"an integer was expected, not kind {kind}")
        value = self._byte()
        return value - 256 if value > 127 else value  # noqa: PLR2004 - two's complement

    def binary(self, kind: int) -> bytes:
        """Read bytes."""
        if kind != BINARY:
            raise ThriftError(f"bytes were expected, not kind {kind}")
        length = self._varint()
        start = self.position
        self.position = _end_of_bytes(self._data, start, length)
        return self._data[start : self.position]

    def boolean(self, kind: int) -> bool:
        """Read a boolean field; its kind is its value."""
        if kind not in (TRUE, FALSE):
            raise ThriftError(f"a boolean was expected, not kind {kind}")
        return kind == TRUE

    def text(self, kind: int) -> str:
        """Read text; bytes that are no UTF-8 become replacement characters."""
        return self.binary(kind).decode(errors="replace")

    def place(self, kind: int) -> int:
        """Skip the value of a field, and return where it begins."""
        start = self.position
        if kind not in (TRUE, FALSE):
            self.position = _pass_over(self._data, start, kind)
        return start

    def cut(self, start: int) -> bytes:
        """Return the bytes from a place up to the next value."""
        return self._data[start : self.position]

    def skip(self, kind: int) -> None:
        """Pass over the value of a field."""
        if kind not in (TRUE, FALSE):
            self.position = _pass_over(self._data, self.position, kind)

    def _byte(self) -> int:
        byte = _byte_at(self._data, self.position)
        self.position += 1
        return byte

    def _varint(self) -> int:
        byte = _byte_at(self._data, self.position)
        if byte < 128:  # noqa: PLR2004 - the last of seven bits a byte
            self.position += 1
            return byte
        value, self.position = _read_varint(self._data, self.position)
        return value


# What follows are functions of bytes and places, not methods: footers of thousands of files are passed over by them.


def _byte_at(data: bytes | mmap, at: int) -> int:
    try:
        return data[at]
    except IndexError:
        raise ThriftError(_CUT) from None


def _read_varint(data: bytes | mmap, at: int) -> tuple[int, int]:
    """Return the number that begins at a place, and where it ends."""
    value = shift = 0
    while True:
        byte = _byte_at(data, at)
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:  # noqa: PLR2004 - as above
            return value, at
        shift += 7
        if shift >= _MAX_VARINT_BITS:
            raise ThriftError("an integer has more than 64 bits")


def _end_of_bytes(data: bytes | mmap, at: int, length: int) -> int:
    if length > len(data) - at:
        raise ThriftError(f"a value of {length} bytes is longer than what is left")
    return at + length


def _require_items(data: bytes | mmap, at: int, count: int) -> int:
    if count > len(data) - at:  # each item has one byte or more
        raise ThriftError(f"a list of {count} items is longer than what is left")
    return count


def _pass_over(data: bytes | mmap, at: int, kind: int) -> int:
    """Return where a value ends that has bytes of its own: a field's other than a boolean, or any item of a list."""
    try:
        return _find_end(data, at, kind, 0)
    except IndexError:
        raise ThriftError(_CUT) from None


def _find_end(data: bytes | mmap, at: int, kind: int, depth: int) -> int:
    """Do the same for a value in so many others. Raises IndexError where the bytes end."""
    if kind in _VARINTS:
        return at + 1 if data[at] < 128 else _read_varint(data, at)[1]  # noqa: PLR2004 - the last of seven bits a byte
    if kind == BINARY:
        length, at = (data[at], at + 1) if data[at] < 128 else _read_varint(data, at)  # noqa: PLR2004 - as above
        return _end_of_bytes(data, at, length)
    if kind in _SIZES:
        return _end_of_bytes(data, at, _SIZES[kind])
    if depth >= _MAX_DEPTH:
        raise ThriftError(f"values are nested more than {_MAX_DEPTH} deep")
    if kind == STRUCT:
        return _find_end_of_struct(data, at, depth + 1)
    if kind in (LIST, SET):
        head = data[at]
        count, at = (head >> 4, at + 1) if head >> 4 != _LONG_LIST else _read_varint(data, at + 1)
        kinds = (head & 15,) * _require_items(data, at, count)
    elif kind == MAP:
        count, at = _read_varint(data, at)
        head, at = (data[at], at + 1) if _require_items(data, at, count) else (0, at)
        kinds = (head >> 4, head & 15) * count
    else:
        raise ThriftError(f"there is no kind {kind}")
    for item in kinds:
        at = _find_end(data, at, item, depth + 1)
    return at


def _find_end_of_struct(data: bytes | mmap, at: int, depth: int) -> int:
    while head := data[at]:
        at += 1
        kind = head & 15
        if head < 16:  # noqa: PLR2004 - its number stands behind it
            at = _read_varint(data, at)[1]
        if kind in _VARINTS and data[at] < 128:  # noqa: PLR2004 - mostly
            at += 1
        elif kind not in (TRUE, FALSE):
            at = _find_end(data, at, kind, depth)
    return at + 1


Shape = Mapping[int, Callable[[ThriftReader, int], Any]]
"""Fields of a struct that are wanted, by number, and how the value of each is read, which takes its kind."""


def struct(shape: Shape) -> Callable[[ThriftReader, int], dict[int, Any]]:
    """Return how a field is read that is a struct."""

    def read(reader: ThriftReader, kind: int) -> dict[int, Any]:
        if kind != STRUCT:
            raise ThriftError(f"a struct was expected, not kind {kind}")
        return reader.read(shape)

    return read


def each(read_item: Callable[[ThriftReader, int], Any]) -> Callable[[ThriftReader, int], list[Any]]:
    """Return how a field is read that is a list."""

    def read(reader: ThriftReader, kind: int) -> list[Any]:
        found = [read_item(reader, item_kind) for item_kind in islice(reader.items(kind), _MAX_KEPT)]
        if len(found) == _MAX_KEPT:
            raise ThriftError(f"a list has {_MAX_KEPT} items or more")
        return found

    return read
