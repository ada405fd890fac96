"""Arrow data to the bodies of batches: tables, record batches, readers, DataFrames, Parquet and Arrow files.

Owns that rows which are columns already stay columns: they are staged as Arrow IPC streams with zstd buffers and
never pass through a Python loop over rows. pyarrow is an optional part of this package and imported only here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from icedb_log.errors import InvalidRequest

from icedb_client.bodies import MAX_BATCH_BYTES, BatchBody

if TYPE_CHECKING:
    from io import BufferedReader

    import pyarrow as pa
    from pyarrow import RecordBatch

READ_BATCH_ROWS: Final = 65_536
"""Rows that are read from a Parquet file at once."""


def is_arrow_data(data: object) -> bool:
    """Return whether an object is a pandas DataFrame, or offers Arrow's C stream (pyarrow, Polars, DuckDB, …)."""
    return _is_pandas(data) or hasattr(data, "__arrow_c_stream__")


def encode_arrow(data: Any) -> BatchBody:
    """Return Arrow data as one batch.

    Args:
        data: As for :func:`open_arrow`.

    Raises:
        InvalidRequest: pyarrow is missing, the data are no table, or larger than one batch may be.
    """
    schema, batches = open_arrow(data)
    taken: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        size_bytes += batch.nbytes
        if size_bytes > MAX_BATCH_BYTES:
            raise InvalidRequest(
                f"the Arrow data are larger than the {MAX_BATCH_BYTES} bytes of one batch: "
                "use Client.enqueue_arrow, which cuts them into several"
            )
        taken.append(batch)
    return _encode(schema, taken, first_row=1, position=0)


def open_arrow(data: Any) -> "tuple[pa.Schema, Iterable[pa.RecordBatch]]":
    """Return the columns of Arrow data and its record batches.

    A pandas index is left out, unless every level of it has a name: then its levels are columns.

    Args:
        data: A pyarrow Table, RecordBatch or RecordBatchReader; a pandas DataFrame; whatever has
            ``__arrow_c_stream__`` and is a stream of record batches (Polars, DuckDB).

    Raises:
        InvalidRequest: pyarrow is missing, or the data cannot be Arrow record batches.
    """
    pa = _import_pyarrow()
    try:
        if _is_pandas(data):
            has_names = all(name is not None for name in data.index.names)
            data = pa.Table.from_pandas(data, preserve_index=has_names)
        if isinstance(data, pa.RecordBatch):
            data = pa.Table.from_batches([data])
        # WARN: not by a stream where there is none: its interface is C, which ends the name of a column at a NUL.
        if isinstance(data, pa.Table):
            reader = data.to_reader()
        elif any("\0" in name for name in getattr(data, "columns", ())):  # Polars ends the whole process over one
            raise ValueError("the name of a column has a NUL: rename it")
        else:
            reader = pa.RecordBatchReader.from_stream(data)
        # What pandas notes about itself is of no use to anybody else.
        return reader.schema.remove_metadata(), _without_metadata(reader)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidRequest(f"{type(data).__name__} cannot be Arrow record batches: {_one_line(error)}") from error


def split_arrow(
    schema: "pa.Schema",
    batches: "Iterable[tuple[pa.RecordBatch, int]]",
    *,
    batch_rows: int,
    batch_bytes: int,
    first_row: int,
) -> Iterator[BatchBody]:
    """Cut record batches into bodies; one row may be larger than ``batch_bytes``.

    Args:
        schema: Their columns.
        batches: Record batches, each with the position in the file after it.
        batch_rows: Most rows of a body.
        batch_bytes: Most bytes of a body, in memory.
        first_row: Number of the row to begin with, from 1.
    """
    taken: list[pa.RecordBatch] = []
    taken_rows = taken_bytes = position = 0
    to_skip = first_row - 1
    begun_at = first_row
    for batch, after in batches:
        # WARN: cut first, then skipped. A batch that was perhaps taken is sent again under its id, from its first row:
        # cut from there it would be other rows.
        for whole in _pieces(batch, batch_rows=batch_rows, batch_bytes=batch_bytes):
            skipped = min(to_skip, whole.num_rows)
            to_skip -= skipped
            piece = whole.slice(skipped)
            if piece.num_rows == 0:
                continue
            if taken and (taken_rows + piece.num_rows > batch_rows or taken_bytes + piece.nbytes > batch_bytes):
                yield _encode(schema, taken, first_row=begun_at, position=position)
                begun_at += taken_rows
                taken, taken_rows, taken_bytes = [], 0, 0
            taken.append(piece)
            taken_rows += piece.num_rows
            taken_bytes += piece.nbytes
        position = after
    if taken:
        yield _encode(schema, taken, first_row=begun_at, position=position)


def split_binary(
    source: "BufferedReader",
    data_format: str,
    *,
    name: str,
    size_bytes: int,
    batch_rows: int,
    batch_bytes: int,
    first_row: int,
) -> Iterator[BatchBody]:
    """Cut a binary file into bodies, a record batch at a time.

    Args:
        source: The file. An Arrow IPC stream may be a pipe.
        data_format: What it is.
        name: Its name, for messages.
        size_bytes: Its size; 0 for a pipe.
        batch_rows: Most rows of a body.
        batch_bytes: Most bytes of a body, in memory.
        first_row: Number of the row to begin with, from 1.

    Raises:
        InvalidRequest: pyarrow is missing, or the file cannot be read.
    """
    pa = _import_pyarrow(f"{name} is cut into several batches")

    def read(rows: _Rows) -> "Iterator[tuple[RecordBatch, int]]":
        read_rows = 0
        for batch in rows.batches:
            read_rows += batch.num_rows
            yield batch, size_bytes * read_rows // rows.row_count if rows.row_count else _tell(source)

    try:
        rows = _READERS[data_format](source, min(READ_BATCH_ROWS, batch_rows))
        yield from split_arrow(
            rows.schema, read(rows), batch_rows=batch_rows, batch_bytes=batch_bytes, first_row=first_row
        )
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidRequest(f"{name}: not a readable {data_format} file: {_one_line(error)}") from error


def count_rows(body: bytes, data_format: str, *, name: str) -> int | None:
    """Return the rows of a whole binary file; ``None`` where pyarrow is not installed.

    Raises:
        InvalidRequest: It cannot be read.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - an optional package
    except ImportError:
        return None
    try:
        rows = _READERS[data_format](body, READ_BATCH_ROWS)
        return sum(int(batch.num_rows) for batch in rows.batches) if rows.row_count is None else rows.row_count
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidRequest(f"{name}: not a readable {data_format} file: {_one_line(error)}") from error


def first_rows(body: bytes, data_format: str, *, limit: int) -> tuple[str, ...]:
    """Return the first rows of a whole binary file as text.

    Raises:
        InvalidRequest: pyarrow is missing, or it cannot be read.
    """
    pa = _import_pyarrow(f"rows of {data_format} are shown")
    try:
        first = next(iter(_READERS[data_format](body, max(1, limit)).batches), None)
        return () if first is None else tuple(str(row) for row in first.slice(0, limit).to_pylist())
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidRequest(f"not readable: {_one_line(error)}") from error


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a binary file.

    Attributes:
        schema: Their columns.
        batches: Read as they are taken.
        row_count: How many, where the file says it.
    """

    schema: "pa.Schema"
    batches: "Iterable[pa.RecordBatch]"
    row_count: int | None = None


def _read_parquet(source: "BufferedReader | bytes", batch_rows: int) -> _Rows:
    import pyarrow as pa  # noqa: PLC0415 - an optional package
    import pyarrow.parquet as pq  # noqa: PLC0415 - an optional package

    # In nanoseconds, as Arrow reads INT96 by default, times outside 1677 to 2262 become others.
    content = pa.BufferReader(source) if isinstance(source, bytes) else source
    file = pq.ParquetFile(content, coerce_int96_timestamp_unit="us")
    schema = file.schema_arrow.remove_metadata()
    return _Rows(schema, file.iter_batches(batch_size=batch_rows), int(file.metadata.num_rows))


def _read_arrow(source: "BufferedReader | bytes", _: int) -> _Rows:
    """Read an IPC stream, or an IPC file (with ``ARROW1`` at its beginning)."""
    import pyarrow as pa  # noqa: PLC0415 - an optional package
    from pyarrow import ipc  # noqa: PLC0415 - an optional package

    start, data = (source, pa.BufferReader(source)) if isinstance(source, bytes) else (source.peek(1), source)
    if not start.startswith(b"A"):
        reader = ipc.open_stream(data)
        return _Rows(reader.schema, reader)
    reader = ipc.open_file(data)
    return _Rows(reader.schema, map(reader.get_batch, range(reader.num_record_batches)))


_READERS: "Final[Mapping[str, Callable[[BufferedReader | bytes, int], _Rows]]]" = {
    "parquet": _read_parquet,
    "arrow": _read_arrow,
}
"""How a binary format is read, at most so many rows at once where that can be chosen. Of damaged bytes a reader
raises an error of pyarrow's, an OSError or a ValueError."""


def _encode(schema: "pa.Schema", batches: "list[pa.RecordBatch]", *, first_row: int, position: int) -> BatchBody:
    import pyarrow as pa  # noqa: PLC0415 - an optional package
    from pyarrow import ipc  # noqa: PLC0415 - an optional package

    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, schema, options=ipc.IpcWriteOptions(compression="zstd")) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return BatchBody(
        sink.getvalue().to_pybytes(),
        "arrow",
        sum(batch.num_rows for batch in batches),
        sum(batch.nbytes for batch in batches),
        first_row,
        position,
    )


def _pieces(batch: "pa.RecordBatch", *, batch_rows: int, batch_bytes: int) -> "Iterator[pa.RecordBatch]":
    """Yield slices that fit; a row that is too large by itself is one slice."""
    if batch.num_rows == 0:
        return
    if batch.num_rows > 1 and (batch.num_rows > batch_rows or batch.nbytes > batch_bytes):
        half = min(batch_rows, batch.num_rows - 1) if batch.num_rows > batch_rows else batch.num_rows // 2
        yield from _pieces(batch.slice(0, half), batch_rows=batch_rows, batch_bytes=batch_bytes)
        yield from _pieces(batch.slice(half), batch_rows=batch_rows, batch_bytes=batch_bytes)
    else:
        yield batch


def _without_metadata(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    for batch in batches:
        yield batch.replace_schema_metadata(None)


def _is_pandas(data: object) -> bool:
    return type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns")


def _import_pyarrow(why: str = "Arrow data and DataFrames are staged as Arrow") -> Any:
    try:
        import pyarrow  # noqa: ICN001, PLC0415 - an optional package
    except ImportError as error:
        raise InvalidRequest(f"{why}: this needs pyarrow, which is not installed: pip install pyarrow") from error
    return pyarrow


def _tell(source: BinaryIO) -> int:
    try:
        return source.tell()
    except OSError:
        return 0  # a pipe


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
