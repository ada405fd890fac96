"""Lists of data files as Arrow: a schema and record batches, each encoded once, to be joined into one IPC stream.

Written by hand because whoever serves snapshots moves no rows, and would load a library of 100 MB for this one shape:
columns of text and of whole numbers, which take three and two buffers. Layouts are those of Arrow's columnar format
1.5 (``Message.fbs`` and ``Schema.fbs``, metadata version 5, little-endian, no compression). Pure.

A *part* is a chunk of live files, or several small ones that lie side by side. Where a part begins follows from its own
files, so that a commit changes the parts that its files are in, and no other.
"""

import json
import struct
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import Any, Final, TypeVar

from icedb_log.keys import TablePaths
from icedb_log.log.live_files import CHUNK_FILES, LiveChunk
from icedb_log.table.partitions import read_partition_values
from icedb_log.table.table_config import TableConfig

_SMALL_CHUNK_FILES: Final = CHUNK_FILES // 2
"""Chunks with fewer files may share a part."""
_SHARE_BEGINS: Final = 16
"""One of so many small chunks begins a part."""

_CONTINUES: Final = b"\xff\xff\xff\xff"
_VERSION_5: Final = 4
_SCHEMA, _RECORD_BATCH = 1, 3
_INT, _UTF8 = 2, 5
_ALIGN: Final = 8

_Made = TypeVar("_Made")
_Slot = tuple[str, int] | Callable[[], int] | None
"""A field of a table: a number and its format, what writes a child and returns its place, or nothing."""


class _Flat:
    """Writes a flat buffer from front to back: children lie behind what points to them."""

    def __init__(self) -> None:
        self.bytes = bytearray(4)  # where the root is

    def root(self, *slots: _Slot) -> bytes:
        """Return the bytes of a buffer whose root is this table, to a multiple of 8."""
        struct.pack_into("<I", self.bytes, 0, self.table(*slots))
        return self._padded()

    def table(self, *slots: _Slot) -> int:
        """Write a table and what is in it; return its place."""
        at, ends = 4, []
        for slot in slots:
            size = 4 if callable(slot) else struct.calcsize(slot[0]) if slot else 0
            at += -at % size if size else 0
            ends.append(at if size else 0)
            at += size
        vtable_bytes = 4 + 2 * len(slots)
        self.bytes += bytes(-(len(self.bytes) + vtable_bytes) % _ALIGN)
        self.bytes += struct.pack(f"<HH{len(slots)}H", vtable_bytes, at, *ends)
        start = len(self.bytes)
        self.bytes += struct.pack("<i", vtable_bytes) + bytes(at - 4)
        for slot, offset in zip(slots, ends, strict=True):
            if callable(slot):
                self._point(start + offset, slot())
            elif slot is not None:
                struct.pack_into(f"<{slot[0]}", self.bytes, start + offset, slot[1])
        return start

    def tables(self, children: Sequence[Callable[[], int]]) -> int:
        """Write a vector of tables; return its place."""
        self._padded(4)
        start = len(self.bytes)
        self.bytes += struct.pack("<I", len(children)) + bytes(4 * len(children))
        for number, child in enumerate(children):
            self._point(start + 4 * (number + 1), child())
        return start

    def structs(self, rows: Sequence[tuple[int, int]]) -> int:
        """Write a vector of pairs of 64 bits each; return its place."""
        self.bytes += bytes(-(len(self.bytes) + 4) % _ALIGN)
        start = len(self.bytes)
        self.bytes += struct.pack(f"<I{2 * len(rows)}q", len(rows), *(value for row in rows for value in row))
        return start

    def text(self, text: str) -> int:
        """Write a string; return its place."""
        self._padded(4)
        start, encoded = len(self.bytes), text.encode()
        self.bytes += struct.pack("<I", len(encoded)) + encoded + b"\0"
        return start

    def _point(self, place: int, target: int) -> None:
        struct.pack_into("<I", self.bytes, place, target - place)

    def _padded(self, size: int = _ALIGN) -> bytes:
        self.bytes += bytes(-len(self.bytes) % size)
        return bytes(self.bytes)


@dataclass(frozen=True, slots=True)
class FileColumns:
    """Which columns a list of files has, and how they are encoded.

    Attributes:
        paths: Keys of the table: which part of a path is the partition.
        partition_names: Partition fields.
        bound_names: Columns whose bounds the list has.
    """

    paths: TablePaths
    partition_names: tuple[str, ...]
    bound_names: tuple[str, ...] = ()

    @classmethod
    def of(cls, paths: TablePaths, config: TableConfig, *, with_bounds: bool) -> "FileColumns":
        """Return the columns of a table's list of files: the same ones as long as the table lives."""
        bounded = dict.fromkeys((*(field.column for field in config.partition), *config.sort))
        names = tuple(field.name for field in config.partition)
        return cls(paths, names, tuple(bounded) if with_bounds else ())

    def encode_schema(self) -> bytes:
        """Return how a stream begins."""
        fields: list[tuple[str, bool]] = [("path", True), ("size_bytes", False), ("row_count", False)]
        fields += [("created_ms", False), *((f"partition.{name}", True) for name in self.partition_names)]
        for name in self.bound_names:
            fields += [(f"min.{name}", True), (f"max.{name}", True), (f"null_count.{name}", False)]
        flat = _Flat()

        def add_field(name: str, *, is_text: bool) -> int:
            kind: tuple[_Slot, ...] = () if is_text else (("i", 64), ("B", 1))
            type_id = ("B", _UTF8 if is_text else _INT)
            said: tuple[_Slot, ...] = (lambda: flat.text(name), ("B", 1), type_id, lambda: flat.table(*kind))
            return flat.table(*said, None, lambda: flat.tables(()))

        children = [lambda name=name, is_text=is_text: add_field(name, is_text=is_text) for name, is_text in fields]
        header = flat.root(
            ("h", _VERSION_5),
            ("B", _SCHEMA),
            lambda: flat.table(("h", 0), lambda: flat.tables(children)),
            ("q", 0),
        )
        return _frame(header)

    def once(self, chunks: Sequence[LiveChunk], make: Callable[[bytes], _Made]) -> _Made:
        """Return what was made of the record batch of a part, made when it is first asked for while its files stay."""
        # Two lists of a table have the same columns, or one has bounds and the other has none.
        name = "arrow, with bounds" if self.bound_names else "arrow"
        made = chunks[0].made
        rest = [(len(chunk), chunk.digest, chunk.size_bytes, chunk.rows_said) for chunk in chunks[1:]]
        known = made.get(name)
        if known is None or known[0] != rest:
            known = made[name] = rest, make(self.encode_part(chunks))
        found: _Made = known[1]
        return found

    def encode_part(self, chunks: Sequence[LiveChunk]) -> bytes:
        """Return the record batch of some chunks."""
        batch = _Batch()
        batch.add_texts([path for chunk in chunks for path in chunk.paths()])
        batch.add_numbers([size_bytes for chunk in chunks for size_bytes in chunk.sizes()])
        batch.add_numbers([row_count for chunk in chunks for row_count in chunk.row_counts()])
        batch.add_numbers([created_ms for chunk in chunks for created_ms in chunk.created()])
        partitions = [(read_partition_values(self.paths.partition_of(chunk.first)), len(chunk)) for chunk in chunks]
        for name in self.partition_names:
            batch.add_texts([value for found, count in partitions for value in repeat(found.get(name), count)])
        if self.bound_names:
            said = [chunk.marker(at).stats for chunk in chunks for at in range(len(chunk))]
            for name in self.bound_names:
                known = [stats.get(name, (None, None, None)) for stats in said]
                batch.add_texts([_bound_text(low) for low, _, _ in known])
                batch.add_texts([_bound_text(high) for _, high, _ in known])
                batch.add_numbers([null_count for _, _, null_count in known])
        return batch.encode(sum(map(len, chunks)))


class _Batch:
    """Columns of one record batch."""

    def __init__(self) -> None:
        self._nodes: list[tuple[int, int]] = []
        self._places: list[tuple[int, int]] = []
        self._body: list[bytes] = []
        self._size_bytes = 0

    def add_numbers(self, values: Sequence[int | None]) -> None:
        """Add a column of whole numbers."""
        self._add_nulls(values)
        self._add(array("q", [value or 0 for value in values]).tobytes())

    def add_texts(self, values: Sequence[str | None]) -> None:
        """Add a column of text."""
        self._add_nulls(values)
        texts = [value or "" for value in values]
        joined = "".join(texts)
        encoded = joined.encode()
        sizes = map(len, texts if len(encoded) == len(joined) else map(str.encode, texts))
        self._add(array("i", accumulate(sizes, initial=0)).tobytes())
        self._add(encoded)

    def encode(self, row_count: int) -> bytes:
        """Return the message."""
        flat = _Flat()
        header = flat.root(
            ("h", _VERSION_5),
            ("B", _RECORD_BATCH),
            lambda: flat.table(("q", row_count), lambda: flat.structs(self._nodes), lambda: flat.structs(self._places)),
            ("q", self._size_bytes),
        )
        return _frame(header, *self._body)

    def _add_nulls(self, values: Sequence[object]) -> None:
        null_count = values.count(None)
        self._nodes.append((len(values), null_count))
        bits = sum(1 << at for at, value in enumerate(values) if value is not None) if null_count else 0
        self._add(bits.to_bytes((len(values) + 7) // 8, "little") if null_count else b"")

    def _add(self, content: bytes) -> None:
        self._places.append((self._size_bytes, len(content)))
        padded = content + bytes(-len(content) % _ALIGN)
        self._body.append(padded)
        self._size_bytes += len(padded)


def group_chunks(chunks: Iterable[LiveChunk]) -> Iterator[list[LiveChunk]]:
    """Yield chunks as parts of a list: large ones alone, small ones with their neighbours."""
    group: list[LiveChunk] = []
    file_count = 0
    for chunk in chunks:
        is_large = len(chunk) >= _SMALL_CHUNK_FILES
        begins = is_large or file_count + len(chunk) > 2 * CHUNK_FILES
        if group and (begins or zlib.crc32(chunk.first.encode()) % _SHARE_BEGINS == 0):
            yield group
            group, file_count = [], 0
        group.append(chunk)
        file_count = 2 * CHUNK_FILES if is_large else file_count + len(chunk)
    if group:
        yield group


def _frame(header: bytes, *body: bytes) -> bytes:
    return b"".join((_CONTINUES, struct.pack("<i", len(header)), header, *body))


def _bound_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)
