"""What differs between two times (R6), and how it is cut into pages."""

import random

import pytest
from icedb_log.errors import InvalidRequest
from icedb_log.log.fold import fold
from icedb_log.log.live_files import LiveChunk
from icedb_log.serving.table_cache import TableCache
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_proto import snapshot_pb2 as pb
from icedb_sim.tables.small_table import SmallTable
from icedb_snapshot.table_calls import describe_table, find_changes, render_pages


@pytest.fixture
def read(warehouse, clock):
    def read(name="events"):
        cache = TableCache(warehouse, clock=clock, max_tables=9, wait_ms=1000, on_refresh=lambda _: None)
        return cache.table(name).read(max_staleness_ms=0)

    return read


def joined(pages):
    whole = pb.GetChangesResponse()
    for page in pages:
        whole.MergeFromString(page)
    return whole


@pytest.mark.parametrize("max_page_bytes", [1, 700, 5000, 1 << 20])
def test_pages_are_bounded_and_joined_they_are_the_answer(tables, read, warehouse, clock, max_page_bytes):
    tables.create()
    _, old = tables.commit(files=[(f"d=2026-01-{day:02}", day) for day in range(1, 21)])
    from_ms = clock.ms
    _, new = tables.commit(
        files=[(f"d=2026-02-{day:02}", None) for day in range(1, 21)],
        dead=old[:15],
        schema={"ts": "TIMESTAMP", "event": "VARCHAR", "amount": "DOUBLE"},
    )
    state = read()
    changes = find_changes(state, from_ms=from_ms, to_ms=None, now_ms=clock.ms)
    pages = list(render_pages(warehouse.table("events"), changes, max_page_bytes=max_page_bytes))
    assert all(len(page) <= max_page_bytes for page in pages) or max_page_bytes == 1
    assert len(pages) == {1: 36, 1 << 20: 1}.get(max_page_bytes, len(pages))
    whole = joined(pages)
    assert [file.path for file in whole.added] == sorted(new)
    assert [file.path for file in whole.removed] == sorted(old[:15])
    assert (whole.added_count, whole.removed_count) == (20, 15)
    assert [(c.name, c.type) for c in whole.changed_columns] == [("amount", "DOUBLE")]
    assert {v.value for file in whole.removed for v in file.partition_values} == {
        f"2026-01-{day:02}" for day in range(1, 16)
    }
    assert not whole.added[0].HasField("row_count")
    assert whole.removed[0].row_count == 1
    first = pb.GetChangesResponse.FromString(pages[0])
    assert (first.table, first.to_snapshot_id) == ("events", state.snapshot.snapshot_id)


def test_without_a_change_there_is_one_page_with_both_ids(tables, read, warehouse, clock):
    tables.create()
    tables.commit(files=[("d=2026-01-02", 1)])
    changes = find_changes(read(), from_ms=clock.ms, to_ms=None, now_ms=clock.ms)
    (page,) = render_pages(warehouse.table("events"), changes, max_page_bytes=1)
    answer = pb.GetChangesResponse.FromString(page)
    assert answer.from_snapshot_id == answer.to_snapshot_id != ""
    assert not answer.is_stable


def test_a_column_that_became_wider_says_from_what(read, warehouse, clock):
    table = SmallTable(store=warehouse.store, name="wide", start_ms=clock.ms, evolution="widen")
    table.stage([{"id": 1, "p": "a", "amount": 1}])
    table.flush()
    from_ms = table.clock.now_ms() - 1
    table.stage([{"id": 2, "p": "a", "amount": 1.5}])
    table.flush()
    state = read("wide")
    changes = find_changes(state, from_ms=from_ms, to_ms=None, now_ms=table.clock.now_ms())
    (page,) = render_pages(warehouse.table("wide"), changes, max_page_bytes=1 << 20)
    (column,) = pb.GetChangesResponse.FromString(page).changed_columns
    assert (column.name, column.type, column.narrow_type) == ("amount", "DOUBLE", "BIGINT")
    by_name = {column.name: column for column in describe_table(state).schema}
    assert by_name["amount"] == column
    assert not by_name["id"].HasField("narrow_type")


def test_a_change_costs_what_changed(tables, read, clock, monkeypatch):
    tables.create()
    _, old = tables.commit(files=[(f"d=2026-{month:02}-{day:02}", 1) for month in range(1, 13) for day in range(1, 29)])
    from_ms = clock.ms
    _, new = tables.commit(files=[("d=2026-03-03", 1), ("d=2026-07-07", 1)], dead=old[:1])
    state = read()
    state.at(from_ms)
    looks = []
    path = LiveChunk.path
    monkeypatch.setattr(LiveChunk, "path", lambda chunk, index: looks.append(1) or path(chunk, index))
    monkeypatch.setattr(LiveChunk, "marker", None)
    changes = find_changes(state, from_ms=from_ms, to_ms=None, now_ms=clock.ms)
    assert 0 < len(looks) < len(old) / 10
    monkeypatch.undo()
    assert [marker.path for marker in changes.added] == sorted(new)
    assert [marker.path for marker in changes.removed] == old[:1]


@pytest.mark.parametrize("seed", range(5))
def test_changes_are_those_of_whole_states_whatever_was_asked_before(seed, tables, read, clock):
    rng = random.Random(seed)
    tables.create()
    live, times = [], [clock.ms]
    for _ in range(12):
        dead = rng.sample(live, min(len(live), rng.randrange(4)))
        _, new = tables.commit(files=[(f"d=2026-01-{rng.randrange(1, 6):02}", 1) for _ in range(9)], dead=dead)
        live = [path for path in live if path not in dead] + new
        times.append(clock.ms)
    state = read()
    for _ in range(20):
        from_ms, to_ms = sorted(rng.choices(times, k=2))
        before, after = ({m.path for m in fold(state.view, as_of_ms=each).live} for each in (from_ms, to_ms))
        changes = find_changes(state, from_ms=from_ms, to_ms=to_ms, now_ms=clock.ms)
        assert [marker.path for marker in changes.added] == sorted(after - before)
        assert [marker.path for marker in changes.removed] == sorted(before - after)
        assert {m.path for m in changes.before.live} == before


def test_both_times_have_to_have_come(tables, read, clock):
    tables.create()
    tables.commit(files=[("d=2026-01-02", 1)])
    state, last_ms = read(), clock.ms + MAX_STORE_GAP_MS
    find_changes(state, from_ms=last_ms, to_ms=last_ms, now_ms=clock.ms)
    for from_ms, to_ms in ((last_ms + 1, None), (0, last_ms + 1)):
        with pytest.raises(InvalidRequest, match="in the future"):
            find_changes(state, from_ms=from_ms, to_ms=to_ms, now_ms=clock.ms)
