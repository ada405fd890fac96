"""PyIceberg and DuckDB as they plan a scan: of a table of ours, and of a native one, each through its REST catalog.

No data file exists: a plan opens none.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyiceberg.catalog import load_catalog

from bench.figures import Figure, TakesTurns
from bench.peers.duck import open_duckdb
from bench.peers.snapshot_iceberg import build_iceberg
from bench.snapshot_work import DAYS, EVENTS, FIRST_DAY, NATIVE_METADATA, Shape

NATIVE_FILES: Final = 1000
"""Files of a manifest of the native table: as many as one of ours has when many come at once."""


@dataclass(frozen=True)
class Place:
    """Where a table is.

    Attributes:
        shape: How many data files it has, from how many commits, each of which is a snapshot in its history.
        catalog: Address of a REST catalog that has ``icedb.events``.
        folder: Of a native one, which is made there; ``None``: it is there.
    """

    shape: Shape
    catalog: str
    folder: Path | None = None

    def build(self) -> None:
        """Make a native table if it is not there."""
        if self.folder is not None and not (self.folder / NATIVE_METADATA).exists():
            build_iceberg(self.folder, self.shape, location=f"file://{self.folder}", manifest_files=NATIVE_FILES)


class Plan(TakesTurns, ABC):
    """Plans a scan, again and again.

    Args:
        name: What it is called.
        place: Where the table is.
    """

    def __init__(self, place: Place, *, name: str) -> None:
        self.name = name
        self._place = place
        self._count = 0

    def prepare(self) -> None:
        """Make the table, the first time."""
        self._place.build()
        self._open()

    def run(self) -> None:
        """Plan."""
        self._count = self._plan()

    def check(self) -> Sequence[Figure]:
        """Compare what was planned with what is there."""
        if self._count != self._expected:
            raise AssertionError(f"{self.name}: planned {self._count} files, not {self._expected}")
        return ()

    def _open(self) -> None:
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
        if not hasattr(self, "_catalog"):
            self._catalog = load_catalog("icedb", type="rest", uri=self._place.catalog)

    @property
    def _expected(self) -> int:
        return self._place.shape.file_count

    def _plan(self) -> int:
        table = self._catalog.load_table("icedb.events")
        scan = table.scan() if self._filter is None else table.scan(row_filter=self._filter)
        return sum(1 for _ in scan.plan_files())


class PyIcebergDay(PyIcebergAll):
    """The same for one day and one event: a partition, and bounds."""

    _filter = f"ts >= '{FIRST_DAY:%Y-%m-%d}T00:00:00' and ts < '{FIRST_DAY:%Y-%m-%d}T23:00:00' and event == 'event-03'"

    @property
    def _expected(self) -> int:
        numbers = range(0, self._place.shape.file_count, DAYS)
        return sum(number // DAYS % EVENTS == 3 for number in numbers)


class DuckDB(Plan):
    """DuckDB: a count of rows that the bounds of every file rule out, so that all are planned and none is opened."""

    @property
    def _expected(self) -> int:
        return 0

    def _open(self) -> None:
        if hasattr(self, "_connection"):
            return
        self._connection = open_duckdb("httpfs", "avro", "iceberg", threads=2)
        self._connection.execute(
            f"ATTACH 'icedb' AS lake (TYPE iceberg, ENDPOINT '{self._place.catalog}', AUTHORIZATION_TYPE 'none')"
        )

    def _plan(self) -> int:
        query = "SELECT count(*) FROM lake.icedb.events WHERE event = 'event-03-and-more'"
        (row,) = self._connection.execute(query).fetchall()
        return int(row[0])

    def close(self) -> None:
        """Close it."""
        self._connection.close()
