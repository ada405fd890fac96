"""The closed process: a DuckDB that opens nothing, over rows that come through its standard input.

Started by :mod:`icedb_engine.sql.process` in an empty environment. It bounds its own address space before it reads the
first message, ends when its parent does, and interrupts what takes too long; the parent kills it if that does not help.
Messages are frames: a letter, a length, and JSON (``J``) or one record batch as an Arrow stream (``A``).

Must never import anything that reads settings, credentials or the store.
"""

import json
import os
import signal
import struct
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, Final

import duckdb
import pyarrow as pa
from icedb_log.address_space import bound_address_space, says_out_of_memory
from icedb_log.texts import first_line

from icedb_engine.arrow_types import make_schema
from icedb_engine.sql.quoting import CLOSED, quote_name
from icedb_engine.sql.rules import Catalogue, Refused, Rules, is_nested_too_deeply

HEADER: Final = struct.Struct(">cI")
PIECE_BYTES: Final = 8 * 1024 * 1024
"""Decoded size that a batch of the answer aims at; a single row may be larger."""
ROWS_PER_BATCH: Final = 16_384
MAX_FRAME_BYTES: Final = 2**31
_MEMORY: Final = (duckdb.OutOfMemoryException, MemoryError, pa.ArrowMemoryError)


def send(stream: BinaryIO, kind: bytes, body: bytes | memoryview) -> None:
    """Write a frame."""
    stream.write(HEADER.pack(kind, len(body)))
    stream.write(body)


def receive(stream: BinaryIO, *, max_bytes: int = MAX_FRAME_BYTES) -> tuple[bytes, bytes]:
    """Read a frame. Raises EOFError where the stream ends, and ValueError for one that is too large."""
    head = _read(stream, HEADER.size)
    kind, size = HEADER.unpack(head)
    if size > max_bytes:
        raise ValueError(f"a frame of {size} bytes")
    return kind, _read(stream, size)


def _read(stream: BinaryIO, size: int) -> bytes:
    body = stream.read(size)
    if len(body) != size:
        raise EOFError
    return body


def encode_batch(batch: pa.RecordBatch) -> memoryview:
    """Return a record batch as a stream of its own."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return memoryview(sink.getvalue())


def decode_batch(body: bytes) -> pa.RecordBatch:
    """Return the record batch of a frame."""
    return pa.ipc.open_stream(body).read_next_batch()


def is_harmless(answer: Mapping[str, Any]) -> bool:
    """Whether an answer says that a text was refused before anything of it ran."""
    return bool(answer.get("is_check")) and answer.get("error") in ("refused", "problem")


class _Server:
    """Answers the parent's requests, one at a time, until it closes the pipe."""

    def __init__(self, source: BinaryIO, sink: BinaryIO, limits: Mapping[str, Any]) -> None:
        self._source = source
        self._sink = sink
        self._time_ms = int(limits["time_ms"])
        config: dict[str, Any] = {
            "threads": int(limits["thread_count"]),
            "memory_limit": f"{int(limits['memory_bytes'])}B",
            "temp_directory": limits["spill"] or "",
            "python_enable_replacements": "false",
            "allow_persistent_secrets": "false",
            "allow_community_extensions": "false",
        }
        self._engine: Any = duckdb.connect(config=config)
        # Given at connect it would be shown, and not held (DuckDB 1.5).
        self._engine.execute(f"SET max_temp_directory_size = '{int(limits['scratch_bytes'])}B'")
        self._engine.execute("SET TimeZone = 'UTC'")
        self._engine.execute("SET enable_progress_bar = false")
        self._catalogue = _read_catalogue(self._engine)
        for name, value in CLOSED.items():  # the lock is the last of them
            self._engine.execute(f"SET {name} = {value}")

    def serve(self) -> bool:
        """Answer requests; return whether the parent wants to begin anew, with another engine."""
        send(self._sink, b"J", b'{"done": "ready"}')
        self._sink.flush()
        while True:
            try:
                _, body = receive(self._source)
            except EOFError:
                return False
            request = json.loads(body)
            if request["do"] == "end":
                self._engine.close()
                return True
            answer = {**self._answer(request), "is_check": request["do"] == "check"}
            send(self._sink, b"J", json.dumps(answer).encode())
            self._sink.flush()
            if "error" in answer and not is_harmless(answer):
                return False  # what an error leaves behind nobody knows: the next query gets a process of its own

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {"done": getattr(self, f"do_{request['do']}")(request)}
        except Refused as error:
            return {"error": "refused", "message": str(error)}
        except _MEMORY as error:
            return {"error": "memory", "message": first_line(error)}
        except duckdb.InterruptException as error:
            return {"error": "time", "message": first_line(error)}
        except (duckdb.Error, pa.ArrowException, RuntimeError, RecursionError) as error:
            return {"error": "memory" if says_out_of_memory(error) else "problem", "message": first_line(error)}

    def do_check(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Check a text, and say which columns it gives over a relation without rows."""
        with self._limited():
            text, relation, schema = request["sql"], request["relation"], request["schema"]
            if is_nested_too_deeply(text):
                raise Refused("it is nested too deeply")
            is_condition = request["kind"] == "condition"
            parsed = f"SELECT (\n{text}\n)" if is_condition else text
            ((serialized,),) = self._engine.execute("SELECT json_serialize_sql(?)", [parsed]).fetchall()
            rules = Rules(request["kind"], relation, {name.lower() for name in schema}, self._catalogue)
            rules.check(serialized)
            self._make_empty(relation, schema)
            try:
                if is_condition:
                    rows = self._engine.table(relation).filter(text)
                    made = self._engine.table(relation).project(f"(\n{text}\n) AS holds")
                    rows.fetchall()
                else:
                    made = self._engine.sql(text)
                columns = [
                    [name, _type_of(made, name, str(kind))] for name, kind in zip(made.columns, made.types, strict=True)
                ]
            finally:
                self._drop(relation)
            return {"columns": columns, "named": sorted(rules.named)}

    def do_load(self, request: Mapping[str, Any]) -> int:
        """Make a relation of the batches that follow; return how many rows it has."""
        relation, schema = request["relation"], request["schema"]
        self._make_empty(relation, schema)
        reader = pa.RecordBatchReader.from_batches(make_schema(schema), self._read_batches())
        self._engine.register("icedb_arrow", reader)
        try:
            self._engine.execute(f"INSERT INTO {_stored(relation)} SELECT * FROM icedb_arrow")  # noqa: S608 - quoted
        finally:
            self._engine.unregister("icedb_arrow")
        ((count,),) = self._engine.execute(f"SELECT count(*) FROM {quote_name(relation)}").fetchall()  # noqa: S608
        return int(count)

    def do_select(self, request: Mapping[str, Any]) -> int:
        """Send the rows of a query, as the given expressions make them; return how many, and forget the relation."""
        row_count = 0
        with self._limited():
            made = self._engine.sql(request["sql"]).project(", ".join(request["outputs"]))
            for batch in made.to_arrow_reader(ROWS_PER_BATCH):
                row_count += batch.num_rows
                for piece in _cut(batch):
                    send(self._sink, b"A", encode_batch(piece))
            del made
        self._drop(request["relation"])
        return row_count

    def do_mask(self, request: Mapping[str, Any]) -> int:
        """Answer each batch that follows with a column: whether the condition is true for the row."""
        row_count = 0
        relation, mark = request["relation"], f"coalesce((\n{request['sql']}\n), false) AS holds"
        for batch in self._read_batches():
            with self._limited():
                self._engine.register(relation, pa.Table.from_batches([batch]))
                found = self._engine.table(relation).project(mark).to_arrow_table().column(0)
                self._engine.unregister(relation)
            if len(found) != batch.num_rows:
                raise Refused("it does not give one value for each row")
            row_count += batch.num_rows
            column = pa.concat_arrays([pa.nulls(0, pa.bool_()), *found.chunks])
            send(self._sink, b"A", encode_batch(pa.RecordBatch.from_arrays([column], ["holds"])))
            self._sink.flush()
        return row_count

    def _read_batches(self) -> Iterator[pa.RecordBatch]:
        while True:
            kind, body = receive(self._source)
            if kind != b"A":
                return
            yield decode_batch(body)

    def _make_empty(self, relation: str, schema: Mapping[str, str]) -> None:
        """Make a relation without rows: a view, as a table has a ``rowid`` besides, which no column says."""
        columns = ", ".join(f"{quote_name(name)} {kind}" for name, kind in schema.items())
        self._engine.execute(f"CREATE OR REPLACE TEMP TABLE {_stored(relation)} ({columns})")
        self._engine.execute(f"CREATE OR REPLACE TEMP VIEW {quote_name(relation)} AS FROM {_stored(relation)}")

    def _drop(self, relation: str) -> None:
        self._engine.execute(f"DROP VIEW IF EXISTS {quote_name(relation)}")
        self._engine.execute(f"DROP TABLE IF EXISTS {_stored(relation)}")

    @contextmanager
    def _limited(self) -> Iterator[None]:
        timer = threading.Timer(self._time_ms / 1000, self._engine.interrupt)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _stored(relation: str) -> str:
    """Return the name, quoted, of the table behind a relation; no text of a user may name it."""
    return quote_name(f"icedb_stored_{relation}")


def _type_of(made: Any, name: str, kind: str) -> str:
    """Return a column's type; ``NULL`` for one of NULL alone, which DuckDB calls an INTEGER once it is a result."""
    if kind != "INTEGER":
        return kind
    try:
        made.project(f"map_keys({quote_name(name)})")  # takes no INTEGER, and takes NULL
    except duckdb.Error:
        return kind
    return "NULL"


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows:
        rows = max(1, batch.num_rows * PIECE_BYTES // max(batch.nbytes, 1))
        yield from (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))


def _read_catalogue(engine: Any) -> Catalogue:
    def names(condition: str) -> frozenset[str]:
        found = engine.execute(f"SELECT DISTINCT lower(function_name) FROM duckdb_functions() WHERE {condition}")  # noqa: S608
        return frozenset(name for (name,) in found.fetchall())

    views = engine.execute("SELECT DISTINCT lower(view_name) FROM duckdb_views() WHERE internal").fetchall()
    return Catalogue(
        unstable=names("stability <> 'CONSISTENT' OR has_side_effects"),
        aggregates=names("function_type = 'aggregate'"),
        system_views=frozenset(name for (name,) in views),
    )


def _end_with_parent(lifeline: int) -> None:
    def wait() -> None:
        os.read(lifeline, 1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="icedb-lifeline", daemon=True).start()


def main() -> None:
    """Serve the parent."""
    source: BinaryIO = os.fdopen(os.dup(0), "rb")
    sink: BinaryIO = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)  # whatever writes to standard output must not break the frames
    for each in (signal.SIGINT, signal.SIGTERM):  # of a service manager that stops all processes: the parent's, too
        signal.signal(each, signal.SIG_IGN)
    _end_with_parent(int(sys.argv[1]))
    while True:
        try:
            limits = json.loads(receive(source)[1])
        except EOFError:
            return
        bound_address_space(int(limits["memory_bytes"]))
        if not _Server(source, sink, limits).serve():
            return
        pa.default_memory_pool().release_unused()
        send(sink, b"J", b'{"done": "ended"}')
        sink.flush()
