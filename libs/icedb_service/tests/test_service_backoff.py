from icedb_log.intervals import MAX_REST_MS, Backoff, Rests
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
