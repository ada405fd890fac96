"""What a batch's body holds, and how its first bytes tell. Pure.

Producers' libraries and front ends ask the same questions of a body before it is staged; only the flush parses it.
"""

from typing import Final, Literal, get_args

from icedb_log.errors import InvalidRequest
from icedb_log.keys import STAGING_FORMATS, StagingFormat

DataFormat = Literal["ndjson", "json", "csv", "parquet", "arrow"]
"""What a body or a file holds, whatever its compression."""
DATA_FORMATS: Final[tuple[DataFormat, ...]] = get_args(DataFormat)
Compression = Literal["", "gz", "zst"]
"""What is around it; Parquet and Arrow compress inside."""

GZIP_MAGIC: Final = b"\x1f\x8b"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
PARQUET_MAGIC: Final = b"PAR1"
ARROW_FILE_MAGIC: Final = b"ARROW1"
ARROW_STREAM_MAGIC: Final = b"\xff\xff\xff\xff"
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def join_format(data_format: DataFormat, compression: Compression) -> StagingFormat:
    """Return the staging format of data and the compression around them.

    Raises:
        InvalidRequest: Staging has no such format: Parquet and Arrow compress inside.
    """
    name = f"{data_format}.{compression}" if compression else data_format
    for known in STAGING_FORMATS:
        if known == name:
            return known
    raise InvalidRequest(
        f"{data_format} compressed with {compression} is not taken: {data_format} has its own compression"
    )


def sniff_compression(start: bytes) -> Compression:
    """Return the compression that a body's first bytes show."""
    if start.startswith(GZIP_MAGIC):
        return "gz"
    return "zst" if start.startswith(ZSTD_MAGIC) else ""


def sniff_format(start: bytes) -> Literal["ndjson", "json", "parquet", "arrow"]:
    """Return the format that a body's first bytes (not compressed) show; ``ndjson`` for all other text."""
    if start.startswith(PARQUET_MAGIC):
        return "parquet"
    if start.startswith((ARROW_FILE_MAGIC, ARROW_STREAM_MAGIC)):
        return "arrow"
    return "json" if start.removeprefix(BYTE_ORDER_MARK).lstrip().startswith(b"[") else "ndjson"
