"""What callers hand over as one batch, and the body that becomes of it."""

from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

from icedb_log.errors import InvalidRequest
from icedb_log.ingest.formats import DataFormat

from icedb_client.arrow_bodies import encode_arrow, is_arrow_data
from icedb_client.batches import MAX_BATCH_BYTES, BatchBody, encode_rows, wrap_bytes
from icedb_client.files import split_file

NO_BOUND: Final = 1 << 62


def to_body(rows: Any, data_format: DataFormat | None) -> BatchBody:
    """Return the body of one batch; ``rows`` as :meth:`icedb_client.Client.enqueue` takes them.

    Raises:
        InvalidRequest: It is nothing that can be a batch, or too large for one.
    """
    if isinstance(rows, bytes | bytearray | memoryview):
        return wrap_bytes(bytes(rows), data_format)
    if isinstance(rows, Path):
        bodies = tuple(
            islice(split_file(rows, batch_rows=NO_BOUND, batch_bytes=MAX_BATCH_BYTES, data_format=data_format), 2)
        )
        if len(bodies) != 1:
            what = "is empty" if not bodies else f"is larger than {MAX_BATCH_BYTES} bytes: use enqueue_file"
            raise InvalidRequest(f"{rows}: {what}")
        return bodies[0]
    if data_format is not None:
        raise InvalidRequest(f"data_format {data_format!r} is for bytes and files, not for a {type(rows).__name__}")
    if is_arrow_data(rows):
        return encode_arrow(rows)
    if isinstance(rows, str | Mapping) or not isinstance(rows, Iterable):
        raise InvalidRequest(
            f"rows are an iterable of objects, Arrow data, a DataFrame, bytes or a Path, not a {type(rows).__name__}; "
            "see Client.enqueue"
        )
    return encode_rows(rows)
