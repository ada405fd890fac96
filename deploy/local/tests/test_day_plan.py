"""The plan of a day, and what is made of its figures: pure."""

import json
from collections import Counter

import pytest
from icedb_local.chaos.metric_history import parse_metrics
from icedb_local.day.day_meter import GAUGES, REQUESTS, HourlyMeter
from icedb_local.day.day_plan import (
    BAD_LINES,
    BURST_FACTOR,
    CLOSED_USER,
    HOURS,
    LATE_SHARE,
    NO_TABLE,
    PRODUCERS,
    RETENTION_MS,
    SCHEMA_HOUR,
    TABLES,
    Batch,
    DayPlan,
    rhythm,
)
from icedb_local.day.day_producers import DayLedger
from icedb_local.day.day_report import draw_day, percentile
from icedb_log.units import HOUR_MS

BEGIN_MS = 1_780_000_000_000 // HOUR_MS * HOUR_MS
PLAN = DayPlan(15, 1, seed=3, begin_ms=BEGIN_MS)
SHOP = next(each for each in PRODUCERS if each.name == "shop")
BROKEN = next(each for each in PRODUCERS if each.is_broken)


def batch(number=0, producer=SHOP, hour=1.0, *, table=None, has_closed=False):
    return Batch(number, producer, table or producer.table, hour, has_closed)


def test_the_pace_is_one_on_average_and_ten_times_as_much_in_the_burst():
    assert sum(rhythm(hour) for hour in range(HOURS)) / HOURS == pytest.approx(1)
    assert rhythm(2) == min(map(rhythm, range(HOURS)))
    assert rhythm(14) == max(map(rhythm, range(HOURS)))
    (web,) = (each for each in PRODUCERS if each.bursts)
    assert PLAN.pause_s(web, 17.999) / PLAN.pause_s(web, 18.0) == pytest.approx(BURST_FACTOR, rel=0.01)
    (auditor,) = (each for each in PRODUCERS if each.hourly)
    assert PLAN.pause_s(auditor, 3) * HOURS == 15 * 60


@pytest.mark.parametrize("minutes", [2, 15, 1440])
@pytest.mark.parametrize("table", TABLES)
def test_each_table_can_be_created_however_long_the_day_is(minutes, table):
    assert DayPlan(minutes, 1, 1, BEGIN_MS).config(table).name == table


def test_a_batch_has_the_same_rows_each_time_and_bad_lines_where_they_belong():
    assert [*PLAN.rows(batch())] == [*PLAN.rows(batch())] != [*PLAN.rows(batch(1))]
    lines = PLAN.body(batch(producer=BROKEN)).decode().splitlines()
    assert lines[BROKEN.rows :] == list(BAD_LINES)
    tables = Counter(PLAN.table_of(BROKEN, number) for number in range(8))
    assert tables == {"orders": 6, NO_TABLE: 2}
    assert batch(producer=BROKEN, table=NO_TABLE).is_refused


def test_orders_change_their_schema_and_lose_a_user_and_some_rows_are_late():
    before, after = (json.loads(PLAN.body(batch(hour=hour)).splitlines()[0]) for hour in (1, SCHEMA_HOUR))
    assert after.keys() - before.keys() == {"coupon"}
    assert (type(before["amount"]), type(after["amount"])) == (int, float)
    users = {closed: set() for closed in (False, True)}
    late = count = 0
    for number in range(400):
        for has_closed, seen in users.items():
            rows = [*PLAN.rows(batch(number, has_closed=has_closed))]
            seen.update(row.user_id for row in rows)
        late += sum(row.ts_ms < BEGIN_MS + HOUR_MS for row in rows)
        count += len(rows)
    assert users[False] - users[True] == {CLOSED_USER}
    assert late / count == pytest.approx(LATE_SHARE, rel=0.3)


def test_a_row_expires_with_its_hour():
    row = next(PLAN.rows(batch()))
    ends_ms = (row.ts_ms // HOUR_MS + 1) * HOUR_MS
    assert not row.is_expired(ends_ms + RETENTION_MS - 1)
    assert row.is_expired(ends_ms + RETENTION_MS)


def test_the_ledger_knows_what_is_not_answered_and_when_the_account_was_closed():
    ledger = DayLedger()
    one = ledger.begin(SHOP, "orders", 1.0)
    first = ledger.close_account()
    two = ledger.begin(SHOP, "orders", 2.0)
    assert (one.has_closed, two.has_closed, first) == (False, True, 1)
    assert not ledger.is_settled(first)
    ledger.end(one, "acknowledged")
    assert ledger.is_settled(first)
    assert not ledger.is_settled()
    ledger.end(two, "refused")
    assert ledger.is_settled()
    assert ledger.batches("acknowledged") == (one,)


def test_requests_are_counted_over_restarts_and_priced():
    meter = HourlyMeter({}, hour=lambda: 3.5)
    put, get = (f'{REQUESTS}{{cause="flush",price="{price}",table="events"}}' for price in ("put", "get"))
    rows = f'{GAUGES[0]}{{table="events"}}'
    text = f"{put} 100\n{get} 1000\nother 3\n{rows} 7\n"
    for values in (text, text.replace("100", "150", 1), f"{put} 20\n{rows} 5\n"):
        meter._note(3, "ingest", parse_metrics(values, kept=(REQUESTS, *GAUGES)))
    (hour,) = meter.to_json()
    assert hour["requests_by_cause"] == {"flush": 150 + 20 + 1000}
    assert hour["dollars"] == pytest.approx(170 * 0.005 / 1000 + 1000 * 0.0004 / 1000)
    assert hour["tables"]["data_files"] == {"events": 7}


def test_percentiles_are_values_that_were_measured():
    assert percentile([], 50) is None
    assert [percentile([4, 1, 3, 2], share) for share in (25, 50, 95, 100)] == [1, 2, 4, 4]


def test_a_day_is_drawn_the_same_each_time(tmp_path):
    hour = {"rows": {"events": 5}, "freshness_seconds": {"p50": 1.0, "p95": 2.0, "p99": None},
            "requests_by_cause": {"flush": 3}, "tables": {"data_files": {"events": 2}}}  # fmt: skip
    document = {"dollars": 0.1, "hours": [{"hour": number, **hour} for number in range(HOURS + 1)]}
    pictures = [tmp_path / name for name in ("a.svg", "b.svg")]
    for picture in pictures:
        draw_day(document, picture)
    assert pictures[0].read_bytes() == pictures[1].read_bytes()
    assert b"requests to the store" in pictures[0].read_bytes()
