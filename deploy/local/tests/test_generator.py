"""The made-up events: the same bytes for the same seed, the counts that they promise, the shapes that they have."""

import json
from collections import Counter

import pytest
from icedb_local.generator import EventGenerator, add_counts
from icedb_log.errors import InvalidRequest


def read_rows(generator, number):
    return [json.loads(line) for line in generator.make_batch(number).body.splitlines()]


def test_the_same_seed_makes_the_same_bytes_in_any_order():
    first = EventGenerator(3_000, 12, seed=5)
    again = EventGenerator(3_000, 12, seed=5)
    forward = [batch.body for batch in first.batches()]
    backward = [again.make_batch(number).body for number in reversed(range(12))]
    assert forward == backward[::-1]
    assert EventGenerator(3_000, 12, seed=6).make_batch(0).body != forward[0]


def test_counts_are_those_of_the_rows():
    generator = EventGenerator(10_007, 13)
    batches = list(generator.batches())
    assert sum(batch.row_count for batch in batches) == 10_007
    assert max(batch.row_count for batch in batches) - min(batch.row_count for batch in batches) <= 1
    found = Counter(row["ts"][:10] for number in range(13) for row in read_rows(generator, number))
    assert add_counts(*(batch.rows_per_day for batch in batches)) == dict(found)
    assert all(row["upload"] == 4 for row in read_rows(generator, 4))


def test_events_look_like_web_analytics():
    generator = EventGenerator(30_000, 30)
    rows = [row for number in range(30) for row in read_rows(generator, number)]
    users = Counter(row["user_id"] for row in rows)
    assert sum(count for _, count in users.most_common(100)) > len(rows) / 3, "few users make many events"
    assert len(users) > 2_000
    assert len({row["ts"][:10] for row in rows}) >= 4, "late events fall on earlier days"
    times = sorted(row["ts"] for row in read_rows(generator, 20))
    assert times[0][:13] < times[len(times) // 2][:13], "some are hours late"
    assert all(isinstance(row["properties"]["screen"], list) for row in rows)
    revenues = [row["revenue"] for row in rows if "revenue" in row]
    assert revenues, "purchases have a revenue"
    assert all(isinstance(revenue, float) and revenue % 1 for revenue in revenues), "never a whole number"
    assert {row["event"] for row in rows if "revenue" in row} == {"purchase"}


def test_columns_appear_later():
    generator = EventGenerator(3_000, 30)
    columns = [{key for row in read_rows(generator, number) for key in row} for number in (0, 15, 29)]
    assert "campaign" not in columns[0]
    assert "campaign" in columns[1]
    assert "ab_test" not in columns[1]
    assert {"campaign", "ab_test"} <= columns[2]


@pytest.mark.parametrize(
    ("events", "batches", "words"),
    [(5, 6, "at least one event"), (0, 0, "at least one batch"), (3_000_000, 2, "more batches")],
)
def test_numbers_that_do_not_fit_are_refused(events, batches, words):
    with pytest.raises(InvalidRequest, match=words):
        EventGenerator(events, batches)
