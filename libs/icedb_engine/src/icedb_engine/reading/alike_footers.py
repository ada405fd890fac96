"""What the footers of many small files say of their values together, read side by side.

A merge of thousands of tiny files takes longer to read their footers one after the other than to sort their rows. Files
of one table have the same schema, as bytes, and nearly the same fields behind it: so all are walked in step, a field of
all of them at a time, as arrays. What is found is what :func:`icedb_log.parquet.footer.parse_footer` says of each, for
the rule that asks for it (M6) asks only for sums, least and greatest of all. A footer that is in any way unusual, or
damaged, is not judged here: it is left to the other one.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from icedb_log.model import FileMarker
from icedb_log.parquet.footer import TAIL_BYTES, Footer, GatheredBounds
from icedb_log.parquet.schema import DamagedFile, Leaf, ParquetSchema, read_schema
from icedb_log.parquet.thrift import (
    BINARY,
    BYTE,
    DOUBLE,
    FALSE,
    I16,
    I32,
    I64,
    LIST,
    SET,
    STRUCT,
    TRUE,
    ThriftError,
    ThriftReader,
)
from icedb_log.store.object_store import ObjectInfo

MIN_FILES: Final = 128
"""Fewer are read faster one after the other."""
MAX_BYTES: Final = 64 * 1024
"""A longer footer is not of a small file."""
_MAX_SCHEMAS: Final = 4
_MAX_NUMBER: Final = 32
_MAX_ITEMS: Final = 4096
_MAX_DEPTH: Final = 8
_MAX_SHIFT: Final = 56
_LONG_LIST: Final = 15
_VARINTS: Final = (I16, I32, I64)
_SIZES: Final = {TRUE: 1, FALSE: 1, BYTE: 1, DOUBLE: 8}
_NONE: Final = np.iinfo(np.int64).min
"""Stands for a value that a footer does not have."""

_SCHEMA, _ROWS, _GROUPS = 2, 3, 4
_NULLS, _HIGH, _LOW, _HIGH_EXACT, _LOW_EXACT = 3, 5, 6, 7, 8
_NUMBERS: Final = {"BOOLEAN": "u1", "INT32": "<i4", "INT64": "<i8", "FLOAT": "<f4", "DOUBLE": "<f8"}
"""Physical types of values of one length."""


@dataclass(frozen=True, slots=True)
class _Each:
    """A list of structs, as many in each file: what is wanted of each, and how many."""

    shape: Mapping[int, Any]
    count: int


_UNUSUAL: Final = object()
_STATISTICS: Final = {_NULLS: "nulls", _HIGH: "high", _LOW: "low", _HIGH_EXACT: "high exact", _LOW_EXACT: "low exact"}
_CHUNK: Final[Mapping[int, Any]] = {
    1: _UNUSUAL,  # the columns lie in another file
    3: {5: "values", 7: "stored", 9: "data", 11: "dictionary", 12: _STATISTICS},
    8: _UNUSUAL,  # encrypted
    9: _UNUSUAL,
}
_BYTES: Final = frozenset(("high", "low"))
_FLAGS: Final = frozenset(("high exact", "low exact"))


def unite_footers(
    footers: Sequence[bytes], markers: Sequence[FileMarker], columns: Collection[str]
) -> tuple[list[Footer], list[int]]:
    """Return what footers say of some columns, those of many files as one; and the places of the others.

    Args:
        footers: Without their length and the magic bytes.
        markers: Of the same files.
        columns: Those whose bounds are wanted.
    """
    united: list[Footer] = []
    left = [place for place, footer in enumerate(footers) if len(footer) <= MAX_BYTES]
    others = sorted(set(range(len(footers))) - set(left))
    for _ in range(_MAX_SCHEMAS):
        if len(left) < MIN_FILES:
            break
        head, schema = _read_head(footers[left[0]])
        alike = [place for place in left if footers[place].startswith(head)] if head else left[:1]
        left = sorted(set(left) - set(alike))
        if schema is None or len(alike) < MIN_FILES:
            others += alike
            continue
        sizes = np.array([markers[place].size_bytes - len(footers[place]) - TAIL_BYTES for place in alike])
        rest = _Rest([footers[place][len(head) :] for place in alike], sizes, schema.leaves, columns)
        rest.read()
        if rest.is_alike.any():
            united.append(rest.unite(schema, markers[alike[0]]))
        others += [alike[lane] for lane in np.flatnonzero(~rest.is_alike)]
    return united, sorted(others + left)


def _read_head(footer: bytes) -> tuple[bytes, ParquetSchema | None]:
    """Return a footer up to the end of its schema, and that; nothing if it is unusual."""
    reader = ThriftReader(footer)
    try:
        for number, kind in reader.fields():
            if number == _SCHEMA:
                schema = read_schema(reader, kind)
                return footer[: reader.position], schema
            reader.skip(kind)
    except (ThriftError, DamagedFile):
        pass
    return b"", None


class _Steps:
    """Thrift structs, walked in step.

    Args:
        bodies: One of each file.

    Attributes:
        is_alike: Of each file, whether nothing in it is unusual so far.
        found: What was wanted, by name, a value for each file; of bytes their place and their length.
    """

    def __init__(self, bodies: Sequence[bytes]) -> None:
        self.is_alike = np.ones(len(bodies), bool)
        self.found: dict[str, np.ndarray] = {}
        self._text = b"".join(bodies) + b"\0"  # whoever runs over the end reads the end of a struct
        self._data = np.frombuffer(self._text, np.uint8)
        self._ends = np.cumsum([len(body) for body in bodies])
        self._at = self._ends - [len(body) for body in bodies]

    def walk(self, shape: Mapping[int, Any], *, number: int = 0) -> None:
        """Read the struct of each file behind its field of a number; nothing may follow it."""
        self._read(np.arange(len(self.is_alike)), shape, "", number=number, depth=0)
        self.is_alike &= self._at == self._ends

    def cut(self, starts: np.ndarray, lengths: np.ndarray) -> list[bytes]:
        """Return bytes of some files."""
        return [
            self._text[start : start + length] for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
        ]

    def gather(self, starts: np.ndarray, kind: str) -> np.ndarray:
        """Return numbers of one length."""
        width = np.dtype(kind).itemsize
        return self._data[starts[:, None] + np.arange(width)].reshape(-1).view(kind)

    def drop(self, files: np.ndarray) -> None:
        """Leave files to others."""
        self.is_alike[files] = False

    def _move(self, files: np.ndarray, by: Any) -> None:
        self._at[files] = np.minimum(self._at[files] + by, len(self._data) - 1)

    def _varint(self, files: np.ndarray) -> np.ndarray:
        value = np.zeros(len(files), np.int64)
        more, shift = np.arange(len(files)), 0
        while len(more) and shift <= _MAX_SHIFT:
            byte = self._data[self._at[files[more]]].astype(np.int64)
            self._move(files[more], 1)
            value[more] |= (byte & 127) << shift
            more, shift = more[byte > 127], shift + 7  # noqa: PLR2004 - seven bits a byte
        self.drop(files[more])
        return value

    def _length(self, files: np.ndarray) -> np.ndarray:
        length = self._varint(files)
        is_long = length > len(self._data)
        self.drop(files[is_long])
        return np.where(is_long, 0, length)

    def _read(self, files: np.ndarray, shape: Mapping[int, Any], name: str, *, number: int = 0, depth: int) -> None:
        """Read a struct of each of some files: those fields first that have the least number."""
        numbers = np.full(len(files), number)
        todo = np.arange(len(files))
        while len(todo):
            heads = self._data[self._at[files[todo]]]
            deltas = heads >> 4
            following = numbers[todo] + deltas
            is_end = heads == 0
            self._move(files[todo[is_end]], 1)
            is_odd = ~is_end & ((deltas == 0) | (following > _MAX_NUMBER))
            self.drop(files[todo[is_odd]])
            is_on = ~is_end & ~is_odd
            todo, heads, following = todo[is_on], heads[is_on], following[is_on]
            if not len(todo):
                return
            least = following.min()
            now = following == least
            numbers[todo[now]] = least
            self._move(files[todo[now]], 1)
            self._read_value(files[todo[now]], heads[now] & 15, shape.get(int(least)), name, depth)
            todo = todo[self.is_alike[files[todo]]]

    def _read_value(self, files: np.ndarray, kinds: np.ndarray, wanted: Any, name: str, depth: int) -> None:
        """Read a field's value of each of some files."""
        if wanted is _UNUSUAL:
            return self.drop(files)
        if isinstance(wanted, str) and wanted in _FLAGS:
            self.drop(files[(kinds != TRUE) & (kinds != FALSE)])
            return self._put(name + wanted, files, kinds == TRUE)
        kinds = np.where(kinds == FALSE, TRUE, kinds)
        kind = int(kinds[0])
        self.drop(files[kinds != kind])
        files = files[kinds == kind]
        if kind == TRUE:
            return None if wanted is None else self.drop(files)
        return self._read_kind(files, kind, wanted, name, depth)

    def _read_kind(self, files: np.ndarray, kind: int, wanted: Any, name: str, depth: int) -> None:
        """Read a value, all of one kind, that has bytes of its own."""
        told = wanted if isinstance(wanted, str) else ""
        is_free = wanted is None
        if kind in _VARINTS and (is_free or (told and told not in _BYTES)):
            value = self._varint(files)
            if told:
                self._put(name + told, files, (value >> 1) ^ -(value & 1))
        elif kind == BINARY and (is_free or told in _BYTES):
            length = self._length(files)
            if told:
                self._put(name + told, files, self._at[files])
                self._put(f"{name}{told} length", files, length)
            self._move(files, length)
        elif kind == STRUCT and (is_free or isinstance(wanted, Mapping)) and depth < _MAX_DEPTH:
            self._read(files, wanted or {}, name, depth=depth + 1)
        elif kind in (LIST, SET) and (is_free or isinstance(wanted, _Each)) and depth < _MAX_DEPTH:
            self._read_list(files, wanted, depth)
        elif kind in _SIZES and wanted is None:
            self._move(files, _SIZES[kind])
        else:
            self.drop(files)

    def _read_list(self, files: np.ndarray, wanted: _Each | None, depth: int) -> None:
        heads = self._data[self._at[files]]
        self._move(files, 1)
        counts, kinds = (heads >> 4).astype(np.int64), heads & 15
        is_long = counts == _LONG_LIST
        counts[is_long] = self._varint(files[is_long])
        is_odd = (counts > _MAX_ITEMS) | ((counts > 0) & (kinds != kinds[np.argmax(counts)]))
        if wanted is not None:
            is_odd |= (counts != wanted.count) | (kinds != STRUCT)
        self.drop(files[is_odd])
        for item in range(int(counts[~is_odd].max(initial=0))):
            now = (counts > item) & self.is_alike[files]
            if not now.any():
                return
            if wanted is None:
                self._read_kind(files[now], int(kinds[now][0]), None, "", depth + 1)
            else:
                self._read(files[now], wanted.shape, f"{item} ", depth=depth + 1)

    def _put(self, name: str, files: np.ndarray, values: np.ndarray) -> None:
        self.found.setdefault(name, np.full(len(self.is_alike), _NONE))[files] = values


class _Rest:
    """What comes behind the same schema in the footers of some files.

    Args:
        bodies: The bytes.
        data_bytes: How long the files are before their footers.
        leaves: Of the schema.
        columns: Those whose bounds are wanted.

    Attributes:
        is_alike: Of each file, whether it can be united with others.
    """

    def __init__(
        self, bodies: Sequence[bytes], data_bytes: np.ndarray, leaves: Sequence[Leaf], columns: Collection[str]
    ) -> None:
        self._steps = _Steps(bodies)
        self._data_bytes = data_bytes
        self._leaves = leaves
        self._wanted = {at: leaf for at, leaf in enumerate(leaves) if leaf.sql_type and leaf.name in columns}
        self.is_alike = self._steps.is_alike

    def read(self) -> None:
        """Read all; see which are sound, and of one row group."""
        chunks = _Each(_CHUNK, len(self._leaves))
        shape = {_ROWS: "rows", _GROUPS: _Each({1: chunks, 3: "group rows"}, 1)}
        self._steps.walk(shape, number=_SCHEMA)
        self.is_alike = self._steps.is_alike
        rows = self._get("rows")
        self.is_alike &= (rows >= 0) & (rows == self._get("0 group rows"))
        for at in range(len(self._leaves)):
            self._require_sound(f"{at} ")
        for at, leaf in self._wanted.items():
            self._require_plain(f"{at} ", leaf, rows)

    def _get(self, name: str) -> np.ndarray:
        found = self._steps.found.get(name)
        return np.full(len(self.is_alike), _NONE) if found is None else found

    def _require_sound(self, name: str) -> None:
        """Leave out files whose column lies where no bytes are."""
        start, dictionary, stored = (self._get(name + what) for what in ("data", "dictionary", "stored"))
        start = np.where(dictionary > 0, np.minimum(start, dictionary), start)
        self.is_alike &= (start >= 0) & (stored >= 0) & (start <= self._data_bytes)
        self.is_alike &= (stored <= self._data_bytes - start) & (self._get(name + "values") > 0)

    def _require_plain(self, name: str, leaf: Leaf, rows: np.ndarray) -> None:
        """Leave out files of which the statistics of a column contradict themselves, or are not those of its type."""
        nulls = self._get(name + "nulls")
        self.is_alike &= (nulls == _NONE) | ((nulls >= 0) & (nulls <= rows))
        kind = _NUMBERS.get(leaf.physical)
        if kind is None:
            return
        if "unsigned" in leaf.kind:
            self.is_alike[:] = False
            return
        lows, highs = self._get(name + "low"), self._get(name + "high")
        is_known = (lows != _NONE) & (highs != _NONE)
        for bound in ("low", "high"):
            length = self._get(f"{name}{bound} length")
            self.is_alike &= (length == _NONE) | (length == np.dtype(kind).itemsize)
        known = np.flatnonzero(is_known & self.is_alike)
        is_odd = self._steps.gather(lows[known], kind) > self._steps.gather(highs[known], kind)
        self.is_alike[known[is_odd]] = False

    def unite(self, schema: ParquetSchema, marker: FileMarker) -> Footer:
        """Return what the alike ones say, as one."""
        rows = self._get("rows")[self.is_alike]
        row_count = int(rows.sum())
        bounds = {}
        for at, leaf in self._wanted.items():
            gathered = GatheredBounds(leaf)
            gathered.add(self._unite_column(f"{at} ", leaf, rows), row_count)
            bounds[leaf.name] = gathered.finish(row_count)
        info = ObjectInfo(marker.path, "", marker.size_bytes, marker.created_ms)
        return Footer(info, row_count, schema.columns, schema.odd_columns, bounds=bounds)

    def _unite_column(self, name: str, leaf: Leaf, rows: np.ndarray) -> dict[int, Any]:
        """Return the statistics of all rows, as a footer of one row group would have them."""
        names = ("nulls", "low", "low length", "high", "high length", "low exact", "high exact")
        nulls, low, low_length, high, high_length, *exact = (self._get(name + each)[self.is_alike] for each in names)
        united: dict[int, Any] = {}
        if (nulls != _NONE).all():
            united[_NULLS] = int(nulls.sum())
        if leaf.is_required:
            nulls = np.zeros_like(rows)
        has_values = nulls != rows
        low, high = low[has_values], high[has_values]
        if (low == _NONE).any() or (high == _NONE).any() or not len(low):
            return united
        united[_LOW_EXACT], united[_HIGH_EXACT] = (bool((flags[has_values] == 1).all()) for flags in exact)
        kind = _NUMBERS.get(leaf.physical)
        if kind is not None:
            lows, highs = self._steps.gather(low, kind), self._steps.gather(high, kind)
            united[_LOW], united[_HIGH] = lows.min().tobytes(), highs.max().tobytes()  # NaN is either
            return united
        first, last = self._steps.cut(low, low_length[has_values]), self._steps.cut(high, high_length[has_values])
        try:
            b"\0".join((*first, *last)).decode()
        except ValueError:
            return united  # one of them says nothing
        united[_LOW], united[_HIGH] = min(first), max(last)
        return united
