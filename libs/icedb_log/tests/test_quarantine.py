"""Quarantine: I5, at every crash."""

import orjson
import pytest
from icedb_log.ingest.quarantine import QuarantinedBatch, list_quarantined, quarantine_batch, reason_key
from icedb_log.ingest.staging import list_staged
from icedb_log.jobs import RejectedBatch, RowFault
from icedb_sim.fakes.scripted_store import Effect, Fault
from icedb_sim.tables.small_table import SmallTable, try_each_call


def make_table():
    table = SmallTable()
    table.stage_bytes(b"rows")
    return table


def refuse(table, reason="why"):
    for batch in list_staged(table).batches:
        quarantine_batch(table, rejected=RejectedBatch(batch, reason), clock=table.clock)


def test_i5_a_batch_moves_whole_with_its_reason():
    table = make_table()
    (batch,) = list_staged(table).batches
    refuse(table)
    assert list_staged(table).batches == ()
    (found,) = list_quarantined(table)
    assert (found.batch_id, found.reason, found.size_bytes) == (batch.batch_id, "why", 4)
    assert found.quarantined_ms == table.clock.now_ms()
    assert table.store.get(found.payload_key).body == b"rows"


def test_i5_a_batch_that_is_gone_was_moved_by_another_run():
    table = make_table()
    (batch,) = list_staged(table).batches
    refuse(table)
    quarantine_batch(table, rejected=RejectedBatch(batch, "late"), clock=table.clock)
    assert [found.reason for found in list_quarantined(table)] == ["why"]


@pytest.mark.parametrize("effect", list(Effect))
def test_i5_whatever_fails_the_batch_is_staged_or_in_quarantine_and_then_in_quarantine(effect):
    tables = try_each_call(make_table, refuse, effect)
    assert len(tables) == 6
    for table in tables:
        staged = table.keys(table.paths.staging_prefix)
        listed = list_quarantined(table)
        assert staged or listed
        for found in listed:
            assert table.store.get(found.payload_key).body == b"rows"
        refuse(table)
        assert table.keys(table.paths.staging_prefix) == []
        (found,) = list_quarantined(table)
        assert table.store.get(found.payload_key).body == b"rows"


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"batch_id": "x"}'])
def test_a_reason_that_cannot_be_read_is_named_and_hides_no_other(body):
    table = make_table()
    refuse(table)
    key = table.paths.quarantine_key("x.json")
    table.store.put(key, body)
    good, odd = list_quarantined(table)
    assert good.reason == "why"
    assert (odd.batch_id, odd.payload_key, odd.quarantined_ms) == ("x", key, table.clock.now_ms())
    assert key in odd.reason


def test_a_reason_that_vanishes_while_it_is_read_is_gone():
    table = make_table()
    refuse(table)
    table.store.script = [
        Fault("get", None, "/quarantine/", before=lambda: table.store.inner.delete(table.keys(table.paths.prefix)))
    ]
    assert list_quarantined(table) == ()


def test_quarantined_batches_are_listed_oldest_first():
    table = SmallTable()
    ids = [table.stage_bytes(b"%d" % number) for number in range(4)]
    refuse(table)
    assert [found.batch_id for found in list_quarantined(table)] == ids
    key = table.paths.quarantine_key(f"{ids[0]}.json")
    assert orjson.loads(table.store.get(key).body)["reason"] == "why"


def test_i5_a_run_that_slept_does_not_write_over_a_retry_that_has_begun():
    """It has copied the payload; another run moves the batch, an operator begins a retry; then it wakes up."""
    table = make_table()
    (batch,) = list_staged(table).batches
    begun = b""

    def others():
        nonlocal begun
        rival = SmallTable(store=table.store.inner, name="rival")
        rival.paths = table.paths
        refuse(rival, "theirs")
        key = reason_key(table.paths, batch.batch_id)
        begun = orjson.dumps({**orjson.loads(rival.store.get(key).body), "retry": "x"})
        rival.store.put(key, begun)

    table.store.script = [Fault("put_if_absent", None, "/quarantine/", before=others)]
    quarantine_batch(table, rejected=RejectedBatch(batch, "mine"), clock=table.clock)
    assert table.store.get(reason_key(table.paths, batch.batch_id)).body == begun
    assert list_staged(table).batches == ()


@pytest.mark.parametrize("effect", [Effect.LOSE_ANSWER, Effect.DROP, Effect.DELAY])
def test_i5_a_reason_whose_write_is_not_confirmed_is_read_back_and_kept(effect):
    table = make_table()
    table.store.script = [Fault("put_if_absent", effect, "/quarantine/")]
    refuse(table)
    table.store.land_delayed()
    assert [found.reason for found in list_quarantined(table)] == ["why"]
    assert list_staged(table).batches == ()


def test_a_line_that_counts_the_other_rows_is_no_reason_of_a_row():
    entry = QuarantinedBatch(
        batch_id="b",
        reason="line 2: 'x' is no BIGINT\nand 3 more rows:",
        payload="p",
        bytes=1,
        quarantined_ms=1,
        kind="rows",
        faults=(RowFault("no BIGINT", (2, 3)),),
    )
    assert entry.row_reasons == ((2, "line 2: 'x' is no BIGINT"), (3, "no BIGINT"))
