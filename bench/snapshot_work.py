"""What every system of the snapshot benchmark has in common, ours and peers: the table, callers, cold opens, refreshes.

Imports nothing of ours: both environments use it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import perf_counter
from typing import Any, Final, Protocol

from bench.figures import Figure, TakesTurns, latency_figures
from bench.serve import made

DAYS: Final = 30
EVENTS: Final = 20
ROWS: Final = 5_000
FIRST_DAY: Final = datetime(2026, 10, 1, tzinfo=UTC)
FIRST_COMMIT_MS: Final = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp() * 1000)
STEP_MS: Final = 1_000
REFRESHES: Final = 5
FILES_OF_A_COMMIT: Final = 10
NATIVE_METADATA: Final = "metadata/v1.metadata.json"
"""Of a native Iceberg table, below its folder."""


@dataclass(frozen=True, slots=True)
class File:
    """One data file: file ``number`` of a table, on one day, with one event."""

    number: int

    @property
    def day(self) -> str:
        """Its partition value."""
        return f"{FIRST_DAY + timedelta(days=self.number % DAYS):%Y-%m-%d}"

    @property
    def name(self) -> str:
        """Its path below the table's data."""
        return f"d={self.day}/{self.number * 0x9E3779B97F4A7C15 % 2**128:032x}.parquet"

    @property
    def size_bytes(self) -> int:
        """Its size."""
        return 200_000 + self.number % 70_000

    @property
    def bounds(self) -> dict[str, tuple[str, str]]:
        """First and last value of the columns that have statistics."""
        event = f"event-{self.number // DAYS % EVENTS:02d}"
        return {"ts": (f"{self.day}T00:00:00.000000Z", f"{self.day}T23:59:59.000000Z"), "event": (event, event)}


@dataclass(frozen=True, slots=True)
class Shape:
    """How many data files, in how many commits."""

    file_count: int
    commit_count: int

    def commits(self) -> Iterator[range]:
        """Yield the numbers of the files of each commit."""
        size = self.file_count // self.commit_count
        for commit in range(self.commit_count):
            yield range(commit * size, self.file_count if commit == self.commit_count - 1 else (commit + 1) * size)


def write_file(path: Path, body: bytes) -> None:
    """Write a file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)


class Caller(Protocol):
    """What is called again and again."""

    name: str

    def open(self) -> None:
        """Open what a user keeps open between calls."""
        ...

    def call(self) -> int:
        """Ask once; return how many data files the answer has."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


class Calling:
    """Lets a caller call, in a process of its own."""

    _caller: Caller

    def open(self, caller: Any) -> None:
        """Open what the caller keeps open, and call once without a clock."""
        self._caller = made(caller)
        self._caller.open()
        self._caller.call()

    def call(self, seconds: float) -> tuple[list[float], set[int]]:
        """Call for so long, once at least; return how long each call took, seconds, and what the answers had."""
        latencies: list[float] = []
        counts: set[int] = set()
        began = perf_counter()
        end = began + seconds
        while began < end or not latencies:
            counts.add(self._caller.call())
            ended = perf_counter()
            latencies.append(ended - began)
            began = ended
        self._caller.close()
        return latencies, counts


@dataclass(slots=True)
class Cold(TakesTurns, ABC):
    """What all have in common: nothing is known of the table before a turn.

    Attributes:
        name: What it is called.
        file_count: What must be found.
    """

    name: str
    file_count: int
    _found: int = field(default=-1, init=False)

    def run(self) -> None:
        """Find the address of each live data file."""
        self._found = len(self._find())

    def check(self) -> Sequence[Figure]:
        """Look that all were found."""
        if self._found != self.file_count:
            raise AssertionError(f"{self.name}: found {self._found} of {self.file_count} data files")
        return ()

    @abstractmethod
    def _find(self) -> Sequence[str]:
        """Return the address of each live data file."""


class Refresh(TakesTurns, ABC):
    """What all refreshes have in common: commits, and after each a call that must show it. Only calls are timed."""

    name = ""

    def __init__(self, *, file_count: int, commit_count: int) -> None:
        self._file_count = file_count
        self._commit = commit_count
        self._latencies_s: list[float] = []
        self.row_count = REFRESHES

    def prepare(self) -> None:
        """Forget the turn before."""
        self._latencies_s = []

    def run(self) -> None:
        """Commit and ask, some times."""
        for _ in range(REFRESHES):
            self._commit += 1
            self._append(self._commit, range(self._file_count, self._file_count + FILES_OF_A_COMMIT))
            self._file_count += FILES_OF_A_COMMIT
            began = perf_counter()
            found = self._ask()
            self._latencies_s.append(perf_counter() - began)
            if found != self._file_count:
                raise AssertionError(f"{self.name}: {found} of {self._file_count} data files after a commit")

    def check(self) -> Sequence[Figure]:
        """Say how long the calls took."""
        return latency_figures(self._latencies_s)

    @abstractmethod
    def _append(self, commit: int, numbers: range) -> None:
        """Commit data files of these numbers."""

    @abstractmethod
    def _ask(self) -> int:
        """Ask for the table as it is now, and return how many data files it has."""
