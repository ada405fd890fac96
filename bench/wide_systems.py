"""Ours in the benchmark of one wide merge, in three ways. Each in a process of its own, see :mod:`bench.processes`."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

import pyarrow.parquet as pq
from icedb_engine.jobs import merge_ranges
from icedb_log.commit.table import Table

from bench.figures import OURS, Figure
from bench.merge_systems import IceDB

ALL_IN_ONE_BYTES = 1 << 33


class ByRanges(IceDB):
    """As it is: each range of the sort order is a task."""

    def check(self) -> Sequence[Figure]:
        """As for all, and how many of the files a reader of one key has to open."""
        ends = [_read_ends(pq.ParquetFile(file), self._source.sort) for file in self._files()]
        opened = mean(sum(low <= key <= high for low, high in ends) for key, _ in ends)
        return (*super().check(), Figure("files_for_a_key", "files", opened))


class ByFiles(ByRanges):
    """What the planner has cut by files stays as it is: each group of files is a task."""

    name = f"{OURS}, by files"

    def run(self) -> None:
        """Allow no row group to be read twice."""
        merge_ranges.READ_FACTOR = 0  # type: ignore[misc]
        super().run()


class OneTask(ByRanges):
    """All files are one group, and become one file."""

    name = f"{OURS}, one task"

    def _adapt(self, table: Table) -> Table:
        config = table.config.model_copy(update={"target_file_bytes": ALL_IN_ONE_BYTES})
        return replace(table, config=config)


def _read_ends(file: pq.ParquetFile, sort: Sequence[str]) -> tuple[Any, Any]:
    """Return the lowest and the highest key of a sorted file."""
    first = file.read_row_group(0, columns=list(sort)).slice(0, 1)
    last = file.read_row_group(file.metadata.num_row_groups - 1, columns=list(sort))
    low, high = (tuple(rows.to_pylist()[0][name] for name in sort) for rows in (first, last.slice(last.num_rows - 1)))
    return low, high
