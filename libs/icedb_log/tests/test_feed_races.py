"""Feeds that sleep, and others that work meanwhile: each commit is taken once, and nothing halts."""

import pytest
from icedb_log.commit.table import Table
from icedb_log.errors import Fenced, Unavailable
from icedb_log.feed.feeds import FeedLimits
from icedb_log.feed.views import detach_view
from icedb_log.ingest.flush import flush_table
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.scripted_store import Fault
from icedb_sim.tables.row_feeds import RowFileFeeder
from icedb_sim.tables.row_files import RowFileWriter
from icedb_sim.tables.small_view import SmallView, feed_state, grow_old


def test_two_feeds_without_a_lock_take_a_commit_once(table):
    view = SmallView(table)
    table.append(1)

    class SlowFeeder(RowFileFeeder):
        def feed_rows(self, job):
            output = super().feed_rows(job)
            view.feed()  # somebody else takes the fence meanwhile, and the commit
            return output

    with pytest.raises(Fenced):
        view.feed(feeder=SlowFeeder(table.store, table.clock))
    assert view.ids() == [1]


def test_a_feed_that_slept_since_before_its_fence_takes_nothing_twice(table):
    """V2: between its first look and its fence another feed takes the commit, and everybody forgets it."""
    view = SmallView(table)
    table.append(1)

    def meanwhile():
        view.feed()
        table.append(2)
        table.merge(full=True)
        grow_old(table)
        table.vacuum()
        view.feed()  # forgets the name of the first commit
        assert len(feed_state(view).names) == 1

    table.store.script.append(Fault("get", None, key="v/_icedb/fence/ingest", before=meanwhile))
    view.feed()
    assert view.ids() == [1, 2]


def test_a_feed_that_slept_since_before_its_fence_forgets_nothing_that_others_took_meanwhile(table):
    """V2: a name counts as gone if the listing does not have it, so that has to be younger than what was taken."""
    view = SmallView(table)
    for number in (1, 2):
        table.append(number)
    one = FeedLimits(max_commits=1)

    def meanwhile():
        slow = FakeClock(table.clock.now_ms() - 5_000, seed="slow")
        table.stage([{"id": 3, "p": "a"}])
        writer = RowFileWriter(table.store, slow)
        flush_table(Table.open(table, clock=slow, owner="slow", reader=table.reader()), writer)
        view.feed(limits=one)  # takes the last one: by its name it is the oldest
        assert view.ids() == [3]

    table.store.script.append(Fault("get", None, key="v/_icedb/fence/ingest", before=meanwhile))
    view.feed(limits=one)
    view.feed()
    view.feed()
    assert view.ids() == [1, 2, 3]


@pytest.mark.parametrize("act", ["feed", "detach"])
def test_a_feed_that_sleeps_before_it_reads_data_files_halts_nothing(table, act):
    """V4: the commit is taken by another feed, or the view is detached, and what it wanted to read is vacuumed."""
    view = SmallView(table)
    table.append(1)
    table.append(2)

    def meanwhile():
        if act == "feed":
            assert view.feed().commit_count == 2
        else:
            detach_view(table, "v", clock=table.clock)
        table.merge(full=True)
        grow_old(table)
        table.vacuum()

    table.store.script.append(Fault("get", None, key=f"{table.name}/_data/", before=meanwhile))
    with pytest.raises(Fenced if act == "feed" else Unavailable):
        view.feed()
    if act == "feed":
        assert view.ids() == [1, 2]
