"""From a staged object of any format to what the frame takes: lines of JSON, or a table with its columns' forms."""

from icedb_parts.limits import FlushUnitLimits
from icedb_parts.reading.batch_table import BatchTable
from icedb_parts.reading.csv_cells import read_csv_cells
from icedb_parts.reading.json_document import read_json_document
from icedb_parts.reading.staged_bytes import check_row_count, decompress, split_format
from icedb_parts.reading.staged_lines import BatchLines, read_batch_lines
from icedb_parts.reading.typed_files import read_arrow, read_parquet

BatchContent = BatchLines | BatchTable


def read_batch(body: bytes, staging_format: str, limits: FlushUnitLimits, *, splits_rows: bool = False) -> BatchContent:
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
