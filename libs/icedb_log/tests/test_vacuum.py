"""A vacuum: J1 to J4, J6, F4, R3."""

from dataclasses import replace

import pytest
from icedb_log.errors import CorruptLog, InvalidRequest, NotFound
from icedb_log.ingest.quarantine import list_quarantined
from icedb_log.ingest.staging import stage_batch
from icedb_log.keys import TablePaths
from icedb_log.log.codec import decode_log_file, encode_log_file
from icedb_log.merge.log_folding import LOG_REST_MS
from icedb_log.merge.merge_plan import QUIET_MS
from icedb_log.model import FileMarker, LogFile
from icedb_log.store.table_store import TableStore
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.lease_steps import delete_lease, put_lease
from icedb_sim.tables.log_views import live
from icedb_sim.tables.row_files import encode_rows
from icedb_sim.tables.small_table import SmallTable
from icedb_sim.tables.table_steps import assert_clean, make_dead_table, rival_of


@pytest.fixture
def table():
    return make_dead_table()


def test_a_vacuum_leaves_only_what_is_live(table):
    result = table.vacuum()
    assert (len(result.deleted_logs), len(result.deleted_data), result.stripped_count) == (2, 2, 1)
    assert (result.failed, result.waiting, result.contended_count) == ((), (), 0)
    assert_clean(table)
    assert table.ids() == [1, 2]


def test_a_second_vacuum_has_nothing_to_do(table):
    table.vacuum()
    again = table.vacuum()
    assert (again.deleted_logs, again.deleted_data, again.stripped_count, again.waiting) == ((), (), 0, ())


def test_a_table_that_does_not_exist_is_not_found(table):
    table.paths = TablePaths("ghost", "wh/ghost")
    with pytest.raises(NotFound, match="'ghost' does not exist"):
        table.vacuum()


def test_j1_between_the_grace_periods_only_log_files_go():
    table = SmallTable()
    table.append(1)
    table.append(2)
    table.merge()
    table.clock.advance(table.config.log_grace_ms)
    result = table.vacuum()
    assert (len(result.deleted_logs), len(result.deleted_data), len(result.waiting)) == (2, 0, 2)
    table.clock.advance(table.config.data_grace_ms - table.config.log_grace_ms)
    assert len(table.vacuum().deleted_data) == 2
    assert_clean(table)


def test_j2_an_input_stays_while_a_log_file_lists_it_as_live_and_goes_when_that_one_is_folded(monkeypatch):
    """Small log files stand for large ones, which a merge leaves as they are (M1)."""
    monkeypatch.setattr("icedb_log.merge.log_folding.FREE_LOG_BYTES", 0)
    monkeypatch.setattr("icedb_log.merge.log_folding.PAYS_FOR", 0)
    monkeypatch.setattr("icedb_log.merge.log_folding.DATA_PER_LOG", 1 << 60)
    monkeypatch.setattr("icedb_log.merge.merge_plan.log_fan_in", lambda _: 9)
    table = SmallTable()
    table.append(1)
    table.append(2)
    table.clock.advance(QUIET_MS)
    table.merge()
    assert [file.log.log_tombstones for file in table.view().files] == [(), (), ()]
    table.clock.advance(table.config.data_grace_ms)
    result = table.vacuum()
    assert (result.deleted_logs, result.deleted_data, {each.guard for each in result.waiting}) == ((), (), {"grace"})
    assert table.ids() == [1, 2]
    table.clock.advance(LOG_REST_MS)
    table.merge()
    table.clock.advance(table.config.log_grace_ms)
    result = table.vacuum()
    assert (len(result.deleted_logs), len(result.deleted_data), result.waiting) == (2, 2, ())
    assert_clean(table)
    assert table.ids() == [1, 2]


def test_j1_the_workers_clock_decides_nothing(table):
    fresh = SmallTable()
    store_ms = fresh.clock.now_ms()
    fresh.store.inner._now_ms = lambda: store_ms
    fresh.append(1)
    fresh.append(2)
    fresh.merge()
    fresh.clock.advance(10 * fresh.config.data_grace_ms)
    assert fresh.vacuum().deleted_logs == ()


def test_j1_frequent_merges_do_not_starve_the_cleaning():
    """A merge a second, data files kept for longer: each dead file still goes soon after its time."""
    table = SmallTable(target_file_bytes=1_000_000, data_grace_ms=15_000, log_grace_ms=5_000)
    born = {}
    longest_ms = 0
    for number in range(60):
        table.append(number)
        table.merge(full=True)
        if number % 5 == 0:
            table.vacuum()
        table.clock.advance(1000)
        now_ms = table.clock.now_ms()
        dead = table.snapshot().tombstoned_ms
        for path in dead:
            longest_ms = max(longest_ms, now_ms - born.setdefault(path, now_ms))
    config = table.config
    assert config.data_grace_ms <= longest_ms <= config.data_grace_ms + 10_000
    assert len(table.keys(table.paths.log_prefix)) <= 2 * (config.log_grace_ms // 1000) + 20
    assert len(table.keys(table.paths.data_prefix)) <= 2 * (config.data_grace_ms // 1000) + 20
    assert table.ids() == list(range(60))


def test_j2_deletes_come_in_their_order(table):
    batch_ids = [batch_id for file in table.view().files for batch_id in file.log.batch_ids]
    for number, batch_id in enumerate(batch_ids, 1):
        table.stage_bytes(encode_rows([{"id": number, "p": "a"}]), batch_id=batch_id)
    table.store.calls.clear()
    table.vacuum()
    steps = [(call.method, call.key) for call in table.store.calls if call.method in ("delete", "put_if_match")]
    assert [method for method, _ in steps] == ["delete", "delete", "delete", "put_if_match"]
    assert all(batch_id in steps[0][1] for batch_id in batch_ids)
    assert [
        part in key for part, (_, key) in zip(("/staging/", "/_log/", "/_data/", "/_log/"), steps, strict=True)
    ] == [True] * 4


def test_j2_the_copy_of_a_forgotten_batch_goes_before_its_log_file(table):
    """A copy that a producer staged again while its id was known, and that no flush has seen yet."""
    batch_id = next(file.log.batch_ids[0] for file in table.view().files if file.log.batch_ids)
    table.stage_bytes(encode_rows([{"id": 1, "p": "a"}]), batch_id=batch_id)
    table.vacuum()
    assert table.keys(table.paths.staging_prefix) == []
    table.flush()
    assert table.ids() == [1, 2]


def test_j2_copies_are_found_by_one_listing_and_other_batches_stay(table):
    batch_id = next(file.log.batch_ids[0] for file in table.view().files if file.log.batch_ids)
    for staging_format in ("json", "csv", "parquet"):
        stage_batch(table, body=b"x", staging_format=staging_format, batch_id=batch_id)
    waiting = table.stage([{"id": 9, "p": "a"}])
    table.store.put(f"{table.paths.staging_prefix}{batch_id}.unknown", b"")
    table.store.calls.clear()
    table.vacuum()
    assert len([call for call in table.store.calls if call.method == "list_page" and "staging" in call.key]) == 1
    assert [key.rpartition("/")[2] for key in table.keys(table.paths.staging_prefix)] == [
        f"{batch_id}.unknown",
        f"{waiting}.ndjson",
    ]


def test_j2_staging_is_listed_after_the_log_was_read(table):
    """A batch that is staged and committed between the two would not be found, and its log file go without its copy."""
    table.store.calls.clear()
    table.vacuum()
    listed = [call.key for call in table.store.calls if call.method == "list_page"]
    parts = [part for key in listed for part in ("/staging/", "/_log") if part in key]
    assert parts == ["/_log", "/staging/"]


def test_j2_without_an_expired_log_file_staging_is_not_listed():
    table = SmallTable()
    table.append(1)
    table.store.calls.clear()
    table.vacuum()
    assert [call for call in table.store.calls if "staging" in call.key] == []


def test_j2_a_batch_staged_again_behind_the_listing_is_too_late_for_a_flush(table):
    """The one listing of staging is enough: what comes later is refused by its id alone (I3)."""
    batch_id = next(file.log.batch_ids[0] for file in table.view().files if file.log.batch_ids)

    def stage_again():
        table.stage_bytes(encode_rows([{"id": 1, "p": "a"}]), batch_id=batch_id)

    table.store.script = [Fault("delete", None, "/_log/", before=stage_again)]
    table.vacuum()
    assert all(batch_id not in file.log.batch_ids for file in table.view().files)
    result = table.flush()
    assert [refusal.batch.batch_id for refusal in result.rejected] == [batch_id]
    assert table.ids() == [1, 2]


def test_j2_a_log_file_stays_while_a_batch_that_it_refused_is_still_staged():
    table = SmallTable()
    table.append(1)
    table.append(2)
    batch_id = table.stage([{"id": "x", "p": "a"}])
    table.store.script = [Fault("put", Effect.CRASH_BEFORE, "/quarantine/")]
    with pytest.raises(Crash):
        table.flush()
    (refusing,) = [file.key for file in table.view().files if file.log.refused_ids]
    table.merge(full=True)
    table.clock.advance(100_000)
    for dry_run in (True, False):
        result = table.vacuum(dry_run=dry_run)
        assert [(w.path, w.guard) for w in result.waiting] == [(refusing, "staged")]
        assert refusing not in result.deleted_logs
    assert table.flush().duplicate_count == 1
    assert [found.batch_id for found in list_quarantined(table)] == [batch_id]
    assert refusing in table.vacuum().deleted_logs
    assert table.ids() == [1, 2]


def test_j2_what_a_log_file_lists_as_live_waits_with_it_for_a_batch_that_it_refused():
    table = SmallTable()
    table.append(1)
    table.stage([{"id": 2, "p": "a"}])
    table.stage([{"id": "x", "p": "a"}])
    table.store.script = [Fault("put", Effect.CRASH_BEFORE, "/quarantine/")]
    with pytest.raises(Crash):
        table.flush()
    _, refusing = table.view().files
    (path,) = [marker.path for marker in refusing.log.markers]
    table.merge(full=True)
    table.clock.advance(10**9)
    for dry_run in (True, False):
        result = table.vacuum(dry_run=dry_run)
        assert {(w.path, w.guard) for w in result.waiting} == {(refusing.key, "staged"), (path, "staged")}
        assert path not in result.deleted_data


def test_j2_a_copy_that_cannot_be_deleted_keeps_its_log_file_and_no_other(table):
    stuck, other, _ = table.view().files
    table.stage_bytes(encode_rows([{"id": 1, "p": "a"}]), batch_id=stuck.log.batch_ids[0])
    table.stage_bytes(encode_rows([{"id": 2, "p": "a"}]), batch_id=other.log.batch_ids[0])
    table.store.script = [Fault("delete", Effect.REFUSE, f"/staging/{stuck.log.batch_ids[0]}")]
    result = table.vacuum()
    assert [failed.key.rpartition("/")[2] for failed in result.failed] == [f"{stuck.log.batch_ids[0]}.ndjson"]
    assert (result.deleted_logs, len(result.deleted_copies)) == ((other.key,), 1)
    assert result.deleted_data == tuple(marker.path for marker in other.log.markers)
    assert table.ids() == [1, 2]
    assert table.vacuum().failed == ()
    assert_clean(table)


def test_j2_a_log_file_that_cannot_be_deleted_keeps_its_data_files(table):
    stuck = table.view().files[0]
    table.store.script = [Fault("delete", Effect.REFUSE, stuck.key)]
    result = table.vacuum()
    assert [failed.key for failed in result.failed] == [stuck.key]
    (kept,) = [marker.path for marker in stuck.log.markers]
    assert kept in table.keys(table.paths.data_prefix)
    assert len(result.deleted_data) == 1
    assert table.ids() == [1, 2]
    table.vacuum()
    assert_clean(table)


def test_j6_a_data_file_that_cannot_be_deleted_stays_named_until_it_is(table):
    stuck = next(iter(table.snapshot().tombstoned_ms))
    table.store.script = [Fault("delete", Effect.REFUSE, stuck)]
    result = table.vacuum()
    assert [failed.key for failed in result.failed] == [stuck]
    assert set(table.snapshot().tombstoned_ms) == {stuck}
    assert table.vacuum().deleted_data == (stuck,)
    assert_clean(table)


def test_j6_log_files_that_will_not_go_do_not_keep_the_strip_and_the_data_from_their_turn(table):
    table.store.script = [Fault("delete", Effect.UNAVAILABLE, "/_log/")]
    result = table.vacuum()
    assert sorted(failed.key for failed in result.failed) == [f.key for f in table.view().files if "_m_" not in f.key]
    assert (result.deleted_logs, result.deleted_data) == ((), ())
    table.store.script = [Fault("delete", Effect.UNAVAILABLE, "/_data/")]
    result = table.vacuum()
    assert (len(result.deleted_logs), len(result.failed), result.stripped_count) == (2, 2, 1)
    table.vacuum()
    assert_clean(table)


def test_j6_what_is_gone_already_counts_as_deleted(table):
    table.store.inner.delete(list(table.snapshot().tombstoned_ms))
    assert len(table.vacuum().deleted_data) == 2
    assert_clean(table)


def test_j6_a_dry_run_touches_nothing_and_says_what_a_run_would_do(table):
    before = {key: table.store.get(key) for key in table.keys(table.paths.prefix)}
    dry = table.vacuum(dry_run=True)
    assert dry.is_dry_run
    assert {key: table.store.get(key) for key in table.keys(table.paths.prefix)} == before
    real = table.vacuum()
    assert (dry.deleted_logs, dry.deleted_data, dry.waiting) == (real.deleted_logs, real.deleted_data, real.waiting)


def test_j6_a_log_that_names_files_of_another_table_deletes_nothing(table):
    foreign = "wh/other/_data/p=a/x.parquet"
    table.store.put(foreign, b"rows")
    log = LogFile(5, {}, (FileMarker(foreign, 1, 1, tombstoned_ms=5),), commit_id="00")
    table.store.put(table.paths.log_key(time_ms=5, commit_id="00", is_merged=True), encode_log_file(log))
    table.clock.advance(table.config.data_grace_ms)
    before = table.keys()
    with pytest.raises(CorruptLog, match="wh/other"):
        table.vacuum()
    assert table.keys() == before
    assert table.store.get(foreign).body == b"rows"


def test_a_corrupt_log_file_stops_the_vacuum_before_it_deletes(table):
    table.store.put(table.paths.log_key(time_ms=5, commit_id="00", is_merged=False), b"garbage")
    before = table.keys()
    with pytest.raises(CorruptLog):
        table.vacuum()
    assert table.keys() == before


def test_j3_the_strip_keeps_name_and_time_and_records_the_horizon(table):
    key = table.view().files[-1].key
    before = table.view().files[-1].log
    table.vacuum()
    after = decode_log_file(key, table.store.get(key).body)
    assert (after.time_ms, after.commit_id, after.horizon_ms) == (before.time_ms, before.commit_id, before.time_ms)
    assert table.snapshot().horizon_ms == before.time_ms


def test_j3_a_log_file_that_changed_is_left_for_the_next_round(table):
    table.store.script = [Fault("put_if_match", None, "/_log/", before=lambda: rival_of(table).vacuum())]
    result = table.vacuum()
    assert (result.stripped_count, result.contended_count) == (0, 1)
    assert_clean(table)


def test_j3_a_strip_does_not_bring_back_a_log_file_that_was_merged_and_deleted(table):
    def others():
        rival = rival_of(table)
        rival.append(3)
        rival.merge(full=True)
        table.clock.advance(table.config.data_grace_ms)
        rival.vacuum()

    table.store.script = [Fault("put_if_match", None, "/_log/", before=others)]
    assert table.vacuum().contended_count == 1
    assert_clean(table)
    assert table.ids() == [1, 2, 3]


def test_j4_a_lease_keeps_its_time_readable():
    table = SmallTable()
    table.append(1)
    table.append(2)
    at_ms = table.clock.now_ms()
    lease_id = put_lease(table, at_ms=at_ms, ttl_ms=3_600_000, clock=table.clock)
    table.clock.advance(1)
    table.append(3)
    table.merge(full=True)
    table.clock.advance(10 * table.config.data_grace_ms)
    waiting = table.vacuum().waiting
    assert {w.guard for w in waiting} == {"lease"}
    assert table.ids(as_of_ms=at_ms) == [1, 2]
    delete_lease(table, lease_id=lease_id)
    table.vacuum()
    with pytest.raises(InvalidRequest):
        table.ids(as_of_ms=at_ms)
    assert_clean(table)


def test_j4_a_lease_that_is_younger_than_the_tombstones_of_the_plan_is_not_missed():
    """The bad interleaving of the WARN in vacuum: a lease comes while the janitor stalls before its look at the log."""
    table = SmallTable()
    table.append(1)
    table.append(2)
    leased_ms = []

    def others():
        leased_ms.append(table.clock.now_ms())
        put_lease(TableStore(table.store.inner, table.paths), at_ms=leased_ms[0], ttl_ms=3_600_000, clock=table.clock)
        table.clock.advance(1)
        rival_of(table).merge()
        table.clock.advance(10 * table.config.data_grace_ms)

    table.store.script = [Fault("list_page", None, "/_log/", before=others)]
    result = table.vacuum()
    assert (result.deleted_logs, result.deleted_data) == ((), ())
    assert table.ids(as_of_ms=leased_ms[0]) == [1, 2]


def test_f4_an_old_seal_goes_and_a_young_one_stays(table):
    old = table.paths.log_key(time_ms=1, commit_id="aa", is_merged=False)
    young = table.paths.log_key(time_ms=2, commit_id="bb", is_merged=False)
    table.store.put(old, encode_log_file(LogFile(1, is_seal=True)))
    table.clock.advance(table.config.seal_age_ms - 1)
    table.store.put(young, encode_log_file(LogFile(2, is_seal=True)))
    table.clock.advance(1)
    assert old in table.vacuum().deleted_logs
    assert young in table.keys(table.paths.log_prefix)


def test_r3_an_owner_that_died_after_its_commit_does_not_open_deleted_times_again(table):
    """It died, the commit was merged and deleted, the vacuum died before its strip, and a new owner settles it."""
    dead = SmallTable()
    dead.append(1)
    at_ms = dead.clock.now_ms()
    dead.clock.advance(1)
    dead.stage([{"id": 2, "p": "a"}])
    dead.store.script = [Fault("put_if_absent", Effect.CRASH_AFTER, "/_log/")]
    with pytest.raises(Crash):
        dead.flush()
    dead.merge(full=True)
    dead.clock.advance(dead.config.orphan_age_ms)  # J9: the fence names the commit, but it is too late for its owner
    dead.store.script = [Fault("put_if_match", Effect.CRASH_BEFORE, "/_log/")]
    with pytest.raises(Crash):
        dead.vacuum()
    dead.append(3)
    assert any(file.log.is_seal for file in dead.view().files)
    with pytest.raises(InvalidRequest):
        dead.ids(as_of_ms=at_ms)
    dead.vacuum()
    assert dead.ids() == [1, 2, 3]
    with pytest.raises(InvalidRequest):
        dead.ids(as_of_ms=at_ms)


def test_live_markers_of_other_tables_do_not_matter_to_a_vacuum(table):
    other = SmallTable(store=table.store.inner, name="t2")
    other.clock = table.clock
    other.append(9)
    table.vacuum()
    assert other.ids() == [9]
    assert live("x").is_live


@pytest.mark.parametrize("stuck_format", ["csv", "json", "ndjson"])
def test_j2_one_copy_of_several_that_cannot_be_deleted_keeps_the_log_file(table, stuck_format):
    file, other, _ = table.view().files
    (batch_id,) = file.log.batch_ids
    for staging_format in ("csv", "json", "ndjson"):
        body = encode_rows([{"id": 1, "p": "a"}])
        stage_batch(table, body=body, staging_format=staging_format, batch_id=batch_id)
    table.store.script = [Fault("delete", Effect.REFUSE, f"{batch_id}.{stuck_format}")]
    result = table.vacuum()
    assert [failed.key.rpartition("/")[2] for failed in result.failed] == [f"{batch_id}.{stuck_format}"]
    assert (result.deleted_logs, len(result.deleted_copies)) == ((other.key,), 2)
    table.flush()
    assert table.ids() == [1, 2]


def test_j2_one_stuck_batch_of_several_keeps_the_log_file_that_made_them_live():
    table = SmallTable()
    batch_ids = [table.stage([{"id": number, "p": "a"}]) for number in range(3)]
    table.flush()
    table.append(3)
    table.merge()
    table.clock.advance(table.config.log_grace_ms)
    (key,) = [file.key for file in table.view().files if len(file.log.batch_ids) == 3]
    for number, batch_id in enumerate(batch_ids):
        table.stage_bytes(encode_rows([{"id": number, "p": "a"}]), batch_id=batch_id)
    table.store.script = [Fault("delete", Effect.REFUSE, batch_ids[1])]
    result = table.vacuum()
    assert len(result.deleted_copies) == 2
    assert key not in result.deleted_logs
    table.flush()
    assert table.ids() == [0, 1, 2, 3]


def test_j2_a_log_file_stays_while_one_of_the_batches_that_it_refused_is_still_staged():
    table = SmallTable()
    table.append(1)
    table.append(2)
    gone, stuck = (table.stage([{"id": "x", "p": "a"}]) for _ in range(2))
    table.store.script = [Fault("put", Effect.CRASH_BEFORE, f"/quarantine/{stuck}")]
    with pytest.raises(Crash):
        table.flush()
    (refusing,) = [file.key for file in table.view().files if file.log.refused_ids]
    assert [found.batch_id for found in list_quarantined(table)] == [gone]
    table.merge(full=True)
    table.clock.advance(100_000)
    assert refusing not in table.vacuum().deleted_logs
    table.flush()
    assert refusing in table.vacuum().deleted_logs


@pytest.mark.parametrize("name", ["a", "zz"])
def test_j6_a_data_file_of_another_table_among_others_stops_the_run(table, name):
    """A damaged log: whatever else is dead, nothing is deleted."""
    foreign = f"wh/{name}/_data/p=a/x.parquet"
    table.store.put(foreign, b"rows")
    file = table.view().files[-1]
    log = replace(file.log, markers=(*file.log.markers, FileMarker(foreign, 1, 1, tombstoned_ms=file.log.time_ms)))
    table.store.put(file.key, encode_log_file(log))
    table.clock.advance(table.config.data_grace_ms)
    before = table.keys("wh/")
    with pytest.raises(CorruptLog, match="lies outside"):
        table.vacuum()
    assert table.keys("wh/") == before
