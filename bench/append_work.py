"""What every system of the benchmark of appends has in common, ours and peers. Imports nothing of ours."""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from bench.figures import Figure, TakesTurns, latency_figures

MEASURED: Final = 100
"""Appends of a turn; the table has so many as the case says when the first turn begins, and more in the next."""


def make_row(number: int) -> dict[str, Any]:
    """Return the row of an append."""
    return {"ts": "2026-01-02T03:04:05Z", "event": "view", "user_id": f"u{number}", "n": number}


class Appends(TakesTurns, ABC):
    """A table to which rows are appended one by one.

    Args:
        folder: Where it lies.
        count: How many appends it has had when the first turn begins.
    """

    name = ""

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
        self._create()
        self._append(self._count)

    def run(self) -> None:
        """Append, and measure each."""
        self._latencies_s = self._append(MEASURED)

    def check(self) -> Sequence[Figure]:
        """Count the rows that a reader sees, and add them up."""
        found = self._read()
        if found != (self._appended, sum(range(self._appended))):
            raise AssertionError(f"{self.name}: rows and their sum are {found}")
        return (*latency_figures(self._latencies_s), Figure("appends", "", self._appended))

    @abstractmethod
    def _create(self) -> None: ...

    @abstractmethod
    def _sending(self) -> AbstractContextManager[Callable[[dict[str, Any]], object]]:
        """Give what appends a row."""

    @abstractmethod
    def _read(self) -> tuple[int, int]:
        """Return how many rows there are, and the sum of their numbers."""

    def _append(self, count: int) -> list[float]:
        latencies_s = []
        with self._sending() as send:
            for _ in range(count):
                began_s = perf_counter()
                send(make_row(self._appended))
                latencies_s.append(perf_counter() - began_s)
                self._appended += 1
        return latencies_s
