"""What the benchmark of scans reads, where the files are, how a query is timed. Imports the standard library only."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Final

from bench.figures import MS

SQL: Final[Mapping[str, str]] = {
    "count of rows": "SELECT count(*) AS n FROM {f}",
    "group by text of 10 values": "SELECT event, avg(price) AS a FROM {f} GROUP BY event ORDER BY event LIMIT 3",
    "group by text of 40 values": "SELECT agent, count(*) AS n FROM {f} GROUP BY agent ORDER BY agent LIMIT 3",
    "distinct of text of 3,000 values": "SELECT count(DISTINCT url) AS n FROM {f}",
    "distinct of text of 20,000 values": "SELECT count(DISTINCT user_id) AS n FROM {f}",
    "greatest unique text": "SELECT max(id) AS m FROM {f}",
    "sum of fractions": "SELECT sum(price) AS s FROM {f}",
    "sum of whole numbers": "SELECT sum(duration_ms) AS s FROM {f}",
    "look-up by another column": "SELECT count(*) AS n, max(ts) AS m FROM {f} WHERE user_id = 'u77'",
    "a minute of one event": (
        "SELECT count(*) AS n, min(id) AS m FROM {f} WHERE event = 'event-3' AND ts >= {hour_from} AND ts < {minute_to}"
    ),
    "an hour of one event": (
        "SELECT count(*) AS n, sum(price) AS s FROM {f} "
        "WHERE event = 'event-3' AND ts >= {hour_from} AND ts < {hour_to}"
    ),
    "an hour of all events": (
        "SELECT count(*) AS n, sum(price) AS s FROM {f} WHERE ts >= {hour_from} AND ts < {hour_to}"
    ),
}
"""Queries by what they are about; ``{f}``: the files. Each reads a column or two, as most of analysts' queries do."""
FEW: Final = (
    "group by text of 10 values",
    "distinct of text of 3,000 values",
    "look-up by another column",
    "an hour of one event",
)
"""Those that are asked where files are wide, or far away."""
COLUMNS: Final = ("ts", "event", "user_id", "url", "price", "agent", "duration_ms", "id")
"""Columns of the files, of which Arrow, which has no SQL, reads each."""
ALL: Final = "all columns"
"""What Arrow reads of wide files."""
SORT: Final = ("event", "ts")
_TIMES: Final = {
    "hour_from": "2026-01-01 09:00:00",
    "minute_to": "2026-01-01 09:01:00",
    "hour_to": "2026-01-01 10:00:00",
}


def spell(query: str, *, files: str, time: str) -> str:
    """Return the text of a query.

    Args:
        query: Its name.
        files: What an engine reads from.
        time: How it writes a time, with ``{}`` for the text.
    """
    return SQL[query].format(f=files, **{name: time.format(text) for name, text in _TIMES.items()})


@dataclass(frozen=True, slots=True)
class Files:
    """Data files with the same rows, made by one writer.

    Attributes:
        name: Of the writer.
        paths: The files.
    """

    name: str
    paths: tuple[Path, ...]

    def below(self, root: Path) -> list[str]:
        """Return where they lie below a folder."""
        return [path.relative_to(root).as_posix() for path in self.paths]


def folder_name(writer: str) -> str:
    """Return a writer's name as that of a folder, which may stand in an address."""
    return re.sub(r"[^a-z0-9]+", "-", writer)


@dataclass(frozen=True, slots=True)
class Took:
    """What one query took at least, of some runs, ms."""

    wall_ms: float
    cpu_ms: float


class Engine(ABC):
    """Runs queries over data files, by one thread.

    Args:
        endpoint: Address of an S3 server; the files are in its buckets then, and no run knows anything of the one
            before it. Empty: they are on disk.
    """

    def __init__(self, endpoint: str = "") -> None:
        self.endpoint = endpoint

    @property
    def name(self) -> str:
        """What it is called."""
        return type(self).__name__

    def measure(self, paths: Sequence[str], query: str, answer: Sequence[Any], run_count: int) -> Took:
        """Run a query some times.

        Args:
            paths: The files; on S3 ``bucket/key``.
            query: Its name.
            answer: The first row that has to come.
            run_count: How often.

        Raises:
            AssertionError: Another row came.
        """
        took = []
        for _ in range(run_count):
            self.open()
            began_s, began_cpu_s = perf_counter(), self.read_cpu_s()
            found = self.read(paths, query)
            took.append((perf_counter() - began_s, self.read_cpu_s() - began_cpu_s))
            if not _is_same(found, answer):
                raise AssertionError(f"{query} of {paths[0]}: {found!r}, not {answer!r}")
        return Took(*(MS * min(each) for each in zip(*took, strict=True)))

    def read_cpu_s(self) -> float:
        """Return the processor time that the engine has taken so far."""
        return process_time()

    @abstractmethod
    def open(self) -> None:
        """Make ready for a run; on S3 with nothing known of the files. Not timed."""

    @abstractmethod
    def read(self, paths: Sequence[str], query: str) -> Sequence[Any]:
        """Return the first row of the answer."""

    def close(self) -> None:  # noqa: B027 - most hold nothing that outlives their process
        """Let go of what is open."""


def _is_same(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    return len(found) == len(expected) and all(
        abs(float(one) - float(other)) <= 1e-9 * abs(float(other))
        if isinstance(other, float)
        else str(one) == str(other)
        for one, other in zip(found, expected, strict=True)
    )
