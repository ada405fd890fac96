"""A merge run: M1, M3, M4, F2, W1 to W3, parity, and the same rows whatever fails."""

import contextlib
from dataclasses import replace

import pytest
from icedb_log.commit.fence import acquire_fence
from icedb_log.commit.table import Table
from icedb_log.errors import (
    CommitConflict,
    CorruptLog,
    Fenced,
    InvariantViolated,
    NotFound,
    Unavailable,
)
from icedb_log.keys import TablePaths
from icedb_log.merge.merge import MergeResult, merge_table
from icedb_log.merge.merge_plan import MergeLimits
from icedb_sim.fakes.scripted_store import Effect, Fault
from icedb_sim.tables.row_files import RowFileMerger, read_rows
from icedb_sim.tables.small_table import SmallTable, try_each_call
from icedb_sim.tables.table_steps import rival_of


class TamperingMerger(RowFileMerger):
    """A data path with a bug."""

    def __init__(self, table, tamper):
        super().__init__(table.store, table.clock)
        object.__setattr__(self, "tamper", tamper)

    def merge_groups(self, job):
        return self.tamper(super().merge_groups(job))


def test_nothing_to_merge_takes_no_fence(table):
    table.append(1)
    assert table.merge() == MergeResult()
    assert table.paths.fence_key("merge") not in table.keys(table.paths.prefix)


def test_a_table_that_does_not_exist_is_not_found(table):
    table.paths = TablePaths("ghost", "wh/ghost")
    with pytest.raises(NotFound, match="'ghost' does not exist"):
        table.merge()


def test_m2_many_partitions_are_merged_in_one_commit(table):
    for number in range(3):
        table.stage([{"id": 10 * number, "p": "a"}, {"id": 10 * number + 1, "p": "b"}])
        table.flush()
    result = table.merge()
    assert (result.group_count, result.input_count, result.output_count, result.row_count) == (2, 6, 2, 6)
    assert result.folded_log_count == 3
    assert len(table.view().files) == 4
    assert table.ids() == [0, 1, 10, 11, 20, 21]
    assert len(table.snapshot().live) == 2


def test_the_result_accounts_for_the_bytes(table):
    table.append(1)
    table.append(2)
    before = table.snapshot()
    result = table.merge()
    assert (result.input_bytes, result.output_bytes) == (before.size_bytes, table.snapshot().size_bytes)


def test_the_output_is_sorted_and_columns_are_the_union(table):
    table.stage([{"id": 5, "p": "a"}, {"id": 1, "p": "a"}])
    table.flush()
    table.stage([{"id": 3, "p": "a", "new": True}])
    table.flush()
    table.merge()
    (marker,) = table.snapshot().live
    assert [row["id"] for row in read_rows(table.store, marker.path)] == [1, 3, 5]
    assert dict(table.snapshot().schema) == {"id": "BIGINT", "p": "VARCHAR", "new": "BOOLEAN"}


def test_a_second_merge_finds_nothing_left(table):
    table.append(1)
    table.append(2)
    table.merge()
    assert table.merge() == MergeResult()


def test_limits_leave_the_rest_for_another_run(table):
    for p in "abc":
        table.append(1, p=p)
        table.append(2, p=p)
    result = table.merge(limits=MergeLimits(max_groups=2))
    assert (result.group_count, result.has_more) == (2, True)
    result = table.merge(limits=MergeLimits(max_groups=2))
    assert (result.group_count, result.has_more) == (1, False)
    assert table.ids() == [1, 1, 1, 2, 2, 2]


def test_f2_only_what_is_read_after_the_fence_counts(table):
    table.append(1)
    table.append(2)
    table.store.script = [Fault("get", None, "/fence/merge", before=lambda: rival_of(table).merge())]
    assert table.merge() == MergeResult()
    assert table.ids() == [1, 2]
    assert len(table.snapshot().live) == 1


def test_m4_a_commit_by_another_owner_during_the_merge_fences_it(table):
    table.append(1)
    table.append(2)
    table.store.script = [Fault("put", None, "/_data/", before=lambda: rival_of(table).merge())]
    with pytest.raises(Fenced):
        table.merge()
    assert table.ids() == [1, 2]


def test_an_append_during_a_merge_is_kept(table):
    table.append(1)
    table.append(2)
    table.store.script = [Fault("put", None, "/_data/", before=lambda: rival_of(table).append(3))]
    table.merge()
    assert table.ids() == [1, 2, 3]


def test_s1_an_append_with_a_later_clock_does_not_bring_inputs_back(table):
    table.append(1)
    table.clock.advance(3_600_000)
    table.append(2)
    table.clock.set_wall(table.clock.now_ms() - 3_600_000)
    key = table.merge().committed_key
    assert key == max(table.keys(table.paths.log_prefix))
    assert table.ids() == [1, 2]


def test_w1_data_files_are_there_before_the_log_names_them(table):
    table.append(1)
    table.append(2)
    table.store.calls.clear()
    table.merge()
    written = [call.key for call in table.store.calls if call.method.startswith("put")]
    where = {part: next(i for i, key in enumerate(written) if part in key) for part in ("/_data/", "/_log/")}
    assert where["/_data/"] < where["/_log/"]


def test_w2_outputs_are_never_deleted_by_the_merge(table):
    table.append(1)
    table.append(2)
    for effect in (Effect.LOSE_ANSWER, Effect.DROP):
        table.store.script = [Fault("put_if_absent", effect, "/_log/")]
        table.store.calls.clear()
        with contextlib.suppress(CommitConflict):
            table.merge()
        assert table.store.keys_of("delete") == []


def test_w3_a_merge_that_takes_longer_than_half_the_orphan_age_is_not_committed(table):
    table.append(1)
    table.append(2)
    limit_ms = table.config.orphan_age_ms // 2
    table.store.script = [Fault("put", None, "/_data/", before=lambda: table.clock.advance(limit_ms + 1))]
    with pytest.raises(Unavailable, match="more than half the orphan age"):
        table.merge()
    assert len(table.view().files) == 2


def test_a_lost_lock_stops_the_merge_before_its_commit(table):
    table.append(1)
    table.append(2)

    def lost():
        raise Unavailable("the lock is lost")

    with pytest.raises(Unavailable, match="lock is lost"):
        merge_table(
            Table.open(table, clock=table.clock, owner="me").watched_by(lost),
            RowFileMerger(table.store, table.clock),
        )
    assert len(table.view().files) == 2


def test_an_input_that_is_gone_halts_and_commits_nothing(table):
    table.append(1)
    table.append(2)
    gone = table.snapshot().live[0].path
    table.store.delete([gone])
    with pytest.raises(CorruptLog, match=gone):
        table.merge()
    assert len(table.view().files) == 2


def test_an_input_that_is_gone_since_another_run_took_over_is_only_late(table):
    table.append(1)
    table.append(2)

    def overtake():
        acquire_fence(table.known("other", store=table.store.inner), "merge")
        table.store.inner.delete(live)

    live = [marker.path for marker in table.snapshot().live]
    table.store.script = [Fault("get", None, "/_data/", before=overtake)]
    with pytest.raises(Fenced):
        table.merge()


@pytest.mark.parametrize(
    "tamper",
    [
        lambda merged: (),
        lambda merged: merged * 2,
        lambda merged: merged[:1],
        lambda merged: (replace(merged[0], rows_read=1), *merged[1:]),
        lambda merged: (replace(merged[0], outputs=()), *merged[1:]),
        lambda merged: (replace(merged[0], outputs=merged[0].outputs * 2), *merged[1:]),
        lambda merged: (replace(merged[0], outputs=merged[1].outputs), replace(merged[1], outputs=merged[0].outputs)),
        lambda merged: (replace(merged[0], outputs=merged[0].group.inputs), *merged[1:]),
    ],
    ids=["none", "twice", "one of two", "fewer read", "no output", "output twice", "swapped", "inputs as outputs"],
)
def test_a_data_path_with_a_bug_commits_nothing(table, tamper):
    for number in (1, 2):
        table.append(number, p="a")
        table.append(number, p="b")
    before = table.snapshot()
    with pytest.raises(InvariantViolated):
        table.merge(merger=TamperingMerger(table, tamper))
    assert table.snapshot() == before


def make_merge_table():
    table = SmallTable()
    for number in range(4):
        table.append(number, p="ab"[number % 2])
    return table


@pytest.mark.parametrize(
    "effect", [Effect.CRASH_BEFORE, Effect.CRASH_AFTER, Effect.LOSE_ANSWER, Effect.UNAVAILABLE, Effect.DELAY]
)
def test_whatever_fails_at_whichever_call_rows_stay_what_they_are(effect):
    tables = try_each_call(make_merge_table, SmallTable.merge, effect)
    assert len(tables) >= 12
    for table in tables:
        assert table.ids() == [0, 1, 2, 3]
        table.merge()
        assert table.ids() == [0, 1, 2, 3]
        assert len(table.snapshot().live) == 2
        table.store.land_delayed()
        assert table.ids() == [0, 1, 2, 3]
        # What the broken run left behind is cleaned up, and nothing else.
        table.clock.advance(10 * table.config.orphan_age_ms)
        table.vacuum()
        table.sweep()
        assert table.keys(table.paths.data_prefix) == [marker.path for marker in table.snapshot().live]
        assert table.ids() == [0, 1, 2, 3]
