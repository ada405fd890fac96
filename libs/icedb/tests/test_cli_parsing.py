"""What people type, and what they read."""

import threading

import pytest
from icedb.cli.app import run
from icedb.cli.output import format_bytes, format_span, format_time
from icedb.cli.read_times import maybe_time
from icedb.cli.runner import (
    HALTED,
    INTERRUPTED,
    INVALID,
    NOT_FOUND,
    TIMED_OUT,
    UNAVAILABLE,
    TimedOut,
    exit_code,
    outcome_exit_code,
)
from icedb.cli.table import split_names
from icedb.cli.table_settings import parse_columns, parse_declared
from icedb_log import errors
from icedb_log.table.time_columns import parse_ranges
from icedb_log.units import parse_duration


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500ms", 500),
        ("30s", 30_000),
        ("1.5 s", 1500),
        ("10m", 600_000),
        ("10min", 600_000),
        ("6h", 21_600_000),
        ("7d", 604_800_000),
    ],
)
def test_durations(text, expected):
    assert parse_duration(text, option="--x") == expected


@pytest.mark.parametrize("text", ["", "10", "-1s", "1y", "1s1s", "s", "1" * 10_000 + "s"])
def test_bad_durations(text):
    with pytest.raises(errors.InvalidRequest, match=r"--x .*is not a duration: write e\.g\. 500ms") as caught:
        parse_duration(text, option="--x")
    assert len(str(caught.value)) < 300


def test_a_duration_below_its_floor_is_refused_with_both():
    assert parse_duration("1m", option="--x", floor_ms=60_000) == 60_000
    with pytest.raises(errors.InvalidRequest, match=r"--x 59s is 59000 ms, below the floor of 60000 ms"):
        parse_duration(" 59s", option="--x", floor_ms=60_000)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1767312000123", 1767312000123),
        ("2026-01-02T00:00:00Z", 1767312000000),
        ("2026-01-02T00:00:00.123+00:00", 1767312000123),
        ("2026-01-02T01:00:00+01:00", 1767312000000),
        ("2026-01-02", 1767312000000),
        ("2026-01-02 00:00", 1767312000000),
    ],
)
def test_times(text, expected):
    assert maybe_time(text, option="--as-of", now_ms=0) == expected
    assert maybe_time(format_time(expected), option="--as-of", now_ms=0) == expected


def test_how_long_ago_it_was_is_a_time():
    assert maybe_time("5m", option="--as-of", now_ms=1_000_000) == 700_000
    assert maybe_time(" 1.5 h ", option="--as-of", now_ms=6_000_000) == 600_000
    assert maybe_time(None, option="--as-of", now_ms=0) is None


@pytest.mark.parametrize("time_ms", [-1, 2**53, 2**63 - 1])
def test_a_time_that_no_calendar_has_is_shown_as_a_number(time_ms):
    assert format_time(time_ms) == str(time_ms)


@pytest.mark.parametrize("text", ["", "yesterday", "1969-12-31", "2026-13-01", "9" * 14, "٣", "0001-01-01"])
def test_bad_times(text):
    with pytest.raises(errors.InvalidRequest, match="--as-of"):
        maybe_time(text, option="--as-of", now_ms=0)


def test_columns():
    digits = ["price: decimal( 18, 2 )", "n=NUMERIC(9)", "many:DECIMAL(50,2)"]
    assert parse_columns(digits, option="--column") == {
        "price": "DECIMAL(18,2)", "n": "DECIMAL(9,0)", "many": "DECIMAL(50,2)",
    }  # fmt: skip
    assert parse_columns(["price:double", " a=b =VARCHAR", "x:y: BIGINT"], option="--column") == {
        "price": "DOUBLE",
        "a=b": "VARCHAR",
        "x:y": "BIGINT",
    }
    for wrong in (["price"], ["=DOUBLE"], ["a=DOUBLE", "a=BIGINT"]):
        with pytest.raises(errors.InvalidRequest, match="--column"):
            parse_columns(wrong, option="--column")
    assert split_names(["event, ts", "user"]) == ("event", "ts", "user")


def test_exit_codes_are_what_the_manual_says():
    assert exit_code(errors.InvalidRequest("")) == INVALID == 2
    assert exit_code(errors.NotFound("")) == NOT_FOUND == 3
    assert exit_code(errors.Unavailable("")) == UNAVAILABLE == 4
    assert exit_code(errors.CorruptLog("")) == HALTED == 5
    assert exit_code(TimedOut("")) == TIMED_OUT == 6
    assert exit_code(errors.CommitOutcomeUnknown("")) == 1
    outcomes = {"done": 0, "idle": 0, "halted": 5, "not_found": 3, "refused": 2, "unavailable": 4, "busy": 1, "x": 1}
    assert {outcome: outcome_exit_code(outcome) for outcome in outcomes} == outcomes


def test_figures():
    assert [format_bytes(n) for n in (0, 1023, 1024, 1536, 5 << 30)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 KiB",
        "5.0 GiB",
    ]
    assert [format_span(n) for n in (0, 999, 1000, 65_000, 90_061_000)] == [
        "0 ms",
        "999 ms",
        "1 s",
        "1 min 5 s",
        "1 d 1 h",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["snapshot", "events", "--where", "id = '\udcff'"],
        ["table", "create", "clicks", "--merge-query", "\udcff"],
        ["table", "drop", "events", "--note", "\udcff", "--yes"],
        ["partitions", "events", "\udcff"],
    ],
)
def test_an_argument_that_is_no_text_is_one_error(arguments, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("ICEDB_STORE", f"file://{tmp_path}")
    assert run(["table", "create", "events"]) == 0
    assert run(arguments) == INVALID
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "unexpected" not in error


def test_ctrl_c_that_a_lock_turns_into_another_error_is_an_interruption(monkeypatch, tmp_path, capsys):
    """``Condition.wait`` has released the lock and is ended before it can take it again: leaving the block fails."""

    def stop(*_):
        condition = threading.Condition()
        with condition:
            condition.release()
            raise KeyboardInterrupt

    monkeypatch.setenv("ICEDB_STORE", f"file://{tmp_path}")
    assert run(["table", "create", "events"]) == 0
    monkeypatch.setattr("icedb_client.store_reads.StoreReads.watch", stop)
    assert run(["watch", "events"]) == INTERRUPTED
    assert capsys.readouterr().err.strip().endswith("interrupted")


def test_declared_times_have_a_unit():
    assert parse_declared(
        ["a:Epoch_ms", "b=timestamp(EPOCH_S)", "c:TIMESTAMP", "d:bigint", "e:DATE"], option="--x"
    ) == (
        {"a": "BIGINT", "b": "TIMESTAMP", "c": "TIMESTAMP", "d": "BIGINT", "e": "DATE"},
        {"a": {"unit": "epoch_ms"}, "b": {"unit": "epoch_s"}, "c": {"unit": None}, "d": {"unit": None}},
    )
    for text in ("a:epoch_ns", "a:TIMESTAMP(ns)", "a:epoch_s(epoch_s)"):
        if text == "a:epoch_ns":  # a type that the configuration refuses
            assert parse_declared([text], option="--x")[0] == {"a": "EPOCH_NS"}
            continue
        with pytest.raises(errors.InvalidRequest, match=r"write name:epoch_s\|epoch_ms\|epoch_us"):
            parse_declared([text], option="--x")
    with pytest.raises(errors.InvalidRequest, match="write name:TYPE"):
        parse_columns(["a:epoch_s"], option="--source")


def test_plausible_ranges():
    offsets = parse_ranges(["a:2020-01-01T00:00:00+02:00..2020-01-01T00:00:00-09:30"], option="--x")
    assert offsets["a"] == {"from_ms": 1_577_829_600_000, "to_ms": 1_577_871_000_000}
    found = parse_ranges(["a:1990..2100", "b:c=2020-01-01T01:00:00Z..10000", "d:off"], option="--x")
    assert found == {
        "a": {"from_ms": 631_152_000_000, "to_ms": 4_102_444_800_000},
        "b:c": {"from_ms": 1_577_840_400_000, "to_ms": 253_402_300_800_000},
        "d": {"from_ms": None, "to_ms": None},
    }
    for text in ("a", "a:1990", "a:1990..", "a:x..y", ":1990..2000", "a:1990..99999", "a:2020-13-01..2030"):
        with pytest.raises(errors.InvalidRequest, match=r"--x .*write e\.g\. ts:1990\.\.2100"):
            parse_ranges([text], option="--x")
    with pytest.raises(errors.InvalidRequest, match="twice"):
        parse_ranges(["a:off", "a:off"], option="--x")
