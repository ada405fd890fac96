"""Ours in the benchmark of appends: a lake in the process that appends. Each runs in a process of its own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from icedb import connect

from bench.append_work import Appends
from bench.figures import OURS


class Embedded(Appends):
    """Each row committed when the append returns; or staged, to be committed in groups beside it.

    Args:
        folder: Of the lake.
        count: How many appends the table has had when the first turn begins.
        is_staged: Through an appender.
    """

    def __init__(self, folder: Path, count: int, *, is_staged: bool = False) -> None:
        super().__init__(folder, count)
        self.name = f"{OURS}, staged" if is_staged else OURS
        self._is_staged = is_staged

    def close(self) -> None:
        """Close the lake."""
        self._lake.close()

    def _create(self) -> None:
        self._lake = connect(self._folder)
        self._table = self._lake.create_table("events", partition=["d=day(ts)"], sort=["event", "ts"], log_grace="30s")

    @contextmanager
    def _sending(self) -> Iterator[Callable[[dict[str, Any]], object]]:
        if not self._is_staged:
            yield lambda row: self._table.append([row])
            return
        with self._table.appender() as appender:
            yield lambda row: appender.append([row])

    def _read(self) -> tuple[int, int]:
        ((count, total),) = self._lake.query("select count(*), sum(n) from events").fetchall()
        return count, total
