"""A producer's own key: one batch id for it, whoever asks first, and one content (I7)."""

import pytest
from icedb_log.clock import new_batch_id
from icedb_log.content import hash_content
from icedb_log.errors import InvalidRequest, Unavailable
from icedb_log.ingest.idempotency import bind_key, mark_staged
from icedb_sim.fakes.scripted_store import Effect, Fault


def bind(table, key="order 7", body=b"{}", batch_id=None, sha256=None):
    batch_id = batch_id or new_batch_id(table.clock)
    return bind_key(table, key=key, batch_id=batch_id, content_sha256=sha256 or hash_content(body, "ndjson"))


def test_the_first_binds_and_the_others_find_it(table):
    first = bind(table)
    again = bind(table)
    assert first.is_new
    assert not again.is_new
    assert first.batch_id == again.batch_id
    assert bind(table, key="order 8").batch_id != first.batch_id


def test_a_preferred_id_is_bound(table):
    batch_id = new_batch_id(table.clock)
    assert bind(table, batch_id=batch_id).batch_id == batch_id


def test_a_key_belongs_to_one_content(table):
    first = bind(table)
    with pytest.raises(InvalidRequest, match=f"'order 7' was used before with other content.*{first.batch_id}"):
        bind(table, body=b"[]")


def test_what_is_staged_is_remembered(table):
    binding = bind(table)
    assert not bind(table).is_staged
    mark_staged(table.store, binding)
    assert bind(table).is_staged


@pytest.mark.parametrize("effect", [Effect.LOSE_ANSWER, Effect.DROP, Effect.DELAY, Effect.TRY_TWICE])
def test_an_unknown_outcome_is_settled(table, effect):
    table.store.script = [Fault("put_if_absent", effect)]
    binding = bind(table)
    assert bind(table).batch_id == binding.batch_id
    assert binding.is_new


def test_a_store_that_never_confirms_is_unavailable(table):
    table.store.script = [Fault("put_if_absent", Effect.DROP) for _ in range(10)]
    with pytest.raises(Unavailable, match="did not confirm"):
        bind(table)


def test_a_record_that_cannot_be_read_is_not_overwritten(table):
    binding = bind(table)
    table.store.put(binding.record_key, b"what?")
    with pytest.raises(Unavailable, match="use another key"):
        bind(table)


def test_content_is_told_by_its_whole_hash(table):
    first = bind(table)
    mine = hash_content(b"{}", "ndjson")
    for other in (mine[:-1] + "0", "0" + mine[1:], mine[:8], mine + "0"):
        if other != mine:
            with pytest.raises(InvalidRequest, match=first.batch_id):
                bind(table, sha256=other)
