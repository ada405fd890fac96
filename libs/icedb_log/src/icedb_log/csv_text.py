"""Where the records of CSV text end (RFC 4180: comma, double quotes, line breaks inside quotes). Pure.

One rule for who cuts a file into batches and who reads a batch: otherwise what becomes of a row would depend on
where its file was cut.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

__all__ = ["CsvRecord", "cut_records", "read_lines"]


@dataclass(frozen=True, slots=True)
class CsvRecord:
    """One record with its line end.

    Attributes:
        text: As it was written.
        line_number: Of its first line, from 1.
        is_closed: Whether it has an end; if not, a quote stays open to the end of the text.
    """

    text: bytes
    line_number: int
    is_closed: bool = True


def read_lines(stream: BinaryIO, *, max_bytes: int) -> Iterator[bytes]:
    r"""Yield lines with their ends, which are ``\\n``, ``\\r\\n`` or ``\\r``; of a longer line pieces of any size."""
    rest = b""
    while piece := stream.readline(max_bytes):
        lines = (rest + piece).splitlines(keepends=True) if rest or b"\r" in piece else [piece]
        is_cut = not piece.endswith(b"\n")  # perhaps between the two characters of a line's end
        rest = lines.pop() if is_cut and len(lines[-1]) < max_bytes else b""
        yield from lines
    if rest:
        yield rest


def cut_records(lines: Iterable[bytes], *, max_bytes: int) -> Iterator[CsvRecord]:
    """Yield the records of lines with their ends, without blank lines between them.

    The last one may not be closed; so is what has been read of the first one that has more than ``max_bytes``.
    """
    parts: list[bytes] = []
    size_bytes = begun_at = 0
    is_open = False
    for number, line in enumerate(lines, start=1):
        if not parts:
            if not line.strip(b"\r\n"):
                continue
            begun_at = number
        parts.append(line)
        size_bytes += len(line)
        if b'"' in line:
            is_open = _ends_in_quotes(line, is_open=is_open)
        if size_bytes > max_bytes:
            break
        if not is_open:
            yield CsvRecord(b"".join(parts), begun_at)
            parts, size_bytes = [], 0
    if parts:
        yield CsvRecord(b"".join(parts), begun_at, is_closed=False)


def _ends_in_quotes(line: bytes, *, is_open: bool) -> bool:
    """Return whether a quoted field is still open at the end of a line.

    Quotes count only at the beginning of a field: ``5" pipe`` is plain text.

    Args:
        line: One line with its end.
        is_open: Whether the line begins inside a quoted field.
    """
    at = 0
    if not is_open:
        if line.startswith(b'"'):
            at = 1
        elif (comma := line.find(b',"')) >= 0:
            at = comma + 2
        else:
            return False
    while True:
        quote = line.find(b'"', at)
        if quote < 0:
            return True
        if line[quote + 1 : quote + 2] == b'"':
            at = quote + 2
            continue
        comma = line.find(b',"', quote + 1)
        if comma < 0:
            return False
        at = comma + 2
