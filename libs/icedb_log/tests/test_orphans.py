"""The orphan sweep: J5, W3, J6."""

from dataclasses import replace

import orjson
import pytest
from icedb_log.clean.orphans import OrphanPolicy
from icedb_log.clean.table_walk import Tally
from icedb_log.clock import make_uuid7_hex
from icedb_log.errors import CorruptLog, InvalidRequest, NotFound, Unavailable, UnsupportedFormat
from icedb_log.keys import TablePaths
from icedb_log.log.codec import encode_log_file
from icedb_log.model import FileMarker, LogFile
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
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


def make_ripe():
    """The same, and an earlier sweep has seen it a grace period ago."""
    table = make_table()
    table.sweep()
    table.clock.advance(table.config.data_grace_ms)
    return table


@pytest.fixture
def table():
    return make_table()


@pytest.fixture
def ripe():
    return make_ripe()


def waiting(result):
    return {each.key: (each.guard, each.until_ms) for each in result.waiting}


def data_keys(table):
    return table.keys(table.paths.data_prefix)


def record(table):
    return orjson.loads(table.store.inner.get(table.paths.orphan_record_key).body)


def test_j5_what_two_sweeps_found_unnamed_and_old_is_deleted_and_nothing_else(table):
    before, grace_ms = data_keys(table), table.config.data_grace_ms
    first = table.sweep()
    assert (first.deleted, waiting(first)) == ((), {ORPHAN: ("sighting", table.clock.now_ms() + grace_ms)})
    table.clock.advance(grace_ms - 1)
    assert table.sweep().deleted == ()
    table.clock.advance(1)
    result = table.sweep()
    assert (result.deleted, result.waiting, result.walk.old_tally) == ((ORPHAN,), (), Tally(1, 1))
    assert data_keys(table) == [key for key in before if key != ORPHAN]
    assert table.ids() == [1, 2, 3]
    assert table.sweep().walk.old_tally.count == 0
    assert record(table)["seen"] == {}


def test_j5_the_age_is_the_stores(table):
    table.store.put(data("young"), b"x")
    table.clock.advance(table.config.orphan_age_ms - 1)
    young = table.sweep()
    assert young.walk.young_tally == Tally(1, 1)
    assert waiting(young)[data("young")] == ("age", table.clock.now_ms() + 1)
    table.clock.advance(1)
    assert waiting(table.sweep())[data("young")][0] == "sighting"


def test_j5_the_workers_clock_decides_nothing():
    table = SmallTable()
    store_ms = table.clock.now_ms()
    table.store.inner._now_ms = lambda: store_ms
    table.store.put(data("young"), b"x")
    table.clock.advance(10 * table.config.orphan_age_ms)
    assert (table.sweep_twice().deleted, table.sweep().walk.young_tally.count) == ((), 1)


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
    assert waiting(table.sweep())[young][0] == "sighting"


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
    result = table.sweep_twice()
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
def test_j5_nothing_goes_and_nothing_is_written_down_while_lastmodified_lies(ripe, lie, error):
    before = record(ripe)
    clock_key = ripe.paths.clock_key
    put = ripe.store.inner.put

    def put_and_lie(key, body):
        etag = put(key, body)
        if key == clock_key:
            lie_about(ripe, key, lie(ripe))
        return etag

    ripe.store.inner.put = put_and_lie
    with pytest.raises(error, match="LastModified"):
        ripe.sweep()
    assert ORPHAN in data_keys(ripe)
    assert record(ripe) == before
    ripe.store.inner.put = put
    assert ripe.sweep().deleted == (ORPHAN,)


def test_j5_nothing_goes_while_the_stores_clock_is_far_from_the_hosts(ripe):
    ripe.store.inner._now_ms = lambda: ripe.clock.now_ms() + 7 * 86_400_000
    with pytest.raises(Unavailable, match="apart"):
        ripe.sweep()
    assert ORPHAN in data_keys(ripe)


@pytest.mark.parametrize("change", ["etag", "uploaded again"])
def test_j5_a_sighting_counts_for_one_object_only(ripe, change):
    """A key out of a backup, and the record with it: that object was not an orphan then."""
    ripe.store.put(ORPHAN, b"y" if change == "etag" else b"x")
    if change == "etag":
        lie_about(ripe, ORPHAN, 0)
    else:
        ripe.clock.advance(ripe.config.orphan_age_ms)
    assert (ripe.sweep().deleted, waiting(ripe.sweep())[ORPHAN][0]) == ((), "sighting")
    ripe.clock.advance(ripe.config.data_grace_ms)
    assert ripe.sweep().deleted == (ORPHAN,)


def test_j5_a_sighting_in_the_stores_future_counts_from_now_on(table):
    table.sweep()
    value = record(table)
    (entry,) = value["seen"].values()
    entry[1] = table.clock.now_ms() + 1000
    table.store.put(table.paths.orphan_record_key, orjson.dumps(value))
    table.clock.advance(999)
    assert waiting(table.sweep())[ORPHAN] == ("sighting", table.clock.now_ms() + table.config.data_grace_ms)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"v":2,"seen":{}}', b'{"v":1,"seen":{"p=a/orphan.parquet":[1,2]}}', b'{"v":1,"seen":[1]}',
     b'{"v":1,"seen":{"p=a/orphan.parquet":["e","long ago",0]}}'],
)  # fmt: skip
def test_j5_a_record_that_cannot_be_understood_counts_as_empty_and_is_begun_anew(ripe, body):
    ripe.store.put(ripe.paths.orphan_record_key, body)
    result = ripe.sweep()
    assert (result.deleted, waiting(result)[ORPHAN][0]) == ((), "sighting")
    assert "orphans.json is no record" in result.record_problem
    ripe.clock.advance(ripe.config.data_grace_ms)
    assert ripe.sweep().deleted == (ORPHAN,)


def test_j5_of_two_sweeps_at_once_one_deletes(ripe):
    rival = rival_of(ripe)
    done = []
    ripe.store.script = [Fault("put_if_match", None, "orphans.json", before=lambda: done.append(rival.sweep()))]
    result = ripe.sweep()
    assert (result.deleted, result.is_contended) == ((), True)
    assert done[0].deleted == (ORPHAN,)
    assert not ripe.sweep().is_contended


@pytest.mark.parametrize(
    ("effect", "goes"), [(Effect.TRY_TWICE, True), (Effect.LOSE_ANSWER, True), (Effect.DROP, False)]
)
def test_w2_a_record_that_was_refused_by_its_own_first_try_is_written(ripe, effect, goes):
    ripe.store.script = [Fault("put_if_match", effect, "orphans.json")]
    result = ripe.sweep()
    assert (result.deleted == (ORPHAN,), result.is_contended) == (goes, not goes)


def test_j5_a_sweep_that_sleeps_before_it_writes_writes_nothing_that_others_have_outdated(table):
    rival = rival_of(table)

    def sleep_while_others_sweep():
        rival.sweep_twice()
        assert ORPHAN not in data_keys(rival)
        table.store.inner.put(ORPHAN, b"x")  # back again, out of a backup

    table.store.script = [Fault("put_if_absent", None, "orphans.json", before=sleep_while_others_sweep)]
    assert table.sweep().is_contended
    table.clock.advance(10 * table.config.orphan_age_ms)
    assert table.sweep().deleted == ()


def test_j5_the_log_that_two_sweeps_read_is_a_grace_period_apart(table):
    """The first one sleeps between its listing and the log."""
    grace_ms = table.config.data_grace_ms
    sleep = Fault("list_page", None, "/_log/", before=lambda: table.clock.advance(grace_ms))
    table.store.script = [Fault("list_page", None, "/_log/"), sleep]
    table.sweep()
    assert table.sweep().deleted == ()
    table.clock.advance(grace_ms)
    assert table.sweep().deleted == (ORPHAN,)


def test_j5_what_is_named_between_the_sweeps_is_kept_and_forgotten(table):
    table.sweep()
    marker = FileMarker(ORPHAN, 1, table.clock.now_ms(), row_count=0)
    log = LogFile(table.clock.now_ms(), table.snapshot().schema, (marker,), commit_id="ab")
    table.store.put(table.paths.log_key(time_ms=log.time_ms, commit_id="ab", is_merged=False), encode_log_file(log))
    table.clock.advance(table.config.data_grace_ms)
    assert (table.sweep().deleted, record(table)["seen"]) == ((), {})
    assert ORPHAN in data_keys(table)


def test_j5_a_file_that_is_named_after_the_listing_is_kept():
    table = SmallTable()
    table.stage([{"id": 1, "p": "a"}])

    def commit():
        rival_of(table).flush()
        # As if it had taken just as long as it may.
        table.clock.advance(table.config.orphan_age_ms)

    table.store.script = [Fault("list_page", None, "/_log/"), Fault("list_page", None, "/_log/", before=commit)]
    assert table.sweep_twice().deleted == ()
    assert table.ids() == [1]


def test_j5_a_worker_that_stalls_before_its_put_cannot_name_what_was_deleted():
    table = SmallTable()
    table.stage([{"id": 1, "p": "a"}])

    def sweep():
        table.clock.advance(table.config.orphan_age_ms)
        assert len(rival_of(table).sweep_twice().deleted) == 1

    table.store.script = [Fault("put_if_absent", None, "/_log/", before=sweep)]
    with pytest.raises(Exception, match="sealed"):
        table.flush()
    assert table.ids() == []
    table.flush()
    assert table.ids() == [1]


def test_j5_a_sweep_that_has_nothing_to_delete_leaves_commits_alone(table):
    table.stage([{"id": 4, "p": "a"}])
    table.store.script = [Fault("put_if_absent", None, "/_log/", before=lambda: rival_of(table).sweep())]
    table.flush()
    assert table.ids() == [1, 2, 3, 4]


def test_j5_a_commit_that_landed_unseen_keeps_its_files():
    table = SmallTable()
    table.stage([{"id": 1, "p": "a"}])
    table.store.script = [Fault("put_if_absent", Effect.CRASH_AFTER, "/_log/")]
    with pytest.raises(Crash):
        table.flush()
    table.clock.advance(table.config.orphan_age_ms)
    assert table.sweep_twice().deleted == ()
    assert table.ids() == [1]


def test_j5_what_a_crashed_flush_left_is_an_orphan():
    table = SmallTable()
    table.stage([{"id": 1, "p": "a"}])
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "/_log/")]
    with pytest.raises(Crash):
        table.flush()
    table.clock.advance(table.config.orphan_age_ms)
    assert len(table.sweep_twice().deleted) == 1
    table.flush()
    assert table.ids() == [1]


def test_j6_a_dry_run_touches_nothing(ripe):
    before = ripe.store.inner._objects.copy()
    dry = ripe.sweep(dry_run=True)
    assert (dry.is_dry_run, dry.deleted) == (True, (ORPHAN,))
    assert ripe.store.inner._objects == before


def test_j6_a_delete_that_fails_is_counted_and_tried_again(ripe):
    ripe.store.script = [Fault("delete", Effect.REFUSE, "orphan")]
    result = ripe.sweep()
    assert ([failed.key for failed in result.failed], result.deleted) == ([ORPHAN], ())
    assert ripe.sweep().deleted == (ORPHAN,)


def test_j6_what_is_of_no_known_kind_is_reported_and_kept_wherever_it_lies(table):
    prefix = f"{table.paths.prefix}/"
    odd = sorted(prefix + name for name in ("_data/p=a/notes.txt", "README", "_icedb/new/x.json", "_logs/x", "zz"))
    for key in odd:
        table.store.inner.put(key, b"x")
    table.clock.advance(10 * table.config.orphan_age_ms)
    result = table.sweep_twice()
    assert (result.walk.unknown, result.walk.unknown_count) == (odd, len(odd))
    assert set(odd) <= set(table.keys())


def test_j5_a_log_that_cannot_be_read_deletes_nothing(ripe):
    ripe.store.put(ripe.paths.log_key(time_ms=1, commit_id="00", is_merged=False), b"garbage")
    with pytest.raises(CorruptLog):
        ripe.sweep()
    assert ORPHAN in data_keys(ripe)


def test_an_age_below_the_tables_is_refused_and_one_above_it_counts(ripe):
    floor_ms = ripe.config.orphan_age_ms
    with pytest.raises(InvalidRequest, match=f"{floor_ms - 1} ms.*{floor_ms} ms"):
        ripe.sweep(policy=OrphanPolicy(older_than_ms=floor_ms - 1, max_share=1))
    later = ripe.sweep(policy=OrphanPolicy(older_than_ms=2 * floor_ms, max_share=1))
    assert (later.deleted, later.walk.young_tally.count) == ((), 1)
    assert ORPHAN in data_keys(ripe)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(ripe, share):
    with pytest.raises(InvalidRequest, match="between 0 and 1"):
        ripe.sweep(policy=OrphanPolicy(max_share=share))


def test_a_table_that_does_not_exist_is_not_found(table):
    table.paths = TablePaths("ghost", "wh/ghost")
    with pytest.raises(NotFound, match="'ghost' does not exist"):
        table.sweep()


@pytest.mark.parametrize("make", [make_table, make_ripe])
@pytest.mark.parametrize("effect", FAULTS)
def test_whatever_fails_at_whichever_call_the_next_sweeps_clean_up(effect, make):
    for table in try_each_call(make, SmallTable.sweep, effect):
        assert table.ids() == [1, 2, 3]
        if make is make_table:
            assert ORPHAN in data_keys(table)
        table.store.land_delayed()
        table.sweep_twice()
        assert ORPHAN not in data_keys(table)
        assert table.ids() == [1, 2, 3]
