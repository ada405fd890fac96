"""PyIceberg and DuckDB as they plan a scan: of a table of ours through its catalog, and of a native one.

No data file exists: a plan opens none.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import duckdb
from pyiceberg.catalog import load_catalog
from pyiceberg.table import StaticTable

from bench.figures import Figure
from bench.peers.snapshot_iceberg import build_iceberg
from bench.snapshot_work import DAYS, EVENTS, FIRST_DAY, Shape

NATIVE_FILES: Final = 1000
"""Files of a manifest of the native table: as many as one of ours has when many come at once."""


@dataclass(frozen=True)
class Place:
    """Where a table is.

    Attributes:
        file_count: How many data files it has.
        folder: Of a native one, which is made there; in vain for another.
        catalog: Address of a REST catalog that has ``icedb.events``; empty: the table is native.
    """

    file_count: int
    folder: Path
    catalog: str = ""

    def build(self) -> str:
        """Make a native table if it is not there, and return where its metadata is."""
        found = self.folder / "metadata" / "v1.metadata.json"
        if not found.exists():
            shape = Shape(self.file_count, max(1, self.file_count // NATIVE_FILES))
            build_iceberg(self.folder, shape, location=f"file://{self.folder}")
        return f"file://{found}"


class Plan(ABC):
    """Plans a scan, again and again.

    Args:
        name: What it is called.
        place: Where the table is.
    """

    def __init__(self, place: Place, *, name: str) -> None:
        self.name = name
        self._place = place
        self._metadata = ""
        self._count = 0

    def prepare(self) -> None:
        """Make the table, the first time."""
        if not self._place.catalog and not self._metadata:
            self._metadata = self._place.build()
        self._open()

    def run(self) -> None:
        """Plan."""
        self._count = self._plan()

    def check(self) -> Sequence[Figure]:
        """Compare what was planned with what is there."""
        if self._count != self._expected:
            raise AssertionError(f"{self.name}: planned {self._count} files, not {self._expected}")
        return ()

    def close(self) -> None:  # noqa: B027 - not all have anything to close
        """Nothing stays open."""

    def _open(self) -> None:  # noqa: B027 - not all have anything to open
        """Open what a user keeps open."""

    @property
    @abstractmethod
    def _expected(self) -> int: ...

    @abstractmethod
    def _plan(self) -> int: ...


class PyIcebergAll(Plan):
    """PyIceberg: load the table, and plan all its files."""

    _filter: Any = None

    def _open(self) -> None:
        if self._place.catalog and not hasattr(self, "_catalog"):
            self._catalog = load_catalog("icedb", type="rest", uri=self._place.catalog)

    @property
    def _expected(self) -> int:
        return self._place.file_count

    def _load(self) -> Any:
        if self._place.catalog:
            return self._catalog.load_table("icedb.events")
        return StaticTable.from_metadata(self._metadata)

    def _plan(self) -> int:
        table = self._load()
        scan = table.scan() if self._filter is None else table.scan(row_filter=self._filter)
        return sum(1 for _ in scan.plan_files())


class PyIcebergDay(PyIcebergAll):
    """The same for one day and one event: a partition, and bounds."""

    _filter = f"ts >= '{FIRST_DAY:%Y-%m-%d}T00:00:00' and ts < '{FIRST_DAY:%Y-%m-%d}T23:00:00' and event == 'event-03'"

    @property
    def _expected(self) -> int:
        numbers = range(0, self._place.file_count, DAYS)
        return sum(number // DAYS % EVENTS == 3 for number in numbers)


class DuckDB(Plan):
    """DuckDB: a count of rows that the bounds of every file rule out, so that all are planned and none is opened."""

    @property
    def _expected(self) -> int:
        return 0

    def _open(self) -> None:
        if hasattr(self, "_connection"):
            return
        self._connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
        for name in ("httpfs", "avro", "iceberg"):
            package = Path(str(import_module(f"duckdb_extension_{name}").__file__)).parent
            (file,) = package.rglob(f"{name}.duckdb_extension")
            self._connection.execute(f"LOAD '{file}'")
        self._connection.execute("SET threads = 2")
        if self._place.catalog:
            self._connection.execute(
                f"ATTACH 'icedb' AS lake (TYPE iceberg, ENDPOINT '{self._place.catalog}', AUTHORIZATION_TYPE 'none')"
            )

    def _plan(self) -> int:
        path = self._metadata.removeprefix("file://")
        source = "lake.icedb.events" if self._place.catalog else f"iceberg_scan('{path}')"
        query = f"SELECT count(*) FROM {source} WHERE event = 'event-03-and-more'"
        (row,) = self._connection.execute(query).fetchall()
        return int(row[0])

    def close(self) -> None:
        """Close it."""
        self._connection.close()
