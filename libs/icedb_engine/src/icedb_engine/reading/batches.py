"""What a staged batch is once it is decoded: lines of JSON, or a table; its bad rows, and what is wrong with them.

Decompression is bounded while it goes on. A row that cannot be committed (``on_bad_rows = quarantine_rows``) is kept
in the format of its batch, byte for byte where it came as a line, so that a retry, or its producer who mends it, sends
the same values again.
"""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from icedb_log.content import UndecodableError, decode_parts
from icedb_log.formats import StagingFormat
from icedb_log.jobs import RowFault
from icedb_log.units import MIB

from icedb_engine.errors import BatchRejected, BatchTooLarge
from icedb_engine.limits import FlushUnitLimits

_COMPRESSIONS: Final = {"gz": "gzip", "zst": "zstd"}
BOM: Final = b"\xef\xbb\xbf"


def decompress(body: bytes, compression: str, limits: FlushUnitLimits, *, has_lines: bool = False) -> bytes:
    """Return the decompressed bytes, and stop soon after there are too many.

    They are counted while they come, a piece at a time: nothing that a stream says of its own size is believed.

    Args:
        body: The staged bytes.
        compression: ``gz``, ``zst`` or nothing.
        limits: Among them the guard against decompression bombs.
        has_lines: Each line is a row.

    Raises:
        BatchRejected: Not a whole stream.
        BatchTooLarge: Above a bound.
    """
    if not compression:
        _check_size(len(body), 0, limits)
        return body
    decoded = io.BytesIO()  # it grows in place, and gives its bytes away without a copy
    line_count = 0
    try:
        for part in decode_parts(body, compression):
            decoded.write(part)
            line_count += part.count(b"\n") if has_lines else 0
            _check_size(decoded.tell(), line_count, limits)
    except UndecodableError as error:
        raise BatchRejected(
            f"not a complete {_COMPRESSIONS[compression]} stream: {error}; compress the batch again"
        ) from error
    return decoded.getvalue()


def check_row_count(row_count: int, limits: FlushUnitLimits) -> None:
    """Raise BatchTooLarge if a batch has too many rows."""
    if row_count > limits.batch_rows:
        raise BatchTooLarge(f"more than {limits.batch_rows} rows; send smaller batches")


def _check_size(decoded_bytes: int, row_count: int, limits: FlushUnitLimits) -> None:
    if decoded_bytes > limits.batch_decoded_bytes:
        raise BatchTooLarge(f"more than {limits.batch_decoded_bytes} bytes after decompression; send smaller batches")
    check_row_count(row_count, limits)


def _is_utf8(data: bytes) -> bool:
    """Return whether these bytes are UTF-8, without making text of them."""
    offsets = (0).to_bytes(8, "little") + len(data).to_bytes(8, "little")
    text = pa.Array.from_buffers(pa.large_string(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def check_utf8(data: bytes) -> None:
    """Raise BatchRejected with line and offset if these bytes are not UTF-8."""
    if _is_utf8(data):
        return
    try:
        data.decode()
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise BatchRejected(_not_utf8(number, data, error.start)) from error


def _not_utf8(number: int, data: bytes | bytearray, at: int) -> str:
    return f"line {number} is not UTF-8: byte 0x{data[at]:02x} at offset {at}; encode the batch as UTF-8"


MAX_OWN_REASONS: Final = 10
"""Rows of a batch that are described one by one; the others are counted by what is wrong with them."""
MAX_COUNTED_REASONS: Final = 10
"""Reasons by which the others are counted, the most frequent first."""
MAX_FAULT_ROWS: Final = 10_000
"""Bad rows of a batch of which it is written down what is wrong with each; the others are counted."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with one row.

    Attributes:
        what: In words that other rows of the same fault share, with the remedy.
        reason: The same with the row's number and value; empty for a row that is only counted.
    """

    what: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BadLines:
    """Some bad rows of one batch.

    They are kept as they came, so that a retry reads the same values of them: lines of JSON and of CSV as text, rows of
    Parquet and Arrow as columns.

    Attributes:
        rows: Text of each as bytes without line ending, and what is wrong with it, by its number in the batch.
        header: What stands before the lines of CSV, as a line; empty for other formats.
        columns: Of a batch that has columns: the rows, in the order of ``rows``, whose texts are empty then.
    """

    rows: Mapping[int, tuple[bytes, Fault]] = field(default_factory=dict)
    header: bytes = b""
    columns: pa.Table | None = None

    @property
    def row_count(self) -> int:
        """How many."""
        return len(self.rows)

    @property
    def faults(self) -> dict[int, Fault]:
        """What is wrong with each, in the order in which they are kept."""
        return {number: self.rows[number][1] for number in sorted(self.rows)}

    @property
    def reason(self) -> str:
        """What is wrong with them: the first ones each on a line of its own, the others by count."""
        rest = iter(self.faults.values())
        lines = [fault.reason or fault.what for fault in islice(rest, MAX_OWN_REASONS)]
        counts = Counter(fault.what for fault in rest).most_common()
        if counts:
            shown = [f"{count:,} rows: {what}" for what, count in counts[:MAX_COUNTED_REASONS]]
            if len(counts) > MAX_COUNTED_REASONS:
                shown.append(f"{sum(count for _, count in counts[MAX_COUNTED_REASONS:]):,} rows: other reasons")
            lines += [f"and {self.row_count - MAX_OWN_REASONS:,} more rows:", *shown]
        return "\n".join(lines)

    def group_faults(self) -> tuple[RowFault, ...]:
        """Return what is wrong with each of the first :data:`MAX_FAULT_ROWS`, rows of one fault together."""
        groups: dict[str, list[int]] = {}
        for number, fault in islice(self.faults.items(), MAX_FAULT_ROWS):
            groups.setdefault(fault.what, []).append(number)
        return tuple(RowFault(what, tuple(numbers)) for what, numbers in groups.items())

    def encode(self) -> tuple[bytes, StagingFormat]:
        """Return the rows in order, as a batch that can be staged, and its format."""
        if self.columns is not None:
            rows = self.columns.take(pa.array(np.argsort(list(self.rows))))
            sink = pa.BufferOutputStream()
            options = pa.ipc.IpcWriteOptions(compression="zstd")
            with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
                writer.write_table(rows)
            return sink.getvalue().to_pybytes(), "arrow"
        text = self.header + b"".join(self.rows[number][0] + b"\n" for number in sorted(self.rows))
        compressed: bytes = pa.compress(text, codec="zstd", asbytes=True)
        return compressed, "csv.zst" if self.header else "ndjson.zst"


def encode_cells(rows: Iterable[Iterable[str | None]]) -> list[bytes]:
    """Return rows of CSV as lines, each without its end; ``None`` is an empty cell."""
    lines = []
    for row in rows:
        line = io.StringIO()
        csv.writer(line, lineterminator="\r\n").writerow(row)  # cells with either of these are quoted
        lines.append(line.getvalue().removesuffix("\r\n").encode())
    return lines


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one batch.

    Attributes:
        rows: Lines of JSON that are not blank, each with its line ending, in one buffer; or a table, of the Arrow types
            that the forms have in the engine.
        numbers: Number of each row in the decoded batch, from 1 (the line, for a format that has lines).
        decoded_bytes: Size after decompression, or in memory.
        forms: The form of each column of a table, by name, in the order of the batch; ``None``: lines.
        bad: Rows that were set aside.
        noun: What a producer calls a row: ``line``, ``row``, or ``element`` of a JSON array.
        sha256: Of the decoded body, in hex: what tells it from other content (I8).
    """

    rows: Any
    numbers: pa.Int32Array
    decoded_bytes: int
    forms: Mapping[str, str] | None = None
    bad: BadLines = field(default_factory=BadLines)
    noun: str = "row"
    sha256: str = ""

    @property
    def row_count(self) -> int:
        """Rows to be looked at."""
        return len(self.rows)

    def head(self, count: int) -> "Batch":
        """Return the first lines only, as a copy."""
        return replace(self, rows=pa.array(self.rows[:count].to_pylist(), pa.string()), numbers=self.numbers[:count])

    def split(self, faults: Mapping[int, Fault]) -> "Batch":
        """Return the same batch with some more rows among the bad ones.

        Args:
            faults: Number of each such row, with what is wrong with it.
        """
        is_bad = pc.is_in(self.numbers, pa.array(list(faults), pa.int32()))
        rows, numbers, columns = self.rows.filter(is_bad), self.numbers.filter(is_bad).to_pylist(), self.bad.columns
        if self.forms is None:
            texts = [row.rstrip("\r\n").encode() for row in rows.to_pylist()]
        elif self.bad.header:
            texts = encode_cells(zip(*(column.to_pylist() for column in rows.columns), strict=True))
        else:
            texts = [b""] * len(numbers)
            columns = rows if columns is None else pa.concat_tables([columns, rows])
        bad = {number: (text, faults[number]) for number, text in zip(numbers, texts, strict=True)}
        kept = pc.invert(is_bad)
        return replace(
            self,
            rows=self.rows.filter(kept),
            numbers=self.numbers.filter(kept),
            bad=BadLines({**self.bad.rows, **bad}, self.bad.header, columns),
        )


def count_up(count: int, *, first: int = 0) -> pa.Int32Array:
    """Return ascending numbers."""
    numbers = np.arange(first, first + count, dtype=np.int32)
    return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(numbers)])


_SMALL_TABLE_BYTES: Final = 16 * MIB


def join_chunks(table: pa.Table) -> pa.Table:
    """Return a table in one piece if it is small: each piece costs time in each query, and batches may be tiny."""
    return table.combine_chunks() if table.nbytes <= _SMALL_TABLE_BYTES else table


_NEWLINE: Final = 10
_STEP_BYTES: Final = 8 * MIB
"""Of a batch's text, searched together: a search needs several times as much memory."""
_IS_SPACE: Final = np.isin(np.arange(256), [9, 10, 13, 32])


def read_lines(decoded: bytes, limits: FlushUnitLimits) -> Batch:
    r"""Split an NDJSON batch into lines; those that cannot be text, or are too long, are set aside.

    A byte order mark is dropped, blank lines are ignored, both ``\n`` and ``\r\n`` end a line.
    """
    decoded = decoded.removeprefix(BOM)
    offsets = _find_offsets(decoded, limits)
    bad: dict[int, tuple[bytes, Fault]] = {}
    if not _is_utf8(decoded):
        decoded, bad = _blank_undecodable(decoded)
    lengths = np.diff(offsets)
    is_blank = _find_blank(decoded, offsets)
    remedy = "is it a JSON array? Send one event per line"
    for index in np.flatnonzero(lengths > limits.line_bytes).tolist():
        fault = Fault(
            f"a line is longer than {limits.line_bytes} bytes: {remedy}",
            f"line {index + 1} has {lengths[index]} bytes; the limit is {limits.line_bytes}: {remedy}",
        )
        bad[index + 1] = (decoded[offsets[index] : offsets[index + 1]].rstrip(b"\r\n"), fault)
        is_blank[index] = True
    lines = pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(decoded))
    numbers = count_up(len(lengths), first=1)
    if is_blank.any():
        kept = pa.array(~is_blank)
        lines, numbers = lines.filter(kept), numbers.filter(kept)
    return Batch(lines, numbers, len(decoded), bad=BadLines(bad), noun="line")


def _blank_undecodable(decoded: bytes) -> tuple[bytes, dict[int, tuple[bytes, Fault]]]:
    """Return the batch with spaces in the place of lines that are not UTF-8, and these lines by number."""
    blanked = bytearray(decoded)
    bad: dict[int, tuple[bytes, Fault]] = {}
    start, number = 0, 1
    while True:
        try:
            str(memoryview(blanked)[start:], "utf-8")
        except UnicodeDecodeError as error:
            at = start + error.start
        else:
            return bytes(blanked), bad
        number += blanked.count(b"\n", start, at)
        begin = blanked.rfind(b"\n", 0, at) + 1
        end = blanked.find(b"\n", at)
        end = len(blanked) if end < 0 else end
        fault = Fault("a line is not UTF-8; encode the batch as UTF-8", _not_utf8(number, blanked, at))
        bad[number] = (bytes(blanked[begin:end]).rstrip(b"\r"), fault)
        blanked[begin:end] = b" " * (end - begin)
        start = end


def _find_offsets(decoded: bytes, limits: FlushUnitLimits) -> np.ndarray:
    """Return where each line begins, and the end; as the offsets buffer of a string array.

    Raises BatchTooLarge soon after there are too many.
    """
    data = np.frombuffer(decoded, np.uint8)
    parts = [np.zeros(1, np.int32)]
    line_count = 0
    for start in range(0, len(data), _STEP_BYTES):
        ends = np.flatnonzero(data[start : start + _STEP_BYTES] == _NEWLINE) + (start + 1)
        parts.append(ends.astype(np.int32))
        line_count += len(ends)
        check_row_count(line_count, limits)
    if decoded and not decoded.endswith(b"\n"):
        parts.append(np.array([len(decoded)], np.int32))
    return np.concatenate(parts)


def _find_blank(decoded: bytes, offsets: np.ndarray) -> np.ndarray:
    """Return which lines hold only white space. Looks at whole lines only if some line begins with it."""
    data = np.frombuffer(decoded, np.uint8)
    starts = offsets[:-1]
    begins_blank: np.ndarray = _IS_SPACE[data[starts]]
    if not begins_blank.any():
        return begins_blank
    visible: np.ndarray = np.add.reduceat(~_IS_SPACE[data], starts) == 0
    return visible
