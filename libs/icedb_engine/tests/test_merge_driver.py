"""Which merges are worth a job of another process."""

import pytest
from icedb_engine.jobs.merge_driver import DIRECT_BYTES, DIRECT_FILES, MergeDriver
from icedb_log.clock import SystemClock
from icedb_log.jobs import MergedGroup, MergeGroup, MergeJob
from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker
from icedb_log.table.table_config import TableConfig


class Runner:
    """Answers each unit with its group as it is."""

    def __init__(self):
        self.asked = []

    def checking(self, check_alive):
        return self

    def run(self, kind, units, *, is_users=False, is_small=False):
        self.asked.append((kind, is_small))
        return [MergedGroup(unit.group, tuple(unit.group.inputs), 0) for unit in units]


def group(count, size_bytes):
    return MergeGroup("", tuple(FileMarker(f"t/data/{n}.parquet", size_bytes, 1) for n in range(count)))


@pytest.mark.parametrize(
    ("groups", "is_small"),
    [
        ([group(2, DIRECT_BYTES // 2)], True),
        ([group(2, DIRECT_BYTES // 2 + 1)], False),
        ([group(DIRECT_FILES // 2, 1)] * 2, True),
        ([group(DIRECT_FILES // 2, 1), group(DIRECT_FILES // 2 + 1, 1)], False),
    ],
)
def test_only_a_merge_of_few_small_files_is_done_in_this_process(groups, is_small):
    runner = Runner()
    config = TableConfig.create(name="t")
    paths = TablePaths("t", "t")
    job = MergeJob(paths=paths, config=config, schema={}, commit_id="c", time_ms=1, groups=tuple(groups))
    MergeDriver(runner, clock=SystemClock()).merge_groups(job)
    assert runner.asked == [("merge", is_small)]
