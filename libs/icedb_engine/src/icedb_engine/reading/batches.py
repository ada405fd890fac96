"""What a staged batch is once it is decoded: lines of JSON, or a table; its bad rows, and what is wrong with them.

Decompression is bounded while it goes on. A row that cannot be committed (``on_bad_rows = quarantine_rows``) is kept
as it came, byte for byte where it came as a line, so that its producer can mend and send it again.
"""

import io
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from icedb_log.jobs import RowFault
from icedb_log.units import MIB

from icedb_engine.errors import BatchRejected, BatchTooLarge
from icedb_engine.limits import FlushUnitLimits
from icedb_engine.reading.types import Form

_CODECS: Final = {"gz": "gzip", "zst": "zstd"}
_CHUNK_BYTES: Final = 4 * 1024 * 1024
BOM: Final = b"\xef\xbb\xbf"


def split_format(staging_format: str) -> tuple[str, str | None]:
    """Return the plain format and the codec of one of :data:`icedb_log.keys.STAGING_FORMATS`."""
    plain, _, suffix = staging_format.partition(".")
    return plain, _CODECS.get(suffix)


def decompress(body: bytes, codec: str | None, limits: FlushUnitLimits, *, has_lines: bool = False) -> bytes:
    """Return the decompressed bytes, and stop soon after there are too many.

    They are counted while they come, a piece at a time: nothing that a stream says of its own size is believed.

    Args:
        body: The staged bytes.
        codec: ``gzip``, ``zstd`` or None.
        limits: Among them the guard against decompression bombs.
        has_lines: Each line is a row.

    Raises:
        BatchRejected: Not a whole stream.
        BatchTooLarge: Above a bound.
    """
    if codec is None:
        _check_size(len(body), body.count(b"\n") if has_lines else 0, limits)
        return body
    decoded = io.BytesIO()  # it grows in place, and gives its bytes away without a copy
    line_count = 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                decoded.write(chunk)
                line_count += chunk.count(b"\n") if has_lines else 0
                _check_size(decoded.tell(), line_count, limits)
    except OSError as error:
        raise BatchRejected(f"not a complete {codec} stream: {error}; compress the batch again") from error
    return decoded.getvalue()


def check_row_count(row_count: int, limits: FlushUnitLimits) -> None:
    """Raise BatchTooLarge if a batch has too many rows."""
    if row_count > limits.batch_rows:
        raise BatchTooLarge(f"more than {limits.batch_rows} rows; send smaller batches")


def _check_size(decoded_bytes: int, row_count: int, limits: FlushUnitLimits) -> None:
    if decoded_bytes > limits.batch_decoded_bytes:
        raise BatchTooLarge(f"more than {limits.batch_decoded_bytes} bytes after decompression; send smaller batches")
    check_row_count(row_count, limits)


def is_utf8(data: bytes) -> bool:
    """Return whether these bytes are UTF-8, without making text of them."""
    text = pa.Array.from_buffers(pa.large_string(), 1, [None, _offsets(len(data)), pa.py_buffer(data)])
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def check_utf8(data: bytes) -> None:
    """Raise BatchRejected with line and offset if these bytes are not UTF-8."""
    if is_utf8(data):
        return
    try:
        data.decode()
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise BatchRejected(
            f"line {number} is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}; "
            "encode the batch as UTF-8"
        ) from error


def _offsets(size_bytes: int) -> pa.Buffer:
    return pa.py_buffer((0).to_bytes(8, "little") + size_bytes.to_bytes(8, "little"))


MAX_OWN_REASONS: Final = 10
"""Rows of a batch that are described one by one; the others are counted by what is wrong with them."""
MAX_COUNTED_REASONS: Final = 10
"""Reasons by which the others are counted, the most frequent first."""


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
class Problem:
    """Why a batch cannot be taken as it is.

    Attributes:
        reason: In words for its producer: what, where, the remedy; of the first row if it is about rows.
        find_rows: Finds the numbers of the rows that are at fault; None if it is the batch as a whole.
        what: What is wrong with each of them, without number and value.
        explain: Returns the reason of one of them.
    """

    reason: str
    find_rows: Callable[[], Collection[int]] | None = None
    what: str = ""
    explain: Callable[[int], str] | None = None

    def find_faults(self) -> dict[int, Fault]:
        """Return the rows that are at fault, ascending, with what is wrong: the first ones each in its own words."""
        numbers = sorted(self.find_rows()) if self.find_rows is not None else []
        faults = dict.fromkeys(numbers, Fault(self.what or self.reason))
        if self.explain is not None:
            faults |= {number: Fault(self.what, self.explain(number)) for number in numbers[:MAX_OWN_REASONS]}
        return faults


def number_fault(noun: str, what: str, number: int) -> str:
    """Return what is wrong with one row that is told by its number alone."""
    return f"{noun} {number}: {what}"


def describe_faults(faults: Mapping[int, Fault]) -> str:
    """Return the reason of a batch's bad rows: the first ones each on a line of its own, the others by count.

    Args:
        faults: By number of the row, ascending; at least one.
    """
    rest = iter(faults.values())
    lines = [fault.reason or fault.what for fault in islice(rest, MAX_OWN_REASONS)]
    counts = Counter(fault.what for fault in rest).most_common()
    if counts:
        shown = [f"{count:,} rows: {what}" for what, count in counts[:MAX_COUNTED_REASONS]]
        if len(counts) > MAX_COUNTED_REASONS:
            shown.append(f"{sum(count for _, count in counts[MAX_COUNTED_REASONS:]):,} rows: other reasons")
        lines += [f"and {len(faults) - MAX_OWN_REASONS:,} more rows:", *shown]
    return "\n".join(lines)


MAX_FAULT_ROWS: Final = 10_000
"""Bad rows of a batch of which it is written down what is wrong with each; the others are counted."""


@dataclass(frozen=True, slots=True)
class BadLines:
    """Some bad rows of one batch.

    Attributes:
        rows: Text of each as bytes without line ending, and what is wrong with it, by its number in the batch.
    """

    rows: Mapping[int, tuple[bytes, Fault]] = field(default_factory=dict)

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
        """What is wrong with them: the first ones each in its own words, the others counted."""
        return describe_faults(self.faults)

    def group_faults(self) -> tuple[RowFault, ...]:
        """Return what is wrong with each of the first :data:`MAX_FAULT_ROWS`, rows of one fault together."""
        groups: dict[str, list[int]] = {}
        for number, fault in islice(self.faults.items(), MAX_FAULT_ROWS):
            groups.setdefault(fault.what, []).append(number)
        return tuple(RowFault(what, tuple(numbers)) for what, numbers in groups.items())

    def add(self, rows: Mapping[int, tuple[bytes, Fault]]) -> "BadLines":
        """Return these and some more."""
        return BadLines({**self.rows, **rows}) if rows else self

    def compress(self) -> bytes:
        """Return the rows as NDJSON, in order, compressed with zstd."""
        text = b"".join(self.rows[number][0] + b"\n" for number in sorted(self.rows))
        compressed: bytes = pa.compress(text, codec="zstd", asbytes=True)
        return compressed


@dataclass(frozen=True, slots=True)
class BatchTable:
    """The rows of one batch.

    Attributes:
        table: Its columns, of the Arrow types that the forms have in the engine.
        forms: The form of each column, by name; the order is that of the batch.
        numbers: Number of each row in the batch, from 1 (the line, for a format that has lines).
        decoded_bytes: Size in memory.
        bad: Rows that were set aside.
        noun: What a producer calls a row.
    """

    table: pa.Table
    forms: Mapping[str, Form]
    numbers: pa.Int32Array
    decoded_bytes: int
    bad: BadLines = field(default_factory=BadLines)
    noun: str = "row"

    @property
    def row_count(self) -> int:
        """Rows to be looked at."""
        return int(self.table.num_rows)

    def split(self, bad_numbers: Mapping[int, Fault]) -> "BatchTable":
        """Return the same batch with some more rows among the bad ones, as JSON objects.

        Args:
            bad_numbers: Number of each such row, with what is wrong with it.
        """
        is_bad = pc.is_in(self.numbers, pa.array(list(bad_numbers), pa.int32()))
        numbers = self.numbers.filter(is_bad).to_pylist()
        rows = self.table.filter(is_bad).to_pylist()
        bad = self.bad.add(
            {number: (orjson.dumps(row), bad_numbers[number]) for number, row in zip(numbers, rows, strict=True)}
        )
        kept = pc.invert(is_bad)
        return replace(self, table=self.table.filter(kept), numbers=self.numbers.filter(kept), bad=bad)


_NEWLINE: Final = 10
_STEP_BYTES: Final = 8 * MIB
"""Of a batch's text, looked at together: what a look needs takes several times as much."""
_IS_SPACE: Final = np.isin(np.arange(256), [9, 10, 13, 32])


@dataclass(frozen=True, slots=True)
class BatchLines:
    """The lines of one batch that are not blank.

    Attributes:
        lines: The text of each, with its line ending; one buffer.
        numbers: Number of each in the decoded batch, from 1.
        decoded_bytes: Size after decompression.
        bad: Lines that cannot even be text; only if rows are told from batches (``on_bad_rows``).
        noun: What a producer calls a line: ``line``, or ``element`` of a JSON array.
    """

    lines: pa.StringArray
    numbers: pa.Int32Array
    decoded_bytes: int
    bad: BadLines = field(default_factory=BadLines)
    noun: str = "line"

    @property
    def row_count(self) -> int:
        """Rows to be looked at."""
        return len(self.lines)

    def head(self, count: int) -> "BatchLines":
        """Return the first lines only, as a copy."""
        return replace(self, lines=pa.array(self.lines[:count].to_pylist(), pa.string()), numbers=self.numbers[:count])

    def split(self, bad_numbers: Mapping[int, Fault]) -> "BatchLines":
        """Return the same batch with some more lines among the bad ones.

        Args:
            bad_numbers: Number of each such line, with what is wrong with it.
        """
        is_bad = pc.is_in(self.numbers, pa.array(list(bad_numbers), pa.int32()))
        texts = [text.rstrip("\r\n").encode() for text in self.lines.filter(is_bad).to_pylist()]
        numbers = self.numbers.filter(is_bad).to_pylist()
        bad = self.bad.add({number: (text, bad_numbers[number]) for number, text in zip(numbers, texts, strict=True)})
        kept = pc.invert(is_bad)
        return replace(self, lines=self.lines.filter(kept), numbers=self.numbers.filter(kept), bad=bad)


def read_batch_lines(decoded: bytes, limits: FlushUnitLimits, *, splits_rows: bool = False) -> BatchLines:
    r"""Split an NDJSON batch into lines.

    A byte order mark is dropped, blank lines are ignored, both ``\n`` and ``\r\n`` end a line.

    Args:
        decoded: The batch, decompressed.
        limits: The bounds of a batch.
        splits_rows: Lines that cannot be text go to ``bad`` instead of rejecting the batch.

    Raises:
        BatchRejected: Not UTF-8, or above a bound.
    """
    decoded = decoded.removeprefix(BOM)
    bad: dict[int, tuple[bytes, Fault]] = {}
    if splits_rows and not is_utf8(decoded):
        decoded, bad = _blank_undecodable(decoded)
    check_utf8(decoded)
    offsets = _find_offsets(decoded)
    lengths = np.diff(offsets)
    is_blank = _find_blank(decoded, offsets)
    too_long = np.flatnonzero(lengths > limits.line_bytes)
    too_long_what = f"a line is longer than {limits.line_bytes} bytes: is it a JSON array? Send one event per line"
    for index in too_long.tolist():
        reason = (
            f"line {index + 1} has {lengths[index]} bytes; the limit is {limits.line_bytes}: "
            "is it a JSON array? Send one event per line"
        )
        if not splits_rows:
            raise BatchRejected(reason)
        bad[index + 1] = (decoded[offsets[index] : offsets[index + 1]].rstrip(b"\r\n"), Fault(too_long_what, reason))
        is_blank[index] = True
    lines = pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(decoded))
    numbers = pa.Array.from_buffers(
        pa.int32(), len(lengths), [None, pa.py_buffer(np.arange(1, len(lengths) + 1, dtype=np.int32))]
    )
    if is_blank.any():
        kept = pa.array(~is_blank)
        lines, numbers = lines.filter(kept), numbers.filter(kept)
    return BatchLines(lines, numbers, len(decoded), BadLines().add(bad))


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
        reason = f"line {number} is not UTF-8: byte 0x{blanked[at]:02x} at offset {at}; encode the batch as UTF-8"
        bad[number] = (
            bytes(blanked[begin:end]).rstrip(b"\r"),
            Fault("a line is not UTF-8; encode the batch as UTF-8", reason),
        )
        blanked[begin:end] = b" " * (end - begin)
        start = end


def _find_offsets(decoded: bytes) -> np.ndarray:
    """Return where each line begins, and the end; as the offsets buffer of a string array."""
    data = np.frombuffer(decoded, np.uint8)
    parts = [np.zeros(1, np.int32)]
    for start in range(0, len(data), _STEP_BYTES):
        ends = np.flatnonzero(data[start : start + _STEP_BYTES] == _NEWLINE) + (start + 1)
        parts.append(ends.astype(np.int32))
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


BatchContent = BatchLines | BatchTable
