"""What W=growth counts: a table of ours in memory and simulated time, and days computed from what was counted."""

import pytest
from icedb_log.ingest.groups import forget_groups
from icedb_log.units import MIB

from bench.growth_day import Day, Price, day_figures
from bench.growth_tables import CountingStore, GrowingTable, Usage, measuring, open_store, read_snapshot


def used(requests, *, calls=1, **more):
    usage = Usage(calls=calls, **more)
    usage.requests.update(requests)
    return usage


def test_requests_are_counted_as_a_store_bills_them():
    store, _ = open_store()
    for number in range(1500):
        store.put(f"a/{number:04}", b"12345")
    store.usage = Usage()
    store.get("a/0001")
    store.get_range("a/0001", start=0, length=2)
    store.head("a/0001")
    page = store.list_page("a/")
    store.list_page("a/", token=page.next_token)
    store.put_if_absent("b", b"123")
    store.note_put(20 * MIB)
    store.delete([f"a/{number:04}" for number in range(1500)])
    assert dict(store.usage.requests) == {"get": 3, "list": 2, "put": 1 + 3 + 2, "delete": 2}
    assert store.usage.received_bytes == 5 + 2
    assert store.usage.sent_bytes == 3 + 20 * MIB


def test_a_block_within_counts_for_itself():
    store, _ = open_store()
    with measuring(store) as outer:
        store.put("a", b"")
        with measuring(store) as inner:
            store.get("a")
        store.get("a")
    assert (outer.request_count, inner.request_count) == (2, 1)


def test_a_growing_table_is_flushed_merged_and_vacuumed_for_real():
    store, clock = open_store()
    table = GrowingTable(store, clock, batches_per_commit=3)
    for _ in range(40):
        table.step()
    assert table.event_count == 40 * 3 * 10
    assert table.used["stage"].requests["put"] == 120
    assert table.used["flush"].calls == 40
    assert table.used["merge"].calls == 4 - 1
    assert table.used["vacuum"].calls == 1
    assert 0 < len(table.live_files()) < 40
    assert sum(marker.row_count for marker in table.live_files()) <= table.event_count
    count = read_snapshot(store, clock)
    seen = count("events")
    table.step(with_upkeep=False)
    assert count("events") == seen + 1


def test_a_table_is_filled_with_files_that_nobody_merges():
    store, clock = open_store()
    table = GrowingTable(store, clock, batches_per_commit=1)
    table.fill(300, log_file_count=10)
    table.step()
    table.merge("hot")
    assert read_snapshot(store, clock)("events") == 301


def test_a_commit_costs_as_many_requests_whatever_the_table_has():
    counts = []
    for files in (100, 1_000):
        store, clock = open_store()
        table = GrowingTable(store, clock, batches_per_commit=2)
        table.fill(files)
        table.step(with_upkeep=False)
        before = table.used["flush"].request_count
        table.step(with_upkeep=False)
        counts.append(table.used["flush"].request_count - before)
    assert counts[0] == counts[1]


def test_a_day_of_ours_is_what_its_table_used():
    store, clock = open_store()
    table = GrowingTable(store, clock, batches_per_commit=4)
    for _ in range(30):
        table.step()
    day = Day.of_table(table)
    assert day.events == 1200
    assert day.staging_requests == {"put": 120, "get": 120}
    assert day.requests["put"] > 120 + 2 * 30  # a data file and a log file for each commit
    assert day.log_bytes == table.log_bytes() > 0
    assert day.write_amplification > 1
    assert 0 < day.log_written_bytes < table.used["flush"].sent_bytes + table.used["merge"].sent_bytes


def test_batches_that_come_together_share_an_object():
    used = []
    for per_object in (1, 4):
        forget_groups()
        store, clock = open_store()
        table = GrowingTable(store, clock, batches_per_commit=10, batches_per_object=per_object)
        for _ in range(20):
            table.step()
        assert table.event_count == 20 * 10 * 10
        day = Day.of_table(table)
        assert day.requests["put"] - day.staging_requests["put"] == 20 * 5 + table.used["merge"].requests["put"]
        used.append((day.staging_requests, table.used["stage"].requests["put"], table.used["flush"].requests["get"]))
    (alone, alone_puts, alone_gets), (shared, shared_puts, shared_gets) = used
    assert alone == {"put": 200, "get": 200}
    assert shared == {"put": 20 * 3, "get": 20 * 3 * 2}, "four, four, and two: an index and the bodies each"
    assert (alone_puts, shared_puts) == (200, 60)
    assert alone_gets - shared_gets == alone["get"] - shared["get"]


def test_a_day_of_appends_lies_on_the_line_through_what_was_counted():
    seen = {
        10: used({"put": 20, "get": 10}, calls=10, sent_bytes=10_000),
        110: used({"put": 20, "get": 110}, calls=10, sent_bytes=110_000),
    }
    day = Day.of_appends(seen, commit_count=1_001, rows=5, file_bytes=100)
    assert day.events == 5_005
    assert day.requests["put"] == 2 * 1_001
    # A get costs 1 at 10 appends and 11 at 110: 0.1 a commit, none at 0, 50 in the middle of the day.
    assert day.requests["get"] == 50 * 1_001 + 0
    assert day.log_written_bytes == pytest.approx((50_000 - 100) * 1_001)


def test_a_cost_that_falls_is_taken_to_stay():
    seen = {10: used({"put": 30}), 110: used({"put": 10})}
    assert Day.of_appends(seen, commit_count=1_000, rows=1, file_bytes=0).requests["put"] == 20_000


def test_dollars_follow_the_price():
    price = Price(write=5, read=0.5, keep=2)
    assert price.of_requests({"put": 1000, "list": 1000, "get": 2000, "delete": 9999}) == 11
    day = Day(events=2_000_000, log_bytes=3e9)
    day.requests.update({"put": 2000, "get": 2000})
    day.staging_requests.update({"put": 1000, "get": 1000})
    found = {figure.metric: figure.value for figure in day_figures(day, price)}
    assert found["a million events"] == 5.5
    assert found["a million events but for staging"] == 2.75
    assert found["requests of a million events"] == 2000
    assert found["keeping the log for a month"] == 6


def test_a_store_that_counts_is_a_store():
    store, _ = open_store()
    assert isinstance(store, CountingStore)
    assert store.uri("a") == "memory://a"
