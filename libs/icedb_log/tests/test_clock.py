"""Clocks and identifiers."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from icedb_log.clock import SystemClock, format_ms, make_uuid7_hex, new_batch_id, parse_uuid7_ms
from icedb_log.errors import InvalidRequest
from icedb_sim.fakes.fake_clock import FakeClock


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**80))
def test_an_id_is_a_uuid7_that_carries_its_time(unix_ms, random_bits):
    value = uuid.UUID(hex=make_uuid7_hex(unix_ms, random_bits))
    assert (value.version, value.variant) == (7, uuid.RFC_4122)
    assert parse_uuid7_ms(str(value)) == unix_ms


@given(st.integers(0, 2**48 - 2), st.integers(0, 2**74 - 1), st.integers(0, 2**74 - 1))
def test_ids_sort_by_time(unix_ms, left, right):
    assert make_uuid7_hex(unix_ms, left) < make_uuid7_hex(unix_ms + 1, right)


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**74 - 1), st.integers(0, 2**74 - 1))
def test_all_random_bits_count(unix_ms, left, right):
    assert (make_uuid7_hex(unix_ms, left) == make_uuid7_hex(unix_ms, right)) == (left == right)


def test_the_clock_of_the_host():
    clock = SystemClock()
    before_ms = clock.monotonic_ms()
    batch_id = new_batch_id(clock)
    assert abs(parse_uuid7_ms(batch_id) - clock.now_ms()) < 60_000
    assert len({clock.new_id() for _ in range(1000)}) == 1000
    clock.sleep_ms(1)
    assert clock.monotonic_ms() > before_ms


@pytest.mark.parametrize(
    "text", ["", "x", "01889a1b-3f75-6000-8000-00000000000a", "01889A1B-3f75-7000-8000-00000000000a", "0" * 32, "\0"]
)
def test_anything_else_is_no_batch_id(text):
    with pytest.raises(InvalidRequest, match="UUIDv7"):
        parse_uuid7_ms(text)


def test_the_fake_clock_repeats_itself_and_its_ids_never_do():
    def run(seed):
        clock = FakeClock(seed=seed)
        first = [clock.new_id() for _ in range(3)]
        clock.advance(5)
        return [*first, clock.new_id()]

    assert run("a") == run("a")
    assert len({*run("a"), *run("b")}) == 8


def test_the_fake_wall_clock_can_be_wrong_while_time_goes_on():
    clock = FakeClock()
    clock.sleep_ms(10)
    clock.set_wall(3)
    clock.advance(1)
    assert (clock.now_ms(), clock.monotonic_ms()) == (4, 11)


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (253_402_300_799_000, "9999-12-31T23:59:59.000Z"),
        (253_402_300_800_000, "253402300800000 ms, outside the years 1 to 9999"),
        (2**63, f"{2**63} ms, outside the years 1 to 9999"),
        (-(2**63), f"{-(2**63)} ms, outside the years 1 to 9999"),
    ],
)
def test_a_time_is_shown_also_where_no_calendar_has_it(time_ms, text):
    """A horizon comes from a log: messages about it must not end in an error of their own."""
    assert format_ms(time_ms) == text
