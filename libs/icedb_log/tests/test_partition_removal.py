"""Removal of partitions: in the log alone, one commit, everything else carried, and for good (M3, M4)."""

import pytest
from icedb_log.changes.partition_removal import PartitionInfo, RemovalResult, list_partitions, remove_partitions
from icedb_log.commit.exchange import ExchangeCommit
from icedb_log.commit.table import Table
from icedb_log.errors import Fenced, InvalidRequest, InvariantViolated, NotFound
from icedb_log.jobs import MergedGroup, MergeGroup
from icedb_log.keys import TablePaths
from icedb_log.log.fold import fold
from icedb_sim.fakes.scripted_store import Effect, Fault
from icedb_sim.tables.log_views import PATHS, dead, listed, live, view
from icedb_sim.tables.small_table import SmallTable, try_each_call
from icedb_sim.tables.table_steps import rival_of


def list_all(log, **config):
    config = SmallTable().config.model_copy(update=config)
    return list_partitions(fold(log).live, paths=PATHS, config=config)


def filled():
    table = SmallTable()
    for number in range(2):
        table.stage([{"id": 10 * number + n, "p": p} for n, p in enumerate("abc")])
        table.flush()
    table.append(30, p="a")
    return table


def test_partitions_are_listed_with_their_figures():
    log = view(
        listed(5, live("a1", size=10, rows=2, created_ms=7), live("a2", size=5, rows=3, created_ms=9)),
        listed(6, live("b1", rows=None, partition="p=b"), dead("a3", at=6), live("c1", partition="p=c")),
        listed(7, dead("c1", at=7, partition="p=c")),
    )
    assert list_all(log) == (
        PartitionInfo("p=a", file_count=2, row_count=5, size_bytes=15, newest_ms=9, oldest_ms=7, small_count=2),
        PartitionInfo("p=b", file_count=1, row_count=None, size_bytes=10, newest_ms=1, oldest_ms=1, small_count=1),
    )
    assert [each.small_count for each in list_all(log, target_file_bytes=10)] == [1, 0]
    assert list_all(view()) == ()


def test_a_table_without_partitions_has_one():
    table = SmallTable(partition=())
    table.append(1)
    (only,) = list_partitions(table.snapshot().live, paths=table.paths, config=table.config)
    assert (only.path, only.file_count, only.row_count, only.small_count) == ("", 1, 1, 1)


def test_a_removal_is_one_commit_and_touches_no_data_file():
    table = filled()
    data = table.keys(table.paths.data_prefix)
    table.store.calls.clear()
    result = table.drop("p=a", "p=b")
    assert not [call for call in table.store.calls if "/_data/" in call.key]
    assert table.ids() == [2, 12]
    assert (len(result.partitions), result.row_count, len(result.removed_paths)) == (2, 5, 5)
    assert result.size_bytes == sum(info.size_bytes for info in result.partitions) > 0
    assert table.keys(table.paths.data_prefix) == data
    (*appends, removal) = table.view().files
    assert (len(appends), removal.key, removal.log.time_ms) == (3, result.committed_key, result.commit_ms)


def test_m3_what_else_stands_in_the_log_files_is_carried():
    table = filled()
    table.drop("p=a")
    table.clock.advance(30_000)
    table.vacuum()
    assert len(table.view().files) == 1
    assert table.ids() == [1, 2, 11, 12]


def test_m4_removed_rows_never_come_back():
    table = filled()
    table.drop("p=a")
    for _ in range(4):
        table.merge(full=True)
        table.append(99, p="c")
        table.clock.advance(30_000)
        table.vacuum()
        table.sweep()
    table.clock.advance(300_000)
    table.vacuum()
    assert table.ids() == [1, 2, 11, 12, 99, 99, 99, 99]
    assert not [key for key in table.keys(table.paths.data_prefix) if "/p=a/" in key]


def test_m4_a_removal_during_a_merge_fences_it():
    table = filled()
    table.store.script = [Fault("put", None, "/_data/", before=lambda: rival_of(table).drop("p=a"))]
    with pytest.raises(Fenced):
        table.merge()
    table.merge()
    assert table.ids() == [1, 2, 11, 12]


def test_f2_a_merge_before_the_fence_is_seen():
    table = filled()
    table.store.script = [Fault("get", None, "/fence/merge", before=lambda: rival_of(table).merge())]
    table.drop("p=a")
    assert table.ids() == [1, 2, 11, 12]


def test_new_rows_in_a_removed_partition_are_new():
    table = filled()
    table.drop("p=a")
    table.append(77, p="a")
    table.merge()
    assert table.ids() == [1, 2, 11, 12, 77]


def test_r3_a_time_before_the_removal_can_still_be_read():
    table = filled()
    before_ms = table.view().files[-1].log.time_ms
    result = table.drop("p=a")
    assert table.ids(as_of_ms=before_ms) == [0, 1, 2, 10, 11, 12, 30]
    assert table.ids(as_of_ms=result.commit_ms) == [1, 2, 11, 12]


def test_a_dry_run_says_the_same_and_writes_nothing():
    table = filled()
    keys = table.keys()
    dry = table.drop("p=[ab]", dry_run=True)
    assert table.keys() == keys
    wet = table.drop("p=[ab]")
    assert (dry.partitions, dry.removed_paths) == (wet.partitions, wet.removed_paths)
    assert (dry.committed_key, dry.commit_ms) == (None, 0)


def test_a_wrong_choice_takes_no_fence():
    table = filled()
    with pytest.raises(InvalidRequest, match="no partition fits 'p=z'"):
        table.drop("p=z")
    with pytest.raises(InvalidRequest, match="--force"):
        table.drop("p=*", may_match_all=False)
    assert table.paths.fence_key("merge") not in table.keys(table.paths.prefix)
    table.paths = TablePaths("ghost", "wh/ghost")
    with pytest.raises(NotFound):
        table.drop("p=a")


def test_nothing_chosen_takes_no_fence():
    table = filled()
    result = remove_partitions(
        Table.open(table, clock=table.clock, owner="drop"),
        lambda _, infos: [info.path for info in infos if info.row_count == 99],
    )
    assert result == RemovalResult()
    assert (result.row_count, result.size_bytes) == (0, 0)
    assert table.paths.fence_key("merge") not in table.keys(table.paths.prefix)


def test_what_a_rival_removed_first_is_not_removed_again():
    table = filled()
    table.store.script = [Fault("get", None, "/fence/merge", before=lambda: rival_of(table).drop("p=a"))]
    result = remove_partitions(
        Table.open(table, clock=table.clock, owner="drop", reader=table.reader()),
        lambda _, infos: ["p=a"] if any(info.path == "p=a" for info in infos) else [],
    )
    assert result == RemovalResult()


@pytest.mark.parametrize("effect", [Effect.CRASH_BEFORE, Effect.CRASH_AFTER, Effect.LOSE_ANSWER, Effect.DROP])
def test_whatever_fails_all_is_removed_or_nothing(effect):
    for table in try_each_call(filled, lambda table: table.drop("p=a", "p=b"), effect):
        assert table.ids() in ([0, 1, 2, 10, 11, 12, 30], [2, 12])


def test_m3_a_plain_merge_may_not_remove():
    table = filled()
    opened = Table.open(table, clock=table.clock, owner="merge", reader=table.reader())
    with ExchangeCommit(opened) as commit:
        (first, *_) = commit.snapshot.live
        partition = table.paths.partition_of(first.path)
        for removed in (None, first.row_count):
            group = MergedGroup(MergeGroup(partition, (first,)), (), rows_read=first.row_count, rows_removed=removed)
            with pytest.raises(InvariantViolated, match="nobody asked for that"):
                commit.land([group])
    assert table.ids() == [0, 1, 2, 10, 11, 12, 30]
