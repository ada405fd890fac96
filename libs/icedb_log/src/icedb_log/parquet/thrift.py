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

_VARINTS: Final = (I16, I32, I64)
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
        number = 0
        while head := self._byte():  # as fields(), without its cost
            delta, kind = head >> 4, head & 15
            number = number + delta if delta else self.integer(I16)
            wanted = shape.get(number)
            if wanted is None:
                self.skip(kind)
            else:
                found[number] = wanted(self, kind)
        return found

    def items(self, kind: int) -> Iterator[int]:
        """Yield the kind of each item of the list that begins here; each has to be read or skipped."""
        if kind not in (LIST, SET):
            raise ThriftError(f"a list was expected, not kind {kind}")
        head = self._byte()
        count = head >> 4
        for _ in range(self._count(self._varint() if count == _LONG_LIST else count)):
            yield head & 15

    def integer(self, kind: int) -> int:
        """Read an integer."""
        if kind == BYTE:
            value = self._byte()
            return value - 256 if value > 127 else value  # noqa: PLR2004 - two's complement
        if kind not in (I16, I32, I64):
            raise ThriftError(f"an integer was expected, not kind {kind}")
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def binary(self, kind: int) -> bytes:
        """Read bytes."""
        if kind != BINARY:
            raise ThriftError(f"bytes were expected, not kind {kind}")
        length = self._varint()
        start = self._advance(length)
        return self._data[start : start + length]

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
        self.skip(kind)
        return start

    def cut(self, start: int) -> bytes:
        """Return the bytes from a place up to the next value."""
        return self._data[start : self.position]

    def skip(self, kind: int, *, depth: int = 0) -> None:
        """Pass over the value of a field."""
        if kind not in (TRUE, FALSE):
            self._skip_value(kind, depth)

    def _skip_value(self, kind: int, depth: int) -> None:
        """Pass over a value that has bytes of its own: a field's other than a boolean, or any item of a list."""
        if kind in _VARINTS:
            self._varint()
        elif kind == BINARY:
            self._advance(self._varint())
        elif kind in _SIZES:
            self._advance(_SIZES[kind])
        elif depth >= _MAX_DEPTH:
            raise ThriftError(f"values are nested more than {_MAX_DEPTH} deep")
        elif kind == STRUCT:
            self._skip_struct(depth)
        elif kind in (LIST, SET):
            for item_kind in self.items(kind):
                self._skip_value(item_kind, depth + 1)
        elif kind == MAP:
            self._skip_map(depth)
        else:
            raise ThriftError(f"there is no kind {kind}")

    def _skip_struct(self, depth: int) -> None:
        while head := self._byte():
            if head < 1 << 4:
                self.integer(I16)
            if head & 15 not in (TRUE, FALSE):
                self._skip_value(head & 15, depth + 1)

    def _skip_map(self, depth: int) -> None:
        count = self._count(self._varint())
        kinds = self._byte() if count else 0
        for _ in range(count):
            self._skip_value(kinds >> 4, depth + 1)
            self._skip_value(kinds & 15, depth + 1)

    def _count(self, count: int) -> int:
        if count > len(self._data) - self.position:  # each item has one byte or more
            raise ThriftError(f"a list of {count} items is longer than what is left")
        return count

    def _byte(self) -> int:
        try:
            byte = self._data[self.position]
        except IndexError:
            raise ThriftError("it ends in the middle of a value") from None
        self.position += 1
        return byte

    def _advance(self, length: int) -> int:
        start = self.position
        if length > len(self._data) - start:
            raise ThriftError(f"a value of {length} bytes is longer than what is left")
        self.position = start + length
        return start

    def _varint(self) -> int:
        value = self._byte()
        if value < 128:  # noqa: PLR2004 - the last of seven bits a byte
            return value
        value, shift = value & 127, 7
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:  # noqa: PLR2004 - the same
                return value
            shift += 7
            if shift >= _MAX_VARINT_BITS:
                raise ThriftError("an integer has more than 64 bits")


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
