"""Batches that share a staged object: fetched once, each checked against the digest that the index has of it."""

import dataclasses

import pytest
from icedb_engine.reading import unit as unit_module
from icedb_engine.work import decode_unit, encode
from icedb_log.clock import new_batch_id
from icedb_log.content import hash_content
from icedb_log.ingest.groups import OfferedBatch, forget_groups, read_group
from icedb_log.ingest.staging import stage_group
from icedb_log.store.table_store import TableStore
from icedb_sim.fakes.scripted_store import ScriptedStore


@pytest.fixture(autouse=True)
def _fresh_process():
    forget_groups()


@pytest.fixture
def plain(make_table):
    return make_table()


def stage_together(table, *bodies, staging_format="ndjson"):
    """Stage bodies as one group, and return its batches."""
    offered = []
    for body in bodies:
        table.clock.advance(1)
        offered.append(
            OfferedBatch(new_batch_id(table.clock), staging_format, body, hash_content(body, staging_format))
        )
    key = stage_group(TableStore(table.store, table.paths), offered)
    return read_group(table.store, table.store.head(key))


def line(number):
    return b'{"id":%d}\n' % number


def fetches(table, *batches):
    table.store = ScriptedStore(table.store)
    result = table.flush(*batches)
    return result, [call for call in table.store.calls if call.key.endswith(".group")]


def test_a_unit_fetches_a_group_once_and_alone_ones_besides(plain):
    first = stage_together(plain, *map(line, range(100)))
    alone = plain.stage({"id": 1000})
    second = stage_together(plain, *map(line, range(100, 150)))
    batches = sorted((*first, alone, *second), key=lambda batch: batch.batch_id)
    result, calls = fetches(plain, *batches)
    assert (result.row_count, len(result.accepted)) == (151, 151)
    assert [call.method for call in calls] == ["get_range", "get_range"]


def test_a_unit_fetches_of_a_group_only_what_it_needs(plain):
    bodies = [line(1), b'{"id":"' + b"x" * 500_000 + b'"}\n', line(2), line(3)]
    batches = stage_together(plain, *bodies)
    part = unit_module._Bodies(plain.store, batches[2:])
    assert [part.take(batch) for batch in batches[2:]] == bodies[2:]
    (kept,) = part._groups.values()
    assert (kept.start, kept.end, kept.body) == (batches[2].offset_bytes, sum(map(len, bodies)), b"")


def test_runs_in_threads_share_a_group(plain, monkeypatch):
    monkeypatch.setattr(unit_module, "RUN_BATCHES", 3)
    result, calls = fetches(plain, *stage_together(plain, *map(line, range(40))))
    assert (result.row_count, len(calls)) == (40, 1)


def test_a_body_that_is_not_what_the_index_says_is_refused(plain):
    good, bad = stage_together(plain, line(1), line(2))
    damaged = plain.store.get(good.key).body.replace(b'{"id":2}', b'{"id":3}')
    plain.store.put(good.key, damaged)
    result = plain.flush(good, bad)
    assert [result.accepted, [*result.rejected]] == [(good.batch_id,), [bad.batch_id]]
    assert "names other content at this place: the object is damaged" in result.rejected[bad.batch_id]


def test_a_group_that_is_gone_is_missing_as_each_of_its_batches(plain):
    batches = stage_together(plain, line(1), line(2))
    plain.store.delete([batches[0].key])
    result = plain.flush(*batches, plain.stage({"id": 3}))
    assert set(result.missing) == {batch.batch_id for batch in batches}
    assert result.row_count == 1


def test_a_grouped_batch_travels_to_a_task(plain):
    batches = stage_together(plain, line(1), line(2))
    unit = plain.flush_unit(*batches)
    assert decode_unit("flush", encode(unit)).batches == batches
    assert dataclasses.replace(batches[0], offset_bytes=None).name == batches[0].key
