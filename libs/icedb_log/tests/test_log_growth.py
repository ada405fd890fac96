"""The log stays short, and what is written to it grows slowly: the model of docs/internals/log-growth.md, a small one of it."""

from dataclasses import replace

import pytest
from icedb_log.commit.invariants import MAX_LOG_FILES
from icedb_log.table.table_config import TableConfig
from icedb_log.units import MINUTE_MS, SECOND_MS
from icedb_sim.growth.log_growth import MARKER_BYTES, GrowingTable, Growth, Scenario

CONFIG = TableConfig.create(name="t", data_grace_ms=20 * MINUTE_MS)


def grow(commits, *, config=CONFIG, at=(), **fields):
    """Return what had happened at some numbers of commits, and at the end."""
    seen = []
    scenario = Scenario(files_per_commit=4, partitions=200, vacuum_every_ms=2 * MINUTE_MS, **fields)
    table = GrowingTable(scenario, config)
    table.run(commits, at=(*at, commits), report=lambda growth: seen.append(replace(growth)))
    return seen


@pytest.mark.parametrize(("shape", "commits"), [("days", 480), ("users", 800)])
def test_bytes_written_for_each_commit_grow_slower_than_the_number_of_files(shape, commits):
    early, late = grow(commits, shape=shape, interval_ms=10 * SECOND_MS, at=(commits // 2,))
    assert late.data_files == 2 * early.data_files
    assert late.log_bytes_per_commit <= 1.7 * early.log_bytes_per_commit
    # Everything together, appends, merges and strips, is a small multiple of what appends have to write.
    assert late.log_bytes_per_commit <= 20 * 4 * MARKER_BYTES
    assert late.max_log_files <= 120
    assert late.live_files <= 200 * 8 * 2
    assert 0 < late.rewrite_factor <= 5


def test_the_log_stays_below_what_readers_can_list_however_fast_appends_come():
    (grown,) = grow(1100, interval_ms=100)
    assert grown.max_log_files < MAX_LOG_FILES
    assert grown.merges <= grown.commits / 8


def test_the_same_seed_gives_the_same_history():
    first, second = grow(100), grow(100)
    assert first == second
    assert isinstance(first[0], Growth)
