"""Staging: I1, and a listing that junk cannot block (I5)."""

import gzip

import pytest
from icedb_log.clock import new_batch_id
from icedb_log.errors import InvalidRequest, Unavailable
from icedb_log.ingest.staging import find_staged, list_staged, stage_batch
from icedb_log.store.object_store import MAX_KEYS_PER_PAGE
from icedb_sim.fakes.scripted_store import Effect, Fault


def stage(table, body=b"{}", batch_id=None, staging_format="ndjson"):
    return stage_batch(
        table,
        body=body,
        staging_format=staging_format,
        batch_id=batch_id or new_batch_id(table.clock),
    )


def test_i1_accepting_is_one_conditional_put(table):
    batch_id = new_batch_id(table.clock)
    table.store.calls.clear()
    key = stage(table, b"rows", batch_id)
    assert table.store.keys_of("put_if_absent") == [key] == [call.key for call in table.store.calls]
    assert table.store.get(key).body == b"rows"
    (found,) = list_staged(table).batches
    assert (found.key, found.batch_id, found.format, found.size_bytes) == (key, batch_id, "ndjson", 4)
    assert found.staged_ms == table.clock.now_ms()


def test_i1_the_same_id_and_content_again_is_the_same_batch(table):
    batch_id = new_batch_id(table.clock)
    assert stage(table, b"rows", batch_id) == stage(table, b"rows", batch_id)
    assert len(list_staged(table).batches) == 1


def test_i1_the_same_id_with_other_content_is_refused(table):
    batch_id = new_batch_id(table.clock)
    key = stage(table, b"rows", batch_id)
    for other in (b"other", b"rowt", b"xows", b"row", b"rowss", b""):
        with pytest.raises(InvalidRequest, match=f"{batch_id} is staged already with other content"):
            stage(table, other, batch_id)
    assert table.store.get(key).body == b"rows"


def test_i8_the_same_content_packed_again_is_the_same_batch(table):
    batch_id = new_batch_id(table.clock)
    first, again = (gzip.compress(b"rows", mtime=mtime) for mtime in (1, 2))
    key = stage(table, first, batch_id, "ndjson.gz")
    assert stage(table, again, batch_id, "ndjson.gz") == key
    assert table.store.get(key).body == first
    for other in (gzip.compress(b"rowt"), first[:-1], first + b"x"):
        with pytest.raises(InvalidRequest, match="is staged already with other content"):
            stage(table, other, batch_id, "ndjson.gz")


@pytest.mark.parametrize("effect", [Effect.LOSE_ANSWER, Effect.TRY_TWICE, Effect.DROP, Effect.DELAY])
def test_i1_a_lost_answer_is_tried_again_under_the_same_id(table, effect):
    table.store.script = [Fault("put_if_absent", effect, "/staging/")]
    key = stage(table, b"rows")
    assert table.store.get(key).body == b"rows"
    table.store.land_delayed()
    assert len(list_staged(table).batches) == 1


def test_i1_a_batch_that_a_flush_took_while_it_was_retried_is_accepted(table):
    batch_id = new_batch_id(table.clock)
    key = stage(table, b"rows", batch_id)
    table.store.script = [Fault("get", None, "/staging/", before=lambda: table.store.inner.delete([key]))]
    assert stage(table, b"rows", batch_id) == key


def test_i1_without_any_confirmation_the_producer_is_told_to_repeat(table):
    table.store.script = [Fault("put_if_absent", Effect.DROP, "/staging/") for _ in range(3)]
    with pytest.raises(Unavailable, match="enqueue it again with the same id"):
        stage(table)


@pytest.mark.parametrize(
    "batch_id",
    [
        "",
        "x",
        "../../table",
        "01889a1b-3f75-4000-8000-00000000000a",  # version 4
        "01889A1B-3F75-7000-8000-00000000000A",
        "01889a1b3f7570008000000000000001",
        "{01889a1b-3f75-7000-8000-00000000000a}",
        "01889a1b-3f75-7000-8000-00000000000a\n",
        "x" * 10_000,
    ],
)
def test_i1_only_a_canonical_uuid7_is_an_id(table, batch_id):
    with pytest.raises(InvalidRequest, match="UUIDv7") as caught:
        stage_batch(table, body=b"", staging_format="ndjson", batch_id=batch_id)
    assert len(str(caught.value)) < 400
    assert list_staged(table).batches == ()


def test_an_unknown_format_is_refused(table):
    with pytest.raises(InvalidRequest, match=r"'xml' is unknown: use one of ndjson, ndjson\.gz, ndjson\.zst, json"):
        stage(table, staging_format="xml")


def test_staged_batches_are_listed_oldest_first_up_to_the_limit(table):
    ids = [table.stage([{"id": number}]) for number in range(5)]
    listing = list_staged(table, limit=3)
    assert ([batch.batch_id for batch in listing.batches], listing.has_more) == (ids[:3], True)
    listing = list_staged(table, limit=5)
    assert ([batch.batch_id for batch in listing.batches], listing.has_more) == (ids, False)


def test_what_is_no_batch_is_named_and_hides_nothing(table):
    for number in range(7):
        table.store.put(f"{table.paths.staging_prefix}!junk{number}", b"")
    table.store.put(f"{table.paths.staging_prefix}zz.tmp", b"")
    ids = [table.stage([{"id": number}]) for number in range(3)]
    for limit in range(1, 12):
        listing = list_staged(table, limit=limit)
        assert [batch.batch_id for batch in listing.batches] == ids[:limit]
        assert listing.has_more or limit >= 3
    assert len(listing.unknown) == 8


@pytest.mark.parametrize("before", range(8))
def test_copies_are_found_wherever_a_page_ends(table, before):
    """Copies of one id in three formats, of an older and of the newest id, with a page's end before each of them."""
    for number in range(MAX_KEYS_PER_PAGE - before):
        table.store.put(f"{table.paths.staging_prefix}!{number:04d}", b"")
    older, newest, later = (new_batch_id(table.clock) for _ in range(3))
    formats = ("csv", "json", "ndjson")
    copies = {
        batch_id: tuple(stage(table, batch_id=batch_id, staging_format=each) for each in formats)
        for batch_id in (older, newest, later)
    }

    def find(*batch_ids):
        return {
            batch_id: tuple(copy.key for copy in found) for batch_id, found in find_staged(table, batch_ids).items()
        }

    assert find(newest) == {newest: copies[newest]}
    assert find(older, newest) == {older: copies[older], newest: copies[newest]}
    assert find() == {}
