"""Which values of a column lie in its plausible range, where the ends of the range lie within a tick or a day."""

from datetime import date, datetime, timedelta

import pytest
from icedb_log.table.time_columns import TimeColumn

DAY_MS = 86_400_000
EPOCH = datetime(1970, 1, 1)


@pytest.mark.parametrize("low_ms", [-1500, -1000, -1, 0, 1, 999, 1000, DAY_MS - 1, DAY_MS, DAY_MS + 1])
@pytest.mark.parametrize("length_ms", [1, 500, 1000, DAY_MS, DAY_MS + 1, 3 * DAY_MS - 1])
@pytest.mark.parametrize("unit", ["epoch_s", "epoch_ms", "epoch_us"])
def test_a_value_is_good_if_its_moment_lies_in_the_range(low_ms, length_ms, unit):
    high_ms = low_ms + length_ms
    time = TimeColumn(unit=unit, from_ms=low_ms, to_ms=high_ms)
    tick_us = {"epoch_s": 1_000_000, "epoch_ms": 1000, "epoch_us": 1}[unit]
    for edge_ms in (low_ms, high_ms):
        for number in range(edge_ms * 1000 // tick_us - 2, edge_ms * 1000 // tick_us + 3):
            assert time.is_good(number, "BIGINT") is (low_ms * 1000 <= number * tick_us < high_ms * 1000)
        for days in range(edge_ms // DAY_MS - 1, edge_ms // DAY_MS + 3):
            day = date(1970, 1, 1) + timedelta(days=days)
            assert time.is_good(day, "DATE") is (low_ms <= days * DAY_MS < high_ms)
        for micros in (-1, 0, 1):
            moment = EPOCH + timedelta(milliseconds=edge_ms, microseconds=micros)
            assert time.is_good(moment, "TIMESTAMP") is (low_ms * 1000 <= edge_ms * 1000 + micros < high_ms * 1000)
