"""Merging: small sorted files of one table into one sorted file.

Every system reads copies of the same Parquet files. Ours does what production does: fence, plan, Spark job, row
parity, commit to the log. Two cases have files that all cover the same times; in others their times follow each other,
so that they need no sort, or would not but for a few late rows; one is so small that what is left is the fixed cost of
a merge.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.harness import Case, Options
from bench.merge_events import write_merge_input
from bench.merge_systems import Cp, IceDB, SparkAlone
from bench.processes import ProcessWork, SystemInProcess
from bench.serve import Peer


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    file_count: int
    rows_per_file: int
    sort: tuple[str, ...] = ("event", "ts")
    is_in_time_order: bool = False
    late_share: float = 0.0
    is_heavy: bool = False


KINDS: Final = (
    _Kind("40 files of 100,000 rows", 40, 100_000),
    _Kind("2,000 files of 500 rows", 2_000, 500),
    _Kind("40 files of 100,000 rows that follow each other", 40, 100_000, ("ts",), is_in_time_order=True),
    _Kind(
        "400 files of 100,000 rows that follow each other", 400, 100_000, ("ts",), is_in_time_order=True, is_heavy=True
    ),
    _Kind("40 files of 16 producers with 1 % late rows", 40, 100_000, ("ts",), is_in_time_order=True, late_share=0.01),
    _Kind("8 files of 10 rows", 8, 10),
)


@dataclass(frozen=True)
class MergeWorkload:
    """The systems, case by case."""

    name: str
    description: str
    folder: Path
    only: str
    is_full: bool = True

    def cases(self) -> Iterator[Case]:
        """Make the files of one case after the other, and start the systems."""
        for number, kind in enumerate(KINDS):
            if self.only in kind.name and (self.is_full or not kind.is_heavy):
                yield from _open_case(kind, self.folder / str(number))


@contextmanager
def open_workload(folder: Path, options: Options) -> Iterator[MergeWorkload]:
    """Offer the cases whose name contains ``options.only``."""
    yield MergeWorkload(
        name="merge",
        description="merge small sorted Parquet files of ten columns into one sorted file, zstd level 1, two cores",
        folder=folder,
        only=options.only,
        is_full=options.size == "full",
    )


def _open_case(kind: _Kind, folder: Path) -> Iterator[Case]:
    source = write_merge_input(
        folder / "input" / "wh",
        file_count=kind.file_count,
        rows_per_file=kind.rows_per_file,
        sort=kind.sort,
        is_in_time_order=kind.is_in_time_order,
        late_share=kind.late_share,
    )
    works: list[ProcessWork | Peer] = [
        IceDB(source, folder / "icedb"),
        Peer("bench.peers.merge:DuckDBAlone", source, folder / "duckdb"),
        *([] if kind.is_heavy else [SparkAlone(source, folder / "spark-sql")]),
        Peer("bench.peers.merge:DeltaRs", source, folder / "delta-rs"),
        Cp(source, folder / "cp"),
    ]
    systems = [SystemInProcess(work) for work in works]
    try:
        yield Case(name=kind.name, row_count=source.row_count, systems=systems, size_bytes=source.size_bytes)
    finally:
        for system in systems:
            system.close()
