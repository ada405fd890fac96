from itertools import pairwise

import pytest
from icedb_log import intervals
from icedb_log.intervals import MAX_REST_MS, Backoff, Intervals, Rests
from icedb_log.units import HOUR_MS
from icedb_sim.fakes.manual_clock import ManualClock


def test_pauses_double_up_to_a_bound_and_are_forgotten_after_success():
    clock = ManualClock()
    backoff = Backoff(clock, first_pause_ms=100, max_pause_ms=350)
    assert [backoff.record_failure("t") for _ in range(4)] == [100, 200, 350, 350]
    assert not backoff.is_due("t")
    clock.advance(349)
    assert not backoff.is_due("t")
    clock.advance(1)
    assert backoff.is_due("t")
    backoff.record_success("t")
    assert backoff.record_failure("t") == 100


def test_keys_do_not_share_pauses_and_many_failures_do_not_overflow():
    backoff = Backoff(ManualClock(), first_pause_ms=1, max_pause_ms=10)
    for _ in range(500):
        assert backoff.record_failure("a") <= 10
    assert backoff.is_due("b")


def test_a_key_is_looked_at_after_a_twentieth_of_its_rest():
    clock = ManualClock()
    rests = Rests(clock)

    def look_for(duration_ms, state="idle"):
        """Return how often a key was looked at that is asked about each second."""
        looks = 0
        for _ in range(duration_ms // 1000):
            clock.advance(1000)
            if rests.is_due("t"):
                looks += 1
                rests.note("t", state)
        return looks

    assert look_for(20_000) == 20, "at first by each sweep"
    assert look_for(600_000) < 100
    look_for(6 * HOUR_MS)
    assert look_for(HOUR_MS) == HOUR_MS // MAX_REST_MS
    rests.note("t", None)
    assert rests.is_due("t")
    rests.note("t", "idle")
    assert look_for(10_000) == 10, "work ends the rest"
    look_for(6 * HOUR_MS)
    rests.note("t", "other")
    assert look_for(10_000, "other") == 10, "and so does another state"
    assert rests.is_due("another key")


def test_a_key_that_is_new_has_rested_for_as_long_as_it_says():
    clock = ManualClock()
    rests = Rests(clock)
    rests.note("t", "idle", rest_ms=20 * 60_000)
    clock.advance(60_000 - 1)
    assert not rests.is_due("t")
    clock.advance(1)
    assert rests.is_due("t")
    rests.note("t", "other", rest_ms=20 * 60_000)
    assert rests.is_due("t"), "what has changed just now has not rested, whatever it says"


def test_who_shares_looks_gets_one_in_each_pause_and_one_that_dies_of_it_is_made_good():
    clock, ends_ms = ManualClock(), {}

    def claim(key, pause_ms):
        is_free = ends_ms.get(key, 0) <= clock.monotonic_ms()
        if is_free:
            ends_ms[key] = clock.monotonic_ms() + pause_ms
        return is_free

    sweepers = [Rests(clock, claim=claim) for _ in range(5)]
    for each in sweepers:
        each.note("t", "idle", rest_ms=10 * HOUR_MS)
    looks = []
    for second in range(6 * HOUR_MS // 1000):
        clock.advance(1000)
        sweeper = sweepers[second % 5]
        if sweeper.is_due("t"):
            looks.append(clock.monotonic_ms())
            if len(looks) != 3:  # this one dies before it has looked
                sweeper.note("t", "idle")
    gaps = [after - before for before, after in pairwise(looks)]
    assert min(gaps) >= MAX_REST_MS
    assert max(gaps) <= 1.2 * MAX_REST_MS


REMEMBER = {
    "rests": (Rests, "_rests", lambda known, key: known.note(key, "idle", rest_ms=60_000)),
    "intervals": (lambda clock: Intervals(clock, 1000), "_noted_ms", lambda known, key: known.note(key)),
    "looks": (lambda clock: Intervals(clock, 1000), "_noted_ms", lambda known, key: known.look(key, lambda: True)),
    "failures": (Backoff, "_failures", lambda known, key: known.record_failure(key)),
}


@pytest.mark.parametrize("what", REMEMBER)
def test_names_that_come_and_go_are_not_remembered_for_ever(monkeypatch, what):
    monkeypatch.setattr(intervals, "MAX_KEYS", 10)
    make, field, remember = REMEMBER[what]
    known = make(ManualClock())
    for number in range(25):
        remember(known, f"t{number}")
    assert 0 < len(getattr(known, field)) <= 10
    assert not known.is_due("t24")
