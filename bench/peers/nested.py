"""What holds the events of the benchmark of nested events, and answers its queries by one thread."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import duckdb
import orjson

from bench.figures import MS
from bench.nested_work import PATHS, SUBCOLUMNS, is_same, spell

_TYPES: Final = {"did": "String", "time": "UInt64"}
"""Of the paths in ClickHouse; the others are text of few values."""


class Holder(ABC):
    """Events in one form.

    Args:
        name: What it is called.
        form: What the values are called.
    """

    def __init__(self, name: str, form: Mapping[str, str]) -> None:
        self.name = name
        self._form = form

    def measure(self, query: str, answer: Sequence[Sequence[Any]] | None, run_count: int) -> tuple[float, Any]:
        """Run a query some times; return what it took at least, ms, and its rows.

        Raises:
            AssertionError: Others came than the answer has.
        """
        took: list[float] = []
        rows: Sequence[Sequence[Any]] = ()
        for _ in range(run_count):
            began_s = perf_counter()
            rows = self.read(spell(query, self._form, events=self.events))
            took.append(MS * (perf_counter() - began_s))
            if answer is not None and not is_same(rows, answer):
                raise AssertionError(f"{query} of {self.name}: {rows!r:.500}, not {answer!r:.500}")
        return min(took), [list(row) for row in rows]

    @property
    @abstractmethod
    def events(self) -> str:
        """What queries read from."""

    @abstractmethod
    def read(self, sql: str) -> Sequence[Sequence[Any]]:
        """Return all rows of an answer."""

    def size_bytes(self) -> int:
        """Return what it takes on disk, if it is its own."""
        return 0

    def close(self) -> None:  # noqa: B027 - most end with their process
        """Let go of what is open."""


class Parquet(Holder):
    """Parquet files, read by DuckDB."""

    def __init__(self, name: str, form: Mapping[str, str], paths: Sequence[str]) -> None:
        super().__init__(name, form)
        self._connection = duckdb.connect(config={"threads": 1})
        self._paths = list(paths)

    @property
    def events(self) -> str:
        """The files."""
        return f"read_parquet({self._paths})"

    def read(self, sql: str) -> Sequence[Sequence[Any]]:
        """Return all rows of an answer."""
        return self._connection.execute(sql).fetchall()


class DuckDB(Holder):
    """DuckDB's JSON type in its own file, in the order of the sort columns."""

    def __init__(self, name: str, form: Mapping[str, str], source: Path, folder: Path) -> None:
        super().__init__(name, form)
        self._path = folder / "events.duckdb"
        self._path.unlink(missing_ok=True)
        self._connection = duckdb.connect(str(self._path), config={"threads": 1})
        order = ", ".join(form[each] for each in PATHS)
        rows = f"read_json('{source}', format = 'newline_delimited', columns = {{data: 'JSON'}})"
        self._connection.execute(f"CREATE TABLE events AS SELECT data FROM {rows} ORDER BY {order}")
        self._connection.execute("CHECKPOINT")

    @property
    def events(self) -> str:
        """The table."""
        return "events"

    def read(self, sql: str) -> Sequence[Sequence[Any]]:
        """Return all rows of an answer."""
        return self._connection.execute(sql).fetchall()

    def size_bytes(self) -> int:
        """Return the size of the file."""
        return self._path.stat().st_size


class ClickHouse(Holder):
    """ClickHouse's JSON type, with the types and the order that JSONBench gives it."""

    def __init__(self, name: str, source: Path, folder: Path) -> None:
        from chdb.session import Session  # noqa: PLC0415 - 180 MB, for this alone

        super().__init__(name, SUBCOLUMNS)
        self._session = Session(str(folder / "clickhouse"))
        hints = ", ".join(f"{path} {_TYPES.get(each, 'LowCardinality(String)')}" for each, path in PATHS.items())
        order = ", ".join(SUBCOLUMNS[each] for each in PATHS)
        self._run("CREATE DATABASE IF NOT EXISTS bench ENGINE = Atomic")
        self._run(f"CREATE TABLE {self.events} (data JSON({hints})) ENGINE = MergeTree ORDER BY ({order})")
        self._run(f"INSERT INTO {self.events} SELECT data FROM file('{source}', JSONEachRow, 'data JSON({hints})')")
        self._run(f"OPTIMIZE TABLE {self.events} FINAL")

    @property
    def events(self) -> str:
        """The table."""
        return "bench.events"

    def read(self, sql: str) -> Sequence[Sequence[Any]]:
        """Return all rows of an answer."""
        answer = self._session.query(f"{sql} SETTINGS max_threads = 1", "JSONCompactEachRow")
        return [orjson.loads(line) for line in str(answer).splitlines()]

    def size_bytes(self) -> int:
        """Return what the live parts take."""
        sql = "SELECT sum(bytes_on_disk) FROM system.parts WHERE active AND database = 'bench'"
        return int(self.read(sql)[0][0])

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def _run(self, sql: str) -> None:
        self._session.query(sql)
