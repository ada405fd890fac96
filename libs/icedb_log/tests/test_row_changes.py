"""Deletions and rewrites: M3, M4, one commit, independent counts, and nothing partial whatever fails."""

import contextlib
from dataclasses import replace
from unittest.mock import patch

import pytest
from icedb_log.changes import row_changes
from icedb_log.changes.row_changes import ChangeResult
from icedb_log.commit.table import Table
from icedb_log.errors import Fenced, InvalidRequest, InvariantViolated, NotFound
from icedb_log.keys import TablePaths
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.row_files import RowFileChanger, read_rows
from icedb_sim.tables.small_table import SmallTable, try_each_call
from icedb_sim.tables.table_steps import rival_of


class TamperingChanger(RowFileChanger):
    """A data path with a bug."""

    def __init__(self, table, *, tamper=lambda merged: merged, tamper_counts=lambda counts: counts):
        super().__init__(table.store, table.clock)
        object.__setattr__(self, "tamper", tamper)
        object.__setattr__(self, "tamper_counts", tamper_counts)

    def merge_groups(self, job):
        return self.tamper(super().merge_groups(job))

    def count_rows(self, job):
        return self.tamper_counts(super().count_rows(job))


def three_partitions():
    table = SmallTable()
    table.append(1, 2, p="a")
    table.append(3, 4, p="a")
    table.append(5, 6, p="b")
    table.append(2, p="c")
    return table


def test_a_deletion_is_one_commit_over_all_partitions(table):
    table = three_partitions()
    before = table.snapshot()
    result = table.delete("id = 2")
    assert table.ids() == [1, 3, 4, 5, 6]
    assert len(table.view().files) == 5  # four appends and one commit
    assert (result.file_count, result.output_count, result.rows_read, result.rows_removed) == (2, 1, 3, 2)
    assert (result.scanned_count, result.partitions) == (4, ("p=a", "p=c"))
    assert set(result.removed_paths) == {m.path for m in before.live} - {m.path for m in table.snapshot().live}
    assert result.committed_key in table.keys(table.paths.log_prefix)
    assert result.commit_ms == table.view().files[-1].log.time_ms


def test_a_partition_that_cannot_hold_such_rows_is_not_scanned():
    table = three_partitions()
    result = table.delete("id = 2 and p = 'c'")
    assert (result.scanned_count, result.file_count, result.output_count) == (1, 1, 0)
    assert table.ids() == [1, 2, 3, 4, 5, 6]


def test_a_file_of_which_no_row_is_left_has_no_successor():
    table = three_partitions()
    data_before = table.keys(table.paths.data_prefix)
    result = table.delete("p = 'b'")
    assert (result.output_count, result.output_bytes, result.rows_removed) == (0, 0, 2)
    assert table.keys(table.paths.data_prefix) == data_before
    assert table.ids() == [1, 2, 2, 3, 4]


def test_null_is_not_true(table):
    table.stage([{"id": 1, "p": "a", "n": 5}, {"id": 2, "p": "a", "n": None}, {"id": 3, "p": "a"}])
    table.flush()
    table.delete("n != 4")
    assert table.ids() == [2, 3]


def test_nothing_to_delete_takes_no_fence():
    table = three_partitions()
    assert table.delete("id = 99") == ChangeResult(scanned_count=4)
    assert table.paths.fence_key("merge") not in table.keys(table.paths.prefix)


def test_a_dry_run_says_the_same_and_writes_nothing():
    table = three_partitions()
    keys = table.keys()
    dry = table.delete("id < 4", dry_run=True)
    assert table.keys() == keys
    wet = table.delete("id < 4")
    zeros = {"committed_key": None, "commit_ms": 0, "output_count": 0, "output_bytes": 0}
    assert dry == replace(wet, **zeros)
    assert dry.rows_removed == 4


def test_the_condition_is_checked_before_anything():
    table = three_partitions()
    keys = table.keys()
    with pytest.raises(InvalidRequest, match="no column 'nope'"):
        table.delete("nope = 1")
    with pytest.raises(InvalidRequest, match="write column = literal"):
        table.delete("drop table t")
    assert table.keys() == keys


def test_no_such_table(table):
    table.paths = TablePaths("ghost", "wh/ghost")
    with pytest.raises(NotFound, match="'ghost' does not exist"):
        table.delete("id = 1")


def test_small_files_of_a_partition_become_one_and_large_ones_stay_apart():
    table = SmallTable(target_file_bytes=1024)
    for n in range(4):
        table.stage([{"id": n, "p": "a", "x": "y" * 400}, {"id": 100, "p": "a"}])
        table.flush()
    result = table.delete("id = 100")
    assert (result.file_count, result.output_count) == (4, 2)
    assert table.ids() == [0, 1, 2, 3]


def test_rows_flushed_before_the_fence_are_deleted_too(table):
    table.append(1, 7)
    table.store.script = [Fault("get", None, "/fence/merge", before=lambda: rival_of(table).append(7, 8))]
    result = table.delete("id = 7")
    assert table.ids() == [1, 8]
    assert (result.scanned_count, result.rows_removed) == (2, 2)


def test_a_file_that_was_counted_is_not_counted_again_under_the_fence(table):
    table.append(1, 7)
    counted = []
    changer = TamperingChanger(table, tamper_counts=lambda counts: counted.append(counts) or counts)
    table.delete("id = 7", changer=changer)
    assert counted == [(1,)]


def test_a_rival_that_deletes_first_leaves_nothing_to_commit(table):
    table.append(1, 7)
    table.store.script = [Fault("get", None, "/fence/merge", before=lambda: rival_of(table).delete("id = 7"))]
    result = table.delete("id = 7")
    assert (result.committed_key, result.rows_removed) == (None, 0)
    assert table.ids() == [1]


def test_a_log_that_begins_anew_with_fewer_columns_while_rows_are_counted_is_counted_anew(table):
    table.stage([{"id": 7, "p": "a", "gone": 1}])
    table.flush()

    def begin_anew():
        rival = rival_of(table)
        rival.store.delete(rival.keys(rival.paths.log_prefix))
        rival.append(7, 8)

    table.store.script = [Fault("get", None, "/fence/merge", before=begin_anew)]
    assert table.delete("id = 7").rows_removed == 1
    assert table.ids() == [8]


def test_m4_a_merge_that_overtakes_a_deletion_fences_it(table):
    table.append(1, 7)
    table.append(2)
    table.store.script = [Fault("put", None, "/_data/", before=lambda: rival_of(table).merge())]
    with pytest.raises(Fenced):
        table.delete("id = 7")
    assert table.ids() == [1, 2, 7]


def test_m4_a_deletion_that_overtakes_a_merge_fences_it(table):
    table.append(1, 7)
    table.append(2)
    table.store.script = [Fault("put", None, "/_data/", before=lambda: rival_of(table).delete("id = 7"))]
    with pytest.raises(Fenced):
        table.merge()
    assert table.ids() == [1, 2]
    table.merge()
    assert table.ids() == [1, 2]


def test_m3_markers_of_other_partitions_in_the_log_file_are_carried(table):
    table.stage([{"id": 1, "p": "a"}, {"id": 2, "p": "b"}, {"id": 3, "p": "c"}])
    table.flush()
    table.delete("id = 1")
    assert table.ids() == [2, 3]
    table.clock.advance(30_000)
    table.vacuum()  # the append's log file goes
    assert len(table.view().files) == 1
    assert table.ids() == [2, 3]


@pytest.mark.parametrize(
    ("counts", "rows_removed", "row_count", "message"),
    [
        (2, 1, 1, "2 rows were counted that the condition removes, and 1 were removed"),
        (1, 0, 2, "1 rows were counted that the condition removes, and 0 were removed"),
        (1, None, 1, "1 rows were counted that the condition removes, and None were removed"),
        (1, 1, 2, "1 were removed and 2 written"),
        (1, 1, 0, "1 were removed and 0 written"),
    ],
)
def test_counts_that_disagree_commit_nothing(table, counts, rows_removed, row_count, message):
    table.append(1, 7)

    def tamper(merged):
        (group,) = merged
        return (
            replace(
                group,
                rows_removed=rows_removed,
                outputs=tuple(replace(marker, row_count=row_count) for marker in group.outputs),
            ),
        )

    changer = TamperingChanger(table, tamper=tamper, tamper_counts=lambda _: (counts,))
    with pytest.raises(InvariantViolated, match=message):
        table.delete("id = 7", changer=changer)
    assert table.ids() == [1, 7]
    assert len(table.view().files) == 1


def test_a_count_for_each_file(table):
    table.append(1)
    with pytest.raises(InvariantViolated, match="in 1 data files, and 2 counts came back"):
        table.delete("id = 1", changer=TamperingChanger(table, tamper_counts=lambda counts: (*counts, 1)))


def test_jobs_are_small_and_the_commit_is_one():
    table = three_partitions()
    alive = []
    with patch.object(row_changes, "MAX_FILES_PER_COUNT", 1), patch.object(row_changes, "MAX_GROUPS_PER_JOB", 1):
        result = row_changes.delete_rows(
            Table.open(table, clock=table.clock, owner="delete", reader=table.reader()).watched_by(
                lambda: alive.append(len(table.view().files))
            ),
            RowFileChanger(table.store, table.clock),
            "id > 1",
        )
    assert (result.scanned_count, result.rows_removed, result.partitions) == (4, 6, ("p=a", "p=b", "p=c"))
    assert len(alive) >= 8
    assert set(alive) == {4}
    assert table.ids() == [1]


def test_w3_a_deletion_that_takes_too_long_says_what_to_do():
    table = three_partitions()

    def tamper(merged):
        table.clock.advance(table.config.orphan_age_ms // 2 + 1)
        return merged

    with (
        patch.object(row_changes, "MAX_GROUPS_PER_JOB", 1),
        pytest.raises(InvalidRequest, match=r"1 of 2 groups.*nothing was changed\. Change fewer partitions at a time"),
    ):
        table.delete("id = 2", changer=TamperingChanger(table, tamper=tamper))
    assert table.ids() == [1, 2, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("effect", [Effect.CRASH_BEFORE, Effect.CRASH_AFTER, Effect.LOSE_ANSWER])
def test_whatever_fails_all_rows_are_gone_or_none(effect):
    for table in try_each_call(three_partitions, lambda table: table.delete("id = 2"), effect):
        assert table.ids() in ([1, 2, 2, 3, 4, 5, 6], [1, 3, 4, 5, 6])
        with contextlib.suppress(Crash):
            table.delete("id = 2")
        assert table.ids() == [1, 3, 4, 5, 6]
        table.clock.advance(10 * table.config.orphan_age_ms)
        table.vacuum()
        table.sweep()
        assert sorted(table.keys(table.paths.data_prefix)) == [m.path for m in table.snapshot().live]


def test_a_rewrite_sees_whole_partitions_and_is_one_commit():
    table = three_partitions()
    table.append(3, 5, p="a")
    result = table.rewrite("select distinct * from _rows where id < 4", "p=a", "p=b")
    assert table.ids() == [1, 2, 2, 3]
    assert (result.file_count, result.output_count, result.rows_read, result.rows_removed) == (4, 1, 8, 5)
    assert result.partitions == ("p=a", "p=b")
    assert len(table.view().files) == 6


def test_a_rewrite_of_no_partition_takes_no_fence():
    table = three_partitions()
    assert table.rewrite("select * from _rows", "p=zz") == ChangeResult()
    assert table.paths.fence_key("merge") not in table.keys(table.paths.prefix)


def test_a_rewrite_that_makes_more_rows(table):
    table.append(1)

    def tamper(merged):
        (group,) = merged
        return (replace(group, outputs=tuple(replace(marker, row_count=3) for marker in group.outputs)),)

    assert table.rewrite("select * from _rows", changer=TamperingChanger(table, tamper=tamper)).rows_removed == -2


def test_the_dry_run_of_a_rewrite_checks_and_names_the_files():
    table = three_partitions()
    keys = table.keys()
    result = table.rewrite("select * from _rows where id = 1", "p=a", dry_run=True)
    assert (result.file_count, result.rows_read, result.partitions) == (2, 4, ("p=a",))
    with pytest.raises(InvalidRequest, match="from _rows"):
        table.rewrite("select * from source_files", "p=a", dry_run=True)
    assert table.keys() == keys


def test_a_merge_query_runs_in_every_merge():
    table = SmallTable(merge_query="select distinct * from source_files")
    for _ in range(3):
        table.append(1, 2)
    table.merge()
    (marker,) = table.snapshot().live
    assert [row["id"] for row in read_rows(table.store, marker.path)] == [1, 2]
