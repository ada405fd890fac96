"""Runs queries of people, each in a process of its own, bounded in time, memory and rows.

So many run at once as the settings say, and so many of one identity; more are refused, not queued. A process is killed
when its time is over, when whoever asked has gone, and when the console stops. Its environment has no secret; what the
store needs comes with the request, and is forgotten before the statement runs.
"""

import asyncio
import base64
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from icedb_log.clock import Clock
from icedb_log.errors import IceDBError, InvalidRequest, Overloaded, Unavailable
from icedb_log.store_settings import StoreFields
from icedb_log.texts import is_text
from icedb_log.units import MIB, SECOND_MS
from icedb_service.settings import env_name
from pydantic import BaseModel, StrictInt, StrictStr

from icedb_console.metrics import ConsoleMetrics
from icedb_console.query_process import MAX_ANSWER_BYTES, MAX_FILE_BYTES
from icedb_console.settings import ConsoleSettings

MAX_QUERY_CHARS: Final = 65_536
DESCRIBED_FILES: Final = 100
QUERY_THREADS: Final = 2
_PASSED_ON: Final = ("PATH", "LD_LIBRARY_PATH", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")
_ANSWER_BYTES: Final = max(4 * MAX_ANSWER_BYTES, MAX_FILE_BYTES * 4 // 3) + MIB


class QueryFailed(IceDBError):
    """A query was run and gave no rows. What the caller does: write it in another way; the message says why."""


class QueryTooLarge(QueryFailed):
    """It needs more memory or time than it may have."""


class QueryTooSlow(QueryTooLarge):
    """It needs more time."""


class Statement(BaseModel, frozen=True, extra="forbid"):
    """What a caller asks for.

    Attributes:
        sql: One statement that only reads.
        parameters: Values of its ``?`` in order, or of its ``$name`` by name.
        as_of: Time travel for all tables.
        tag: Name of a tag that each of the tables has.
    """

    sql: StrictStr
    parameters: list[Any] | dict[str, Any] | None = None
    as_of: StrictInt | StrictStr | None = None
    tag: StrictStr | None = None


@dataclass(frozen=True, slots=True)
class QueryRows:
    """What a query gave.

    Attributes:
        columns: Name and DuckDB's type of each.
        rows: Cells: text, numbers, truth, or nothing.
        is_cut: Whether there are more rows.
        tables: Snapshot of each table that it read.
        duration_ms: How long it took, its process' start and end included.
    """

    columns: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[Any]]
    is_cut: bool
    tables: Mapping[str, str]
    duration_ms: int


class Queries:
    """Runs queries. Use it from one event loop."""

    def __init__(self, settings: ConsoleSettings, *, metrics: ConsoleMetrics, clock: Clock) -> None:
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._running: Counter[str] = Counter()
        self._processes: set[asyncio.subprocess.Process] = set()

    @property
    def is_on(self) -> bool:
        """Whether queries are taken at all."""
        return self._settings.console_max_queries > 0

    async def run(self, identity: str, statement: Statement, *, tables: Sequence[str]) -> QueryRows:
        """Run one statement. Cancelled, it leaves no process.

        Args:
            identity: Who asks.
            statement: What to run.
            tables: What it may name.

        Raises:
            InvalidRequest: It does more than read, or names something else; nothing was read of it.
            Overloaded: Too many run already.
            QueryTooLarge: It needs more than it may have.
            QueryFailed: It failed on these rows.
            Unavailable: The store did not answer, or no process can be started.
        """
        started_ms = self._clock.monotonic_ms()
        answer = await self._ask_sql(identity, statement, tables=tables)
        return QueryRows(
            columns=[(name, kind) for name, kind in answer["columns"]],
            rows=answer["rows"],
            is_cut=answer["is_cut"],
            tables=answer["tables"],
            duration_ms=self._clock.monotonic_ms() - started_ms,
        )

    async def download(self, identity: str, statement: Statement, *, tables: Sequence[str], file_format: str) -> bytes:
        """Return all rows of one statement as a file of a format of ``FORMATS``. Raises as :meth:`run`.

        A file of more than ``MAX_FILE_BYTES`` is an InvalidRequest.
        """
        answer = await self._ask_sql(identity, statement, tables=tables, format=file_format)
        return base64.b64decode(answer["file"])

    async def _ask_sql(
        self, identity: str, statement: Statement, *, tables: Sequence[str], **given: str
    ) -> dict[str, Any]:
        sql = statement.sql
        if not sql.strip():
            raise InvalidRequest("write a query: select event, count(*) from events group by all")
        if len(sql) > MAX_QUERY_CHARS:
            raise InvalidRequest(f"the query has {len(sql)} characters; the limit is {MAX_QUERY_CHARS}")
        if "\0" in sql or not is_text(sql):
            raise InvalidRequest("the query has a NUL, or half a character (a lone surrogate)")
        return await self._ask(identity, {"do": "query", **statement.model_dump(), "tables": list(tables), **given})

    async def describe(self, identity: str, table: str) -> Mapping[str, Any]:
        """Return what ``icedb describe`` says of a table. Raises as :meth:`run`."""
        answer = await self._ask(identity, {"do": "describe", "tables": [table], "files": DESCRIBED_FILES})
        found: Mapping[str, Any] = answer["description"]
        return found

    async def preview(self, identity: str, key: str, *, lines: int) -> Sequence[str]:
        """Return the first rows of a batch in quarantine; none: it is gone. Raises as :meth:`run`.

        Whoever sent it may have sent anything: it is taken apart where the memory is bounded.
        """
        answer = await self._ask(identity, {"do": "preview", "key": key, "lines": lines})
        found: Sequence[str] = answer["lines"]
        return found

    def close(self) -> None:
        """Kill what runs."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                process.kill()

    async def _ask(self, identity: str, request: dict[str, Any]) -> dict[str, Any]:
        most = self._settings.console_max_queries
        share = (most + 1) // 2
        if not self.is_on:
            raise InvalidRequest("queries are turned off here (ICEDB_CONSOLE_MAX_QUERIES=0)")
        mine, all_of_them = self._running[identity], self._running.total()
        if all_of_them >= most or mine >= share:
            self._metrics.count_query("busy")
            whose = f"{mine} of yours" if mine >= share else f"{all_of_them}"
            raise Overloaded(
                f"{whose} queries run already: wait for one to end, or close its page", retry_after_ms=1000
            )
        self._running[identity] += 1
        outcome = "failed"
        try:
            answer = self._judge(await self._run_process(request))
            outcome = "ok"
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except InvalidRequest:
            outcome = "refused"
            raise
        except QueryTooSlow:
            outcome = "too_slow"
            raise
        except QueryTooLarge:
            outcome = "too_large"
            raise
        finally:
            self._running[identity] -= 1
            self._running += Counter()  # forgets those at zero
            self._metrics.count_query(outcome)
        return answer

    async def _run_process(self, request: dict[str, Any]) -> bytes:
        settings = self._settings
        request |= {
            "store": self._store_environment(),
            "limit_ms": settings.console_query_limit_ms,
            "memory_bytes": settings.query_memory_bytes,
            "thread_count": QUERY_THREADS,
            "max_rows": settings.console_query_rows,
        }
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-m", "icedb_console.query_process",
                stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, env=_environment(), cwd="/",
            )  # fmt: skip
        except OSError as error:
            raise Unavailable(f"no process for a query can be started: {error}") from error
        self._processes.add(process)
        try:
            async with asyncio.timeout(settings.console_query_limit_ms / SECOND_MS):
                answer = await _talk(process, json.dumps(request).encode())
                await process.wait()
        except TimeoutError:
            raise QueryTooSlow(
                f"it takes longer than {settings.console_query_limit_ms / SECOND_MS:g} s "
                "(ICEDB_CONSOLE_QUERY_LIMIT_MS): ask for fewer partitions"
            ) from None
        finally:
            await _end(process)
            self._processes.discard(process)
        if not answer and process.returncode:
            what = "more memory than it may have" if process.returncode < 0 else "an end that nobody expected"
            raise QueryTooLarge(f"its process ended with {what} ({process.returncode}): ask for less")
        return answer

    def _store_environment(self) -> dict[str, str]:
        """Return what the environment has to say so that the store can be opened."""
        passed = {name: value for name, value in os.environ.items() if name == "HOME" or name.startswith("AWS_")}
        store = {
            env_name(name): str(value)
            for name in StoreFields.model_fields
            if (value := getattr(self._settings, name)) is not None
        }
        return {**passed, **store}

    @staticmethod
    def _judge(body: bytes) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = json.loads(body)
        except ValueError as error:
            raise QueryFailed("its process ended without an answer: ask again, or ask for less") from error
        message = str(answer.get("message", ""))
        match answer.get("error"):
            case None:
                return answer
            case "refused":
                raise InvalidRequest(message)
            case "memory":
                raise QueryTooLarge(message)
            case _:
                raise QueryFailed(message)


def _environment() -> dict[str, str]:
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    # Each thread would reserve 64 MiB of the bounded address space for what it allocates, and no next one could start.
    return {**passed, "TZ": "UTC", "LANG": "C.UTF-8", "HOME": "/nonexistent", "MALLOC_ARENA_MAX": "2"}


async def _talk(process: asyncio.subprocess.Process, request: bytes) -> bytes:
    assert process.stdin is not None  # noqa: S101 - both are pipes
    assert process.stdout is not None  # noqa: S101
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(request)
        await process.stdin.drain()
        process.stdin.close()
    pieces: list[bytes] = []
    size = 0
    while piece := await process.stdout.read(MIB):
        pieces.append(piece)
        size += len(piece)
        if size > _ANSWER_BYTES:
            raise QueryTooLarge("its rows are too large to be shown: name fewer columns")
    return b"".join(pieces)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill a process if it still runs, and wait for its end, whoever is cancelled meanwhile."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
    await asyncio.shield(asyncio.ensure_future(process.wait()))
