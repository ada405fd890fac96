"""Merging: small sorted files of one table into one sorted file.

Every system reads copies of the same Parquet files. Ours does what production does: fence, plan, Spark job, row
parity, commit to the log. Two cases have files that all cover the same times; in others their times follow each other,
so that they need no sort, or would not but for the clocks of producers and a few late rows (which ours leaves in a
second file); one is so small that what is left is the fixed cost of a merge.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bench.harness import Case, Size, Workload
from bench.merge_events import write_merge_input
from bench.merge_systems import Cp, IceDB, SparkAlone
from bench.processes import ProcessWork, started
from bench.serve import Peer


@dataclass(frozen=True, slots=True)
class _Kind:
    file_count: int
    rows_per_file: int
    more: str = ""
    sort: tuple[str, ...] = ("event", "ts")
    is_in_time_order: bool = False
    producer_count: int = 1
    late_share: float = 0.0
    is_heavy: bool = False

    @property
    def name(self) -> str:
        return f"{self.file_count:,} files of {self.rows_per_file:,} rows{self.more}"

    def sized(self, size: Size) -> "_Kind":
        """Return what is taken in a run of this size."""
        if size != "small" or self.file_count < SMALL_FILES:
            return self
        return replace(self, file_count=SMALL_FILES, rows_per_file=self.rows_per_file // 10)


SMALL_FILES: Final = 20
_IN_ORDER: Final = _Kind(40, 100_000, " that follow each other", ("ts",), is_in_time_order=True)
KINDS: Final = (
    _Kind(40, 100_000),
    _Kind(2_000, 500),
    _IN_ORDER,
    replace(_IN_ORDER, file_count=400, is_heavy=True),
    replace(_IN_ORDER, more=" of 16 producers that follow each other, 1 % late", producer_count=16, late_share=0.01),
    _Kind(8, 10),
)


class MergeWorkload(Workload):
    """The systems, case by case."""

    description = "merge small sorted Parquet files of ten columns into one sorted file, zstd level 1, two cores"

    def cases(self) -> Iterator[Case]:
        """Make the files of one case after the other, and start the systems."""
        size = self.options.size
        for number, kind in enumerate(each.sized(size) for each in KINDS if size == "full" or not each.is_heavy):
            if self.wants(kind.name):
                has_spark = size == "full" and not kind.is_heavy  # far behind, and a session takes seconds to start
                yield from _open_case(kind, self.folder / str(number), has_spark=has_spark)


def _open_case(kind: _Kind, folder: Path, *, has_spark: bool) -> Iterator[Case]:
    source = write_merge_input(
        folder / "input" / "wh",
        file_count=kind.file_count,
        rows_per_file=kind.rows_per_file,
        sort=kind.sort,
        is_in_time_order=kind.is_in_time_order,
        producer_count=kind.producer_count,
        late_share=kind.late_share,
    )
    works: list[ProcessWork | Peer] = [
        IceDB(source, folder / "icedb"),
        Peer("bench.peers.merge:DuckDBAlone", source, folder / "duckdb"),
        *([SparkAlone(source, folder / "spark-sql")] if has_spark else []),
        Peer("bench.peers.merge:Polars", source, folder / "polars"),
        Peer("bench.peers.merge:DeltaRs", source, folder / "delta-rs"),
        Peer("bench.peers.merge:DuckLake", source, folder / "ducklake"),
        *([] if kind.is_heavy else [Peer("bench.peers.merge:DeltaRsZOrder", source, folder / "z-order")]),
        Peer("bench.peers.merge:DecodeEncode", source, folder / "decode"),
        Cp(source, folder / "cp"),
    ]
    with started(*works, split=(IceDB, SparkAlone)) as systems:
        yield Case(
            name=kind.name,
            row_count=source.row_count,
            systems=systems,
            size_bytes=source.size_bytes,
            warm_turn_count=1 if kind.is_heavy else 2,
        )
