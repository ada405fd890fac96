"""Erasures and quarantine: nothing that lay there at the request is passed over in silence."""

import pytest
from icedb_log.clock import new_batch_id
from icedb_log.holds.erasures import NamedObjects
from icedb_log.ingest.quarantine import payload_key, quarantine_batch
from icedb_log.ingest.quarantine_ops import retry_quarantined
from icedb_log.ingest.staging import list_staged
from icedb_log.jobs import RejectedBatch
from icedb_sim.fakes.scripted_store import Fault
from icedb_sim.tables.erasure_steps import advance, append_users, ask, finish, live_users
from icedb_sim.tables.row_files import encode_rows
from icedb_sim.tables.small_table import SmallTable


@pytest.fixture
def table():
    table = SmallTable(start_ms=1_700_000_000_000)
    append_users(table, "ann", "victim")
    return table


def put_in_quarantine(table, user):
    batch_id = table.stage([{"id": 9, "p": "a", "u": user}])
    (batch,) = list_staged(table, limit=1).batches
    quarantine_batch(table, rejected=RejectedBatch(batch, "refused"), clock=table.clock)
    return batch_id


def test_a_batch_that_was_in_quarantine_at_the_request_is_named_although_it_is_retried_before_the_deletion(table):
    """Its rows are older than the request, and staged later: the deletion does not wait for them."""
    batch_id = put_in_quarantine(table, "victim")
    erasure_id = ask(table)
    table.clock.advance(5_000)
    retry_quarantined(table, batch_id, clock=table.clock)
    assert advance(table, erasure_id).erasure.state == "deleted"
    table.flush()
    done = finish(table, erasure_id)
    assert live_users(table) == ["ann", "victim"]
    assert done.not_covered.quarantine == NamedObjects(count=1, names=(batch_id,))


def test_a_retry_that_ends_while_the_erasure_is_asked_for_is_waited_for(table):
    batch_id = put_in_quarantine(table, "victim")

    def retry():
        retry_quarantined(table, batch_id, clock=table.clock)

    table.store.script.append(Fault("list_page", None, key="_icedb/quarantine/", before=retry))
    erasure_id = ask(table)
    assert advance(table, erasure_id).waits_for == "flush"
    done = finish(table, erasure_id)
    assert (live_users(table), done.row_count, done.not_covered.quarantine.count) == (["ann"], 2, 0)


def test_bad_rows_without_a_reason_are_named(table):
    """Uploaded by a flush that died before it wrote the reason."""
    batch_id = new_batch_id(table.clock)
    body = encode_rows([{"id": 1, "u": "victim"}])
    table.store.put(payload_key(table.paths, batch_id, body, "ndjson.zst", what="rows"), body)
    erasure = advance(table, ask(table)).erasure
    assert erasure.not_covered.quarantine == NamedObjects(count=1, names=(batch_id,))


def test_two_lists_of_names_become_one():
    one, other = NamedObjects.of(["a", "b"]), NamedObjects.of(["b", "c"])
    assert one.plus(other) == NamedObjects(count=3, names=("a", "b", "c"))
    assert NamedObjects(count=2000, names=("a",)).plus(other).count == 2000
