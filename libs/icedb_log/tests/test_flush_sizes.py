"""I6: a flush that takes small batches leaves large ones staged, and the other way round; no batch is of neither."""

from dataclasses import replace

import pytest
from icedb_log.errors import InvariantViolated
from icedb_log.ingest.flush import FlushLimits
from icedb_log.ingest.staging import list_staged
from icedb_log.jobs import SizeClass, StagedBatch
from icedb_sim.tables.table_steps import TamperingWriter, staged_ids

SMALL = SizeClass("small", decoded_bytes=60, row_count=100)
LARGE = replace(SMALL, takes="large")


def stage(table, number, *, is_large=False):
    rows = [{"id": number, "p": "a"}]
    return table.stage(rows * 10 if is_large else rows)


def test_i6_a_flush_of_small_batches_leaves_large_ones_staged(table):
    small, large = stage(table, 1), stage(table, 2, is_large=True)
    result = table.flush(limits=FlushLimits(sizes=SMALL))
    assert (result.batch_count, result.left_out, result.deferred_count, result.has_more) == (1, (large,), 0, False)
    (file,) = table.view().files
    assert file.log.batch_ids == (small,)
    assert (table.ids(), staged_ids(table)) == ([1], [large])


def test_i6_only_large_batches_are_no_commit_and_no_error(table):
    large = stage(table, 2, is_large=True)
    result = table.flush(limits=FlushLimits(sizes=SMALL))
    assert (result.committed_key, result.left_out) == (None, (large,))
    assert staged_ids(table) == [large]


def test_i6_what_is_known_to_be_large_is_not_looked_at_again_and_takes_no_fence(table):
    large = stage(table, 2, is_large=True)
    table.store.calls.clear()
    assert table.flush(limits=FlushLimits(sizes=SMALL, skip=frozenset([large]))).committed_key is None
    assert {call.method for call in table.store.calls} == {"get", "list_page"}


def test_i6_large_batches_do_not_hide_small_ones_behind_them(table):
    known = [stage(table, number, is_large=True) for number in range(5)]
    stage(table, 9)
    table.flush(limits=FlushLimits(sizes=SMALL, skip=frozenset(known), max_batches=2))
    assert table.ids() == [9]
    assert [batch.batch_id for batch in list_staged(table, limit=2, skip=known[:3]).batches] == (known[3:])


def test_i6_a_large_batch_is_committed_alone(table):
    small = stage(table, 1)
    large = [stage(table, number, is_large=True) for number in (2, 3)]
    stage(table, 4)
    found = table.flush(limits=FlushLimits(sizes=LARGE))
    assert (found.batch_count, found.has_more) == (1, True)
    (file,) = table.view().files
    assert file.log.batch_ids == (large[0],)
    assert staged_ids(table)[:2] == [small, large[1]]
    found = table.flush(limits=FlushLimits(sizes=LARGE))
    assert (found.batch_count, found.has_more) == (1, False)
    assert table.flush(limits=FlushLimits(sizes=SMALL)).batch_count == 2
    assert staged_ids(table) == []
    assert sorted(set(table.ids())) == [1, 2, 3, 4]


def test_i6_a_large_batch_that_was_committed_before_is_a_duplicate_for_both(table):
    large = stage(table, 2, is_large=True)
    (batch,) = list_staged(table).batches
    body = table.store.get(batch.key).body
    table.flush(limits=FlushLimits(sizes=LARGE))
    for sizes in (SMALL, LARGE):
        table.store.put(batch.key, body)
        result = table.flush(limits=FlushLimits(sizes=sizes))
        assert (result.duplicate_count, result.left_out) == (1, ())
        assert (staged_ids(table), table.ids()) == ([], [2] * 10)
    assert large == batch.batch_id


def test_i6_small_batches_do_not_hide_a_large_one_behind_them(table):
    small = [stage(table, number) for number in range(5)]
    (batch, *_) = list_staged(table).batches
    large = stage(table, 9, is_large=True)
    certain = replace(LARGE, decoded_bytes=batch.size_bytes, row_count=batch.size_bytes)
    found = table.flush(limits=FlushLimits(sizes=certain, max_batches=1))
    assert (found.batch_count, found.left_out, found.has_more) == (1, tuple(small), False)
    assert staged_ids(table) == small
    assert large in table.view().files[-1].log.batch_ids


def test_i6_each_flush_in_search_of_a_large_batch_comes_further(table):
    small = [stage(table, number) for number in range(3)]
    large = stage(table, 9, is_large=True)
    sizes, known = replace(LARGE, row_count=1), set()
    for _ in range(len(small)):
        found = table.flush(limits=FlushLimits(sizes=sizes, skip=frozenset(known), max_batches=1))
        assert (found.committed_key, len(found.left_out), found.has_more) == (None, 1, True)
        known.update(found.left_out)
    found = table.flush(limits=FlushLimits(sizes=sizes, skip=frozenset(known), max_batches=1))
    assert (found.batch_count, found.has_more, known) == (1, False, set(small))
    assert large in table.view().files[-1].log.batch_ids


def test_i6_what_is_certainly_small_is_not_even_read_in_the_search_for_a_large_one(table):
    stage(table, 1)
    (batch,) = list_staged(table).batches
    sizes = replace(LARGE, decoded_bytes=batch.size_bytes, row_count=batch.size_bytes)
    table.store.calls.clear()
    assert table.flush(limits=FlushLimits(sizes=sizes)).left_out == (batch.batch_id,)
    assert batch.key not in [call.key for call in table.store.calls if call.method == "get"]


@pytest.mark.parametrize(
    ("staging_format", "size_bytes", "may_be_large"),
    [
        ("ndjson", 60, False),
        ("ndjson", 61, True),
        ("ndjson.gz", 1, True),
        ("csv.zst", 1, True),
        ("parquet", 1, True),
        ("arrow", 1, True),
    ],
)
def test_what_a_staged_size_says(staging_format, size_bytes, may_be_large):
    batch = StagedBatch("k", "i", staging_format, size_bytes, 0)
    assert SMALL.may_be_large(batch) is may_be_large
    if staging_format == "ndjson.gz":
        assert not replace(SMALL, decoded_bytes=1032, row_count=516).may_be_large(batch)
    assert replace(SMALL, row_count=2).may_be_large(replace(batch, size_bytes=6))


def test_i6_a_writer_that_leaves_out_without_being_asked_to_is_broken(table):
    stage(table, 1)
    writer = TamperingWriter(
        table, lambda output: replace(output, files=(), accepted=(), row_count=0, left_out=output.accepted)
    )
    with pytest.raises(InvariantViolated, match="was to take all sizes"):
        table.flush(writer=writer)
    assert len(staged_ids(table)) == 1
