"""Wide: one large partition whose files all cover the same keys, merged on one machine with two cores.

What a merge is cut into decides what comes out: ranges of the sort order (files that do not overlap), groups of files
(all overlap), or it is not cut (one file, by one task). DuckDB sorts all of it in one statement, in all of the memory.
"""

from collections.abc import Iterator
from typing import Final

from icedb_log.units import MIB

from bench.harness import Case, Workload
from bench.merge_events import write_merge_input
from bench.merge_work import ROW_GROUP_ROWS
from bench.processes import ProcessWork, started
from bench.serve import Peer
from bench.wide_systems import ByFiles, ByRanges, OneTask

FILES: Final = 8
GROUPS_OF_FILE: Final = 4
TARGET_BYTES: Final = 64 * MIB
SMALL: Final = 16
"""In a small run rows, row groups and files are so many times smaller."""


class WideWorkload(Workload):
    """One case."""

    description = "merge one partition of files that all overlap into sorted files of 64 MiB, zstd level 1, two cores"

    def cases(self) -> Iterator[Case]:
        """Make the files, then start the systems."""
        scale = SMALL if self.options.size == "small" else 1
        rows_per_group = ROW_GROUP_ROWS // scale
        rows_per_file = GROUPS_OF_FILE * rows_per_group
        source = write_merge_input(
            self.folder / "input" / "wh",
            file_count=FILES,
            rows_per_file=rows_per_file,
            sort=("event", "ts"),
            is_in_time_order=False,
            target_file_bytes=TARGET_BYTES // scale,
            row_group_rows=rows_per_group,
        )
        works: list[ProcessWork | Peer] = [
            ByRanges(source, self.folder / "ranges"),
            ByFiles(source, self.folder / "files"),
            OneTask(source, self.folder / "one"),
            Peer("bench.peers.merge:DuckDBAlone", source, self.folder / "duckdb"),
        ]
        with started(*works, split=(ByRanges,)) as systems:
            name = f"{FILES} files of {rows_per_file:,} rows"
            yield Case(name, source.row_count, systems, size_bytes=source.size_bytes, warm_turn_count=1)
