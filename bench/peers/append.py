"""delta-rs in the benchmark of appends: one row an append, by one writer, each visible when it has returned."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from bench.append_work import MEASURED, make_row
from bench.figures import Figure, latency_figures


class DeltaRs:
    """``write_deltalake`` to the path of a table. It does not wait for the disk, and nobody compacts.

    Args:
        folder: Where the table lies.
        count: How many appends it has had when the first turn begins.
    """

    name = "delta-rs"

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._count = count
        self._appended = 0
        self._latencies_s: list[float] = []

    def prepare(self) -> None:
        """Make the table, the first time, and append what the case begins with."""
        if self._appended:
            return
        shutil.rmtree(self._folder, ignore_errors=True)
        DeltaTable.create(str(self._folder), pa.Table.from_pylist([make_row(0)]).schema)
        self._append(self._count)

    def run(self) -> None:
        """Append, and measure each."""
        self._latencies_s = self._append(MEASURED)

    def check(self) -> Sequence[Figure]:
        """Count the rows that a reader sees, and add them up."""
        uris = DeltaTable(str(self._folder)).file_uris()
        numbers = pa.chunked_array([chunk for uri in uris for chunk in pq.read_table(uri)["n"].chunks], pa.int64())
        found = (len(numbers), pc.sum(numbers).as_py())
        if found != (self._appended, sum(range(self._appended))):
            raise AssertionError(f"{self.name}: rows and their sum are {found}")
        return (*latency_figures(self._latencies_s), Figure("appends", "", self._appended))

    def close(self) -> None:
        """Nothing stays open."""

    def _append(self, count: int) -> list[float]:
        latencies_s = []
        for _ in range(count):
            began_s = perf_counter()
            write_deltalake(str(self._folder), pa.Table.from_pylist([make_row(self._appended)]), mode="append")
            latencies_s.append(perf_counter() - began_s)
            self._appended += 1
        return latencies_s
