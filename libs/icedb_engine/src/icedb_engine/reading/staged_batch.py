"""From a staged object of any format to what the frame takes: lines of JSON, or a table with its columns' forms."""

import hashlib
from dataclasses import dataclass

from icedb_engine.limits import FlushUnitLimits
from icedb_engine.reading.batch_table import BatchTable
from icedb_engine.reading.csv_cells import read_csv_cells
from icedb_engine.reading.json_document import read_json_document
from icedb_engine.reading.staged_bytes import check_row_count, decompress, split_format
from icedb_engine.reading.staged_lines import BatchLines, read_batch_lines
from icedb_engine.reading.typed_files import read_arrow, read_parquet

BatchContent = BatchLines | BatchTable


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """A staged object, decoded.

    Attributes:
        content: Its rows.
        sha256: Of the decoded body, in hex: what tells it from other content (I8).
    """

    content: BatchContent
    sha256: str


def read_batch(body: bytes, staging_format: str, limits: FlushUnitLimits, *, splits_rows: bool = False) -> DecodedBatch:
    """Decode a staged object.

    Args:
        body: The staged bytes.
        staging_format: One of :data:`icedb_log.keys.STAGING_FORMATS`.
        limits: The bounds of a batch.
        splits_rows: Bad lines are set aside instead of rejecting the batch (``on_bad_rows = quarantine_rows``).

    Raises:
        BatchRejected: Not what its format says, or above a bound.
    """
    plain, codec = split_format(staging_format)
    decoded = decompress(body, codec, limits, has_lines=plain == "ndjson")
    content = _read_content(decoded, plain, limits, splits_rows=splits_rows)
    return DecodedBatch(content, hashlib.sha256(decoded).hexdigest())


def _read_content(decoded: bytes, plain: str, limits: FlushUnitLimits, *, splits_rows: bool) -> BatchContent:
    if plain == "parquet":
        return read_parquet(decoded, limits)
    if plain == "arrow":
        return read_arrow(decoded, limits)
    if plain == "ndjson":
        return read_batch_lines(decoded, limits, splits_rows=splits_rows)
    read = read_json_document if plain == "json" else read_csv_cells
    content = read(decoded, limits, splits_rows=splits_rows)
    check_row_count(content.row_count + content.bad.row_count, limits)
    return content
