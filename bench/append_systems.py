"""Ours in the benchmark of appends: a lake in the process that appends. Each runs in a process of its own."""

import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter

from icedb import connect

from bench.append_work import MEASURED, make_row
from bench.figures import OURS, Figure, latency_figures


class Embedded:
    """One row an append, each committed when it returns; or staged, to be committed in groups beside it.

    Args:
        folder: Of the lake.
        count: How many appends the table has had when the first turn begins.
        is_staged: Through an appender.
    """

    def __init__(self, folder: Path, count: int, *, is_staged: bool = False) -> None:
        self.name = f"{OURS}, staged" if is_staged else OURS
        self._folder = folder
        self._count = count
        self._is_staged = is_staged
        self._appended = 0
        self._latencies_s: list[float] = []

    def prepare(self) -> None:
        """Make the table, the first time, and append what the case begins with."""
        if self._appended:
            return
        shutil.rmtree(self._folder, ignore_errors=True)
        self._lake = connect(self._folder)
        self._table = self._lake.create_table("events", partition=["d=day(ts)"], sort=["event", "ts"], log_grace="30s")
        self._append(self._count)

    def run(self) -> None:
        """Append, and measure each."""
        self._latencies_s = self._append(MEASURED)

    def check(self) -> Sequence[Figure]:
        """Count the rows of a query, and add them up."""
        (found,) = self._lake.query("select count(*), sum(n) from events").relation.fetchall()
        if found != (self._appended, sum(range(self._appended))):
            raise AssertionError(f"{self.name}: rows and their sum are {found}")
        return (*latency_figures(self._latencies_s), Figure("appends", "", self._appended))

    def close(self) -> None:
        """Close the lake."""
        self._lake.close()

    def _append(self, count: int) -> list[float]:
        latencies_s = []
        with ExitStack() as stack:
            send: Callable[..., object] = self._table.append
            if self._is_staged:
                send = stack.enter_context(self._table.appender()).append
            for _ in range(count):
                began_s = perf_counter()
                send([make_row(self._appended)])
                latencies_s.append(perf_counter() - began_s)
                self._appended += 1
        return latencies_s
