"""Readers that never stop: each asks for a snapshot, reads every row of its data files, and has the checker judge it.

Four of them: through the snapshot service, through the client straight on the store, through the S3 gateway with no
client of ours, and one that reads the past twice. An error is an outage, unless it is one that no failing server
excuses: a damaged log, two types of one column, a live file that is not there.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import duckdb
from icedb_client import Client
from icedb_client.duck import load_httpfs, open_duckdb
from icedb_log.clock import Clock
from icedb_log.errors import BelowHorizon, Unavailable

from icedb_local.background import BackgroundThread
from icedb_local.chaos.batches import CONTENT_COLUMNS, BatchContent
from icedb_local.chaos.content_checker import ContentChecker, Read
from icedb_local.chaos.outages import Outages
from icedb_local.ports import LOOPBACK
from icedb_local.stack_layout import S3_ACCESS_KEY, S3_SECRET_KEY

MIN_PAUSE_S: Final = 0.2
PAUSE_SHARE: Final = 1.5
HTTP_TIMEOUT_S: Final = 6
PAST_PARTS: Final = 4
"""The past that is read begins at this part of the log files' grace period."""
NO_FILES: Final = "No files found"
GONE: Final = re.compile(r"\bHTTP 404\b|\b404 \(Not Found\)|\bNoSuchKey\b")
"""As DuckDB words it; the bare number also occurs in the names of files."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a query found, and in which snapshot."""

    content: Mapping[int, BatchContent]
    snapshot: str = ""
    is_stable: bool = False


ReadTable = Callable[[str, int | None], Found]
"""Reads a table, at a time if one is given. Raises Unavailable, or duckdb.Error."""


class ChaosReader(BackgroundThread):
    """A thread that reads all tables in turn; use as a context manager.

    Args:
        name: Who it is.
        read: How it reads; called in the thread only.
        tables: Which.
        checker: The judge.
        data_grace_ms: A read of a state that is older when it ends may find files gone.
        clock: For times.
    """

    def __init__(
        self,
        name: str,
        read: ReadTable,
        *,
        tables: Sequence[str],
        checker: ContentChecker,
        data_grace_ms: int,
        clock: Clock,
    ) -> None:
        super().__init__(f"reader-{name}")
        self.outages = Outages(f"reader {name}", now_ms=clock.monotonic_ms())
        self.snapshots: set[str] = set()
        self._name = name
        self._read = read
        self._tables = tables
        self._checker = checker
        self._data_grace_ms = data_grace_ms
        self._state_ms = 0
        self._clock = clock

    def look(self, table: str) -> None:
        """Read a table once and have it judged."""
        self._checker.check(self._take(table, None)[0])

    def look_at_the_end(self, table: str, *, set_aside: Collection[str]) -> None:
        """Read a table once, when everything has to be there but for the batches that are in quarantine, by id."""
        self._checker.check_end(self._take(table, None)[0], set_aside=set_aside)

    def try_to_look(self, table: str) -> None:
        """Read a table once, whatever fails: note an outage, or what no failing server excuses."""
        self._state_ms = self._clock.now_ms()
        try:
            self.look(table)
        except (Unavailable, duckdb.Error) as error:
            self._fail(table, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, no server that fails excuses it
            words = f"a read ended with {type(error).__name__}: {error}"
            self._checker.note(words[:500], table=table, reader=self._name)
        else:
            self.outages.record_success(now_ms=self._clock.monotonic_ms())

    def _run(self) -> None:
        while not self._stop.is_set():
            began_ms = self._clock.monotonic_ms()
            for table in self._tables:
                self.try_to_look(table)
            took_s = (self._clock.monotonic_ms() - began_ms) / 1000
            self._stop.wait(max(MIN_PAUSE_S, PAUSE_SHARE * took_s))

    def _fail(self, table: str, error: Exception) -> None:
        is_late = self._clock.now_ms() - self._state_ms >= self._data_grace_ms
        if isinstance(error, duckdb.Error) and GONE.search(str(error)) and not is_late:
            self._checker.note(f"a live file is not there: {error}"[:500], table=table, reader=self._name)
        self.outages.record_failure(f"{type(error).__name__}: {str(error)[:80]}")

    def _take(self, table: str, as_of_ms: int | None) -> tuple[Read, bool]:
        began_ms, now_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        found = self._read(table, as_of_ms)
        if found.snapshot:
            self.snapshots.add(found.snapshot)
        read = Read(
            reader=self._name,
            table=table,
            began_ms=began_ms,
            ended_ms=self._clock.monotonic_ms(),
            found=found.content,
            snapshot=found.snapshot,
            as_of_ms=as_of_ms,
            state_ms=None if as_of_ms is None else began_ms - (now_ms - as_of_ms),
        )
        return read, found.is_stable


class PastReader(ChaosReader):
    """Reads a time that has just passed, again and again while it is within the log files' grace period."""

    def __init__(self, *arguments: Any, log_grace_ms: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._past_ms = log_grace_ms // PAST_PARTS
        self._keep_ms = log_grace_ms - self._past_ms
        self._earlier: dict[str, tuple[int, Read, bool]] = {}

    def look(self, table: str) -> None:
        """Read a past time, or the one from before once more. Raises Unavailable: it lies below the horizon."""
        now_ms = self._clock.now_ms()
        kept = self._earlier.get(table)
        if kept is not None and now_ms - kept[0] >= self._keep_ms:
            kept = None
        as_of_ms = self._state_ms = now_ms - self._past_ms if kept is None else kept[0]
        try:
            read, is_stable = self._take(table, as_of_ms)
        except BelowHorizon as error:  # nothing was read: that is no success
            self._earlier.pop(table, None)
            raise Unavailable(f"{type(error).__name__}: {error}") from error
        self._checker.check(read)
        if kept is not None:
            self._checker.check_same(read, kept[1], was_stable=kept[2])
        self._earlier[table] = (as_of_ms, read, is_stable)


def make_client_read(client: Client, *, http_timeout_s: int = HTTP_TIMEOUT_S) -> ReadTable:
    """Return a read through the client: the snapshot service if it has its address, else the store."""
    connections: list[duckdb.DuckDBPyConnection] = []

    def read(table: str, as_of_ms: int | None) -> Found:
        snapshot = (
            client.snapshot(table, max_staleness_ms=0) if as_of_ms is None else client.snapshot(table, as_of=as_of_ms)
        )
        if not snapshot.files:
            return Found({}, snapshot.snapshot_id, is_stable=snapshot.is_stable)
        if not connections:
            connections.append(_open(http_timeout_s))
            snapshot.duckdb(connections[0])  # brings the credentials
        uris = [file.uri for file in snapshot.files]
        content = _query(connections[0], "read_parquet($uris, union_by_name = true)", {"uris": uris})
        rows = sum(one.rows for one in content.values())
        if snapshot.row_count is not None and rows != snapshot.row_count:
            raise AssertionError(f"{rows} rows were read, snapshot {snapshot.snapshot_id} says {snapshot.row_count}")
        return Found(content, snapshot.snapshot_id, is_stable=snapshot.is_stable)

    return read


def make_gateway_read(port: int, bucket: str) -> ReadTable:
    """Return a read through the S3 gateway, as DuckDB reads any bucket."""
    connections: list[duckdb.DuckDBPyConnection] = []

    def read(table: str, as_of_ms: int | None) -> Found:
        if not connections:
            connection = _open(HTTP_TIMEOUT_S)
            connection.execute(
                f"CREATE SECRET (TYPE s3, KEY_ID '{S3_ACCESS_KEY}', SECRET '{S3_SECRET_KEY}', "
                f"ENDPOINT '{LOOPBACK}:{port}', URL_STYLE 'path', USE_SSL false, REGION 'us-east-1')"
            )
            connections.append(connection)
        folder = table if as_of_ms is None else f"{table}@{as_of_ms}"
        source = f"read_parquet('s3://{bucket}/{folder}/**/*.parquet', union_by_name = true)"
        try:
            return Found(_query(connections[0], source, {}))
        except duckdb.IOException as error:
            if NO_FILES in str(error):
                return Found({})
            raise

    return read


def _open(http_timeout_s: int) -> duckdb.DuckDBPyConnection:
    connection = open_duckdb()
    load_httpfs(connection)
    connection.execute("SET threads = 1")
    connection.execute(f"SET http_timeout = {http_timeout_s}")
    connection.execute("SET http_retries = 1")
    return connection


def _query(connection: duckdb.DuckDBPyConnection, source: str, values: dict[str, Any]) -> dict[int, BatchContent]:
    rows = connection.execute(f'SELECT "batch", {CONTENT_COLUMNS} FROM {source} GROUP BY "batch"', values).fetchall()
    return {int(number): BatchContent(*(int(value) for value in content)) for number, *content in rows}
