"""The orphan sweep: J5, W3, J6."""

from dataclasses import replace
from functools import partial

import pytest
from icedb_log.clean.orphans import OrphanPolicy
from icedb_log.clean.table_walk import Tally
from icedb_log.clock import make_uuid7_hex
from icedb_log.errors import CorruptLog, InvalidRequest, NotFound, Unavailable, UnsupportedFormat
from icedb_log.keys import TablePaths
from icedb_log.log.codec import encode_log_file
from icedb_log.model import FileMarker, LogFile
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault, ScriptedStore
from icedb_sim.tables.log_views import data
from icedb_sim.tables.small_table import SmallTable, try_each_call
from icedb_sim.tables.table_steps import rival_of

ORPHAN = data("orphan")
FAULTS = [Effect.CRASH_BEFORE, Effect.CRASH_AFTER, Effect.LOSE_ANSWER, Effect.UNAVAILABLE, Effect.DELAY]


def make_table():
    """A live file, a dead file, and an orphan, all old."""
    table = SmallTable()
    table.append(1)
    table.append(2)
    table.merge()
    table.append(3)
    table.store.put(ORPHAN, b"x")
    table.clock.advance(table.config.orphan_age_ms)
    return table


@pytest.fixture
def table():
    return make_table()


def waiting(result):
    return {each.key: (each.guard, each.until_ms) for each in result.waiting}


def data_keys(table):
    return table.keys(table.paths.data_prefix)


def test_j5_what_is_unnamed_and_old_is_deleted_and_nothing_else(table):
    before = data_keys(table)
    result = table.sweep()
    assert (result.deleted, result.waiting, result.walk.old_tally) == ((ORPHAN,), (), Tally(1, 1))
    assert data_keys(table) == [key for key in before if key != ORPHAN]
    assert table.ids() == [1, 2, 3]
    assert table.sweep().walk.old_tally.count == 0


def test_j5_a_worker_that_slept_for_days_before_its_intent_commits_nothing_that_was_deleted():
    """W3: the sweep finds no intent to settle. The worker announces its commit, looks at the time, and gives up."""
    table = SmallTable()
    table.stage([{"id": 1, "p": "a"}])

    def sweep():
        table.clock.advance(table.config.orphan_age_ms)
        assert len(rival_of(table).sweep().deleted) == 1

    intent = Fault("put_if_match", None, "fence/ingest", before=sweep)
    table.store.script = [intent]
    with pytest.raises(Unavailable, match="more than half the orphan age"):
        table.flush()
    table.store.script = []
    assert table.ids() == []
    table.flush()
    assert table.ids() == [1]


def test_j5_what_is_named_after_the_sweeps_first_look_at_the_log_is_kept(table):
    marker = FileMarker(ORPHAN, 1, table.clock.now_ms(), row_count=0)
    log = LogFile(table.clock.now_ms(), table.snapshot().schema, (marker,), commit_id="ab")
    key = table.paths.log_key(time_ms=log.time_ms, commit_id="ab", is_merged=False)
    commit = Fault("list_page", None, "/_log/", before=lambda: table.store.inner.put(key, encode_log_file(log)))
    table.store.script = [Fault("list_page", None, "/_log/"), commit]
    assert table.sweep().deleted == ()
    assert ORPHAN in data_keys(table)


def test_j5_two_sweeps_at_once_do_no_harm(table):
    done = []
    table.store.script = [Fault("delete", None, "orphan", before=lambda: done.append(rival_of(table).sweep()))]
    assert table.sweep().deleted == (ORPHAN,)
    assert done[0].deleted == (ORPHAN,)


def test_j5_the_age_is_the_stores(table):
    table.store.put(data("young"), b"x")
    table.clock.advance(table.config.orphan_age_ms - 1)
    young = table.sweep()
    assert young.walk.young_tally == Tally(1, 1)
    assert waiting(young)[data("young")] == ("age", table.clock.now_ms() + 1)
    table.clock.advance(1)
    assert table.sweep().deleted == (data("young"),)


def test_j5_the_workers_clock_decides_nothing():
    table = SmallTable()
    store_ms = table.clock.now_ms()
    table.store.inner._now_ms = lambda: store_ms
    table.store.put(data("young"), b"x")
    table.clock.advance(10 * table.config.orphan_age_ms)
    assert (table.sweep().deleted, table.sweep().walk.young_tally.count) == ((), 1)


def lie_about(table, key, modified_ms):
    stored = table.store.inner._objects[key]
    table.store.inner._objects[key] = replace(stored, info=replace(stored.info, modified_ms=modified_ms))


def test_j5_a_store_that_says_1970_does_not_make_a_young_upload_old(table):
    young = table.paths.data_key(partition="p=a", file_id=table.clock.new_id())
    table.store.put(young, b"x")
    lie_about(table, young, 0)
    result = table.sweep()
    assert waiting(result)[young] == ("age", table.clock.now_ms() + table.config.orphan_age_ms)
    table.clock.advance(table.config.orphan_age_ms)
    assert table.sweep().deleted == (young,)


def test_j5_a_name_that_is_old_does_not_make_a_young_upload_old(table):
    """A worker with a slow clock, or a file that was put there again."""
    named = table.paths.data_key(partition="p=a", file_id=make_uuid7_hex(1_000_000, 0))
    table.store.put(named, b"x")
    assert waiting(table.sweep())[named] == ("age", table.clock.now_ms() + table.config.orphan_age_ms)


def test_j5_what_comes_out_of_the_future_is_young_and_reported(table):
    future_ms = table.clock.now_ms() + 3_600_000
    named = table.paths.data_key(partition="p=a", file_id=make_uuid7_hex(future_ms, 0))
    for key in (data("odd"), named):
        table.store.put(key, b"x")
    lie_about(table, data("odd"), future_ms)
    result = table.sweep()
    assert (sorted(result.walk.future), result.walk.young_tally.count) == (sorted([data("odd"), named]), 2)
    assert {data("odd"), named} <= set(data_keys(table))


@pytest.mark.parametrize(
    ("lie", "error"),
    [
        (lambda table: 0, UnsupportedFormat),
        (lambda table: table.clock.now_ms() + 3_600_000, UnsupportedFormat),
    ],
    ids=["1970", "an hour ahead"],
)
def test_j5_nothing_goes_while_lastmodified_lies(table, lie, error):
    clock_key = table.paths.clock_key
    put = table.store.inner.put

    def put_and_lie(key, body):
        etag = put(key, body)
        if key == clock_key:
            lie_about(table, key, lie(table))
        return etag

    table.store.inner.put = put_and_lie
    with pytest.raises(error, match="LastModified"):
        table.sweep()
    assert ORPHAN in data_keys(table)
    table.store.inner.put = put
    assert table.sweep().deleted == (ORPHAN,)


def test_j5_nothing_goes_while_the_stores_clock_is_far_from_the_hosts(table):
    table.store.inner._now_ms = lambda: table.clock.now_ms() + 7 * 86_400_000
    with pytest.raises(Unavailable, match="apart"):
        table.sweep()
    assert ORPHAN in data_keys(table)


def test_j5_a_file_that_is_named_after_the_listing_is_kept():
    table = SmallTable()
    table.stage([{"id": 1, "p": "a"}])

    def commit():
        rival_of(table).flush()
        # As if it had taken just as long as it may.
        table.clock.advance(table.config.orphan_age_ms)

    table.store.script = [Fault("list_page", None, "/_log/"), Fault("list_page", None, "/_log/", before=commit)]
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


def test_j5_what_only_the_share_guard_kept_at_first_waits_for_a_sweep_that_settles_the_fences():
    """The guard kept all, so that no fence was settled; then the largest orphan is named, and the guard keeps none."""
    table = SmallTable()
    table.append(1)
    large = data("large")
    table.store.put(large, b"x" * 10_000)
    table.stage([{"id": 2, "p": "a"}])
    rival = rival_of(table)
    swept = []

    def name_large():
        marker = FileMarker(large, 10_000, table.clock.now_ms(), row_count=0)
        log = LogFile(table.clock.now_ms(), rival.snapshot().schema, (marker,), commit_id="ab")
        key = table.paths.log_key(time_ms=log.time_ms, commit_id="ab", is_merged=False)
        table.store.inner.put(key, encode_log_file(log))

    def sweep():
        table.clock.advance(table.config.orphan_age_ms)
        rival.store = ScriptedStore(table.store.inner)
        rival.store.script = [
            Fault("list_page", None, "/_log/"),
            Fault("list_page", None, "/_log/", before=name_large),
        ]
        swept.append(rival.sweep(policy=OrphanPolicy()))

    table.store.script = [Fault("put_if_absent", None, "/_log/", before=sweep)]  # it has looked at the time (W3)
    table.flush()
    assert [each.deleted for each in swept] == [()]
    paths = table.snapshot().live.paths()
    assert (len(paths), set(paths) <= set(data_keys(table))) == (3, True)


@pytest.mark.parametrize("orphans", [0, 1])
def test_j5_a_sweep_that_has_nothing_to_delete_leaves_commits_alone(orphans):
    """Neither without orphans, nor with such as the share guard keeps, sweep for sweep."""
    table = SmallTable()
    table.append(1)
    if orphans:
        table.store.put(ORPHAN, b"x" * 10_000)
        table.clock.advance(table.config.orphan_age_ms)
    table.stage([{"id": 4, "p": "a"}])
    rival = rival_of(table)
    sweep = partial(rival.sweep, policy=OrphanPolicy())
    table.store.script = [Fault("put_if_absent", None, "/_log/", before=sweep)]
    table.flush()
    assert table.ids() == [1, 4]
    assert rival.sweep(policy=OrphanPolicy()).held.count == orphans


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
    before = table.store.inner._objects.copy()
    dry = table.sweep(dry_run=True)
    assert (dry.is_dry_run, dry.deleted) == (True, (ORPHAN,))
    assert table.store.inner._objects == before


def test_j6_a_delete_that_fails_is_counted_and_tried_again(table):
    table.store.script = [Fault("delete", Effect.REFUSE, "orphan")]
    result = table.sweep()
    assert ([failed.key for failed in result.failed], result.deleted) == ([ORPHAN], ())
    assert table.sweep().deleted == (ORPHAN,)


def test_j6_what_is_of_no_known_kind_is_reported_and_kept_wherever_it_lies(table):
    prefix = f"{table.paths.prefix}/"
    odd = sorted(prefix + name for name in ("_data/p=a/notes.txt", "README", "_icedb/new/x.json", "_logs/x", "zz"))
    for key in odd:
        table.store.inner.put(key, b"x")
    table.clock.advance(10 * table.config.orphan_age_ms)
    result = table.sweep()
    assert (result.walk.unknown, result.walk.unknown_count) == (odd, len(odd))
    assert set(odd) <= set(table.keys())


def test_j5_a_log_that_cannot_be_read_deletes_nothing(table):
    table.store.put(table.paths.log_key(time_ms=1, commit_id="00", is_merged=False), b"garbage")
    with pytest.raises(CorruptLog):
        table.sweep()
    assert ORPHAN in data_keys(table)


def test_an_age_below_the_tables_is_refused_and_one_above_it_counts(table):
    floor_ms = table.config.orphan_age_ms
    with pytest.raises(InvalidRequest, match=f"{floor_ms - 1} ms.*{floor_ms} ms"):
        table.sweep(policy=OrphanPolicy(older_than_ms=floor_ms - 1, max_share=1))
    later = table.sweep(policy=OrphanPolicy(older_than_ms=2 * floor_ms, max_share=1))
    assert (later.deleted, later.walk.young_tally.count) == ((), 1)
    assert ORPHAN in data_keys(table)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(table, share):
    with pytest.raises(InvalidRequest, match="between 0 and 1"):
        table.sweep(policy=OrphanPolicy(max_share=share))


def test_a_table_that_does_not_exist_is_not_found(table):
    table.paths = TablePaths("ghost", "wh/ghost")
    with pytest.raises(NotFound, match="'ghost' does not exist"):
        table.sweep()


@pytest.mark.parametrize("effect", FAULTS)
def test_whatever_fails_at_whichever_call_the_next_sweep_cleans_up(effect):
    for table in try_each_call(make_table, SmallTable.sweep, effect):
        assert table.ids() == [1, 2, 3]
        table.store.land_delayed()
        table.sweep()
        assert ORPHAN not in data_keys(table)
        assert table.ids() == [1, 2, 3]
