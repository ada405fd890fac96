"""What the native engine holds of one unit of batches: tables by name, and the questions that are asked about them.

A unit of a few rows asks some twenty statements, and to bind and plan them takes most of its time. So a process keeps
connections for such units (:func:`lend_engine`): with the tables of the unit before, emptied, and the plans of its
statements. The next unit of the same table most often asks the same.

A table is always emptied before it is filled, and is only used again where it, and whatever the unit made before it,
was asked for in the same words: then its columns have the same types. From the first difference on the unit goes on
without plans, and they are forgotten: one of a statement about an Arrow table would go on reading the table that the
name stood for when it was planned.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import duckdb
import pyarrow as pa
from icedb_log.errors import Unavailable
from icedb_log.units import MIB

KEPT_MEMORY_BYTES: Final = 256 * MIB
"""Of the engine that is kept for small units."""
MAX_IDLE: Final = 16
"""Connections that wait for their next unit."""
MAX_PLANS: Final = 128
"""Statements that a connection has planned, forgotten ones too; one that has planned more is closed."""
MAX_UNITS: Final = 1024
"""Units after which a connection is closed: it remembers rows that are deleted."""
_SQL_TYPES: Final = {pa.int32(): "INTEGER", pa.string(): "VARCHAR"}


class UnitEngine:
    """The native engine as one unit uses it. For one thread.

    Attributes:
        connection: Of DuckDB; what is made there beside this object is the caller's business.
    """

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def fetch(self, query: str) -> list[tuple[Any, ...]]:
        """Return what a query returns."""
        rows: list[tuple[Any, ...]] = self.connection.execute(query).fetchall()
        return rows

    def stream(self, query: str, *, rows_per_chunk: int) -> Any:
        """Return what a query returns as record batches; it ends with the next statement."""
        self.connection.execute(query)
        return self.connection.to_arrow_reader(rows_per_chunk)

    def hold(self, name: str, table: pa.Table) -> None:
        """Let a name stand for an Arrow table with columns of any types."""
        self.connection.register(name, table)

    def fill(self, name: str, table: pa.Table) -> None:
        """Let a name stand for an Arrow table of 32-bit numbers and text."""
        self.hold(name, table)

    def clear(self, name: str) -> None:
        """Let go of what :meth:`fill` was given."""
        self.connection.unregister(name)

    def load(self, name: str, schema: pa.Schema, parts: Iterator[pa.RecordBatch]) -> None:
        """Let a name stand for rows of 32-bit numbers and text, which the engine takes in one part after the other."""
        source = f"{name}_parts"
        self.connection.register(source, pa.RecordBatchReader.from_batches(schema, parts))
        try:
            self.make_table(name, f"FROM {source}")
        finally:
            self.connection.unregister(source)

    def make_table(self, name: str, query: str) -> None:
        """Let a name stand for the rows that a query returns now."""
        self.connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {query}")

    def make_view(self, name: str, query: str) -> None:
        """Let a name stand for a query."""
        self.connection.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS {query}")

    def clear_table(self, name: str) -> None:
        """Let go of the rows of :meth:`make_table` and :meth:`load`."""
        self.connection.execute(f"DROP TABLE IF EXISTS {name}")


class _KeptUnitEngine(UnitEngine):
    """One that keeps tables and plans from one unit to the next."""

    def __init__(self, instance: Any) -> None:
        super().__init__(instance.cursor())
        self.instance = instance
        # WARN: the optimizer takes what the tables hold when a statement is planned for granted (that there are no
        # nulls, the bounds): a plan that is used again would be wrong. For so few rows it costs more than it saves.
        self.connection.execute("PRAGMA disable_optimizer")
        self._plans: dict[str, str] = {}
        self._plan_count = 0
        self._made: dict[str, str] = {}
        """What stands for each name, as it was asked for, in the order of making."""
        self._is_same = False
        self._unit_count = 0

    @property
    def is_worn(self) -> bool:
        """Whether it should not be used again."""
        return self._plan_count > MAX_PLANS or self._unit_count >= MAX_UNITS

    def begin(self) -> None:
        """Begin with a unit."""
        self._is_same = True
        self._unit_count += 1

    def fetch(self, query: str) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._execute(query).fetchall()
        return rows

    def stream(self, query: str, *, rows_per_chunk: int) -> Any:
        self._execute(query)
        return self.connection.to_arrow_reader(rows_per_chunk)

    def hold(self, name: str, table: pa.Table) -> None:
        self._note(name, "")  # whatever is made of it has other types than the last time, for all we know
        super().hold(name, table)

    def fill(self, name: str, table: pa.Table) -> None:
        types = [_SQL_TYPES[field.type] for field in table.schema]
        columns = ", ".join(f"{field.name} {sql_type}" for field, sql_type in zip(table.schema, types, strict=True))
        if self._is_known(name, columns):
            self._empty(name)
        else:
            self._note(name, columns)
            self.connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} ({columns})")
        values = ", ".join(f"unnest(CAST(? AS {sql_type}[]))" for sql_type in types)
        self.connection.execute(f"INSERT INTO {name} SELECT {values}", [each.to_pylist() for each in table.columns])

    def load(self, name: str, schema: pa.Schema, parts: Iterator[pa.RecordBatch]) -> None:
        self.fill(name, pa.Table.from_batches(parts, schema=schema))

    def clear(self, name: str) -> None:
        if name in self._made:
            self._empty(name)

    def make_table(self, name: str, query: str) -> None:
        if self._is_known(name, query):
            self._empty(name)
            self._execute(f"INSERT INTO {name} {query}")
        else:
            self._note(name, query)
            super().make_table(name, query)

    def make_view(self, name: str, query: str) -> None:
        if not self._is_known(name, query):
            self._note(name, query)
            super().make_view(name, query)

    def clear_table(self, name: str) -> None:
        self.clear(name)

    def _empty(self, name: str) -> None:
        self._execute(f"DELETE FROM {name}")  # noqa: S608 - names are ours

    def _is_known(self, name: str, asked: str) -> bool:
        return self._is_same and self._made.get(name) == asked

    def _note(self, name: str, asked: str) -> None:
        """Note that something else stands for a name from now on: what was made after it may have been made of it."""
        self._is_same = False
        self._plans.clear()
        if name in self._made:
            names = list(self._made)
            for later in names[names.index(name) :]:
                del self._made[later]
        self._made[name] = asked

    def _execute(self, query: str) -> Any:
        if not self._is_same:
            return self.connection.execute(query)
        plan = self._plans.get(query)
        if plan is None:
            plan = f"plan{self._plan_count}"
            self.connection.execute(f"PREPARE {plan} AS {query}")
            self._plans[query] = plan
            self._plan_count += 1
        return self.connection.execute(f"EXECUTE {plan}")


class _KeptEngines:
    """An instance of the native engine that stays for the small units of one process, and its connections."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._instance: Any = None
        self._pid = 0
        self._idle: OrderedDict[int, tuple[str, _KeptUnitEngine]] = OrderedDict()

    def take(self, table: str) -> _KeptUnitEngine:
        """Return an unused connection, that of an earlier unit of the same table if there is one."""
        with self._lock:
            if self._instance is None or self._pid != os.getpid():  # a fork has no use for its parent's threads
                self._instance, self._pid = _open_kept(), os.getpid()
                self._idle.clear()
            found = next((key for key in reversed(self._idle) if self._idle[key][0] == table), None)
            engine = self._idle.pop(found)[1] if found is not None else _KeptUnitEngine(self._instance)
        engine.begin()
        return engine

    def give_back(self, table: str, engine: _KeptUnitEngine) -> None:
        """Keep a connection for the next unit of its table."""
        surplus = engine
        with self._lock:
            if not engine.is_worn and engine.instance is self._instance:
                self._idle[id(engine)] = (table, engine)
                if len(self._idle) <= MAX_IDLE:
                    return
                surplus = self._idle.popitem(last=False)[1][1]
        surplus.connection.close()

    def forget(self) -> None:
        """Take another instance from now on."""
        with self._lock:
            self._instance = None


def _open_kept() -> Any:
    instance = duckdb.connect(
        config={
            "memory_limit": f"{KEPT_MEMORY_BYTES}B",
            "threads": 1,
            "temp_directory": "",
            "preserve_insertion_order": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
    )
    instance.execute("SET GLOBAL TimeZone = 'UTC'")
    instance.execute("SET enable_external_access = false")
    instance.execute("SET lock_configuration = true")
    return instance


_KEPT: Final = _KeptEngines()


@contextmanager
def lend_engine(table: str) -> Iterator[UnitEngine]:
    """Lend an engine that this process keeps, for a few rows of a table: it reads no file, and does not spill.

    Raises:
        Unavailable: Its memory did not suffice.
    """
    engine = _KEPT.take(table)
    try:
        yield engine
    except BaseException as error:
        engine.connection.close()
        if isinstance(error, duckdb.Error):
            _KEPT.forget()  # after an error nobody knows how it is
        if isinstance(error, duckdb.OutOfMemoryException):
            words = str(error).partition("\n")[0][:300]
            raise Unavailable(f"the native engine ran out of memory for a few rows: {words}") from error
        raise
    _KEPT.give_back(table, engine)
