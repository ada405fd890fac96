"""Runs SQL of users in a closed process: over rows that are sent to it, bounded in memory, scratch and time.

Nothing that a DuckDB in this process could be told bounds it well enough: what it is asked to compute in one step is
neither interrupted in time nor kept to its memory. So it has a process of its own (:mod:`icedb_engine.sql.child`), in
an environment with no credential, with an address space that ends. At its time limit it interrupts itself; two seconds
later it is killed. After any error a new process answers the next query; one that had none is kept for the next unit
of this process, which gets an engine of its own in it.
"""

import atexit
import json
import os
import signal
import subprocess  # nosec B404 - our own interpreter, our own program
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Literal, Self

import pyarrow as pa
from icedb_log.address_space import says_out_of_memory
from icedb_log.errors import Unavailable
from icedb_log.texts import is_text
from icedb_log.units import MIB

from icedb_engine.arrow_types import fit, make_schema
from icedb_engine.limits import EngineLimits
from icedb_engine.sql.child import decode_batch, encode_batch, is_harmless, receive, send

KILL_AFTER_MS: Final = 2000
"""So long after its time limit a process that did not end its query is killed."""
END_LIMIT_MS: Final = 5000
START_LIMIT_MS: Final = 60_000
"""How long a process may take to be there."""
MAX_QUERY_CHARS: Final = 65_536
_PASSED_ON: Final = ("LD_LIBRARY_PATH", "PATH")
"""What the interpreter may need to start; nothing else of this process's environment goes to the child."""
_PROGRAM: Final = (
    "import sys; sys.path[:] = {path!r}; sys.modules['pandas'] = sys.modules['numpy'] = None; "  # nobody needs them
    "from icedb_engine.sql.child import main; main()"
)
_SHOWN_BYTES: Final = 400
_FROM_OUTSIDE: Final = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM})
"""Signals that no query brings about: they end whatever runs, and say nothing about it."""

TextKind = Literal["query", "repeatable", "condition"]


class QueryProblem(Exception):
    """SQL of a user cannot be run on certain rows. The message says why, in DuckDB's words or ours."""


class QueryTooLarge(QueryProblem):
    """It needs more memory, scratch or time than it may have: fewer rows may do."""


class QueryTooSlow(QueryTooLarge):
    """It needs more time. Whoever tries again with fewer rows keeps others waiting as long once more."""


CHECK_LIMITS: Final = EngineLimits(memory_bytes=256 * MIB, scratch_bytes=0, thread_count=1, query_ms=10_000)
"""Of queries that are tried on no row."""


@dataclass(frozen=True, slots=True)
class CheckedSql:
    """What DuckDB says of a text that is in order.

    Attributes:
        columns: Name and DuckDB's type of each column that it gives.
        named: Every name in it that may be a column, in lower case.
    """

    columns: tuple[tuple[str, str], ...]
    named: frozenset[str]


@dataclass(slots=True)
class _Child:
    process: "subprocess.Popen[bytes]"
    lifeline: int
    complaints: IO[bytes]
    parent: int
    is_ready: bool = False
    was_late: bool = False

    @property
    def source(self) -> Any:
        return self.process.stdout

    @property
    def sink(self) -> Any:
        return self.process.stdin

    def end_late(self) -> None:
        self.was_late = True
        self.process.kill()

    def end(self) -> None:
        self.process.kill()
        with suppress(OSError):
            self.sink.close()
        self.source.close()
        os.close(self.lifeline)
        self.process.wait()
        self.complaints.close()


class _Kept:
    """At most one idle process, for the next who needs one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: _Child | None = None
        atexit.register(self.clear)

    def take(self) -> _Child | None:
        with self._lock:
            child, self._child = self._child, None
        if child is None or child.parent != os.getpid():  # of the process that this one was forked from: its pipes
            return None
        if child.process.poll() is None:
            return child
        child.end()
        return None

    def keep(self, child: _Child) -> None:
        with self._lock:
            if self._child is None or self._child.parent != os.getpid():
                self._child = child
                return
        child.end()

    def clear(self) -> None:
        child = self.take()
        if child is not None:
            child.end()


_kept: Final = _Kept()


class SqlProcess:
    """A closed process, started when it is needed. A context manager: at its end no process is left.

    Args:
        limits: Of each query.
        scratch: Folder for what the engine spills; none: it does not spill.
    """

    def __init__(self, limits: EngineLimits, *, scratch: Path | None = None) -> None:
        self._limits = limits
        self._spill = None if scratch is None else scratch / "sql"
        self._child: _Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None and self._child is not None:
            with suppress(QueryProblem, Unavailable), self._conversation() as child, self._timed(child, END_LIMIT_MS):
                self._send(child, {"do": "end"})
                self._read_answer(child)
                child.is_ready = False
                self._child = None
                _kept.keep(child)
        self.close()

    def close(self) -> None:
        """End the process, whatever it is doing. May be called again."""
        child, self._child = self._child, None
        if child is not None:
            child.end()

    @property
    def pid(self) -> int | None:
        """Number of the process, if one is there."""
        return None if self._child is None else self._child.process.pid

    def check(self, sql: str, schema: Mapping[str, str], *, relation: str, kind: TextKind) -> CheckedSql:
        """Check a text against a relation of these columns, without a row.

        Args:
            sql: One query over the relation, or one condition over its columns.
            schema: Column to SQL type.
            relation: What it may read.
            kind: See :data:`icedb_engine.sql.rules.Kind`.

        Raises:
            QueryProblem: It is not one, or says more than it may, and why.
            Unavailable: No process can be started.
        """
        if not sql.strip():
            raise QueryProblem("it is empty")
        if len(sql) > MAX_QUERY_CHARS:
            raise QueryProblem(f"the text has {len(sql)} characters; the limit is {MAX_QUERY_CHARS}")
        if "\0" in sql or not is_text(sql):
            raise QueryProblem("it has a NUL, or half a character (a lone surrogate)")
        request = {"do": "check", "sql": sql, "schema": dict(schema), "relation": relation, "kind": kind}
        with self._conversation() as child, self._timed(child):
            self._send(child, request)
            answer = self._read(child)[1]
            if not is_harmless(json.loads(answer)):
                self._judge(answer)
        found = self._judge(answer)  # what is refused before it ran leaves the process as it was
        return CheckedSql(tuple((name, sql_type) for name, sql_type in found["columns"]), frozenset(found["named"]))

    def load(self, relation: str, schema: Mapping[str, str], batches: Iterable[pa.RecordBatch]) -> int:
        """Make rows a relation, and return how many they are.

        Args:
            relation: Its name.
            schema: Column to SQL type.
            batches: The rows, with these columns in their order.

        Raises:
            QueryTooLarge: They do not fit into memory and scratch.
            Unavailable: No process can be started.
            IceDBError: What making the rows raises.
        """
        wanted = make_schema(schema)
        with (
            self._conversation() as child
        ):  # an error of whoever makes the rows ends it, too: it waits for more of them
            self._send(child, {"do": "load", "relation": relation, "schema": dict(schema)})
            for batch in batches:
                self._write(child, b"A", encode_batch(fit(batch, wanted)))
            self._write(child, b"J", b"{}")
            return int(self._read_answer(child))

    def select(self, sql: str, outputs: Sequence[str], *, relation: str) -> Iterator[pa.RecordBatch]:
        """Run a checked query over a relation, yield its rows as expressions make them, and forget the relation.

        Raises:
            QueryProblem: It fails on these rows.
            QueryTooLarge: They need more than it may have.
        """
        with self._conversation() as child, self._timed(child):
            self._send(child, {"do": "select", "sql": sql, "outputs": list(outputs), "relation": relation})
            row_count = 0
            while True:
                kind, body = self._read(child)
                if kind == b"J":
                    break
                batch = decode_batch(body)
                row_count += batch.num_rows
                yield batch
            if self._judge(body) != row_count:
                raise Unavailable("rows of a query were lost on their way: run the job again")

    @contextmanager
    def masking(
        self, condition: str, schema: Mapping[str, str], *, relation: str
    ) -> Iterator[Callable[[pa.RecordBatch], Any]]:
        """Open a checked condition for rows that come in batches.

        Yields what returns, for a batch of these columns in their order, for which of its rows the condition is true.

        Raises:
            QueryProblem: It cannot be evaluated on them.
        """
        wanted = make_schema(schema)
        with self._conversation() as child:
            self._send(child, {"do": "mask", "sql": condition, "relation": relation})

            def mask(batch: pa.RecordBatch) -> Any:
                with self._timed(child):
                    self._write(child, b"A", encode_batch(fit(batch, wanted)))
                    kind, body = self._read(child)
                    if kind == b"J":
                        self._judge(body)
                        raise Unavailable("the process of a condition ended too early: run the job again")
                    return decode_batch(body).column(0)

            yield mask
            self._write(child, b"J", b"{}")
            self._read_answer(child)

    @contextmanager
    def _conversation(self) -> Iterator[_Child]:
        """Give the process to one request; after an error it is gone."""
        if self._child is None:
            self._child = _kept.take() or self._start()
        try:
            if not self._child.is_ready:
                self._greet(self._child)
            yield self._child
        except BaseException:
            self.close()
            raise

    def _greet(self, child: _Child) -> None:
        limits = self._limits
        if self._spill is not None:
            self._spill.mkdir(parents=True, exist_ok=True)
        bounds = {
            "memory_bytes": limits.memory_bytes,
            "scratch_bytes": 0 if self._spill is None else limits.scratch_bytes,
            "thread_count": limits.thread_count,
            "time_ms": limits.query_ms,
            "spill": None if self._spill is None else str(self._spill),
        }
        with self._timed(child, START_LIMIT_MS):
            self._send(child, bounds)
            self._read_answer(child)
        child.is_ready = True

    @staticmethod
    def _start() -> _Child:
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment |= {"LANG": "C.UTF-8", "TZ": "UTC", "HOME": "/nonexistent"}
        environment |= {"MALLOC_ARENA_MAX": "2", "ARROW_DEFAULT_MEMORY_POOL": "system"}
        program = _PROGRAM.format(path=[str(Path(each).absolute()) for each in sys.path])
        complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        ending, lifeline = os.pipe()
        try:
            process = subprocess.Popen(  # nosec B603 - our own interpreter, our own program
                [sys.executable, "-I", "-c", program, str(ending)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                env=environment,
                cwd="/",
                pass_fds=(ending,),
                process_group=0,  # Ctrl-C at a terminal is for this process, which lets the query come to its end
            )
        except OSError as error:
            os.close(lifeline)
            complaints.close()
            raise Unavailable(f"no process for SQL of users can be started: {error}") from error
        finally:
            os.close(ending)
        return _Child(process, lifeline, complaints, os.getpid())

    def _send(self, child: _Child, request: Mapping[str, Any]) -> None:
        self._write(child, b"J", json.dumps(request).encode())

    def _write(self, child: _Child, kind: bytes, body: bytes | memoryview) -> None:
        try:
            send(child.sink, kind, body)
            child.sink.flush()
        except OSError:  # it has ended: what it said last tells why
            while True:
                found, said = self._read(child)
                if found == b"J":
                    self._judge(said)

    def _read(self, child: _Child) -> tuple[bytes, bytes]:
        try:
            return receive(child.source)
        except (EOFError, OSError, ValueError):
            raise self._why_gone(child) from None

    def _read_answer(self, child: _Child) -> Any:
        return self._judge(self._read(child)[1])

    def _judge(self, body: bytes) -> Any:
        """Return what an answer says was done, or raise what it says went wrong."""
        answer = json.loads(body)
        if "error" not in answer:
            return answer["done"]
        kind, message = answer["error"], str(answer["message"])
        if kind == "time":
            raise QueryTooSlow(self._too_long())
        if kind == "memory":
            raise QueryTooLarge(self._too_much(message))
        raise QueryProblem(message)

    def _why_gone(self, child: _Child) -> Exception:
        child.process.kill()  # no effect if it has ended
        status = child.process.wait()
        if child.was_late:
            return QueryTooSlow(self._too_long())
        child.complaints.seek(0)
        complaints = child.complaints.read().decode(errors="replace").strip()[-_SHOWN_BYTES:]
        if status == -signal.SIGKILL or says_out_of_memory(complaints):
            return QueryTooLarge(self._too_much("its process ended"))
        if -status in _FROM_OUTSIDE:
            return Unavailable(
                f"the process for SQL of users was ended with signal {-status} from outside: run it again"
            )
        if status < 0:
            return QueryProblem(f"it ended its process with signal {-status}: write it in another way")
        return Unavailable(f"the process for SQL of users ended with status {status}: {complaints}")

    def _too_long(self) -> str:
        return f"it takes longer than {self._limits.query_ms / 1000:g} s"

    def _too_much(self, said: str) -> str:
        room = f"{self._limits.memory_bytes // MIB} MiB of memory"
        if self._spill is not None:
            room += f" and {self._limits.scratch_bytes // MIB} MiB of scratch"
        return f"it needs more than {room}: {said}"

    @contextmanager
    def _timed(self, child: _Child, limit_ms: int | None = None) -> Iterator[None]:
        """Kill the process when its time is over, and the time after that in which it should have ended its query."""
        timer = threading.Timer(((limit_ms or self._limits.query_ms) + KILL_AFTER_MS) / 1000, child.end_late)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
