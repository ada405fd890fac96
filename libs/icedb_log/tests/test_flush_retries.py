"""What a flush makes of a batch that is staged once more, or too late (I3)."""

import pytest
from icedb_log.clock import make_uuid7_hex, new_batch_id
from icedb_log.ingest.quarantine import list_quarantined
from icedb_log.ingest.staging import list_staged, stage_batch
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.row_files import encode_rows


def staged_ids(table):
    return [batch.batch_id for batch in list_staged(table).batches]


def batch_id_at(time_ms, number=1):
    value = make_uuid7_hex(time_ms, number)
    return f"{value[:8]}-{value[8:12]}-{value[12:16]}-{value[16:20]}-{value[20:]}"


def test_i3_a_batch_staged_again_after_its_commit_is_a_duplicate(table):
    rows = [{"id": 1, "p": "a"}]
    batch_id = table.stage(rows)
    table.flush()
    table.stage(rows, batch_id=batch_id)
    other = table.stage([{"id": 2, "p": "a"}])
    result = table.flush()
    assert (result.duplicate_count, result.batch_count) == (1, 1)
    assert table.ids() == [1, 2]
    assert table.view().files[-1].log.batch_ids == (other,)


def test_i3_ids_are_known_until_their_log_file_is_deleted_merged_or_not(table):
    rows = [{"id": 1, "p": "a"}]
    batch_id = table.stage(rows)
    table.flush()
    table.append(2)
    table.merge()
    table.stage(rows, batch_id=batch_id)
    assert table.flush().duplicate_count == 1
    assert table.ids() == [1, 2]


def test_i3_a_retry_at_the_end_of_its_window_is_still_recognised(table):
    """An id in the future, committed at once, vacuumed as early as possible, retried as late as possible."""
    config = table.config
    rows = [{"id": 1, "p": "a"}]
    batch_id = batch_id_at(table.clock.now_ms() + config.id_skew_ms)
    id_ms = table.clock.now_ms() + config.id_skew_ms
    table.stage(rows, batch_id=batch_id)
    table.flush()
    table.append(2)
    table.merge(full=True)
    refused = 0
    while table.clock.now_ms() < id_ms + 3 * config.log_grace_ms:
        table.vacuum()
        table.stage(rows, batch_id=batch_id)
        result = table.flush()
        refused += len(result.rejected)
        assert table.ids() == [1, 2]
        assert result.batch_count == 0
        table.clock.advance(97)
    assert refused


def test_i3_a_batch_staged_later_than_its_window_is_refused_and_kept_in_quarantine(table):
    early = table.clock.now_ms() - table.config.retry_window_ms
    inside, late = batch_id_at(early + 1, 1), batch_id_at(early, 2)
    table.stage([{"id": 1, "p": "a"}], batch_id=inside)
    table.stage([{"id": 2, "p": "a"}], batch_id=late)
    result = table.flush()
    assert [r.batch.batch_id for r in result.rejected] == [late]
    assert "fresh id" in result.rejected[0].reason
    assert table.ids() == [1]
    assert [q.batch_id for q in list_quarantined(table)] == [late]


def test_i3_an_id_too_far_in_the_future_is_refused(table):
    at = table.clock.now_ms() + table.config.id_skew_ms
    good, bad = batch_id_at(at, 1), batch_id_at(at + 2, 2)
    table.stage([{"id": 1, "p": "a"}], batch_id=good)
    table.stage([{"id": 2, "p": "a"}], batch_id=bad)
    result = table.flush()
    assert [r.batch.batch_id for r in result.rejected] == [bad]
    assert "future" in result.rejected[0].reason


def test_i3_a_backlog_that_waited_long_is_taken(table):
    table.stage([{"id": 1, "p": "a"}])
    table.clock.advance(50 * table.config.log_grace_ms)
    assert table.flush().batch_count == 1


def test_i3_the_workers_clock_does_not_decide_what_is_late(table):
    store_ms = table.clock.now_ms()
    table.store.inner._now_ms = lambda: store_ms
    table.stage([{"id": 1, "p": "a"}])
    table.clock.advance(50 * table.config.log_grace_ms)
    assert table.flush().batch_count == 1


def test_i3_one_id_in_two_formats_is_one_batch(table):
    body = encode_rows([{"id": 1, "p": "a"}])
    batch_id = new_batch_id(table.clock)
    for staging_format in ("ndjson", "ndjson.gz"):
        stage_batch(table, body=body, staging_format=staging_format, batch_id=batch_id)
    result = table.flush()
    assert (result.batch_count, result.has_more) == (1, True)
    result = table.flush()
    assert (result.batch_count, result.duplicate_count, result.has_more) == (0, 1, False)
    assert (table.ids(), staged_ids(table)) == ([1], [])


def test_i3_a_copy_in_another_format_is_kept_until_the_first_is_committed(table):
    body = encode_rows([{"id": 1, "p": "a"}])
    batch_id = new_batch_id(table.clock)
    for staging_format in ("ndjson", "ndjson.gz"):
        stage_batch(table, body=body, staging_format=staging_format, batch_id=batch_id)
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "/_log/")]
    with pytest.raises(Crash):
        table.flush()
    assert len(staged_ids(table)) == 2
