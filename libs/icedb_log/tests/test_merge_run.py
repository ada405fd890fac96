"""Long runs: a run commits as it goes (F2). What has landed stays; what has not is orphans, which the sweep removes."""

import contextlib
from dataclasses import replace

import pytest
from icedb_log.commit.table import Table
from icedb_log.errors import Fenced, Unavailable
from icedb_log.jobs import never_stop
from icedb_log.log.codec import decode_log_file, encode_log_file
from icedb_log.merge.merge import MergeResult, MergeWatch, merge_table
from icedb_log.merge.merge_plan import MergeIndex, MergeLimits, MergeOptions
from icedb_log.store.object_store import list_all
from icedb_sim.fakes.scripted_store import Crash, Effect
from icedb_sim.tables.row_files import RowFileMerger
from icedb_sim.tables.small_table import SmallTable, try_each_call
from icedb_sim.tables.table_steps import rival_of

EACH_GROUP = MergeLimits(commit_bytes=1)
ALL_IDS = sorted([1, 2] * 3)


class LockGone(Unavailable):
    """The lock is lost."""


def make_table():
    """Three partitions with two files each: a run of three commits."""
    table = SmallTable()
    for p in "abc":
        table.append(1, p=p)
        table.append(2, p=p)
    return table


@pytest.fixture
def table():
    return make_table()


def run(table, *, merger=None, check_alive=never_stop, index=None, **watch):
    opened = Table.open(table, clock=table.clock, owner="merge", reader=table.reader())
    return merge_table(
        opened.watched_by(check_alive),
        merger or RowFileMerger(table.store, table.clock),
        options=MergeOptions(limits=EACH_GROUP),
        watch=MergeWatch(**watch),
        index=index,
    )


def merged_partitions(table):
    found = {}
    for marker in table.snapshot().live:
        found.setdefault(table.paths.partition_of(marker.path), []).append(marker)
    return sorted(partition for partition, markers in found.items() if len(markers) == 1)


def unnamed(table):
    named = {marker.path for file in table.view().files for marker in file.log.markers}
    return [info.key for info in list_all(table.store, table.paths.data_prefix).objects if info.key not in named]


def assert_orphans_go(table, count):
    """Orphans are swept when they are old enough, live files are not, and the next run does the rest."""
    assert len(unnamed(table)) == count
    table.clock.advance(table.config.orphan_age_ms + 1)
    assert len(table.sweep().deleted) == count
    assert unnamed(table) == []
    assert table.ids() == ALL_IDS
    run(table)
    assert merged_partitions(table) == ["p=a", "p=b", "p=c"]
    assert table.ids() == ALL_IDS


def test_a_run_makes_a_commit_for_each_part_of_its_plan(table):
    landed = []
    result = run(table, on_commit=landed.append)
    assert [made.has_more for made in landed] == [True, True, False]
    assert (result.commit_count, result.group_count, result.input_count, result.has_more) == (3, 3, 6, False)
    assert [made.committed_key for made in landed] == sorted(table.keys(table.paths.log_prefix))[-3:]
    total = MergeResult()
    for made in landed:
        total = total.plus(made)
    assert total == result
    assert table.ids() == ALL_IDS


def test_without_a_reason_to_stop_early_small_work_is_one_commit(table):
    assert table.merge().commit_count == 1


def test_a_run_whose_time_is_over_ends_between_commits(table):
    result = run(table, has_time=lambda: False)
    assert (result.commit_count, result.has_more) == (1, True)
    assert merged_partitions(table) == ["p=c"]
    assert unnamed(table) == []


def test_a_lock_lost_while_rows_are_written_stops_the_run_before_the_commit(table):
    alive = [True]

    def check_alive():
        if not alive[0]:
            raise LockGone("the lock is lost")

    class Losing(RowFileMerger):
        def merge_groups(self, job):
            merged = super().merge_groups(job)
            alive[0] = job.groups[0].partition != "p=b"
            return merged

    with pytest.raises(LockGone):
        run(table, merger=Losing(table.store, table.clock), check_alive=check_alive)
    assert merged_partitions(table) == ["p=c"]
    assert_orphans_go(table, 1)


def test_a_lock_lost_between_commits_starts_nothing(table):
    def check_alive():
        if len(merged_partitions(table)) == 2:
            raise LockGone("the lock is lost")

    with pytest.raises(LockGone):
        run(table, check_alive=check_alive)
    assert merged_partitions(table) == ["p=b", "p=c"]
    assert_orphans_go(table, 0)


def test_a_fence_taken_while_rows_are_written_stops_the_run(table):
    class Robbed(RowFileMerger):
        def merge_groups(self, job):
            merged = super().merge_groups(job)
            if job.groups[0].partition == "p=b":
                rival_of(table).merge(limits=MergeLimits(max_groups=1))
            return merged

    with pytest.raises(Fenced):
        run(table, merger=Robbed(table.store, table.clock))
    assert merged_partitions(table) == ["p=b", "p=c"]  # the rival's
    assert_orphans_go(table, 1)


def test_what_another_run_has_merged_meanwhile_is_not_merged_again(table):
    written = []

    class Counting(RowFileMerger):
        def merge_groups(self, job):
            written.extend(group.partition for group in job.groups)
            return super().merge_groups(job)

    def overtake(_):
        if len(written) == 1:
            rival_of(table).merge()

    result = run(table, merger=Counting(table.store, table.clock), on_commit=overtake)
    assert (result.commit_count, result.has_more, written) == (1, True, ["p=c"])
    assert merged_partitions(table) == ["p=a", "p=b", "p=c"]
    assert table.ids() == ALL_IDS


@pytest.mark.parametrize("effect", [Effect.CRASH_BEFORE, Effect.CRASH_AFTER])
def test_a_crash_anywhere_keeps_the_commits_that_have_landed(effect):
    for table in try_each_call(make_table, run, effect):
        assert table.ids() == ALL_IDS
        done = len(merged_partitions(table))
        with contextlib.suppress(Crash):
            run(table)
        assert len(merged_partitions(table)) >= done
        table.clock.advance(table.config.orphan_age_ms + 1)
        table.sweep()
        assert unnamed(table) == []
        assert merged_partitions(table) == ["p=a", "p=b", "p=c"]
        assert table.ids() == ALL_IDS


def test_an_index_of_an_earlier_run_is_brought_up_to_date(table):
    index = MergeIndex(table.paths, table.config)
    assert run(table, index=index).group_count == 3
    table.append(1, p="d")
    assert run(table, index=index).group_count == 0
    table.append(2, p="d")
    assert run(table, index=index).group_count == 1
    assert table.ids() == sorted([*ALL_IDS, 1, 2])


def test_an_index_of_another_configuration_is_not_used(table):
    other = MergeIndex(table.paths, table.config.model_copy(update={"merge_fan_in": 100}))
    assert run(table, index=other).commit_count == 3


def test_a_marker_that_a_rebuild_mended_stays_mended_by_who_knew_the_old_one():
    table = SmallTable(has_footers=True)
    table.append(1)
    (key,) = table.keys(table.paths.log_prefix)
    log = decode_log_file(key, table.store.get(key).body)
    (right,) = log.markers
    table.store.put(key, encode_log_file(replace(log, markers=(replace(right, size_bytes=7, row_count=77),))))
    index = MergeIndex(table.paths, table.opened().config)
    index.update(table.view())
    table.clock.advance(1000)
    table.rebuild(is_forced=True)
    for number in range(4):
        table.append(100 + number, p="b")
    merger = RowFileMerger(table.store, table.clock, True)
    merge_table(table.opened("merge"), merger, options=MergeOptions(full=True), index=index)
    for _ in range(4):
        table.clock.advance(table.config.data_grace_ms)
        table.vacuum()
    (found,) = (marker for marker in table.snapshot().live if marker.path == right.path)
    assert (found.size_bytes, found.row_count) == (right.size_bytes, 1)
