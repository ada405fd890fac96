"""Leftovers (J11): each kind goes by its own rule, by the store's clock, and nothing else goes."""

from dataclasses import replace

import orjson
import pytest
from icedb_log.clean import leftovers
from icedb_log.clean.deletion import AuditLog
from icedb_log.clean.leftovers import sweep_leftovers, sweep_probes
from icedb_log.clean.orphans import sweep_orphans
from icedb_log.commit.table import Table
from icedb_log.errors import IceDBError, NotFound, Unavailable, UnsupportedFormat
from icedb_log.holds.leases import read_leases
from icedb_log.holds.stored_holds import MAX_LEASE_TTL_MS
from icedb_log.ingest.idempotency import KEEP_MS
from icedb_log.ingest.quarantine import list_quarantined, reason_key
from icedb_log.ingest.quarantine_ops import begin_drop, drop_quarantined, read_quarantined, retry_quarantined
from icedb_log.keys import PROBE_FOLDER
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_log.units import DAY_MS, HOUR_MS
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.lease_steps import put_lease
from icedb_sim.tables.small_table import SmallTable, try_each_call
from icedb_sim.tables.table_steps import rival_of

RETENTION_MS = 30 * DAY_MS


def walk(table):
    return sweep_orphans(Table.open(table, clock=table.clock, reader=table.reader())).walk


def sweep(table, *, found=None):
    found = found or walk(table)
    return sweep_leftovers(table.known(), found)


def make_table(**config):
    return SmallTable(quarantine_retention_ms=RETENTION_MS, **config)


def quarantine(table):
    """Let a flush refuse a batch; return its id."""
    batch_id = table.stage_bytes(b"not json")
    table.flush()
    return batch_id


def make_old_quarantine():
    table = make_table()
    table.append(1)
    table.batch_id = quarantine(table)
    table.clock.advance(RETENTION_MS)
    return table


def quarantined(table):
    return table.keys(table.paths.quarantine_prefix)


def test_leases_go_when_they_hold_nothing_any_more_and_one_that_nobody_understands_after_a_day():
    table = make_table()
    put_lease(table, at_ms=1, ttl_ms=1000, clock=table.clock)
    odd = table.paths.hold_key("lease", "0" * 32)
    table.store.put(odd, b"not understood")
    table.clock.advance(1000 + MAX_STORE_GAP_MS - 1)
    assert sweep(table).deleted["hold"] == 0
    table.clock.advance(1)
    assert sweep(table).deleted["hold"] == 1
    assert table.keys(table.paths.holds_prefix) == [odd]
    table.clock.advance(MAX_LEASE_TTL_MS - 1000 - 1)
    assert sweep(table).deleted["hold"] == 0
    table.clock.advance(1)
    new = put_lease(table, at_ms=1, ttl_ms=1000, clock=table.clock)
    assert sweep(table).deleted["hold"] == 1
    assert [lease.lease_id for lease in read_leases(table)] == [new]


def test_producers_keys_and_old_pressure_go_after_a_day():
    table = make_table()
    for key in (table.paths.idempotency_key("ab"), table.paths.pressure_key):
        table.store.put(key, b"x")
    table.clock.advance(KEEP_MS - 1)
    assert sum(sweep(table).deleted.values()) == 0
    table.store.put(table.paths.idempotency_key("cd"), b"x")
    table.clock.advance(1)
    done = sweep(table)
    assert (done.deleted["idempotency_key"], done.deleted["leftover"]) == (1, 1)
    assert table.keys(table.paths.idempotency_prefix) == [table.paths.idempotency_key("cd")]


def test_staged_batches_are_counted_and_never_taken():
    table = make_table()
    table.stage([{"id": 1, "p": "a"}])
    table.clock.advance(10)
    assert walk(table).late_staged_count == 0
    table.clock.advance(DAY_MS)
    table.stage([{"id": 2, "p": "a"}])
    assert walk(table).late_staged_count == 1
    sweep(table)
    assert len(table.keys(table.paths.staging_prefix)) == 2


def test_quarantine_is_kept_for_ever_unless_the_table_says_otherwise():
    table = SmallTable()
    quarantine(table)
    table.clock.advance(1000 * DAY_MS)
    before = quarantined(table)
    assert sweep(table).deleted["quarantine"] == 0
    assert quarantined(table) == before


def test_quarantine_older_than_its_retention_goes_with_its_payload():
    table = make_old_quarantine()
    young = quarantine(table)
    assert sweep(table).deleted["quarantine"] == 2
    assert [entry.batch_id for entry in list_quarantined(table)] == [young]
    assert len(quarantined(table)) == 2
    assert table.ids() == [1]


def test_bad_rows_of_a_committed_batch_go_too():
    table = make_table(on_bad_rows="quarantine_rows", evolution="strict", declared={"id": "BIGINT", "p": "VARCHAR"})
    table.stage([{"id": 1, "p": "a"}, {"id": "x", "p": "a"}])
    table.flush()
    assert len(quarantined(table)) == 2
    table.clock.advance(RETENTION_MS)
    assert sweep(table).deleted["quarantine"] == 2
    assert (quarantined(table), table.ids()) == ([], [1])


def test_a_retry_that_has_begun_is_left_to_a_person():
    table = make_table()
    batch_id = quarantine(table)
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "/staging/")]
    with pytest.raises(Crash):
        retry_quarantined(table, batch_id, clock=table.clock)
    table.clock.advance(2 * RETENTION_MS)
    before = quarantined(table)
    assert sweep(table).deleted["quarantine"] == 0
    assert quarantined(table) == before


def test_entries_that_stay_take_no_place_from_those_that_go(monkeypatch):
    monkeypatch.setattr(leftovers, "MAX_DROPS", 2)
    table = make_table()
    begun = [quarantine(table), quarantine(table)]
    ended = [quarantine(table) for _ in range(3)]
    for batch_id in begun:
        table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "/staging/")]
        with pytest.raises(Crash):
            retry_quarantined(table, batch_id, clock=table.clock)
    table.store.inner.delete([reason_key(table.paths, ended[0])])
    table.clock.advance(2 * RETENTION_MS)
    sweep(table)
    assert {entry.batch_id for entry in list_quarantined(table)} == set(begun)
    assert len(quarantined(table)) == 4


@pytest.mark.parametrize("method", ["get", "put_if_match", "delete", "list_page"])
def test_a_retry_that_begins_meanwhile_stages_the_batch_or_finds_none(method):
    """Whatever the janitor is just about to do; and the retry is cut off after it has written its id."""
    for crash in (False, True):
        table = make_old_quarantine()
        rival = rival_of(table)
        outcome = []

        def retry(rival=rival, outcome=outcome, crash=crash, batch_id=table.batch_id):
            if crash:
                rival.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "/staging/")]
            try:
                outcome.append(retry_quarantined(rival, batch_id, clock=rival.clock))
            except (NotFound, Crash) as error:
                outcome.append(error)

        table.store.script = [Fault(method, None, "quarantine/" if method != "list_page" else "staging/", before=retry)]
        sweep(table)
        staged = len(table.keys(table.paths.staging_prefix))
        assert len(outcome) == 1, method
        if isinstance(outcome[0], NotFound):
            assert (staged, quarantined(table)) == (0, [])
        elif isinstance(outcome[0], Crash):
            retry_quarantined(table, table.batch_id, clock=table.clock)
            assert len(table.keys(table.paths.staging_prefix)) == 1
        else:
            assert staged == 1


def test_what_the_janitor_has_taken_nobody_retries_or_reads_and_a_person_may_drop():
    table = make_old_quarantine()
    etag = table.store.head(reason_key(table.paths, table.batch_id)).etag
    assert begin_drop(table, table.batch_id, etag=etag)
    for call in (retry_quarantined, read_quarantined):
        options = {"clock": table.clock} if call is retry_quarantined else {}
        with pytest.raises(NotFound, match="not in quarantine"):
            call(table, table.batch_id, **options)
    drop_quarantined(table, table.batch_id)
    assert quarantined(table) == []


def test_an_entry_of_a_batch_that_is_staged_again_is_left_alone():
    table = make_old_quarantine()
    staged = table.paths.staging_key(batch_id=table.batch_id, staging_format="ndjson")
    table.store.put(staged, b"not json")
    before = quarantined(table)
    assert sweep(table).deleted["quarantine"] == 0
    assert quarantined(table) == before


def test_an_entry_that_was_written_anew_since_the_walk_is_young():
    """A flush set bad rows of a batch aside and was cut off; long after, another one does it all again."""
    table = make_table(on_bad_rows="quarantine_rows", evolution="strict", declared={"id": "BIGINT", "p": "VARCHAR"})
    table.stage([{"id": 1, "p": "a"}, {"id": "x", "p": "a"}])
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "/_log/")]
    with pytest.raises(Crash):
        table.flush()
    assert len(quarantined(table)) == 2
    table.clock.advance(RETENTION_MS)
    found = walk(table)
    table.flush()
    before = quarantined(table)
    assert sweep(table, found=found).deleted["quarantine"] == 0
    assert quarantined(table) == before
    table.clock.advance(RETENTION_MS)
    sweep(table)
    assert quarantined(table) == []


@pytest.mark.parametrize("method", ["list_page", "get"])
def test_a_copy_stays_that_a_flush_gives_a_reason_while_it_is_looked_for(method):
    """A flush was cut off after it had copied the batch; the next one ends what it began, just then."""
    table = make_table()
    table.stage_bytes(b"not json")
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "quarantine/")]
    with pytest.raises(Crash):
        table.flush()
    table.clock.advance(RETENTION_MS)
    found = walk(table)
    (copy,) = quarantined(table)
    rival = rival_of(table)
    table.store.script = [
        Fault(method, None, "staging/" if method == "list_page" else "quarantine/", before=rival.flush)
    ]
    sweep(table, found=found)
    rival.flush()
    assert table.keys(table.paths.staging_prefix) == []
    assert copy in quarantined(table)
    assert len(list_quarantined(table)) == 1


def test_a_payload_without_a_reason_goes():
    table = make_old_quarantine()
    table.store.delete([reason_key(table.paths, table.batch_id)])
    table.clock.advance(RETENTION_MS)
    sweep(table)
    assert quarantined(table) == []


def test_j6_what_a_reason_only_claims_does_not_go_with_its_entry():
    table = make_old_quarantine()
    reason = reason_key(table.paths, table.batch_id)
    fields = orjson.loads(table.store.get(reason).body)
    elsewhere = table.paths.config_key
    table.store.put(reason, orjson.dumps({**fields, "payload": elsewhere}))
    table.clock.advance(RETENTION_MS)
    sweep(table)
    assert table.store.head(elsewhere)
    assert quarantined(table) == []


@pytest.mark.parametrize(
    "effect", [Effect.CRASH_BEFORE, Effect.CRASH_AFTER, Effect.LOSE_ANSWER, Effect.UNAVAILABLE, Effect.DELAY]
)
def test_whatever_fails_at_whichever_call_the_next_sweeps_clean_up(effect):
    def make():
        table = make_old_quarantine()
        table.store.put(table.paths.idempotency_key("ab"), b"x")
        table.clock.advance(KEEP_MS)
        return table

    for table in try_each_call(make, sweep, effect):
        table.store.land_delayed()
        for _ in range(3):
            sweep(table)
            table.clock.advance(RETENTION_MS)
        assert (quarantined(table), table.keys(table.paths.idempotency_prefix)) == ([], [])
        assert table.ids() == [1]
        table.append(2)
        assert table.ids() == [1, 2]


def test_what_cannot_be_deleted_is_counted_and_keeps_nothing_else_from_going():
    table = make_old_quarantine()
    table.store.put(table.paths.idempotency_key("ab"), b"x")
    table.clock.advance(KEEP_MS)
    table.store.script = [Fault("delete", Effect.REFUSE, ".batch-")]
    done = sweep(table)
    assert [each.key.partition(".batch-")[2][32:] for each in done.failed] == [".ndjson"]
    assert done.deleted["idempotency_key"] == 1
    assert reason_key(table.paths, table.batch_id) in quarantined(table)  # nobody would find the payload without it
    assert sweep(table).failed == ()
    assert quarantined(table) == []


def test_nothing_goes_while_the_stores_clock_lies():
    table = make_table()
    table.store.put(table.paths.idempotency_key("ab"), b"x")
    table.clock.advance(KEEP_MS)
    list_page = table.store.inner.list_page

    def hide(prefix, **options):
        page = list_page(prefix, **options)
        return replace(page, objects=tuple(info for info in page.objects if info.key != table.paths.clock_key))

    table.store.inner.list_page = hide
    with pytest.raises(UnsupportedFormat):
        sweep(table)
    assert table.keys(table.paths.idempotency_prefix)


def test_what_goes_is_written_down():
    table = make_old_quarantine()
    found = sweep_orphans(Table.open(table, clock=table.clock)).walk
    audit = AuditLog(table, clock=table.clock, owner="test")
    sweep_leftovers(table.known(), found, audit=audit)
    lines = [
        orjson.loads(line)
        for key in table.keys(table.paths.audit_prefix)
        for line in table.store.get(key).body.splitlines()
    ]
    assert [(line["kind"], line.get("outcome")) for line in lines if "key" in line] == [("quarantine", "deleted")] * 2


def test_old_uploads_are_ended_not_before_a_day_and_a_store_that_refuses_is_noted(monkeypatch):
    table = make_table()
    asked = []

    def abort(prefix, *, before_ms):
        asked.append((prefix, table.clock.now_ms() - before_ms))
        return 3

    monkeypatch.setattr(table.store, "abort_stale_uploads", abort, raising=False)
    assert not sweep(table).problems
    assert asked == [("wh/t/", DAY_MS)]
    slow = SmallTable(orphan_age_ms=2 * DAY_MS)
    monkeypatch.setattr(slow.store, "abort_stale_uploads", abort, raising=False)
    asked.clear()
    sweep(slow)
    assert slow.clock.now_ms() - table.clock.now_ms() + asked[0][1] == 2 * DAY_MS

    def deny(prefix, *, before_ms):
        raise Unavailable(f"{prefix}: access denied")

    monkeypatch.setattr(table.store, "abort_stale_uploads", deny)
    assert "access denied" in sweep(table).problems["uploads"]


def test_scratch_objects_of_probes_go_after_a_day():
    table = make_table()
    table.store.put(f"wh/{PROBE_FOLDER}/old", b"x")
    table.clock.advance(DAY_MS)
    table.store.put(f"wh/{PROBE_FOLDER}/new", b"x")
    before = set(table.keys())
    assert sweep_probes(table.store, prefix="wh/").keys == {f"wh/{PROBE_FOLDER}/old"}
    assert table.keys(f"wh/{PROBE_FOLDER}/") == [f"wh/{PROBE_FOLDER}/new"]
    assert set(table.keys()) == before


def test_a_retention_below_an_hour_is_refused():
    with pytest.raises(IceDBError, match="quarantine_retention_ms"):
        SmallTable(quarantine_retention_ms=HOUR_MS - 1)
