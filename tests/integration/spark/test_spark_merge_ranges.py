"""One partition that is merged by several Spark tasks, each a range of the sort order, in one commit."""

from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb import connect
from icedb_engine.jobs.merge_driver import MergeDriver
from icedb_engine.spark.spark_runner import SparkRunner
from icedb_log.clock import SystemClock
from icedb_log.commit.table import Table
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.merge.merge import merge_table
from icedb_log.merge.merge_plan import MergeOptions
from icedb_log.store_settings import StoreSettings
from icedb_log.units import KIB

pytestmark = pytest.mark.spark

CLOCK = SystemClock()
FILES, ROWS = 6, 12_000
FULL = MergeOptions(full=True)


class CrashingMerger:
    """Has its tasks write all outputs, and dies before it tells anybody."""

    def __init__(self, merger):
        self._merger = merger

    def merge_groups(self, job):
        self.merged = self._merger.merge_groups(job)
        raise RuntimeError("killed")


class EventTable:
    """A table of files that all cover the same keys."""

    def __init__(self, folder):
        self.folder = folder
        self.settings = StoreSettings(f"file://{folder}")
        table = connect(str(folder)).create_table(
            "events", sort=["event", "n"], target_file_bytes=128 * KIB, row_group_rows=2048
        )
        for number in range(FILES):  # of which two are a group, as the planner cuts
            numbers = [(n * 7919 + number) % 100_003 for n in range(ROWS)]
            rows = {
                "event": [f"e{n % 8}" for n in numbers],
                "n": numbers,
                "id": range(number * ROWS, (number + 1) * ROWS),
            }
            table.append(pa.table({**rows, "text": [f"{n * n % 999_983:x}" for n in numbers]}))

    def merge(self, merger):
        paths = self.settings.open().table("events")
        return merge_table(Table.open(paths, clock=CLOCK, owner="test"), merger, options=FULL)

    def live(self):
        return fold(LogReader(self.settings.open().table("events"), clock=CLOCK).read()).live

    def read(self, markers):
        return [pq.read_table(self.folder / marker.path) for marker in markers]

    def data_files(self):
        return {str(file.relative_to(self.folder)) for file in self.folder.rglob("*.parquet")}


def keys(rows):
    return list(zip(rows["event"].to_pylist(), rows["n"].to_pylist(), strict=True))


def test_a_partition_is_merged_by_several_tasks_in_one_commit(spark, tmp_path):
    table = EventTable(tmp_path / "store")
    before = table.live()
    merger = MergeDriver(SparkRunner(spark, table.settings), clock=CLOCK)
    crashing = CrashingMerger(merger)
    with pytest.raises(RuntimeError, match="killed"):
        table.merge(crashing)
    ((cut,),) = [crashing.merged]
    orphans = {marker.path for marker in cut.outputs}
    assert [marker.path for marker in table.live()] == [marker.path for marker in before]
    assert table.data_files() == {marker.path for marker in before} | orphans, "and nobody names them"

    merged = table.merge(merger)
    live = sorted(table.live(), key=lambda marker: keys(table.read([marker])[0])[0])
    assert (merged.commit_count, merged.group_count, merged.input_count) == (1, 1, FILES)
    assert merged.output_count == len(live) == len(cut.outputs) > 1
    assert not orphans & {marker.path for marker in live}
    found = table.read(live)
    assert all(keys(rows) == sorted(keys(rows)) for rows in found)
    assert all(keys(before)[-1] < keys(after)[0] for before, after in pairwise(found)), "files do not overlap"
    assert sorted(n for rows in found for n in rows["id"].to_pylist()) == list(range(FILES * ROWS))
    assert merged.decoded_row_count < 2 * FILES * ROWS
    assert table.merge(merger).is_idle, "there is nothing left to do"
