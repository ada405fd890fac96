"""A table of which nearly everything is dead: what a vacuum at scale is measured, and tested, with.

``build_dead_table`` writes the log that many merges would leave behind: log files of merges that name dead data files,
long past any grace period, with the proof of landing that such log files carry (J1). One data file lives. The data
files themselves are put by the caller, if they are to exist: deleting one that does not exist is a success, too (J6).

``python -m icedb_sim.growth.dead_table build DIRECTORY`` and then ``… plan DIRECTORY`` say what a plan costs, ``…
merge DIRECTORY`` what that of a merge of its live files costs: CPU time and peak memory of a process that does nothing
else.
"""

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from icedb_log.clean.vacuum_plan import plan_vacuum
from icedb_log.clock import SystemClock
from icedb_log.keys import TablePaths
from icedb_log.log.codec import encode_log_file
from icedb_log.log.reader import LogReader
from icedb_log.merge.merge_plan import MergeIndex, plan_merge
from icedb_log.model import FileMarker, LogFile
from icedb_log.store.local_store import LocalObjectStore
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table, read_table_config
from icedb_log.table.table_config import PartitionField, TableConfig

FILES_OF_A_MERGE: Final = 1_000
"""Data files that died together."""
PARTITIONS: Final = 30
DAY_MS: Final = 24 * 60 * 60 * 1000
BLOCK: Final = 10_000
"""Markers that are encoded at once, so that building takes no more memory than the log file has bytes."""


@dataclass(frozen=True, slots=True)
class DeadTable:
    """A table that was built.

    Attributes:
        paths: Its keys.
        config: Its configuration.
        dead_count: Data files that are dead.
        died_ms: When the last of them died.
    """

    paths: TablePaths
    config: TableConfig
    dead_count: int
    died_ms: int

    def dead_paths(self) -> Iterator[str]:
        """Return the keys of the dead data files, ascending within a partition."""
        return (_path(self.paths, number) for number in range(self.dead_count))

    @property
    def live_path(self) -> str:
        """The key of the data file that lives."""
        return _path(self.paths, self.dead_count)


def build_dead_table(
    table: TableStore,
    *,
    dead_count: int,
    live_count: int = 1,
    log_files: int = 1,
    died_ms: int,
    has_stats: bool = True,
) -> DeadTable:
    """Create a table and the log files that name its dead data files.

    Args:
        table: Its store and keys.
        dead_count: Data files that are dead.
        live_count: Data files that live, named by the first log file.
        log_files: Log files of merges that name them, about as many each.
        died_ms: When the last of them died, unix ms: long enough ago, by the store's clock, that nothing holds them.
        has_stats: Whether markers carry statistics of the partition and of the sort column.
    """
    config = TableConfig.create(name=table.name, partition=(PartitionField(name="p", column="p"),), sort=("id",))
    create_table(table, config)
    per_log = -(-dead_count // log_files)
    for index in range(log_files):
        numbers = range(index * per_log, min((index + 1) * per_log, dead_count))
        first_ms = died_ms - -(-per_log // FILES_OF_A_MERGE) - log_files + index
        head = LogFile(
            time_ms=died_ms + index + 1,
            schema={"id": "BIGINT", "p": "VARCHAR"},
            commit_id=f"{index:032x}",
            markers=tuple(
                _marker(table.paths, number, died_ms, has_stats=has_stats)
                for number in range(dead_count, dead_count + (live_count if index == 0 else 0))
            ),
        )
        key = table.paths.log_key(time_ms=head.time_ms, commit_id=f"{index:032x}", is_merged=True)
        blocks = [encode_log_file(head)]
        for start in range(numbers.start, numbers.stop, BLOCK):
            markers = [
                _kill(
                    _marker(table.paths, number, first_ms, has_stats=has_stats), first_ms + number // FILES_OF_A_MERGE
                )
                for number in numbers[start - numbers.start : start - numbers.start + BLOCK]
            ]
            # Marker lines come last and follow each other: those of a log file of their own, without its head.
            block = encode_log_file(LogFile(0, markers=tuple(markers)))
            blocks.append(block.split(b"\n", 2)[2])
        table.store.put_if_absent(key, b"\n".join(blocks))
    return DeadTable(table.paths, config, dead_count, died_ms)


def _path(paths: TablePaths, number: int) -> str:
    return paths.data_key(partition=f"p=day-{number % PARTITIONS:02d}", file_id=f"{number:032x}")


def _marker(paths: TablePaths, number: int, born_ms: int, *, has_stats: bool) -> FileMarker:
    day = f"day-{number % PARTITIONS:02d}"
    marker = FileMarker(
        _path(paths, number), 10_000 + number % 7_000, born_ms - DAY_MS + number % DAY_MS, row_count=500
    )
    return replace(marker, stats={"id": (number, number + 999, 0), "p": (day, day, 0)}) if has_stats else marker


def _kill(marker: FileMarker, died_ms: int) -> FileMarker:
    return replace(marker, tombstoned_ms=died_ms, landed_ms=died_ms)


def main(arguments: list[str] | None = None) -> int:
    """Build a table in a directory, or say what a plan of a vacuum or of a merge of it costs, as one JSON line."""
    parser = argparse.ArgumentParser(prog="python -m icedb_sim.growth.dead_table", description=__doc__)
    parser.add_argument("step", choices=("build", "plan", "merge"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--dead", type=int, default=1_000_000)
    parser.add_argument("--live", type=int, default=1)
    parser.add_argument("--log-files", type=int, default=1)
    parser.add_argument("--no-stats", action="store_true")
    chosen = parser.parse_args(arguments)
    clock = SystemClock()
    store, paths = LocalObjectStore(chosen.directory), TablePaths("dead", "wh/dead")
    if chosen.step == "build":
        build_dead_table(
            TableStore(store, paths),
            dead_count=chosen.dead,
            live_count=chosen.live,
            log_files=chosen.log_files,
            died_ms=clock.now_ms() - 30 * DAY_MS,
            has_stats=not chosen.no_stats,
        )
        return 0
    config = read_table_config(TableStore(store, paths))
    began_s = time.process_time()
    is_vacuum = chosen.step == "plan"
    max_refresh_ms = config.log_grace_ms // 2
    place = TableStore(store, paths)
    view = LogReader(place, clock=clock, max_refresh_ms=max_refresh_ms, is_compact=True).read()
    read_s = time.process_time()
    if is_vacuum:
        plan = plan_vacuum(view, config=config)
        found = {"dead": len(plan.data_paths), "waiting": len(plan.waiting)}
    else:
        index = MergeIndex(paths, config)
        ready = plan_merge(index, view).ready
        found = {"live": len(index.log.live), "ready": sum(len(group.inputs) for group in ready)}
    planned_s = time.process_time()
    line = {
        **found,
        "log_files": len(view.files),
        "log_bytes": sum(file.size_bytes for file in view.files),
        "read_cpu_s": round(read_s - began_s, 2),
        "plan_cpu_s": round(planned_s - read_s, 2),
        "peak_bytes": _peak_bytes(),
    }
    sys.stdout.write(json.dumps(line) + "\n")
    return 0


def _peak_bytes() -> int:
    """Return the most memory that this process ever had; on Linux not what it took over from its parent."""
    status = Path(f"/proc/{os.getpid()}/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        return int(lines["VmHWM"].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    raise SystemExit(main())
