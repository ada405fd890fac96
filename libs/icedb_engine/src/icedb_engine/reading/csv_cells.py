"""A batch of CSV: a header line, then rows of cells. What a cell means is decided later, with its whole column.

Rows are numbered like the lines of a file without line breaks in its cells: the header is row 1.
"""

import csv
import io
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

from icedb_engine.errors import BatchRejected
from icedb_engine.limits import FlushUnitLimits
from icedb_engine.reading.bad_lines import BadLines
from icedb_engine.reading.batch_table import BatchTable
from icedb_engine.reading.column_forms import Form
from icedb_engine.reading.row_problems import Fault
from icedb_engine.reading.staged_bytes import BOM, check_utf8

_SHOWN_CHARS: Final = 80
_NO_ROWS: Final = BatchTable(pa.table({}), {}, pa.array([], pa.int32()), 0)


def read_csv_cells(decoded: bytes, limits: FlushUnitLimits, *, splits_rows: bool = False) -> BatchTable:
    """Split a CSV batch into cells; an empty cell is null.

    Args:
        decoded: The batch, decompressed: comma-separated, cells with commas or line breaks in double quotes.
        limits: The bounds of a batch.
        splits_rows: Rows with too many or too few cells are set aside instead of rejecting the batch.

    Raises:
        BatchRejected: Not CSV, or above a bound.
    """
    decoded = decoded.removeprefix(BOM)
    check_utf8(decoded)
    if not decoded.strip():
        return _NO_ROWS
    if decoded.count(b'"') % 2:
        raise BatchRejected(
            "a double quote is not closed, or the file is cut off: quote cells, and double quotes in them"
        )
    if not decoded.endswith(b"\n"):
        decoded += b"\n"
    names = _read_header(decoded, limits)
    odd_rows: dict[int, tuple[bytes, Fault]] = {}

    def on_odd_row(row: Any) -> str:
        number = row.number if row.number is not None else 0
        reason = (
            f"row {number} has {row.actual_columns} cells, the header has {row.expected_columns}: "
            f"{(row.text or '')[:_SHOWN_CHARS]}: quote cells with commas or line breaks"
        )
        odd_rows[number] = (
            (row.text or "").encode(),
            Fault("a row has more or fewer cells than the header: quote cells with commas", reason),
        )
        return "skip" if splits_rows else "error"

    columns = [f"c{place}" for place in range(len(names))]
    try:
        table = pc.read_csv(
            pa.BufferReader(decoded),
            read_options=pc.ReadOptions(
                use_threads=False,
                column_names=columns,
                skip_rows_after_names=1,
                block_size=min(len(decoded) + 1, 2 * limits.line_bytes),
            ),
            parse_options=pc.ParseOptions(newlines_in_values=True, invalid_row_handler=on_odd_row),
            convert_options=pc.ConvertOptions(
                column_types=dict.fromkeys(columns, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
            ),
        )
    except pa.ArrowInvalid as error:
        if odd_rows and not splits_rows:
            raise BatchRejected(next(iter(odd_rows.values()))[1].reason) from error
        raise BatchRejected(
            f"not CSV ({str(error)[:200]}): is a quote not closed, or a row longer than {limits.line_bytes} bytes?"
        ) from error
    numbers = np.setdiff1d(
        np.arange(2, table.num_rows + len(odd_rows) + 2, dtype=np.int32), np.array(list(odd_rows), np.int32)
    )
    return BatchTable(
        table.rename_columns(names),
        dict.fromkeys(names, Form.CELL),
        pa.array(numbers),
        len(decoded),
        BadLines().add(odd_rows),
    )


def _read_header(decoded: bytes, limits: FlushUnitLimits) -> list[str]:
    text = io.TextIOWrapper(io.BytesIO(decoded), encoding="utf-8", newline="")
    try:
        names = next(row for row in csv.reader(text, strict=True) if row)
    except (csv.Error, StopIteration) as error:
        raise BatchRejected(
            f"the header is not CSV ({error}): send the names of the columns in the first line"
        ) from error
    if len(names) > limits.batch_columns:
        raise BatchRejected(f"{len(names)} columns; the limit is {limits.batch_columns}: send fewer columns")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BatchRejected(
            f"column {twice[:_SHOWN_CHARS]!r} stands twice in the header; which one counts is not defined"
        )
    return names
