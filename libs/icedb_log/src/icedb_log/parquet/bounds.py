"""The bounds of a column, from the statistics of its row groups."""

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from icedb_log.parquet.errors import BadFooter
from icedb_log.parquet.schema import Leaf
from icedb_log.repair.footers import ColumnBounds
from icedb_log.table.column_bounds import Scalar, encode_time
from icedb_log.thrift import ThriftReader

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Statistics:
    """The statistics of one column in one row group, as bytes."""

    low: bytes | None = None
    high: bytes | None = None
    null_count: int | None = None
    exact_flags: int = 0

    def is_exact(self, leaf: Leaf) -> bool:
        """Whether the bounds are values of the column; writers cut text alone, and newer ones say so."""
        return leaf.physical != "BYTE_ARRAY" or self.exact_flags == 2  # noqa: PLR2004 - minimum and maximum


@dataclass(slots=True)
class GatheredBounds:
    """The bounds of one column, while row groups are read."""

    low: Scalar = None
    high: Scalar = None
    null_count: int | None = 0
    is_bounded: bool = True
    is_exact: bool = True

    def add(self, found: Statistics | None, leaf: Leaf, rows: int) -> None:
        """Take the statistics of a row group of ``rows`` rows into account; ``None``: it has none."""
        nulls = 0 if leaf.is_required else found.null_count if found is not None else None
        self.null_count = None if nulls is None or self.null_count is None else self.null_count + nulls
        if rows == 0 or (nulls is not None and nulls == rows):
            return  # only nulls: no bounds, and none are needed
        low = _decode(found.low, leaf) if found is not None else None
        high = _decode(found.high, leaf) if found is not None else None
        if found is None or low is None or high is None:
            self.is_bounded = False
            return
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)
        self.is_exact = self.is_exact and found.is_exact(leaf)

    def finish(self, row_count: int) -> ColumnBounds:
        """Return the bounds of the whole file. Raises BadFooter."""
        nulls = self.null_count
        if nulls is not None and not 0 <= nulls <= row_count:
            raise BadFooter(f"its footer contradicts itself: {nulls} nulls in {row_count} rows")
        if not self.is_bounded or self.low is None:
            return ColumnBounds(None, None, nulls, is_exact=False)
        return ColumnBounds(self.low, self.high, nulls, is_exact=self.is_exact)


def read_statistics(reader: ThriftReader) -> Statistics:
    """Read the statistics that begin here. Raises ThriftError."""
    found = Statistics()
    for number, kind in reader.fields():
        if number == 3:  # noqa: PLR2004
            found.null_count = reader.integer(kind)
        elif number == 5:  # noqa: PLR2004
            found.high = reader.binary(kind)
        elif number == 6:  # noqa: PLR2004
            found.low = reader.binary(kind)
        elif number in (7, 8):
            found.exact_flags += reader.boolean(kind)
        else:
            reader.skip(kind)
    return found


def _decode(data: bytes | None, leaf: Leaf) -> Scalar:
    """Return a bound as a JSON scalar; ``None`` if it says nothing."""
    if data is None:
        return None
    try:
        return _DECODERS[leaf.physical](data, leaf.kind)
    except (struct.error, OverflowError, ValueError):
        return None


def _decode_integer(data: bytes, kind: str) -> Scalar:
    value = int.from_bytes(data, "little", signed=kind != "INT unsigned") if len(data) in (4, 8) else None
    if value is None:
        return None
    if kind == "DATE":
        return encode_time((_EPOCH + timedelta(days=value)).date())
    if kind.startswith("TIMESTAMP"):
        time = _EPOCH + (timedelta(milliseconds=value) if "milli" in kind else timedelta(microseconds=value))
        return encode_time(time.replace(tzinfo=None))
    return value


def _decode_float(data: bytes, _: str) -> Scalar:
    (value,) = struct.unpack("<d" if len(data) == 8 else "<f", data)  # noqa: PLR2004 - bytes of a DOUBLE
    return value if math.isfinite(value) else None


def _decode_text(data: bytes, _: str) -> Scalar:
    return data.decode()  # a cut one may be no UTF-8: ValueError


def _decode_boolean(data: bytes, _: str) -> Scalar:
    return bool(data[0]) if len(data) == 1 else None


_DECODERS: Final[Mapping[str, Callable[[bytes, str], Scalar]]] = {
    "BOOLEAN": _decode_boolean,
    "INT32": _decode_integer,
    "INT64": _decode_integer,
    "FLOAT": _decode_float,
    "DOUBLE": _decode_float,
    "BYTE_ARRAY": _decode_text,
}
