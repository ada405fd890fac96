from icedb_log.intervals import Backoff
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
