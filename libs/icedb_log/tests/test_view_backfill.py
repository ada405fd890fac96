"""Views that begin with the rows of their source: each row is in the view once, whatever happens meanwhile (V1 to V6)."""

import contextlib
from dataclasses import replace

import orjson
import pytest
from icedb_log.errors import CorruptLog, Fenced, IceDBError, InvalidRequest, Unavailable
from icedb_log.feed.feeds import BACKFILL_TURN, FeedLimits
from icedb_log.feed.position import advance_backfill, find_unfilled
from icedb_log.feed.views import detach_view, is_feed_needed, read_registration, register_view
from icedb_log.serving.status import read_status
from icedb_log.table.table_config import TableConfig
from icedb_sim.fakes.scripted_store import DISTURBANCES, Crash, Fault
from icedb_sim.tables.row_feeds import RowFileFeeder
from icedb_sim.tables.small_table import SmallTable
from icedb_sim.tables.small_view import SmallView, feed_state, grow_old

ONE = FeedLimits(max_commits=1)


def fill_source(table):
    """Rows 1 to 6 in two partitions: some merged, some deleted, some as they were appended."""
    table.append(1, 2)
    table.append(3)
    table.append(4, p="b")
    table.merge(full=True)
    table.append(5)
    table.append(6, p="b")


def backfilled(table, **config):
    return SmallView(table, view_backfill="on", **config)


def test_a_view_begins_with_the_rows_of_its_source_and_goes_on_with_its_commits(table):
    fill_source(table)
    view = backfilled(table)
    table.append(7)
    result = view.feed()
    assert (result.commit_count, result.backfilled_count, result.rows_read, result.has_more) == (1, 4, 7, False)
    assert view.ids() == [1, 2, 3, 4, 5, 6, 7]
    assert not view.feed().committed_key
    assert not is_feed_needed(*view.opened())
    table.append(8)
    view.feed_all()
    assert view.ids() == table.ids()


def test_of_a_source_without_rows_nothing_is_to_be_taken(table):
    view = backfilled(table)
    assert read_registration(table, "v").base == ()
    assert not is_feed_needed(*view.opened())
    table.append(1)
    view.feed()
    assert view.ids() == [1]


def test_rows_that_were_deleted_before_are_not_in_the_view(table):
    fill_source(table)
    table.drop("p=a")
    view = backfilled(table)
    view.feed_all()
    assert view.ids() == table.ids() == [4, 6]


def test_a_feed_takes_what_was_appended_first_and_the_newest_partition_before_older_ones(table):
    fill_source(table)
    view = backfilled(table)
    table.append(7)
    seen = []

    class Watching(RowFileFeeder):
        def feed_rows(self, job):
            seen.extend(marker.path for commit in job.commits for marker in commit.files)
            return super().feed_rows(job)

    counts = []
    while (result := view.feed(limits=ONE, feeder=Watching(table.store, table.clock))).committed_key:
        counts.append((result.commit_count, result.backfilled_count, result.unfilled_count, result.has_more))
    assert counts == [(1, 0, 4, True), (0, 1, 3, True), (0, 1, 2, True), (0, 1, 1, True), (0, 1, 0, False)]
    partitions = [table.paths.partition_of(path) for path in seen[1:]]
    assert partitions == ["p=b", "p=b", "p=a", "p=a"]
    assert view.ids() == [1, 2, 3, 4, 5, 6, 7]


def test_a_single_file_may_exceed_the_bytes_of_a_feed(table):
    fill_source(table)
    view = backfilled(table)
    table.append(7)
    beside = FeedLimits(max_backfill_bytes=1)
    taken = [view.feed(limits=limits) for limits in (FeedLimits(max_bytes=1), beside, FeedLimits(max_bytes=1))]
    assert [(each.commit_count, each.backfilled_count) for each in taken] == [(1, 0), (0, 1), (0, 1)]
    assert feed_state(view).backfilled == (2,)
    table.append(8)
    result = view.feed(limits=beside)  # V6: it is the backfill's turn
    assert (result.commit_count, result.backfilled_count, result.unfilled_count) == (1, 1, 1)
    table.append(9)
    result = view.feed(limits=beside)  # beside a commit none exceeds it
    assert (result.commit_count, result.backfilled_count, result.unfilled_count) == (1, 0, 1)


class DefersTheLast(RowFileFeeder):
    """Leaves the last of what it may take to the next feed, as where a commit has no room for more partitions."""

    def feed_rows(self, job):
        if len(job.commits) == 1:
            return super().feed_rows(job)
        output = super().feed_rows(replace(job, commits=job.commits[:-1]))
        return replace(output, deferred=job.commits[-1:])


@pytest.mark.parametrize(
    ("limits", "defers"),
    [
        (ONE, False),
        (FeedLimits(max_bytes=1), False),
        (FeedLimits(max_bytes=1, max_backfill_bytes=1), False),
        (FeedLimits(max_commits=2), True),
    ],
)
def test_v6_a_source_with_ever_more_commits_does_not_hold_the_backfill_up(table, limits, defers):
    fill_source(table)
    view = backfilled(table)
    feeder = (DefersTheLast if defers else RowFileFeeder)(table.store, table.clock)
    added, taken = range(100, 100 + 4 * BACKFILL_TURN), []
    for number in added:
        table.append(number)
        table.append(1000 + number)
        taken.append(view.feed(limits=limits, feeder=feeder))
    turns = [sum(each.backfilled_count for each in taken[: len(taken) - left]) for left in (12, 8, 4, 0)]
    assert turns == [1, 2, 3, 4]  # one in each fourth feed, although commits wait all the time
    assert all(each.waiting_count for each in taken)
    assert sum(each.commit_count for each in taken) >= 3 * len(added) // 4  # and these go on
    view.feed_all()
    assert view.ids() == table.ids()


def test_what_the_source_does_meanwhile_changes_nothing(table):
    """V4: merges, a deletion, grace periods and vacuums while a view is filled file by file."""
    fill_source(table)
    view = backfilled(table)
    for number in range(4):
        view.feed(limits=ONE)
        table.append(10 + number)
        table.merge(full=True)
        if number == 1:
            table.drop("p=b")
        grow_old(table)
        table.vacuum()
        view.merge(full=True)
        grow_old(table)
        view.vacuum()
    view.feed_all()
    assert view.ids() == [1, 2, 3, 4, 5, 6, 10, 11, 12, 13]
    table.merge(full=True)
    grow_old(table)
    table.vacuum()
    table.vacuum()
    assert not [each for each in table.vacuum().waiting if each.guard == "view"]
    assert len(table.view().files) == 1


def test_until_the_view_is_filled_the_log_files_that_say_its_rows_stay(table):
    fill_source(table)
    view = backfilled(table)
    base = {table.paths.named_log_key(name) for name in read_registration(table, "v").base}
    table.append(7)
    table.merge(full=True)
    grow_old(table)
    waiting = {each.path for each in table.vacuum().waiting if each.guard == "view"}
    assert base <= waiting
    view.feed_all()
    assert view.ids() == table.ids()
    assert base & set(table.vacuum().deleted_logs) == base


def test_the_status_says_how_far_it_is(table):
    fill_source(table)
    view = backfilled(table)
    figures = []
    for _ in range(5):
        lag = view.lag()
        figures.append((lag.backfilled_files, lag.backfill_files, lag.waiting_commits))
        view.feed(limits=ONE)
    assert figures == [(0, 4, 0), (1, 4, 0), (2, 4, 0), (3, 4, 0), (0, 0, 0)]
    assert read_status(view.opened()[0]).view.backfill_files == 0


@pytest.mark.parametrize("effect", DISTURBANCES)
def test_a_view_that_is_disturbed_at_any_call_has_each_row_once(effect):
    """The creation and the first feed together: kills and lost answers at each call of the store."""
    number = 0
    while True:
        table = SmallTable()
        fill_source(table)
        view = SmallView(table, is_created=False, view_backfill="on")
        table.store.calls.clear()
        table.store.fault_at = {number: effect}
        with contextlib.suppress(IceDBError, Crash):
            view.create()
        with contextlib.suppress(IceDBError, Crash):
            view.feed(limits=FeedLimits(max_commits=2))
        is_over = len(table.store.calls) <= number
        table.store.fault_at = {}
        with contextlib.suppress(InvalidRequest):  # it exists
            view.create()
        table.append(7)
        table.merge(full=True)
        table.store.land_delayed()
        grow_old(table)
        table.vacuum()
        view.feed_all()
        assert view.ids() == [1, 2, 3, 4, 5, 6, 7], number
        if is_over:
            assert number > 20
            return
        number += 1


def test_a_merge_that_the_view_begins_with_does_not_go_before_the_registration_says_so(table):
    """V4: while the registration is pending, log files of merges stay, too."""
    fill_source(table)
    view = SmallView(table, is_created=False, view_backfill="on")

    def late():
        """The creator stalls between its read of the log and the registration that names what it has read."""
        table.append(7)
        table.merge(full=True)
        grow_old(table)
        table.vacuum()

    table.store.script.append(Fault("put_if_match", None, key="_icedb/views/v.json", before=late))
    view.create()
    view.feed_all()
    assert view.ids() == [1, 2, 3, 4, 5, 6, 7]


def test_a_commit_that_lands_while_the_view_is_registered_is_in_it_once(table):
    """V3: what is skipped and what the view begins with are of one read of the log."""
    table.append(1)
    view = SmallView(table, is_created=False, view_backfill="on")

    def meanwhile():
        table.append(2)
        table.append(3)
        table.merge(full=True)
        grow_old(table)
        table.vacuum()

    table.store.script.append(Fault("list_page", None, key="t/_log/", before=meanwhile))
    view.create()
    table.append(4)
    view.feed_all()
    assert view.ids() == [1, 2, 3, 4]


def test_a_feed_that_slept_while_another_one_filled_the_view_halts_nothing(table):
    """V4: between its look at the view and its read of the source the rest is taken, and its log files go."""
    fill_source(table)
    view = backfilled(table)

    def meanwhile():
        view.feed_all()
        table.append(7)
        table.merge(full=True)
        grow_old(table)
        table.vacuum()

    # The second listing of the source: behind the fence.
    table.store.script += [
        Fault("list_page", None, key="t/_log/"),
        Fault("list_page", None, key="t/_log/", before=meanwhile),
    ]
    with pytest.raises(Fenced):
        view.feed()
    view.feed_all()
    assert view.ids() == [1, 2, 3, 4, 5, 6, 7]


def test_a_view_that_is_detached_while_it_is_filled_keeps_what_it_has_and_gets_the_rest_no_more(table):
    fill_source(table)
    view = backfilled(table)
    view.feed(limits=ONE)
    have = view.ids()
    detach_view(table, "v", clock=table.clock)
    table.append(7)
    register_view(table, "v", clock=table.clock, is_new=True, backfill=True)
    assert not is_feed_needed(*view.opened())
    table.append(8)
    view.feed_all()
    assert view.ids() == [*have, 8]
    table.merge(full=True)
    grow_old(table)
    assert not [each for each in table.vacuum().waiting if each.guard == "view"]


def test_a_detachment_while_a_feed_reads_ends_that_feed_and_halts_nothing(table):
    fill_source(table)
    view = backfilled(table)

    def meanwhile():
        detach_view(table, "v", clock=table.clock)
        table.append(7)
        table.merge(full=True)
        grow_old(table)
        table.vacuum()

    table.store.script += [
        Fault("list_page", None, key="t/_log/"),
        Fault("list_page", None, key="t/_log/", before=meanwhile),
    ]
    with pytest.raises(Unavailable, match="went away while it was read"):
        view.feed()
    assert view.ids() == []


def test_a_log_that_does_not_say_any_more_what_the_view_begins_with_halts_it(table):
    fill_source(table)
    view = backfilled(table)
    table.store.delete([table.paths.named_log_key(read_registration(table, "v").base[0])])
    with pytest.raises(CorruptLog, match=r"with which rows the view begins.*--detach v`"):
        view.feed()


def test_a_missing_data_file_of_the_backfill_halts_the_view(table):
    fill_source(table)
    view = backfilled(table)
    table.store.delete([table.snapshot().live[0].path])
    with pytest.raises(CorruptLog, match="--detach v`"):
        view.feed()


def test_a_data_file_that_the_query_cannot_take_is_refused_alone_and_named(table):
    fill_source(table)
    table.stage([{"id": 7, "p": "a", "poison": "x"}])
    table.flush()
    poisoned = next(
        marker.path
        for marker in table.snapshot().live
        if marker.row_count == 1 and "p=a" in marker.path and b"poison" in table.store.get(marker.path).body
    )
    view = backfilled(table)
    result = view.feed()
    assert [(each.commit.files[0].path, each.reason) for each in result.refused] == [(poisoned, "a row is poisoned")]
    assert view.ids() == [1, 2, 3, 4, 5, 6]
    (key,) = table.keys(view.paths.refused_prefix)
    record = orjson.loads(table.store.get(key).body)
    assert record["reason"] == f"{poisoned}: a row is poisoned"
    assert "log_file" not in record
    assert not view.feed().committed_key
    assert not is_feed_needed(*view.opened())


def test_files_that_a_job_leaves_are_taken_later_and_those_behind_them_not_twice(table):
    fill_source(table)
    view = backfilled(table)

    class Leaving(RowFileFeeder):
        def feed_rows(self, job):
            first, *rest = job.commits
            output = super().feed_rows(
                type(job)(**{**{n: getattr(job, n) for n in job.__dataclass_fields__}, "commits": tuple(rest)})
            )
            return type(output)(
                **{**{n: getattr(output, n) for n in output.__dataclass_fields__}, "deferred": (first,)}
            )

    result = view.feed(feeder=Leaving(table.store, table.clock), limits=FeedLimits(max_commits=3))
    assert (result.backfilled_count, result.unfilled_count) == (2, 2)
    assert feed_state(view).backfilled == (0, 1, 2)
    view.feed_all()
    assert feed_state(view).backfilled == (4,)
    assert view.ids() == [1, 2, 3, 4, 5, 6]


def test_a_query_that_is_changed_is_a_second_view_beside_the_first(table):
    """The recipe of docs/views.md: the new view is filled from the source while the old one goes on."""
    old = SmallView(table, name="old")
    fill_source(table)
    old.feed_all()
    new = SmallView(table, name="new", view_backfill="on")
    table.append(7)
    old.feed_all()
    new.feed_all()
    assert old.ids() == new.ids() == table.ids()


@pytest.mark.parametrize(
    ("before", "decided", "after"),
    [
        ((), [0], (1,)),
        ((), [1], (0, 1)),
        ((0, 1), [0], (2,)),
        ((2, 4), [3], (2, 3, 4)),
        ((2, 3), [2], (4,)),
        ((2, 4), [6], (2, 4, 6)),
        ((3,), [], (3,)),
    ],
)
def test_places_that_are_decided(before, decided, after):
    assert advance_backfill(before, decided=decided) == after
    left = set(find_unfilled(before, 8)) - set(decided)
    assert left == set(find_unfilled(after, 8))


def test_only_a_view_has_a_backfill():
    with pytest.raises(InvalidRequest, match="only a view"):
        TableConfig.create(name="t", view_backfill="on")
