"""The orphan sweep: J5, W3, J6."""

import pytest
from icedb_log.errors import CorruptLog, NotFound
from icedb_log.keys import TablePaths
from icedb_log.testing.log_views import data
from icedb_log.testing.scripted_store import Crash, Effect, Fault
from icedb_log.testing.small_table import SmallTable, try_each_call


def make_table():
    """A live file, a dead file, and an orphan, all old."""
    table = SmallTable()
    table.append(1)
    table.append(2)
    table.merge()
    table.append(3)
    table.store.put(data("orphan"), b"x")
    table.clock.advance(table.config.orphan_age_ms)
    return table


@pytest.fixture
def table():
    return make_table()


def rival_of(table):
    rival = SmallTable(store=table.store.inner, name="rival")
    rival.paths, rival.clock = table.paths, table.clock
    return rival


def test_j5_an_old_unnamed_data_file_is_deleted_and_nothing_else(table):
    before = table.keys(table.paths.data_prefix)
    assert table.sweep().deleted == (data("orphan"),)
    assert table.keys(table.paths.data_prefix) == [key for key in before if key != data("orphan")]
    assert table.ids() == [1, 2, 3]


def test_j5_the_age_is_the_stores(table):
    table.store.put(data("young"), b"x")
    table.clock.advance(table.config.orphan_age_ms - 1)
    assert table.sweep(dry_run=True).young_count == 1
    table.clock.advance(1)
    assert table.sweep().deleted == (data("orphan"), data("young"))


def test_j5_the_workers_clock_decides_nothing():
    table = SmallTable()
    store_ms = table.clock.now_ms()
    table.store.inner._now_ms = lambda: store_ms
    table.store.put(data("young"), b"x")
    table.clock.advance(10 * table.config.orphan_age_ms)
    assert (table.sweep().deleted, table.sweep().young_count) == ((), 1)


def test_j5_a_file_that_is_named_after_the_listing_is_kept():
    table = SmallTable()
    table.stage([{"id": 1, "p": "a"}])

    def commit():
        rival_of(table).flush()
        # As if it had taken just as long as it may.
        table.clock.advance(table.config.orphan_age_ms)

    table.store.script = [Fault("list_page", None, "/_log/", before=commit)]
    assert table.sweep().deleted == ()
    assert table.ids() == [1]


def test_j5_a_worker_that_stalls_before_its_put_cannot_name_what_was_deleted():
    table = SmallTable()
    table.stage([{"id": 1, "p": "a"}])

    def sweep():
        table.clock.advance(table.config.orphan_age_ms)
        assert len(rival_of(table).sweep().deleted) == 1

    table.store.script = [Fault("put_if_absent", None, "/_log/", before=sweep)]
    with pytest.raises(Exception, match="sealed"):
        table.flush()
    assert table.ids() == []
    table.flush()
    assert table.ids() == [1]


def test_j5_a_commit_that_landed_unseen_keeps_its_files():
    table = SmallTable()
    table.stage([{"id": 1, "p": "a"}])
    table.store.script = [Fault("put_if_absent", Effect.CRASH_AFTER, "/_log/")]
    with pytest.raises(Crash):
        table.flush()
    table.clock.advance(table.config.orphan_age_ms)
    assert table.sweep().deleted == ()
    assert table.ids() == [1]


def test_j5_what_a_crashed_flush_left_is_an_orphan():
    table = SmallTable()
    table.stage([{"id": 1, "p": "a"}])
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "/_log/")]
    with pytest.raises(Crash):
        table.flush()
    table.clock.advance(table.config.orphan_age_ms)
    assert len(table.sweep().deleted) == 1
    table.flush()
    assert table.ids() == [1]


def test_j6_a_dry_run_touches_nothing(table):
    before = table.keys(table.paths.prefix)
    dry = table.sweep(dry_run=True)
    assert (dry.is_dry_run, dry.deleted) == (True, (data("orphan"),))
    assert table.keys(table.paths.prefix) == before


def test_j6_a_delete_that_fails_is_counted_and_tried_again(table):
    table.store.script = [Fault("delete", Effect.REFUSE, "orphan")]
    result = table.sweep()
    assert ([failed.key for failed in result.failed], result.deleted) == ([data("orphan")], ())
    assert table.sweep().deleted == (data("orphan"),)


def test_j6_what_is_no_data_file_is_reported_and_kept(table):
    odd = f"{table.paths.data_prefix}p=a/notes.txt"
    table.store.inner.put(odd, b"x")
    table.clock.advance(10 * table.config.orphan_age_ms)
    assert table.sweep().unknown == (odd,)
    assert odd in table.keys(table.paths.data_prefix)


def test_j5_a_log_that_cannot_be_read_deletes_nothing(table):
    table.store.put(table.paths.log_key(time_ms=1, commit_id="00", is_merged=False), b"garbage")
    with pytest.raises(CorruptLog):
        table.sweep()
    assert data("orphan") in table.keys(table.paths.data_prefix)


def test_a_table_that_does_not_exist_is_not_found(table):
    table.paths = TablePaths("ghost", "wh/ghost")
    with pytest.raises(NotFound, match="'ghost' does not exist"):
        table.sweep()


@pytest.mark.parametrize(
    "effect", [Effect.CRASH_BEFORE, Effect.CRASH_AFTER, Effect.LOSE_ANSWER, Effect.UNAVAILABLE, Effect.DELAY]
)
def test_whatever_fails_at_whichever_call_the_next_sweep_cleans_up(effect):
    for table in try_each_call(make_table, SmallTable.sweep, effect):
        assert table.ids() == [1, 2, 3]
        table.sweep()
        assert data("orphan") not in table.keys(table.paths.data_prefix)
        table.store.land_delayed()
        assert table.ids() == [1, 2, 3]
