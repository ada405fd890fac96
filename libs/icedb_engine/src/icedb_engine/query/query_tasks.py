"""What tasks of a flush with an ``insert_query`` run: blobs become the rows of the query, its result becomes blobs."""

import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
from icedb_log.errors import IceDBError

from icedb_engine.arrow_types import ARROW_TYPES
from icedb_engine.spark.spark_blobs import make_blob_row, make_result_row
from icedb_engine.spark.spark_read import ReadUnit
from icedb_engine.spark.spark_runner import OK, Chunks
from icedb_engine.units.flush_unit import EncodeUnit


class LostBlobs(RuntimeError):
    """Spark made blobs again, and they are others. The flush runs again."""


def make_decode_task(read: Iterable[ReadUnit], types: Mapping[str, str]) -> Callable[[Chunks], Chunks]:
    """Return what makes rows of the blobs of some units, and sees to it that no blob is missing.

    Args:
        read: The units that count; blobs of others are passed over.
        types: Columns of the rows, with types; NULL where a blob has no such column.
    """
    planned = {unit.number: {blob.number: blob.checksum for blob in unit.result.blobs} for unit in read}
    schema = pa.schema([(name, _spark_type(kind)) for name, kind in types.items()])

    def decode(chunks: Chunks) -> Chunks:
        expected: dict[int, dict[int, int]] = {}
        for chunk in chunks:
            for unit, number, blob in zip(chunk["unit"], chunk["number"], chunk["blob"], strict=True):
                waiting = planned.get(unit.as_py())
                if waiting is None:
                    continue
                left = expected.setdefault(unit.as_py(), dict(waiting))
                if not number.is_valid:
                    continue
                if left.pop(number.as_py(), None) != zlib.crc32(blob.as_buffer()):
                    raise LostBlobs(f"unit {unit} has a blob {number} that was not planned")
                for rows in pa.ipc.open_stream(blob.as_buffer()):
                    yield _align(rows, schema)
        for unit, left in expected.items():
            if left:
                raise LostBlobs(f"unit {unit} has lost {len(left)} of its blobs")

    return decode


def make_encode_task(unit: EncodeUnit, *, first: int) -> Callable[[Chunks], Chunks]:
    """Return what makes blobs of a query's rows.

    Args:
        unit: What to do.
        first: Number of the first task's unit.
    """

    def encode_rows(chunks: Chunks) -> Chunks:
        from pyspark import TaskContext  # noqa: PLC0415

        from icedb_engine.units.flush_unit import FilledBlob, encode_unit  # noqa: PLC0415
        from icedb_engine.units.work_units import encode  # noqa: PLC0415

        context: Any = TaskContext.get()
        number = first + int(context.partitionId())
        try:
            for made in encode_unit(unit, chunks):
                if isinstance(made, FilledBlob):
                    yield make_blob_row(number, made.blob.number, made.body)
                else:
                    yield make_result_row(number, OK, encode(made))
        except IceDBError as error:
            yield make_result_row(number, type(error).__name__, str(error))

    return encode_rows


def _spark_type(sql_type: str) -> Any:
    return pa.timestamp("us", tz="UTC") if sql_type == "TIMESTAMP" else ARROW_TYPES[sql_type]


def _align(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    arrays = [
        columns[field.name].cast(field.type) if field.name in columns else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
