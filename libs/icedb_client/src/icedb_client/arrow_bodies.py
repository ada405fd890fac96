"""Arrow data to the bodies of batches: tables, record batches, readers, DataFrames, Parquet and Arrow files.

Owns that rows which are columns already stay columns: they are staged as Arrow IPC streams with zstd buffers and
never pass through a Python loop over rows. pyarrow is an optional part of this package and imported only here.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from icedb_log.errors import InvalidRequest

from icedb_client.bodies import MAX_BATCH_BYTES, BatchBody

if TYPE_CHECKING:
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
        batch_bytes: Most bytes of a body, as they lie in memory.
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


def split_parquet(
    source: BinaryIO, *, name: str, size_bytes: int, batch_rows: int, batch_bytes: int, first_row: int
) -> Iterator[BatchBody]:
    """Cut a Parquet file into bodies, a row group at a time.

    Raises:
        InvalidRequest: pyarrow is missing, or this is no readable Parquet file.
    """
    pa = _import_pyarrow(f"{name} is cut into several batches")
    import pyarrow.parquet as pq  # noqa: PLC0415 - an optional package

    def read() -> "Iterator[tuple[RecordBatch, int]]":
        read_rows = 0
        for batch in file.iter_batches(batch_size=min(READ_BATCH_ROWS, batch_rows)):
            read_rows += batch.num_rows
            yield batch, size_bytes * read_rows // max(1, file.metadata.num_rows)

    try:
        with pq.ParquetFile(source) as file:
            yield from split_arrow(
                file.schema_arrow.remove_metadata(),
                read(),
                batch_rows=batch_rows,
                batch_bytes=batch_bytes,
                first_row=first_row,
            )
    except (pa.ArrowException, OSError) as error:
        raise InvalidRequest(f"{name}: not a readable Parquet file: {_one_line(error)}") from error


def split_arrow_file(
    source: BinaryIO, *, name: str, is_stream: bool, batch_rows: int, batch_bytes: int, first_row: int
) -> Iterator[BatchBody]:
    """Cut an Arrow IPC stream or file into bodies, a record batch at a time.

    Args:
        source: The file. A stream may be a pipe.
        name: Its name, for messages.
        is_stream: Whether it is a stream; else it is a file (with ``ARROW1`` at its beginning).
        batch_rows: Most rows of a body.
        batch_bytes: Most bytes of a body, as they lie in memory.
        first_row: Number of the row to begin with, from 1.

    Raises:
        InvalidRequest: pyarrow is missing, or this is no readable Arrow data.
    """
    pa = _import_pyarrow(f"{name} is cut into several batches")
    from pyarrow import ipc  # noqa: PLC0415 - an optional package

    def read(reader: Any) -> "Iterator[tuple[RecordBatch, int]]":
        if is_stream:
            for batch in reader:
                yield batch, _tell(source)
        else:
            for index in range(reader.num_record_batches):
                yield reader.get_batch(index), _tell(source)

    try:
        with (ipc.open_stream if is_stream else ipc.open_file)(source) as reader:
            yield from split_arrow(
                reader.schema,
                read(reader),
                batch_rows=batch_rows,
                batch_bytes=batch_bytes,
                first_row=first_row,
            )
    except (pa.ArrowException, OSError) as error:
        raise InvalidRequest(f"{name}: not readable Arrow data: {_one_line(error)}") from error


def count_rows(body: bytes, data_format: str, *, name: str) -> int | None:
    """Return the rows of a whole Parquet or Arrow file; ``None`` where pyarrow is not installed.

    Raises:
        InvalidRequest: It cannot be read.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - an optional package
    except ImportError:
        return None
    try:
        if data_format == "parquet":
            import pyarrow.parquet as pq  # noqa: PLC0415 - an optional package

            return int(pq.read_metadata(pa.BufferReader(body)).num_rows)
        from pyarrow import ipc  # noqa: PLC0415 - an optional package

        is_stream = not body.startswith(b"A")
        with (ipc.open_stream if is_stream else ipc.open_file)(pa.BufferReader(body)) as reader:
            if is_stream:
                return sum(int(batch.num_rows) for batch in reader)
            return sum(int(reader.get_batch(index).num_rows) for index in range(reader.num_record_batches))
    except (pa.ArrowException, OSError) as error:
        raise InvalidRequest(f"{name}: not a readable {data_format} file: {_one_line(error)}") from error


def first_rows(body: bytes, data_format: str, *, limit: int) -> tuple[str, ...]:
    """Return the first rows of a whole Parquet or Arrow file as text.

    Raises:
        InvalidRequest: pyarrow is missing, or it cannot be read.
    """
    pa = _import_pyarrow(f"rows of {data_format} are shown")
    from pyarrow import ipc  # noqa: PLC0415 - an optional package

    try:
        if data_format == "parquet":
            import pyarrow.parquet as pq  # noqa: PLC0415 - an optional package

            batches = pq.ParquetFile(pa.BufferReader(body)).iter_batches(batch_size=max(1, limit))
            first = next(iter(batches), None)
        elif body.startswith(b"A"):
            reader = ipc.open_file(pa.BufferReader(body))
            first = reader.get_batch(0) if reader.num_record_batches else None
        else:
            first = next(iter(ipc.open_stream(pa.BufferReader(body))), None)
        return () if first is None else tuple(str(row) for row in first.slice(0, limit).to_pylist())
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidRequest(f"not readable: {_one_line(error)}") from error


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
        raise InvalidRequest(f"{why}: this needs pyarrow; pip install 'icedb-client[arrow]'") from error
    return pyarrow


def _tell(source: BinaryIO) -> int:
    try:
        return source.tell()
    except OSError:
        return 0  # a pipe


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
