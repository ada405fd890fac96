"""The watcher sees what must not be: a part of a batch, a batch twice, a batch gone, rows that nobody sent."""

from types import SimpleNamespace

import pytest
from icedb_local.generator import EventBatch
from icedb_local.producers import Ledger
from icedb_local.table_health import PartitionFiles
from icedb_local.watcher import Watcher
from icedb_log.clock import SystemClock


class FakeLake:
    """Answers with the counts that a test puts in."""

    def __init__(self):
        self.counts = {}
        self.row_count = None

    def read_snapshot(self, table):
        row_count = sum(self.counts.values()) if self.row_count is None else self.row_count
        return SimpleNamespace(table=table, snapshot_id=str(self.counts), row_count=row_count)

    def count_rows(self, snapshot, *, by=()):
        if by:
            return {(number,): count for number, count in self.counts.items()}
        return {(): sum(self.counts.values())}


@pytest.fixture
def lake():
    return FakeLake()


def make_watcher(lake, *, numbers_batches=True, sent=(10, 20, 30)):
    ledger = Ledger()
    for number, row_count in enumerate(sent):
        ledger.record_sent(EventBatch(number, b"", row_count, {}))
    return Watcher(lake, {"t": ledger}, numbers_batches=numbers_batches, clock=SystemClock())


def look(watcher, lake, counts, row_count=None):
    lake.counts, lake.row_count = counts, row_count
    watcher._look("t")
    return watcher.problems


def test_whole_batches_that_only_grow_are_fine(lake):
    watcher = make_watcher(lake)
    for counts in ({}, {1: 20}, {1: 20}, {0: 10, 1: 20, 2: 30}):
        assert look(watcher, lake, counts) == []
    assert watcher.row_count("t") == 60
    assert watcher.look_count == 4
    assert watcher.snapshot_count == 3


@pytest.mark.parametrize(
    ("counts", "words"),
    [({0: 10, 1: 19}, "batch 1 has 19"), ({0: 20}, "batch 0 has 20 rows, 10"), ({7: 5}, "batch 7 has 5 rows, 0")],
)
def test_a_part_a_double_and_a_stranger_are_seen(lake, counts, words):
    assert words in look(make_watcher(lake), lake, counts)[0]


def test_a_batch_that_is_gone_again_is_seen(lake):
    watcher = make_watcher(lake)
    look(watcher, lake, {0: 10, 1: 20})
    assert "batches [0] were there and are gone" in look(watcher, lake, {1: 20})[0]


def test_a_snapshot_that_miscounts_is_seen(lake):
    assert "the snapshot says 11" in look(make_watcher(lake), lake, {0: 10}, row_count=11)[0]


def test_without_numbered_batches_counts_must_grow_and_stay_below_what_was_sent(lake):
    watcher = make_watcher(lake, numbers_batches=False)
    assert look(watcher, lake, {0: 30}) == []
    assert "after 30" in look(watcher, lake, {0: 29})[0]
    assert len(look(watcher, lake, {0: 61})) == 2


def test_a_partition_is_merged_when_no_two_files_fit_together():
    assert PartitionFiles("d=1", (5,), 1).is_merged(10)
    assert PartitionFiles("d=1", (5, 6, 9), 1).is_merged(10)
    assert not PartitionFiles("d=1", (4, 6, 9), 1).is_merged(10)
