"""Status: the figures that operators watch."""

import pytest
from icedb_log.errors import NotFound
from icedb_log.ingest import pressure
from icedb_log.ingest.pressure import Bounds
from icedb_log.keys import TablePaths
from icedb_sim.tables.small_table import SmallTable


@pytest.fixture
def table():
    return SmallTable(merge_fan_in=3)


def test_an_empty_table(table):
    status = table.status()
    assert (status.live_files, status.live_rows, status.live_bytes, status.log_files) == (0, 0, 0, 0)
    assert (status.merge_lag_ms, status.merge_lag_files, status.merge_lag_bytes) == (0, 0, 0)
    assert (status.last_commit_ms, status.horizon_ms, status.partition_count) == (0, 0, 0)


def test_what_is_live(table):
    table.append(1, 2)
    table.append(3, p="b")
    status = table.status()
    snapshot = table.snapshot()
    assert (status.live_files, status.live_rows, status.partition_count) == (2, 3, 2)
    assert (status.live_bytes, status.snapshot_id) == (snapshot.size_bytes, snapshot.snapshot_id)
    assert status.log_files == 2
    assert status.last_commit_ms == table.view().files[-1].log.time_ms
    assert status.store_now_ms == table.clock.now_ms()
    assert status.config == table.config


def test_merge_lag_is_the_age_of_the_oldest_file_that_would_be_merged_now(table):
    table.append(1)
    first_ms = table.snapshot().live[0].created_ms
    table.clock.advance(5_000)
    table.append(2)
    table.clock.advance(5_000)
    status = table.status()
    assert (status.merge_lag_ms, status.merge_lag_files) == (0, 0)  # two files are below the fan-in
    table.append(3)
    status = table.status()
    assert status.merge_lag_ms == table.clock.now_ms() - first_ms
    assert (status.merge_lag_files, status.merge_lag_bytes) == (3, table.snapshot().size_bytes)
    table.merge()
    status = table.status()
    assert (status.merge_lag_ms, status.merge_lag_files, status.merge_lag_bytes) == (0, 0, 0)


def test_merge_lag_counts_all_partitions_whatever_one_run_would_take(table):
    for p in "abcdefgh":
        for number in range(3):
            table.append(number, p=p)
    assert table.status().merge_lag_files == 24


def test_merge_lag_of_a_clock_that_is_ahead_is_never_negative(table):
    table.clock.set_wall(table.clock.now_ms() + 10**9)
    for number in range(3):
        table.append(number)
    now_ms = table.clock.now_ms() - 10**9
    table.store.inner._latest_ms = 0
    table.clock.set_wall(now_ms)
    assert table.status().merge_lag_ms == 0


def test_what_is_dead_and_what_waits(table):
    for number in range(3):
        table.append(number)
    table.merge()
    table.stage([{"id": 4, "p": "a"}])
    status = table.status()
    assert (status.tombstoned_files, status.tombstoned_logs, status.log_files) == (3, 3, 4)
    assert (status.staged_batches, status.quarantined_batches) == (1, 0)
    table.stage_bytes(b"{")
    table.flush()
    status = table.status()
    assert (status.staged_batches, status.quarantined_batches) == (0, 1)
    table.clock.advance(table.config.data_grace_ms)
    table.vacuum()
    status = table.status()
    assert (status.tombstoned_files, status.tombstoned_logs) == (0, 0)
    assert status.horizon_ms > 0


def test_bad_rows_are_told_from_whole_batches():
    table = SmallTable(on_bad_rows="quarantine_rows")
    table.stage_bytes(b'{"id": 1, "p": "a"}\nnonsense')
    table.stage_bytes(b'{"id": 2, "p": "a"}')
    table.flush()
    assert table.ids() == [1, 2]
    assert (table.status().quarantined_batches, table.status().bad_row_batches) == (1, 1)
    stale = "00000000-0000-7000-8000-000000000000"
    table.stage_bytes(b'{"id": 3, "p": "a"}', batch_id=stale)
    table.flush()
    assert (table.status().quarantined_batches, table.status().bad_row_batches) == (2, 1)


def test_what_is_staged_has_a_size_and_an_age(table):
    assert (table.status().staged_bytes, table.status().staged_lag_ms) == (0, 0)
    table.stage_bytes(b"12345")
    table.clock.advance(5_000)
    table.stage_bytes(b"678")
    status = table.status()
    assert (status.staged_batches, status.staged_bytes) == (2, 8)
    assert status.staged_lag_ms == 5_002


def test_pressure_follows_from_the_same_figures(monkeypatch):
    monkeypatch.setattr(pressure, "LOG_FILES", Bounds(3, 9))
    monkeypatch.setattr(pressure, "BACKLOG_FILES", Bounds(3, 4))
    table = SmallTable(merge_fan_in=3)
    for number in range(2):
        table.append(number)
    assert table.status().pressure.level == "none"
    table.append(2)
    assert table.status().pressure.reason == (
        "3 log files: flushes come less often from 3 on; 3 data files to merge: flushes come less often from 3 on"
    )
    table.append(3)
    stop = table.status().pressure
    assert (stop.level, stop.retry_after_ms) == ("stop", 10_000)
    table.merge()
    assert table.status().pressure.reason == "5 log files: flushes come less often from 3 on"


def test_a_table_that_does_not_exist_is_not_found(table):
    table.paths = TablePaths("ghost", "wh/ghost")
    with pytest.raises(NotFound, match="'ghost' does not exist"):
        table.status()
