"""Text files to rows: NDJSON, JSON arrays and CSV, read as they come.

A row is the bytes of one line, one element or one CSV record, as it was written. Whether it is good is for the flush to
say, which goes by the table's policy for bad rows; here is only looked whether a file is of its format at all.
"""

import io
import json
from collections.abc import Iterator
from typing import Final, NoReturn

from icedb_log.errors import InvalidRequest
from icedb_log.ingest.formats import BYTE_ORDER_MARK
from icedb_log.units import MIB

from icedb_client.batches import MAX_LINE_BYTES

MAX_ARRAY_BYTES: Final = 256 * MIB
"""A file that is one JSON array is parsed whole; a larger one has to be NDJSON."""
_JSON_SPACE: Final = " \t\r\n"
_LINE_ENDS: Final = bytes.maketrans(b"\r\n", b"  ")


def read_ndjson(text: io.BufferedReader, name: str) -> Iterator[bytes]:
    """Yield each line that is not blank, without its end.

    Raises:
        InvalidRequest: A line is too long, or the first one shows that this is no NDJSON; names file and line.
    """
    line_number = 0
    is_first = True
    while line := text.readline(MAX_LINE_BYTES + 1):
        line_number += 1
        _check_length(line, f"{name}: line {line_number}")
        line = (line.removeprefix(BYTE_ORDER_MARK) if line_number == 1 else line).strip()
        if not line:
            continue
        if is_first:
            _check_first(line, f"{name}: line {line_number}")
            is_first = False
        yield line


def read_json_array(text: io.BufferedReader, name: str) -> Iterator[bytes]:
    """Yield each element of one JSON array, as it was written, on one line.

    Raises:
        InvalidRequest: Too large, or not one array; names file and element.
    """
    body = text.read(MAX_ARRAY_BYTES + 1)
    if len(body) > MAX_ARRAY_BYTES:
        raise InvalidRequest(
            f"{name}: a JSON array of more than {MAX_ARRAY_BYTES} bytes; write one object a line (NDJSON) instead"
        )
    number = 0
    try:
        array = body.removeprefix(BYTE_ORDER_MARK).decode()
        at = _skip_space(array, 0)
        if array[at : at + 1] != "[":
            raise InvalidRequest(f"{name}: not a JSON array; it begins with {array[at : at + 20]!r}")
        decode = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode
        at = _skip_space(array, at + 1)
        while array[at : at + 1] != "]" or number:
            number += 1
            _, end = decode(array, at)
            # Line feeds stand only between the parts of an element: inside a text they are escaped.
            line = array[at:end].encode().translate(_LINE_ENDS)
            _check_length(line, f"{name}: element {number} of the array")
            yield line
            at = _skip_space(array, end)
            if array[at : at + 1] != ",":
                break
            at = _skip_space(array, at + 1)
        if array[at : at + 1] != "]" or _skip_space(array, at + 1) != len(array):
            raise InvalidRequest(f"{name}: not a JSON array: after element {number} comes {array[at : at + 20]!r}")
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise InvalidRequest(f"{name}: not a JSON array: {reason} (element {number})") from error


class CsvRecords:
    """The records of a CSV file (RFC 4180: comma, double quotes, line feeds inside quotes). Iterate once.

    Only where records end is looked at; blank lines between records are left out.

    Args:
        text: The file.
        name: Its name, for messages.

    Attributes:
        header: The first record with its line feed; empty for an empty file.

    Raises:
        InvalidRequest: A record is too long, or its quotes are never closed; names file and line.
    """

    def __init__(self, text: io.BufferedReader, name: str) -> None:
        self._text = text
        self._name = name
        self._line_number = 0
        self.header = self._read_record().removeprefix(BYTE_ORDER_MARK)

    def __iter__(self) -> Iterator[bytes]:
        while record := self._read_record():
            yield record

    def _read_record(self) -> bytes:
        """Return the next record with a line feed at its end; empty at the end of the file."""
        parts: list[bytes] = []
        size_bytes = 0
        is_open = False
        begun_at = self._line_number + 1
        while line := self._text.readline(MAX_LINE_BYTES + 1):
            self._line_number += 1
            size_bytes += len(line)
            if size_bytes > MAX_LINE_BYTES:
                raise InvalidRequest(
                    f"{self._name}: the record of line {begun_at} is longer than {MAX_LINE_BYTES} bytes"
                )
            if not parts and not line.strip(b"\r\n"):
                begun_at = self._line_number + 1
                size_bytes = 0
                continue
            if b'"' in line:
                is_open = ends_in_quotes(line, is_open=is_open)
            parts.append(line)
            if not is_open:
                break
        if is_open:
            raise InvalidRequest(f"{self._name}: the record of line {begun_at} opens a quote that is never closed")
        record = b"".join(parts)
        return record + b"\n" if record and not record.endswith(b"\n") else record


def ends_in_quotes(line: bytes, *, is_open: bool) -> bool:
    """Return whether a quoted CSV field is still open at the end of a line.

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


def _check_length(line: bytes, where: str) -> None:
    if len(line) > MAX_LINE_BYTES:
        raise InvalidRequest(f"{where} is longer than {MAX_LINE_BYTES} bytes")


def _check_first(line: bytes, where: str) -> None:
    if not line.startswith(b"{"):
        raise InvalidRequest(
            f"{where} is not JSON, or no object: it begins with {line[:20]!r}; each line of NDJSON is one object of "
            "column to value. If this is no JSON at all, say what it is (--format, data_format)"
        )
    if line == b"{":
        raise InvalidRequest(f"{where} is not JSON: an object over several lines; write one object a line, or an array")


def _skip_space(text: str, at: int) -> int:
    while text[at : at + 1] and text[at] in _JSON_SPACE:
        at += 1
    return at


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
