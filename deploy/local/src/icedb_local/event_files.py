"""A user's NDJSON file as a stream of batches, plain, ``.gz`` or ``.zst``.

Counts the rows on its own, per day of the time column, with DuckDB's JSON parser: what the demo compares with does
not come from the code that it checks. Reads the file in pieces; its size does not matter.
"""

import contextlib
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, cast

import duckdb
import pyarrow as pa
from icedb_log.errors import InvalidRequest, NotFound

from icedb_local.generator import EventBatch, add_counts

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
MAX_BATCH_BYTES: Final = 32 * 1024 * 1024
READ_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What one look through a file says.

    Attributes:
        row_count: Events.
        rows_per_day: ISO day of the time column (UTC) to events.
        columns: Names of the top-level fields of the first event.
    """

    row_count: int
    rows_per_day: dict[str, int]
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EventFile:
    """An NDJSON file.

    Attributes:
        path: ``.ndjson``, ``.jsonl`` or ``.json``, optionally followed by ``.gz`` or ``.zst``.
        ts_column: The column whose day makes the partition.
    """

    path: Path
    ts_column: str = "ts"

    def read_facts(self) -> FileFacts:
        """Read the whole file once, check it and count.

        Raises:
            NotFound: No such file.
            InvalidRequest: Empty, not compressed as its name says, or a line is no JSON object with a readable
                time; names the line.
        """
        row_count = 0
        per_day: dict[str, int] = {}
        columns: tuple[str, ...] = ()
        for batch in self.batches(rows_per_batch=50_000):
            columns = columns or (_read_columns(batch.body) if batch.row_count else ())
            row_count += batch.row_count
            per_day = add_counts(per_day, batch.rows_per_day)
        if not row_count:
            raise InvalidRequest(f"{self.path} has no events: one JSON object a line is expected")
        return FileFacts(row_count, per_day, columns)

    def batches(self, *, rows_per_batch: int) -> Iterator[EventBatch]:
        """Yield the file's events in order, in batches of at most ``rows_per_batch``; blank lines are left out.

        Raises:
            NotFound, InvalidRequest: As :meth:`read_facts`.
        """
        first_line = 1
        for number, lines in enumerate(self._split(rows_per_batch)):
            bodies = [line for line in lines if line.strip()]
            per_day = self._count_days(lines, first_line) if bodies else {}
            yield EventBatch(number, b"".join(line + b"\n" for line in bodies), len(bodies), per_day)
            first_line += len(lines)

    def _split(self, rows_per_batch: int) -> Iterator[list[bytes]]:
        lines: list[bytes] = []
        size_bytes = 0
        rest = b""
        with self._open() as source:
            for piece in self._pieces(source):
                *complete, rest = (rest + piece).split(b"\n")
                if len(rest) > MAX_LINE_BYTES:
                    raise InvalidRequest(f"{self.path}: a line is longer than {MAX_LINE_BYTES} bytes; is it NDJSON?")
                for line in complete:
                    lines.append(line)
                    size_bytes += len(line)
                    if len(lines) >= rows_per_batch or size_bytes >= MAX_BATCH_BYTES:
                        yield lines
                        lines, size_bytes = [], 0
        if rest:
            lines.append(rest)
        if lines:
            yield lines

    def _pieces(self, source: IO[bytes]) -> Iterator[bytes]:
        try:
            while piece := source.read(READ_BYTES):
                yield piece
        except (OSError, EOFError, pa.ArrowException) as error:
            raise InvalidRequest(f"{self.path} cannot be read: {error}") from error

    @contextlib.contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        if not self.path.is_file():
            raise NotFound(f"{self.path} is not a file: give the path of an NDJSON file (.ndjson, .gz or .zst)")
        if self.path.suffix == ".gz":
            with gzip.open(self.path) as source:
                yield cast("IO[bytes]", source)
        elif self.path.suffix == ".zst":
            with pa.CompressedInputStream(pa.OSFile(str(self.path)), "zstd") as source:
                yield source
        else:
            with self.path.open("rb") as source:
                yield source

    def _count_days(self, lines: list[bytes], first_line: int) -> dict[str, int]:
        table = pa.table({"n": pa.array(range(first_line, first_line + len(lines))), "line": _as_text(lines)})
        pointer = "/" + self.ts_column.replace("~", "~0").replace("/", "~1")
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.register("lines", table)
            rows = connection.execute(_DAY_QUERY, {"pointer": pointer}).fetchall()
        for day, count, line_number, reason in rows:
            if day is None:
                self._refuse(count, line_number, reason)
        return {day: count for day, count, _, _ in rows}

    def _refuse(self, count: int, line_number: int, reason: str) -> None:
        problem = {
            "json": "is not a JSON object",
            "missing": f"has no column {self.ts_column!r}; name the time column with --ts-column (TS_COLUMN=…)",
            "time": f"has no readable time in column {self.ts_column!r}; use ISO 8601 or unix milliseconds",
        }[reason]
        more = f" ({count - 1} more lines near it)" if count > 1 else ""
        raise InvalidRequest(f"{self.path}, line {line_number}: {problem}{more}")


_DAY_QUERY: Final = """
    WITH parsed AS (
        SELECT n, line, CASE WHEN json_valid(line) AND json_type(line) = 'OBJECT' THEN line::JSON END AS event
        FROM lines WHERE trim(line) <> ''
    ), timed AS (
        SELECT n, event, json_extract_string(event, $pointer) AS value, json_type(event, $pointer) AS kind FROM parsed
    ), judged AS (
        SELECT n,
            strftime(
                CASE WHEN kind = 'VARCHAR' THEN try_cast(value AS TIMESTAMPTZ)::TIMESTAMP
                WHEN kind IN ('BIGINT', 'UBIGINT') THEN make_timestamp_ms(try_cast(value AS BIGINT)) END, '%Y-%m-%d'
            ) AS day,
            CASE WHEN event IS NULL THEN 'json' WHEN value IS NULL THEN 'missing' ELSE 'time' END AS reason
        FROM timed
    )
    SELECT day, count(*), min(n), CASE WHEN day IS NULL THEN reason END AS why FROM judged GROUP BY ALL ORDER BY 3
"""


def _as_text(lines: list[bytes]) -> pa.Array:
    binary = pa.array(lines, pa.binary())
    try:
        return binary.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([line.decode(errors="replace") if _is_text(line) else "not UTF-8" for line in lines])


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _read_columns(body: bytes) -> tuple[str, ...]:
    first = body.split(b"\n", 1)[0].decode()
    with duckdb.connect() as connection:
        row = connection.execute("SELECT json_keys($line::JSON)", {"line": first}).fetchone()
    return tuple(row[0]) if row else ()
