"""What an operator does with quarantined batches: retries are exactly once, whatever fails and however often."""

import contextlib
from uuid import UUID

import orjson
import pytest
from icedb_log.changes.table_changes import alter_table_config
from icedb_log.clock import make_uuid7_hex, parse_uuid7_ms
from icedb_log.errors import CommitOutcomeUnknown, CorruptLog, IceDBError, InvalidRequest, NotFound, Unavailable
from icedb_log.ingest.quarantine import list_quarantined, reason_key
from icedb_log.ingest.quarantine_ops import drop_quarantined, read_quarantined, retry_quarantined
from icedb_log.ingest.staging import list_staged, stage_batch
from icedb_log.keys import parse_staged_key
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.small_table import SmallTable, try_each_call
from icedb_sim.tables.table_steps import rival_of

EFFECTS = [Effect.CRASH_BEFORE, Effect.CRASH_AFTER, Effect.LOSE_ANSWER, Effect.UNAVAILABLE, Effect.DELAY, Effect.DROP]
DIGEST = "0" * 32
ROWS = [{"id": 2, "p": "a", "n": 1.5}, {"id": 3, "p": "a", "n": 2.5}]


def make_table(**config):
    """A table that has refused a batch which it would take now."""
    table = SmallTable(**config)
    table.stage([{"id": 1, "p": "a", "n": 1}])
    table.flush()
    table.batch_id = table.stage(ROWS)
    table.flush()
    alter(table, evolution="widen")
    return table


def make_rows_table():
    table = SmallTable(on_bad_rows="quarantine_rows")
    table.stage([{"id": 1, "p": "a", "n": 1}])
    table.flush()
    table.batch_id = table.stage([{"id": 4, "p": "a"}, *ROWS])
    table.flush()
    alter(table, evolution="widen")
    return table


def make_cut_off_rows_table():
    """A table whose flush has set bad rows aside, and was cut off before its commit."""
    table = SmallTable(on_bad_rows="quarantine_rows")
    table.stage([{"id": 1, "p": "a", "n": 1}])
    table.flush()
    table.batch_id = table.stage([{"id": 4, "p": "a"}, *ROWS])
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "/_log/")]
    with pytest.raises(Crash):
        table.flush()
    return table


def alter(table, **change):
    alter_table_config(table, change, clock=table.clock)


def retry(table, *, force=False):
    return retry_quarantined(table, table.batch_id, clock=table.clock, force=force)


def retry_until_done(table):
    for _ in range(5):
        try:
            retry(table)
        except NotFound:
            return
        except IceDBError:
            continue


def flush_all(table):
    while table.flush().has_more:
        pass
    return table.ids()


def staged_ids(table):
    return [parse_staged_key(batch.key).batch_id for batch in list_staged(table).batches]


def test_an_entry_is_read_with_its_payload():
    table = make_table()
    found = read_quarantined(table, table.batch_id)
    assert (found.entry.batch_id, found.entry.kind, found.entry.row_count) == (table.batch_id, "batch", None)
    assert "n is BIGINT" in found.entry.reason
    assert [orjson.loads(line) for line in found.body.split(b"\n")] == ROWS
    assert found.format == "ndjson"


def test_bad_rows_are_read_as_what_they_are():
    table = make_rows_table()
    found = read_quarantined(table, table.batch_id)
    assert (found.entry.kind, found.entry.row_count, found.format) == ("rows", 2, "ndjson.zst")
    assert [orjson.loads(line) for line in found.body.split(b"\n")] == ROWS


@pytest.mark.parametrize("name", ["json", "csv.gz", "parquet", "arrow"])
def test_a_batch_of_any_format_keeps_it(name):
    table = SmallTable()
    batch_id = table.batch_id = "018bcfe5-6800-7000-8000-000000000001"
    stage_batch(table, body=b"{", staging_format=name, batch_id=batch_id)
    table.flush()
    assert read_quarantined(table, batch_id).format == name
    new_id = retry(table)
    (batch,) = list_staged(table).batches
    assert (batch.batch_id, batch.format) == (new_id, name)
    assert table.keys(table.paths.quarantine_prefix) == []


@pytest.mark.parametrize("make", [make_table, make_rows_table])
def test_a_retry_makes_rows_live_once_and_clears_the_quarantine(make):
    table = make()
    before = table.ids()
    new_id = retry(table)
    assert new_id != table.batch_id
    assert staged_ids(table) == [new_id]
    assert table.keys(table.paths.quarantine_prefix) == []
    assert flush_all(table) == sorted([*before, 2, 3])
    with pytest.raises(NotFound, match="not in quarantine"):
        retry(table)


@pytest.mark.parametrize("make", [make_table, make_rows_table])
@pytest.mark.parametrize("effect", EFFECTS)
def test_whatever_fails_a_retry_that_is_repeated_makes_rows_live_once(make, effect):
    expected = sorted([*make().ids(), 2, 3])
    for flushes_between in (False, True):
        tables = try_each_call(make, retry, effect)
        assert len(tables) >= 7
        for table in tables:
            if flushes_between:
                flush_all(table)
            retry_until_done(table)
            assert flush_all(table) == expected
            table.store.land_delayed()
            assert flush_all(table) == expected
            assert table.keys(table.paths.quarantine_prefix) == []
            assert staged_ids(table) == []


@pytest.mark.parametrize("make", [make_table, make_rows_table])
def test_two_operators_who_retry_at_once_make_rows_live_once(make):
    table = make()
    expected = sorted([*table.ids(), 2, 3])
    table.store.calls.clear()
    retry(table)
    for number in range(len(table.store.calls)):
        table = make()
        table.store.calls.clear()

        def interrupt(method, key, action, table=table, at=number, run=table.store._run):
            if len(table.store.calls) == at:
                table.store._run = run
                retry(table)
            return run(method, key, action)

        table.store._run = interrupt
        with contextlib.suppress(NotFound):
            retry(table)
        assert flush_all(table) == expected
        assert table.keys(table.paths.quarantine_prefix) == []


@pytest.mark.parametrize("force", [False, True])
def test_an_operator_who_slept_does_not_retry_what_was_refused_anew_meanwhile(force):
    """Simulated, seed 1661 of sweepers: another one ends the retry, the producer sends the batch again, it is refused."""
    table = make_table()
    rival = rival_of(table)

    def go_on():
        retry_quarantined(rival, table.batch_id, clock=rival.clock)
        rival.stage(ROWS, batch_id=table.batch_id)
        rival.flush()

    look = Fault("get", None, "/quarantine/", before=go_on)
    table.store.script = [Fault("put_if_match", None, "/quarantine/", before=lambda: table.store.script.append(look))]
    with pytest.raises(InvalidRequest, match=r"nobody can tell .* by force"):
        retry(table, force=force)
    assert flush_all(table) == [1, 2, 3]
    assert [entry.retry_id for entry in list_quarantined(table)] == [None]


def test_i5_a_flush_that_does_not_know_whether_its_reason_was_there_says_that_the_rows_may_be_live():
    """It lands, its answer gets lost; another flush clears staging, and a retry the entry: as if it had never landed."""
    table = SmallTable()
    table.stage([{"id": 1, "p": "a", "n": 1}])
    table.flush()
    table.batch_id = table.stage(ROWS)
    rival = rival_of(table)

    def retry_now():
        alter(rival, evolution="widen")
        rival.flush()
        retry_quarantined(rival, table.batch_id, clock=rival.clock)

    look = Fault("get", None, f"/quarantine/{table.batch_id}.json", before=retry_now)
    write = Fault("put_if_absent", Effect.LOSE_ANSWER, "/quarantine/", before=lambda: table.store.script.append(look))
    table.store.script = [write]
    table.flush()
    with pytest.raises(InvalidRequest, match=r"nobody can tell .* by force"):
        retry(table)
    assert flush_all(table) == [1, 2, 3]


def cut_off(table, key="/quarantine/"):
    """Retry, and die before the payload in quarantine goes."""
    table.store.script = [Fault("delete", Effect.CRASH_BEFORE, key)]
    with pytest.raises(Crash):
        retry(table)


def test_a_retry_that_was_cut_off_long_ago_goes_on_if_its_batch_is_known():
    for flushes in (False, True):
        table = make_table()
        cut_off(table)
        if flushes:
            flush_all(table)
        table.clock.advance(2 * table.config.log_grace_ms)
        retry(table)
        assert flush_all(table) == [1, 2, 3]
        assert table.keys(table.paths.quarantine_prefix) == []


def test_a_retry_that_was_cut_off_so_long_ago_that_nobody_knows_it_is_left_to_a_person():
    table = make_table()
    cut_off(table)
    flush_all(table)
    table.merge(full=True)
    table.clock.advance(100_000)
    table.vacuum()
    with pytest.raises(InvalidRequest, match="cut off too long"):
        retry(table)
    assert flush_all(table) == [1, 2, 3]
    retry(table, force=True)
    assert flush_all(table) == [1, 2, 2, 3, 3]  # as it was asked for


def test_a_batch_whose_id_is_too_old_is_only_retried_by_force():
    table = SmallTable()
    table.batch_id = str(UUID(hex=make_uuid7_hex(table.clock.now_ms() - table.config.log_grace_ms, 1)))
    table.stage([{"id": 1, "p": "a"}], batch_id=table.batch_id)
    table.flush()
    (entry,) = list_quarantined(table)
    assert entry.is_doubtful
    with pytest.raises(InvalidRequest, match=r"nobody can tell .* by force"):
        retry(table)
    retry(table, force=True)
    assert flush_all(table) == [1]


def test_a_batch_that_is_staged_again_after_its_retry_is_not_retried_by_accident():
    table = make_table()
    retry(table)
    table.stage(ROWS, batch_id=table.batch_id)
    assert flush_all(table) == [1, 2, 3]
    with pytest.raises(InvalidRequest, match="refused before"):
        retry(table)


def test_bad_rows_of_a_batch_that_is_not_committed_yet_wait():
    table = SmallTable(on_bad_rows="quarantine_rows")
    table.append(1)
    table.batch_id = table.stage([{"id": 4, "p": "a"}, {"id": "x", "p": "a"}])
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "/_log/")]
    with pytest.raises(Crash):
        table.flush()
    with pytest.raises(InvalidRequest, match="still staged"):
        retry(table)


def test_bad_rows_of_a_flush_that_did_not_commit_are_not_retried_if_another_took_the_whole_batch():
    table = make_cut_off_rows_table()
    alter(table, evolution="widen")
    assert flush_all(table) == [1, 2, 3, 4]
    with pytest.raises(InvalidRequest, match="committed whole by a later flush"):
        retry(table)
    drop_quarantined(table, table.batch_id)
    assert table.keys(table.paths.quarantine_prefix) == []


def test_bad_rows_that_land_late_do_not_replace_those_of_the_commit():
    """The upload of one flush is held up; the table learns to take more; the next flush leaves out fewer rows."""
    table = SmallTable(on_bad_rows="quarantine_rows")
    table.stage([{"id": 1, "p": "a", "n": 1}])
    table.flush()
    table.batch_id = table.stage([{"id": 4, "p": "a"}, *ROWS, {"id": "x", "p": "a"}])
    table.store.script = [Fault("put", Effect.DELAY, "/quarantine/")]
    with pytest.raises(CommitOutcomeUnknown):
        table.flush()
    alter(table, evolution="widen")
    assert flush_all(table) == [1, 2, 3, 4]
    table.store.land_delayed()
    found = read_quarantined(table, table.batch_id)
    assert [orjson.loads(line) for line in found.body.split(b"\n")] == [{"id": "x", "p": "a"}]
    assert found.entry.row_count == 1


@pytest.mark.parametrize("has_landed", [True, False])
def test_bad_rows_whose_commit_the_log_has_forgotten_are_retried_only_if_it_landed(has_landed):
    table = SmallTable(on_bad_rows="quarantine_rows")
    table.stage([{"id": 1, "p": "a", "n": 1}])
    table.flush()
    table.batch_id = table.stage([{"id": 4, "p": "a"}, *ROWS])
    if not has_landed:
        table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "/_log/")]
        with pytest.raises(Crash):
            table.flush()
        alter(table, evolution="widen")
    table.flush()
    table.store.inner.delete([file.key for file in table.view().files if table.batch_id in file.log.batch_ids])
    alter(table, evolution="widen")
    if has_landed:
        retry(table)
        return
    with pytest.raises(InvalidRequest, match="another one may have made them live"):
        retry(table)


def test_a_reason_of_bad_rows_that_lands_when_all_is_over_is_not_retried():
    """A flush writes it, its request is held up; another one refuses the whole batch, an operator retries that."""
    table = SmallTable(on_bad_rows="quarantine_rows")
    table.stage([{"id": 1, "p": "a", "n": 1}])
    table.flush()
    table.batch_id = table.stage([{"id": 4, "p": "a"}, *ROWS])
    table.store.script = [Fault("put_if_absent", Effect.DELAY, "/quarantine/")]
    with pytest.raises(CommitOutcomeUnknown):
        table.flush()
    alter(table, on_bad_rows="quarantine_batch")
    table.flush()
    alter(table, evolution="widen")
    retry(table)
    table.store.land_delayed()
    with pytest.raises(InvalidRequest, match="refused whole by a later flush"):
        retry(table)
    assert flush_all(table) == [1, 2, 3, 4]


@pytest.mark.parametrize("make", [make_table, make_rows_table])
@pytest.mark.parametrize("effect", EFFECTS)
def test_a_drop_leaves_nothing_whatever_fails(make, effect):
    def drop(table):
        drop_quarantined(table, table.batch_id)

    before = make().ids()
    for table in try_each_call(make, drop, effect):
        with contextlib.suppress(NotFound):
            drop(table)
        table.store.land_delayed()
        assert table.keys(table.paths.quarantine_prefix) == []
        assert flush_all(table) == before


@pytest.mark.parametrize("method", ["list_page", "get"])
def test_a_drop_takes_nothing_that_a_flush_writes_meanwhile(method):
    """Bad rows of a batch are dropped whose flush was cut off; the next one refuses the batch as a whole, just then."""
    table = make_cut_off_rows_table()
    alter(table, on_bad_rows="quarantine_batch")
    rival = SmallTable(store=table.store.inner, name="rival")
    rival.paths, rival.clock = table.paths, table.clock
    where = "staging/" if method == "list_page" else "quarantine/"
    table.store.script = [Fault(method, None, where, before=rival.flush)]
    with pytest.raises(InvalidRequest, match="is staged") if method == "get" else contextlib.nullcontext():
        drop_quarantined(table, table.batch_id)
    # Before the first look it was refused already, and somebody may drop that.
    kinds = [entry.kind for entry in list_quarantined(table)]
    assert kinds == (["batch"] if method == "get" else [])
    assert staged_ids(table) == []


def test_what_is_not_there_is_not_found():
    table = make_table()
    table.batch_id = "018bcfe5-6800-7000-8000-000000000009"
    for call in (read_quarantined, drop_quarantined):
        with pytest.raises(NotFound, match="icedb quarantine list"):
            call(table, table.batch_id)
    with pytest.raises(NotFound):
        retry(table)


def test_a_payload_that_is_gone_before_any_retry_is_said_and_the_entry_stays():
    table = make_table()
    table.store.inner.delete([read_quarantined(table, table.batch_id).entry.payload_key])
    with pytest.raises(NotFound, match="payload of batch"):
        retry(table)
    (entry,) = list_quarantined(table)
    assert entry.retry_id is None


@pytest.mark.parametrize("body", [b"{", b"{}", b'{"batch_id": "x", "reason": "", "payload": "y", "bytes": 1}'])
def test_a_reason_that_cannot_be_read_is_not_retried_but_can_be_dropped(body):
    table = make_table()
    table.store.put(reason_key(table.paths, table.batch_id), body)
    with pytest.raises(CorruptLog, match="by hand, or drop it"):
        retry(table)
    drop_quarantined(table, table.batch_id)
    assert list_quarantined(table) == ()


def test_a_payload_elsewhere_is_never_staged():
    table = make_table()
    key = reason_key(table.paths, table.batch_id)
    fields = orjson.loads(table.store.get(key).body)
    elsewhere = f"wh/other/{table.batch_id}.batch-{DIGEST}.ndjson"
    for payload in ("wh/other/secret.ndjson", elsewhere, table.paths.quarantine_key("x.exe"), f"{key}.ndjson"):
        table.store.put(key, orjson.dumps({**fields, "payload": payload}))
        with pytest.raises(CorruptLog, match="no format that can be staged"):
            retry(table)


def test_j6_a_payload_elsewhere_is_not_deleted_with_its_entry():
    table = make_table()
    key = reason_key(table.paths, table.batch_id)
    fields = orjson.loads(table.store.get(key).body)
    of_another = table.paths.quarantine_key(f"another.batch-{DIGEST}.ndjson")
    for payload in (f"wh/other/{table.batch_id}.batch-{DIGEST}.ndjson", of_another):
        table.store.put(payload, b"{}")
        table.store.put(key, orjson.dumps({**fields, "payload": payload}))
        drop_quarantined(table, table.batch_id)
        assert table.store.get(payload).body == b"{}"


@pytest.mark.parametrize("is_late", [False, True])
def test_half_the_retry_window_is_left_to_a_retry_that_was_cut_off_before_it_staged(is_late):
    table = make_table()
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "/staging/")]
    with pytest.raises(Crash):
        retry(table)
    (entry,) = list_quarantined(table)
    age_ms = table.clock.now_ms() - parse_uuid7_ms(entry.retry_id)
    table.clock.advance(table.config.retry_window_ms // 2 - age_ms - (0 if is_late else 1))
    if is_late:
        with pytest.raises(InvalidRequest, match="cut off too long"):
            retry(table)
    else:
        assert retry(table) == entry.retry_id
        assert flush_all(table) == [1, 2, 3]


def test_a_delete_that_fails_is_said():
    table = make_table()
    table.store.script = [Fault("delete", Effect.REFUSE, "/quarantine/")]
    with pytest.raises(Unavailable, match="do it again"):
        drop_quarantined(table, table.batch_id)
