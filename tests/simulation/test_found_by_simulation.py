"""What the simulation found, each as the shortest history that shows it."""

import pytest
from icedb_log.changes.table_changes import alter_table_config
from icedb_log.clean.leftovers import sweep_leftovers
from icedb_log.commit.table import Table
from icedb_log.errors import Fenced, InvalidRequest, NotFound, Unavailable
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.quarantine import list_quarantined
from icedb_log.ingest.quarantine_ops import retry_quarantined
from icedb_log.keys import parse_staged_key
from icedb_log.log.fold import fold
from icedb_log.merge.merge import merge_table
from icedb_log.merge.merge_plan import MergeOptions
from icedb_log.serving.batch_commits import CommitWait, await_commit
from icedb_log.serving.table_cache import TableCache
from icedb_log.store.store_clock import check_store_clock
from icedb_log.store.table_store import TableStore
from icedb_log.table.table_config import CONFIG_CACHE_TTL_MS
from icedb_log.trash.drop import DropRequest, drop_table, undrop_table
from icedb_log.trash.purge import purge_table
from icedb_log.units import HOUR_MS
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.lease_steps import put_lease
from icedb_sim.tables.row_files import RowFileMerger, RowFileWriter
from icedb_sim.tables.small_table import SmallTable


@pytest.fixture
def table():
    return SmallTable()


def exists(table, paths):
    keys = set(table.keys(table.paths.data_prefix))
    return all(path in keys for path in paths)


@pytest.mark.parametrize("role", ["flush", "merge"])
def test_j5_a_worker_that_sleeps_just_before_its_put_cannot_name_what_the_sweep_deleted(table, role):
    table.append(1)
    table.append(2)
    expected = [1, 2]
    if role == "flush":
        table.stage([{"id": 3, "p": "a"}])
        expected.append(3)

    def sleep_and_sweep():
        table.clock.advance(10 * table.config.orphan_age_ms)
        table.sweep()

    table.store.script.append(Fault("put_if_absent", None, key="_log/", before=sleep_and_sweep))
    with pytest.raises(Fenced):
        getattr(table, role)()
    table.flush()
    table.merge()
    assert table.ids() == expected


def test_w3_the_time_is_looked_at_after_the_intent_was_written(table):
    table.stage([{"id": 1, "p": "a"}])

    def sleep():
        table.clock.advance(table.config.orphan_age_ms)

    # The second write of the fence is the intent; the sleep comes before it, the look at the time after it.
    table.store.script.append(Fault("put_if_absent", None, key="_data/", before=sleep))
    table.store.script.append(Fault("put_if_match", None, key="fence", before=sleep))
    with pytest.raises(Unavailable, match="orphan age"):
        table.flush()
    assert table.keys(table.paths.log_prefix) == []
    table.flush()
    assert table.ids() == [1]


def test_w3_work_that_became_too_old_leaves_nothing_to_settle(table):
    table.stage([{"id": 1, "p": "a"}])
    table.store.script.append(
        Fault("put_if_match", None, key="fence", before=lambda: table.clock.advance(table.config.orphan_age_ms))
    )
    with pytest.raises(Unavailable):
        table.flush()
    table.flush()
    assert len(table.keys(table.paths.log_prefix)) == 1  # the commit, and no seal


def test_j4_a_lease_written_while_the_janitor_sleeps_before_its_log_read_holds(table):
    table.append(1)
    table.append(2)
    tagged = []

    def tag_and_merge():
        at_ms = table.clock.now_ms()
        put_lease(table, at_ms=at_ms, ttl_ms=10 * table.config.data_grace_ms, clock=table.clock)
        tagged.extend(marker.path for marker in table.snapshot(as_of_ms=at_ms).live)
        table.clock.advance(1)
        table.merge()
        table.clock.advance(2 * table.config.data_grace_ms)

    table.store.script.append(Fault("list_page", None, key="_log/", before=tag_and_merge))
    table.vacuum()
    assert len(tagged) == 2
    assert exists(table, tagged)


def test_j4_a_lease_protects_from_tombstones_that_a_slow_clock_dated_back(table):
    table.append(1)
    table.append(2)
    table.clock.advance(10_000)
    at_ms = table.clock.now_ms()
    put_lease(table, at_ms=at_ms, ttl_ms=10 * table.config.data_grace_ms, clock=table.clock)
    tagged = [marker.path for marker in table.snapshot(as_of_ms=at_ms).live]
    slow = FakeClock(at_ms - 5_000, seed="slow")
    merged = merge_table(
        Table.open(table, clock=slow, owner="slow", reader=table.reader()),
        RowFileMerger(table.store, slow),
        options=MergeOptions(full=True),
    )
    assert merged.input_count == 2
    table.clock.advance(2 * table.config.data_grace_ms)
    table.vacuum()
    assert exists(table, tagged)
    table.clock.advance(10 * table.config.data_grace_ms)
    table.vacuum()
    assert not exists(table, tagged)


def test_j4_a_lease_renewed_during_the_vacuum_counts_from_its_renewal(table):
    table.append(1)
    table.append(2)
    at_ms = table.clock.now_ms()
    short_ms, long_ms = table.config.data_grace_ms, 1000
    lease_id = put_lease(table, at_ms=at_ms, ttl_ms=short_ms, clock=table.clock)
    tagged = [marker.path for marker in table.snapshot(as_of_ms=at_ms).live]
    table.merge(full=True)
    table.clock.advance(short_ms - 2)

    def renew():
        # For a shorter time than before, but from now on: the old LastModified and the new duration do not belong together.
        put_lease(table, at_ms=at_ms, ttl_ms=long_ms, clock=table.clock, lease_id=lease_id)

    table.store.script.append(Fault("get", None, key="leases/", before=renew))
    table.clock.advance(1)
    table.vacuum()
    assert exists(table, tagged)


def test_r1_a_dead_log_file_that_landed_behind_the_listing_does_not_look_deleted(table):
    table.append(1)
    table.append(2)

    def land_behind_and_merge():
        slow = FakeClock(table.clock.now_ms() - 5_000, seed="slow")
        table.stage([{"id": 3, "p": "a"}])
        writer = RowFileWriter(table.store, slow)
        flush_table(Table.open(table, clock=slow, owner="slow", reader=table.reader()), writer)
        table.merge(full=True)

    table.store.script.append(Fault("list_page", None, key="_log/"))  # page 1 is seen before
    table.store.script.append(Fault("list_page", None, key="_log/", before=land_behind_and_merge))
    snapshot = fold(table.reader(page_size=1).read())
    assert snapshot.horizon_ms == 0
    assert len(table.keys(table.paths.log_prefix)) == snapshot.log_file_count == 4


def make_refusing_table(**config):
    """A table with one batch staged that it refuses, and would take after :func:`widen`."""
    table = SmallTable(**config)
    table.append(0)
    table.stage([{"id": 1, "p": "a", "n": 1}])
    table.flush()
    table.stage([{"id": 2, "p": "a", "n": 1.5}, {"id": 3, "p": "a"}])
    return table


def alter(table, **change):
    alter_table_config(table, change, clock=table.clock)


def flush_aside(table):
    """Flush as another worker, whose calls meet no fault."""
    store = table.store.inner
    writer = RowFileWriter(store, table.clock)
    return flush_table(Table.open(TableStore(store, table.paths), clock=table.clock, owner="other"), writer)


def test_i5_j2_the_log_remembers_a_refusal_until_the_batch_has_left_staging():
    table = make_refusing_table()

    def everything_happens():
        assert table.merge(full=True).folded_log_count == 3
        table.clock.advance(2 * table.config.data_grace_ms)
        table.vacuum()
        alter(table, evolution="widen")

    table.store.script = [Fault("put", Effect.CRASH_BEFORE, "quarantine/", before=everything_happens)]
    with pytest.raises(Crash):
        table.flush()
    table.flush()
    assert table.ids() == [0, 1]
    assert [entry.kind for entry in list_quarantined(table)] == ["batch"]


def test_i5_a_flush_that_sleeps_with_bad_rows_in_hand_is_fenced_and_halts_nothing():
    table = make_refusing_table(on_bad_rows="quarantine_rows")

    def another_refuses_it_whole():
        alter(table, on_bad_rows="quarantine_batch")
        assert len(flush_aside(table).rejected) == 1

    # The fence was confirmed just before the bad rows are looked at.
    table.store.script = [Fault("head", None, "rows", before=another_refuses_it_whole)]
    with pytest.raises(Fenced):
        table.flush()
    assert [entry.kind for entry in list_quarantined(table)] == ["batch"]
    assert table.ids() == [0, 1]


def test_r5_bad_rows_that_a_fenced_flush_writes_late_do_not_make_a_refused_batch_a_committed_one():
    """Found by the simulation (seed 1801 of two servers): its rows were said to be in a state that had none of them."""
    table = make_refusing_table(on_bad_rows="quarantine_rows")
    (info,) = table.store.list_page(table.paths.staging_prefix).objects
    batch_id = parse_staged_key(info.key).batch_id

    def another_refuses_it_whole_and_it_is_retried():
        alter(table, on_bad_rows="quarantine_batch")
        assert len(flush_aside(table).rejected) == 1
        retry_quarantined(TableStore(table.store.inner, table.paths), batch_id, clock=table.clock)

    late = Fault(
        "put_if_absent", None, f"quarantine/{batch_id}.json", before=another_refuses_it_whole_and_it_is_retried
    )
    table.store.script = [late]
    with pytest.raises(Fenced):
        table.flush()
    assert [entry.kind for entry in list_quarantined(table)] == ["rows"]
    tables = TableCache(Warehouse(table.store, "wh"), clock=table.clock, max_tables=1, wait_ms=0, on_refresh=print)
    wait = CommitWait(batch_id, table.clock, timeout_ms=0, setting="at once")
    with pytest.raises(InvalidRequest, match="was refused"):
        await_commit(table, wait, read=lambda: tables.table("t").read(max_staleness_ms=0))


def test_t1_a_drop_that_was_taken_back_meanwhile_does_not_come_back(table):
    def take_back():
        undrop_table(TableStore(table.store.inner, table.paths), clock=table.clock)

    states = []
    table.store.script.append(Fault("get", None, key="table.json"))
    table.store.script.append(Fault("put_if_match", Effect.LOSE_ANSWER, key="table.json"))
    table.store.script.append(Fault("get", None, key="table.json", before=take_back))
    before = table.store.inner.head(table.paths.config_key).etag
    with pytest.raises(InvalidRequest, match="restored since"):
        drop_table(table, clock=table.clock)
    states.append(table.store.inner.head(table.paths.config_key).etag)
    drop_table(table, clock=table.clock)
    take_back()
    states.append(table.store.inner.head(table.paths.config_key).etag)
    assert len({before, *states}) == 3


def test_t1_files_that_a_reader_was_given_by_who_remembers_the_table_stay_for_their_grace_period(table):
    request = DropRequest(keep_ms=table.config.data_grace_ms)
    mark = drop_table(table, clock=table.clock, request=request).mark
    assert mark.keep_ms == table.config.data_grace_ms + CONFIG_CACHE_TTL_MS


def test_j1_who_removes_the_scratch_object_halts_nobody(table):
    key = table.paths.clock_key
    table.store.script.append(Fault("list_page", None, key=key))
    table.store.script.append(Fault("list_page", None, key=key, before=lambda: table.store.inner.delete([key])))
    with pytest.raises(Unavailable, match="removed"):
        check_store_clock(table.store, key, clock=table.clock)


def test_j1_who_removes_the_scratch_object_halts_nobody_though_another_run_has_written_one_since(table):
    key, store = table.paths.clock_key, table.store.inner

    def purge_and_look():
        store.delete([key])
        table.store.script.append(Fault("head", None, key=key, before=look))

    def look():
        check_store_clock(store, key, clock=table.clock)

    table.store.script.append(Fault("list_page", None, key=key))
    table.store.script.append(Fault("list_page", None, key=key, before=purge_and_look))
    with pytest.raises(Unavailable, match="removed"):
        check_store_clock(table.store, key, clock=table.clock)


def test_t5_a_flush_that_sleeps_while_its_bad_rows_are_purged_halts_nothing():
    table = make_refusing_table(on_bad_rows="quarantine_rows")
    table.stage([{"id": 1, "p": "a"}, "no row"])

    def drop_and_purge():
        store = table.store.inner
        for _ in range(2):
            drop_table(TableStore(store, table.paths), clock=table.clock, request=DropRequest(is_forced=True))
        assert purge_table(TableStore(store, table.paths), clock=table.clock, owner="x").state == "purged"

    table.store.script.append(Fault("head", None, key="quarantine", before=drop_and_purge))
    with pytest.raises(NotFound, match="was dropped"):
        table.flush()


def quarantined(table):
    return {key.rpartition("/")[2].partition(".")[2][:4] for key in table.keys(table.paths.quarantine_prefix)}


def test_j11_who_ends_the_drop_of_another_sweep_takes_the_batch_too_that_its_own_walk_found_young():
    """Found by the simulation (seed 23631): a drop was ended with the bad rows that a first flush had set aside."""
    table = make_refusing_table(on_bad_rows="quarantine_rows", quarantine_retention_ms=2 * HOUR_MS)
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "quarantine/")]
    with pytest.raises(Crash):
        table.flush()
    assert quarantined(table) == {"rows"}
    table.clock.advance(HOUR_MS)
    alter(table, on_bad_rows="quarantine_batch")
    table.flush()
    table.clock.advance(HOUR_MS)
    found = table.sweep().walk  # of a sweep that sleeps now
    table.clock.advance(HOUR_MS)
    table.store.script = [Fault("put_if_match", Effect.CRASH_AFTER, "quarantine/")]
    with pytest.raises(Crash):
        sweep_leftovers(table.known(), table.sweep().walk)
    assert quarantined(table) == {"rows", "batc", "json"}
    sweep_leftovers(table.known(), found)
    assert quarantined(table) == set(), "a batch without its reason nobody finds"
