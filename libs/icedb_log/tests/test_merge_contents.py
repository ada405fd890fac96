"""A merge whose outputs hold other values than its inputs: nothing is committed, and the second time halts (M6)."""

from dataclasses import replace

import pytest
from icedb_log.commit.fence import acquire_fence, read_fence
from icedb_log.commit.table import Table
from icedb_log.errors import Fenced, HaltError, IceDBError, InvariantViolated, Unavailable
from icedb_log.jobs import ContentCheck
from icedb_log.merge.merge import MergeWatch, merge_table
from icedb_sim.fakes.scripted_store import Effect, Fault
from icedb_sim.tables.row_files import RowFileMerger
from icedb_sim.tables.small_table import SmallTable, try_each_call

DIFFERS = ContentCheck(3, 1, ("column 'id' has 0 nulls in the inputs and 1 in the outputs",))


class DifferingMerger(RowFileMerger):
    """A data path that changes values in some partitions, and sees by the footers that it did."""

    def __init__(self, table, *partitions):
        super().__init__(table.store, table.clock)
        object.__setattr__(self, "partitions", partitions)

    def merge_groups(self, job):
        return tuple(
            replace(group, contents=DIFFERS) if group.group.partition in self.partitions else group
            for group in super().merge_groups(job)
        )


def make_table():
    table = SmallTable()
    for number in range(2):
        table.append(number, p="a")
    return table


@pytest.fixture
def table():
    return make_table()


def merge(table, *partitions):
    return table.merge(merger=DifferingMerger(table, *partitions), full=True)


def noted(table):
    return read_fence(table.store, table.paths.fence_key("merge"))[0].differed


def test_m6_the_first_difference_fails_the_run_and_the_second_halts_whoever_runs(table):
    before, logs = table.snapshot(), table.keys(table.paths.log_prefix)
    data = table.keys(table.paths.data_prefix)
    with pytest.raises(
        Unavailable, match=r"partition p=a: a merge of .*column 'id' has 0 nulls.*nothing was committed"
    ):
        merge(table, "p=a")
    assert noted(table) == before.live[0].path
    for number in range(2, 4):
        with pytest.raises(InvariantViolated, match="not the first time") as caught:
            merge(table, "p=a")  # it knows nothing but what is in the store
        assert isinstance(caught.value, HaltError)
        assert len(table.keys(table.paths.data_prefix)) == len(data) + number, "inputs and outputs stay"
    assert table.snapshot() == before
    assert table.keys(table.paths.log_prefix) == logs


def test_m6_what_passes_the_second_time_is_committed_and_forgotten(table):
    with pytest.raises(Unavailable):
        merge(table, "p=a")
    assert merge(table).input_count == 2
    assert (noted(table), table.ids()) == ("", [0, 1])
    table.append(2)
    with pytest.raises(Unavailable, match="tries once more"):
        merge(table, "p=a")


def test_m6_other_commits_do_not_make_it_forgotten_that_a_merge_differed(table):
    with pytest.raises(Unavailable):
        merge(table, "p=a")
    table.append(7, p="b")
    table.append(8, p="b")
    table.delete("id = 7")
    path = noted(table)
    assert path in {marker.path for marker in table.snapshot().live}
    with pytest.raises(InvariantViolated, match="not the first time"):
        merge(table, "p=a")


@pytest.mark.parametrize(
    "settle", [lambda table: table.drop("p=a"), lambda table: table.rewrite("select * from _rows", "p=a")]
)
def test_m6_a_person_settles_it_by_a_rewrite_or_a_removal(table, settle):
    with pytest.raises(Unavailable):
        merge(table, "p=a")
    settle(table)
    assert noted(table) == ""


def test_m6_one_group_that_differs_keeps_its_whole_commit_back(table):
    table.append(7, p="b")
    table.append(8, p="b")
    logs = table.keys(table.paths.log_prefix)
    with pytest.raises(Unavailable, match="partition p=b"):
        merge(table, "p=b")
    assert table.keys(table.paths.log_prefix) == logs
    merge(table)
    assert table.ids() == [0, 1, 7, 8]


@pytest.mark.parametrize("effect", [Effect.LOSE_ANSWER, Effect.UNAVAILABLE, Effect.CRASH_BEFORE, Effect.CRASH_AFTER])
def test_m6_whatever_fails_nothing_of_it_is_committed_and_the_table_halts_in_the_end(effect):
    def act(table):
        merge(table, "p=a")

    def fail(table):
        with pytest.raises(IceDBError):
            act(table)

    for table in try_each_call(make_table, fail, effect):
        with pytest.raises((Unavailable, InvariantViolated)):
            act(table)
        with pytest.raises(InvariantViolated):
            act(table)
        assert table.ids() == [0, 1]
        assert len(table.snapshot().live) == 2


def test_m6_a_run_that_lost_its_fence_notes_nothing(table):
    fence = []

    def take_over():
        fence.append(acquire_fence(table.known("rival", store=table.store.inner), "merge"))

    table.store.script = [Fault("put", None, "/_data/", before=take_over)]
    with pytest.raises(Fenced):
        merge(table, "p=a")
    assert noted(table) == ""


def test_what_was_compared_is_told_before_anything_is_committed(table):
    told = []

    def check(found):
        told.append((found, len(table.view().files)))

    merge_table(
        Table.open(table, clock=table.clock, owner="merge"),
        RowFileMerger(table.store, table.clock),
        watch=MergeWatch(on_check=check),
    )
    assert told == [(ContentCheck(), 2)]
