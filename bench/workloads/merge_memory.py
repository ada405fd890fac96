"""Merge memory: what one merge task takes of memory for a group of gigabytes, with a task's default limit.

All files cover the same times, so that nothing can be written before everything was seen: the task has to spill. One
turn, no rivals, no Spark: the unit that a task runs, in a process of its own. Say ``--size-gb 4``.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from icedb_engine.limits import EngineLimits
from icedb_engine.units.merge_unit import merge_unit
from icedb_engine.work import MergeUnit
from icedb_log.clock import SystemClock
from icedb_log.jobs import MergeGroup
from icedb_log.model import FileMarker
from icedb_log.store.table_store import TableStore
from icedb_log.store_settings import StoreSettings
from icedb_log.table.table_config import TableConfig
from icedb_log.units import MIB

from bench.figures import OURS, Figure, TakesTurns
from bench.harness import ONE_TURN_S, Case, Options, Workload
from bench.merge_events import SCHEMA, TABLE, make_rows, put_file
from bench.processes import started

GB: Final = 1_000_000_000
SORT: Final = ("event", "ts")
DISTINCT_FILES: Final = 4
ROWS_PER_FILE: Final = 1_228_800
PAYLOAD_BYTES: Final = 64
"""Text that compresses by half, so that gigabytes take millions of rows and not hundreds of millions."""


class MergeMemoryWorkload(Workload):
    """One case."""

    description = "peak memory of one merge task whose files all overlap and do not fit into its memory"

    def __init__(self, folder: Path, options: Options) -> None:
        super().__init__(folder / "memory", options)

    def cases(self) -> Iterator[Case]:
        """Make the files, then start the process."""
        config = TableConfig.create(name=TABLE, sort=SORT)
        markers = _make_files(self.folder / "wh", config, int(self.options.size_gb * GB))
        row_count = sum(marker.row_count or 0 for marker in markers)
        size_bytes = sum(marker.size_bytes for marker in markers)
        with started(Unit(self.folder, config, markers)) as systems:
            name = f"{size_bytes / GB:.2f} GB in {len(markers)} files, limit {EngineLimits().memory_bytes // MIB} MiB"
            yield Case(name, row_count, systems, warm_turn_count=0, size_bytes=size_bytes, patience_s=ONE_TURN_S)
        shutil.rmtree(self.folder)


def _make_files(root: Path, config: TableConfig, size_bytes: int) -> tuple[FileMarker, ...]:
    """Make a few distinct files, and link them under as many keys as it takes."""
    root.mkdir(parents=True)
    warehouse = StoreSettings(f"file://{root}").open()
    paths = warehouse.table(TABLE).paths
    distinct: list[FileMarker] = []
    for number in range(DISTINCT_FILES):
        digits = np.random.default_rng((11, number)).bytes(ROWS_PER_FILE * PAYLOAD_BYTES // 2).hex()
        payload = [digits[first : first + PAYLOAD_BYTES] for first in range(0, len(digits), PAYLOAD_BYTES)]
        rows = make_rows(number, ROWS_PER_FILE).append_column("payload", pa.array(payload))
        rows = rows.sort_by([(column, "ascending") for column in SORT])
        distinct.append(put_file(TableStore(warehouse.store, paths), config, rows, scratch=root.parent))
    markers: list[FileMarker] = []
    while sum(marker.size_bytes for marker in markers) < size_bytes:
        original = distinct[len(markers) % DISTINCT_FILES]
        key = paths.data_key(partition="", file_id=f"{len(markers):06}")
        os.link(root / original.path, root / key)
        markers.append(replace(original, path=key))
    return tuple(markers)


class Unit(TakesTurns):
    """The unit of work of one group."""

    name = OURS

    def __init__(self, folder: Path, config: TableConfig, markers: tuple[FileMarker, ...]) -> None:
        self._folder = folder
        self._config = config
        self._files = [(marker.path, marker.size_bytes, marker.row_count or 0) for marker in markers]
        self._outputs: tuple[FileMarker, ...] = ()

    def run(self) -> None:
        """Merge with the default limits of a task."""
        warehouse = StoreSettings(f"file://{self._folder / 'wh'}").open()
        # Without statistics: nothing is known of the order of the files.
        markers = tuple(FileMarker(path, size_bytes, 0, row_count=rows) for path, size_bytes, rows in self._files)
        unit = MergeUnit(
            paths=warehouse.table(TABLE).paths,
            config=self._config,
            schema={**SCHEMA, "payload": "VARCHAR"},
            group=MergeGroup("", markers),
            commit_id="bench",
            time_ms=0,
            engine=EngineLimits(scratch_folder=str(self._folder / "scratch")),
        )
        self._outputs = merge_unit(unit, warehouse.store, clock=SystemClock()).outputs

    def check(self) -> Sequence[Figure]:
        """Count rows, and look at the order of each file and between them."""
        files = [self._folder / "wh" / marker.path for marker in self._outputs]
        end: Any = None
        row_count = 0
        for file in files:
            for group in _row_groups(file):
                row_count += group.num_rows
                keys = group if end is None else pa.concat_tables([end, group])
                if not keys.equals(keys.sort_by([(column, "ascending") for column in SORT])):
                    raise AssertionError(f"{file} is not sorted")
                end = group.slice(group.num_rows - 1)
        if row_count != sum(rows for _, _, rows in self._files):
            raise AssertionError(f"{row_count} rows came out")
        return (Figure("output_files", "files", len(files)),)


def _row_groups(path: Path) -> Iterator[pa.Table]:
    with pq.ParquetFile(path) as file:
        for number in range(file.metadata.num_row_groups):
            yield file.read_row_group(number, columns=list(SORT))
