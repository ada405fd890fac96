"""From the bytes of an NDJSON batch to lines: encoding and splitting; nothing about JSON yet.

The rows never become Python objects: a batch is one buffer, and its lines are offsets into it. Every bound of
:class:`~icedb_engine.limits.FlushUnitLimits` about bytes is enforced here, before anything is parsed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from icedb_log.units import MIB

from icedb_engine.errors import BatchRejected
from icedb_engine.limits import FlushUnitLimits
from icedb_engine.reading.bad_lines import BadLines
from icedb_engine.reading.row_problems import Fault
from icedb_engine.reading.staged_bytes import BOM, check_utf8, is_utf8

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
