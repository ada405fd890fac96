"""The formats of batches: one record for each, with its name, how it is told, and what a staged object of it is called.

Pure. Producers' libraries and front ends ask the same questions of a body before it is staged; only the flush parses
it. A new format is a record here and its value in ``proto/icedb/v1/ingest.proto``. The engine adds how it is read
(``reading/unit.py``), and, unless it is text, the client how its rows are cut (``arrow_bodies.py``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from icedb_log.errors import InvalidRequest

DataFormat = Literal["ndjson", "json", "csv", "parquet", "arrow"]
"""What a body or a file holds, whatever its compression."""
DATA_FORMATS: Final[tuple[DataFormat, ...]] = get_args(DataFormat)
Compression = Literal["", "gz", "zst"]
"""What is around text as a whole; binary formats compress inside."""
StagingFormat = Literal[
    "ndjson", "ndjson.gz", "ndjson.zst", "json", "json.gz", "json.zst", "csv", "csv.gz", "csv.zst", "parquet", "arrow"
]
STAGING_FORMATS: Final[tuple[StagingFormat, ...]] = get_args(StagingFormat)
"""What a staged object may be: a format, and after the dot the compression of the whole object."""

GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPED: Final = tuple(bytes([first]) + b"\x2a\x4d\x18" for first in range(0x50, 0x60))
"""How a frame begins that a reader skips: pzstd puts one before each of its frames."""
_OTHER_COMPRESSIONS: Final = {
    b"PK\x03\x04": "is a zip archive: `unzip` it",
    b"\xfd7zXZ\0": "is compressed with xz: `xz -d` it",
    b"\x04\x22\x4d\x18": "is compressed with lz4: `lz4 -d` it",
    b"\xff\x06\x00\x00sNaPpY": "is compressed with snappy: `snzip -d` it",
    b"\x1f\x9d": "is compressed with compress: `uncompress` it",
    **{b"BZh%d1AY&SY" % level: "is compressed with bzip2: `bzip2 -d` it" for level in range(1, 10)},
}
_UNREAD_MARKS: Final[Mapping[bytes, str]] = {
    **{mark: f"{words} first; only gzip and zstd are read as they are" for mark, words in _OTHER_COMPRESSIONS.items()},
    **dict.fromkeys((b"\xff\xfe", b"\xfe\xff"), "is UTF-16: make it UTF-8 first, `iconv -f UTF-16 -t UTF-8`"),
}
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_PARQUET_MAGIC: Final = b"PAR1"
_ARROW_FILE_MAGIC: Final = b"ARROW1"
_ARROW_STREAM_MAGIC: Final = b"\xff\xff\xff\xff"
_MIN_PARQUET_BYTES: Final = 12


@dataclass(frozen=True, slots=True)
class BatchFormat:
    """A format of batches.

    Attributes:
        name: Its name in keys, messages and options.
        suffixes: How names of files of it end.
        media_types: What a ``Content-Type`` may call it.
        find_problem: Returns why bytes are certainly not of the format, else an empty text. It is given the first
            characters of a text, without its compression, and all bytes of another body.
        marks: How bodies of it begin; none: it is text, and may be compressed as a whole.
        has_lines: Whether each line is a row.
        is_packed: Whether a body is much smaller than its rows, besides by compression as a whole.
    """

    name: DataFormat
    suffixes: tuple[str, ...]
    media_types: tuple[str, ...]
    find_problem: Callable[[bytes], str]
    marks: tuple[bytes, ...] = ()
    has_lines: bool = False
    is_packed: bool = False

    @property
    def is_text(self) -> bool:
        """Whether it is text, which may be compressed as a whole."""
        return not self.marks


def _find_ndjson_problem(text: bytes) -> str:
    if text.startswith(b"{"):
        return ""
    hint = "; for one JSON array use application/json" if text.startswith(b"[") else ""
    return f"NDJSON is one object a line and begins with '{{', this begins {_show(text)}{hint}"


def _find_json_problem(text: bytes) -> str:
    if text.startswith((b"{", b"[")):
        return ""
    return f"JSON is an array of objects or one object here, this begins {_show(text)}"


def _find_csv_problem(text: bytes) -> str:
    return "CSV is text with a header line, this has a NUL byte in it" if b"\0" in text else ""


def _find_parquet_problem(body: bytes) -> str:
    is_whole = body.startswith(_PARQUET_MAGIC) and body.endswith(_PARQUET_MAGIC)
    if is_whole and len(body) >= _MIN_PARQUET_BYTES:
        return ""
    return f"a Parquet file begins and ends with PAR1, this begins {_show(body)}"


def _find_arrow_problem(body: bytes) -> str:
    if body.startswith(_ARROW_FILE_MAGIC):
        is_whole = body.endswith(_ARROW_FILE_MAGIC)
        return "" if is_whole else "the Arrow IPC file ends in the middle: it does not end with ARROW1"
    if body.startswith(_ARROW_STREAM_MAGIC):
        return ""
    return f"neither an Arrow IPC stream nor an Arrow IPC file begins {_show(body)}"


FORMATS: Final[Mapping[str, BatchFormat]] = {
    record.name: record
    for record in (
        BatchFormat(
            "ndjson",  # one JSON object on each line
            (".ndjson", ".jsonl"),
            ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines"),
            _find_ndjson_problem,
            has_lines=True,
        ),
        BatchFormat("json", (".json",), ("application/json",), _find_json_problem),  # one array of objects, or one
        BatchFormat("csv", (".csv",), ("text/csv",), _find_csv_problem),  # with a header line
        BatchFormat(
            "parquet",  # one file
            (".parquet",),
            ("application/vnd.apache.parquet",),
            _find_parquet_problem,
            marks=(_PARQUET_MAGIC,),
            is_packed=True,
        ),
        BatchFormat(
            "arrow",  # one IPC stream or file
            (".arrow", ".arrows", ".ipc", ".feather"),
            ("application/vnd.apache.arrow.stream", "application/vnd.apache.arrow.file"),
            _find_arrow_problem,
            marks=(_ARROW_FILE_MAGIC, _ARROW_STREAM_MAGIC),
        ),
    )
}
"""Each format by its name."""


def find_format(staging_format: str) -> BatchFormat:
    """Return what one of :data:`STAGING_FORMATS` holds, whatever its compression."""
    return FORMATS[staging_format.partition(".")[0]]


def join_format(data_format: DataFormat, compression: Compression) -> StagingFormat:
    """Return the staging format of data and the compression around them.

    Raises:
        InvalidRequest: Staging has no such format: what is no text compresses inside.
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
    return "zst" if start.startswith((_ZSTD_MAGIC, *_ZSTD_SKIPPED)) else ""


def describe_unread(start: bytes) -> str:
    """Return what a body is that begins so, and what to do with it, if nothing reads it; else an empty text."""
    return next((words for mark, words in _UNREAD_MARKS.items() if start.startswith(mark)), "")


def sniff_format(start: bytes) -> DataFormat:
    """Return the format that a body's first bytes (not compressed) show; ``ndjson`` for all text but a JSON array."""
    for record in FORMATS.values():
        if record.marks and start.startswith(record.marks):
            return record.name
    return "json" if start.removeprefix(BYTE_ORDER_MARK).lstrip().startswith(b"[") else "ndjson"


def _show(text: bytes) -> str:
    return repr(text[:20].decode(errors="replace"))
