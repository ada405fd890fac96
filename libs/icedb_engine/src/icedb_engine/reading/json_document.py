"""A batch that is one JSON document: an array of events, or one event. It becomes lines, an element each.

The whole document has to be in memory several times over while it is taken apart: hence a bound of its own, and one
document at a time.
"""

import re
from threading import Lock
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from icedb_engine.errors import BatchRejected
from icedb_engine.limits import FlushUnitLimits
from icedb_engine.reading.raw_events import read_engine_words
from icedb_engine.reading.row_problems import Fault
from icedb_engine.reading.staged_bytes import BOM, check_utf8
from icedb_engine.reading.staged_lines import BatchLines
from icedb_engine.sql import CLOSED

_BLANK: Final = b" \t\r\n"
_AT_BYTE: Final = re.compile(r"at byte (\d+)")
_ONE_AT_A_TIME: Final = Lock()


def read_json_document(decoded: bytes, limits: FlushUnitLimits, *, splits_rows: bool = False) -> BatchLines:
    """Take a JSON array of objects, or one object, apart.

    Args:
        decoded: The batch, decompressed.
        limits: The bounds of a batch.
        splits_rows: Elements that are too long are set aside instead of rejecting the batch.

    Raises:
        BatchRejected: Not one JSON document, or above a bound.
    """
    if len(decoded) > limits.document_bytes:
        raise BatchRejected(
            f"the JSON document has {len(decoded)} bytes; the limit is {limits.document_bytes}: "
            "send NDJSON, one event per line, or smaller batches"
        )
    decoded = decoded.removeprefix(BOM).strip(_BLANK)
    check_utf8(decoded)
    if not decoded.startswith(b"["):
        elements = pa.array([decoded] if decoded else [], pa.binary()).cast(pa.string())
    else:
        elements = _split_array(decoded)
    rows = BatchLines(elements, _count_from_one(len(elements)), len(decoded), noun="element")
    lengths = pc.binary_length(elements)
    too_long = pc.indices_nonzero(pc.greater(lengths, limits.line_bytes)).to_pylist()
    bad = {
        index + 1: Fault(
            f"an element is longer than {limits.line_bytes} bytes",
            f"element {index + 1} has {lengths[index]} bytes; the limit is {limits.line_bytes}",
        )
        for index in too_long
    }
    if bad and not splits_rows:
        raise BatchRejected(next(iter(bad.values())).reason)
    return rows.split(bad) if bad else rows


def _split_array(decoded: bytes) -> pa.StringArray:
    with _ONE_AT_A_TIME, duckdb.connect(config={"threads": 1, **CLOSED}) as engine:
        connection: Any = engine
        connection.register("body", pa.table({"text": pa.array([decoded], pa.binary()).cast(pa.string())}))
        try:
            found = connection.execute(
                "SELECT coalesce(CAST(element AS VARCHAR), 'null') AS element "
                "FROM (SELECT unnest(from_json(text, '[\"JSON\"]')) AS element FROM body)"
            ).to_arrow_table()
        except (duckdb.InvalidInputException, UnicodeDecodeError) as error:
            raise BatchRejected(
                f"not one JSON document ({_explain(error, decoded)}); send a whole JSON array"
            ) from error
    column = found.column(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], pa.string())


def _explain(error: Exception, decoded: bytes) -> str:
    text = read_engine_words(error).partition("  Input:")[0]
    place = _AT_BYTE.search(text)
    if place is None:
        return text
    line_number = decoded.count(b"\n", 0, int(place[1])) + 1
    return f"line {line_number}: {text}"


def _count_from_one(count: int) -> pa.Int32Array:
    return pa.array(range(1, count + 1), pa.int32())
