"""Retention (M5): what expires is certain, and whatever could be a mistake stays."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from icedb_log.changes.partition_removal import PartitionInfo
from icedb_log.changes.retention import parse_time_range, plan_retention, require_allowed
from icedb_log.errors import InvalidRequest, Unavailable
from icedb_log.table.partitions import HIVE_NULL
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_log.units import DAY_MS, HOUR_MS


def ms(text):
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


NOW = ms("2023-06-10T00:00")
DAY = PartitionField.parse("d=day(ts)")


def config(*, days=7, partition=(DAY,), **fields):
    return TableConfig.create(name="t", partition=partition, retention_ms=days * DAY_MS, **fields)


def info(path, *, size=10, newest=0):
    return PartitionInfo(path, 1, 1, size, newest, newest)


def plan(*infos, now=NOW, host=None, **fields):
    return plan_retention(infos, config(**fields), store_now_ms=now, host_now_ms=now if host is None else host)


def expired(plan):
    return [one.info.path for one in plan.expired]


def kept(plan):
    return {one.info.path: one.reason for one in plan.kept}


@pytest.mark.parametrize(
    ("transform", "value", "start", "end"),
    [
        ("year", "2023", "2023-01-01", "2024-01-01"),
        ("year", "2024", "2024-01-01", "2025-01-01"),
        ("month", "2024-02", "2024-02-01", "2024-03-01"),
        ("month", "2023-12", "2023-12-01", "2024-01-01"),
        ("day", "2024-02-29", "2024-02-29", "2024-03-01"),
        ("day", "1969-12-31", "1969-12-31", "1970-01-01"),
        ("hour", "2023-06-07-23", "2023-06-07T23:00", "2023-06-08T00:00"),
    ],
)
def test_time_ranges(transform, value, start, end):
    found = parse_time_range(value, PartitionField(name="d", transform=transform, column="ts"))
    assert found == (ms(start), ms(end))


def test_the_last_year_that_can_be_written():
    assert parse_time_range("9999-12-31", DAY)[0] == ms("9999-12-31")


@pytest.mark.parametrize(
    "value", ["", "2023", "2023-6-7", "2023-02-30", "0000-01-01", "2023-06-07-01", "٢٠٢٣-٠٦-٠٧", "x"]
)
def test_values_that_are_no_time(value):
    assert parse_time_range(value, DAY) is None


def test_a_partition_expires_when_its_end_is_past_the_retention():
    days = [info(f"d=2023-06-0{n}") for n in range(1, 6)]
    result = plan(*days, now=ms("2023-06-09") + 1)
    assert (result.field, expired(result)) == ("d", ["d=2023-06-01"])
    assert result.expired[0].until_ms == ms("2023-06-09")
    assert kept(result) == dict.fromkeys((f"d=2023-06-0{n}" for n in range(2, 6)), "young")
    assert result.kept[0].until_ms == ms("2023-06-10")
    assert expired(plan(*days, now=ms("2023-06-09"))) == []


@given(st.integers(0, 4000), st.integers(1, 400), st.integers(-800, 800))
def test_what_expires_once_stays_expired_and_longer_retention_keeps_more(day, days, shift):
    value = datetime.fromtimestamp(day * 86400, UTC).strftime("%Y-%m-%d")
    now = (day + shift) * DAY_MS
    is_expired = bool(plan(info(f"d={value}", newest=-DAY_MS), now=now, days=days).expired)
    assert is_expired == (shift > days + 1)
    if is_expired:
        assert plan(info(f"d={value}", newest=-DAY_MS), now=now + DAY_MS, days=days).expired
    else:
        assert not plan(info(f"d={value}", newest=-DAY_MS), now=now, days=days + 1).expired


def test_all_partitions_of_a_range_go_whatever_else_they_are_divided_by():
    by_user = (DAY, PartitionField.parse("u"))
    result = plan(info("d=2023-06-01/u=a"), info("d=2023-06-01/u=b"), info("d=2023-06-09/u=a"), partition=by_user)
    assert expired(result) == ["d=2023-06-01/u=a", "d=2023-06-01/u=b"]
    assert not result.refusal


def test_what_has_no_time_or_is_yet_to_come_stays():
    odd = [info(f"d={HIVE_NULL}"), info("d=2023-13-01"), info("d=2033-01-01"), info("other=1"), info("")]
    result = plan(*odd)
    assert expired(result) == []
    assert kept(result) == {
        f"d={HIVE_NULL}": "null",
        "d=2023-13-01": "unparsable",
        "d=2033-01-01": "future",
        "other=1": "unparsable",
        "": "unparsable",
    }
    assert {one.info.path: one.until_ms for one in result.kept}[f"d={HIVE_NULL}"] is None


def test_late_rows_keep_their_partition_for_a_while():
    late = info("d=2023-06-01", newest=NOW - HOUR_MS)
    assert kept(plan(late)) == {"d=2023-06-01": "late"}
    assert plan(late).kept[0].until_ms == NOW + 5 * HOUR_MS
    assert expired(plan(info("d=2023-06-01", newest=NOW - 6 * HOUR_MS))) == ["d=2023-06-01"]


def test_with_a_short_retention_late_rows_wait_no_longer_than_that():
    by_hour = (PartitionField.parse("h=hour(ts)"),)
    short = TableConfig.create(name="t", partition=by_hour, retention_ms=HOUR_MS)
    for newest, count in ((NOW - HOUR_MS, 1), (NOW - HOUR_MS + 1, 0)):
        infos = [info("h=2023-06-09-10", newest=newest)]
        assert len(plan_retention(infos, short, store_now_ms=NOW, host_now_ms=NOW).expired) == count


def test_a_file_from_the_far_future_does_not_keep_its_partition_for_ever():
    assert expired(plan(info("d=2023-06-01", newest=NOW + 400 * DAY_MS))) == ["d=2023-06-01"]
    assert kept(plan(info("d=2023-06-01", newest=NOW + HOUR_MS))) == {"d=2023-06-01": "late"}


@pytest.mark.parametrize("host", [NOW - HOUR_MS - 1, NOW + HOUR_MS + 1, 0, 10**18])
def test_clocks_that_disagree_stop_it(host):
    with pytest.raises(Unavailable, match="removes nothing while they disagree by more than an hour"):
        plan(info("d=2023-06-01"), host=host)


def test_clocks_that_disagree_a_little_do_not():
    assert expired(plan(info("d=2023-06-01"), host=NOW + HOUR_MS)) == ["d=2023-06-01"]


def test_many_ranges_and_most_of_the_table_have_to_be_asked_for():
    old = [info("d=2023-05-01"), info("d=2023-05-02")]
    result = plan(*old, info("d=2023-06-09", size=19))
    assert len(result.expired) == 2
    with pytest.raises(InvalidRequest, match="2 partitions of 2 time ranges at once, 20 of 39 bytes, more than half"):
        require_allowed(result)
    require_allowed(plan(*old, info("d=2023-06-09", size=20)))


def test_one_range_goes_however_large():
    require_allowed(plan(info("d=2023-05-01", size=99), info("d=2023-06-09", size=1)))
    require_allowed(plan(info("d=2023-05-01")))


def test_without_a_retention_everything_stays():
    infos = [info("d=2023-06-01")]
    result = plan_retention(infos, TableConfig.create(name="t", partition=(DAY,)), store_now_ms=NOW, host_now_ms=0)
    assert (result.field, result.expired, kept(result)) == (None, (), {"d=2023-06-01": "young"})


def test_the_finest_field_of_the_first_time_counts():
    year, hour = PartitionField.parse("y=year(ts)"), PartitionField.parse("h=hour(read_at)")
    path = "y=2023/d=2023-06-01"
    assert expired(plan(info(path), partition=(year, DAY))) == [path]
    assert expired(plan(info("d=2023-06-01/y=2023"), partition=(DAY, year))) == ["d=2023-06-01/y=2023"]
    assert expired(plan(info(f"{path}/h=2023-06-09-23"), partition=(year, DAY, hour))) == [f"{path}/h=2023-06-09-23"]
    assert expired(plan(info(f"{path}/h=2023-06-01-00"), partition=(year, hour))) == []
