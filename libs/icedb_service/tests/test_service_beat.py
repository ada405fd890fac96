import pytest
from icedb_log.names import INGEST_SWEEP, JANITOR_SWEEP, MERGE_SWEEP
from icedb_service.beat import make_beat
from icedb_service.celery_app import make_app
from icedb_service.settings import ServiceSettings
from icedb_sim.fakes.manual_clock import ManualClock


class RecordedWakeups:
    def __init__(self):
        self.woken = []

    def try_wake(self, task, table=None):
        self.woken.append((task, table))
        return True


def test_beat_sends_sweeps_as_wake_ups_and_keeps_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app = make_app(ServiceSettings(store="file:///tmp/w"))
    wakeups = RecordedWakeups()
    scheduler = make_beat(app, wakeups, clock=ManualClock()).scheduler
    for entry in scheduler.schedule.values():
        scheduler.apply_entry(entry, producer=scheduler.producer)
    assert sorted(wakeups.woken) == sorted([(INGEST_SWEEP, None), (MERGE_SWEEP, None), (JANITOR_SWEEP, None)])
    assert list(tmp_path.iterdir()) == []


class Beat:
    """A beat of which time passes as a test says, from one tick to the next."""

    def __init__(self):
        self.clock, self.wakeups = ManualClock(), RecordedWakeups()
        settings = ServiceSettings(
            store="file:///tmp/w",
            ingest_sweep_interval_ms=2_000,
            merge_sweep_interval_ms=10_000,
            janitor_sweep_interval_ms=30_000,
        )
        self.scheduler = make_beat(make_app(settings), self.wakeups, clock=self.clock).scheduler

    def run(self, duration_ms):
        end_ms = self.clock.monotonic_ms() + duration_ms
        while self.clock.monotonic_ms() < end_ms:
            wait_s = self.scheduler.tick()
            assert 0 <= wait_s <= 1
            self.clock.advance(max(1, round(wait_s * 1000)))

    def count(self, task):
        return self.wakeups.woken.count((task, None))


def test_each_sweep_is_woken_at_its_interval_and_once_at_the_start():
    beat = Beat()
    beat.run(60_000)
    assert [beat.count(task) for task in (INGEST_SWEEP, MERGE_SWEEP, JANITOR_SWEEP)] == [30, 6, 2]


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000, -86_400_000 * 365])
def test_a_wall_clock_that_is_set_neither_stops_nor_repeats_a_sweep(step_ms):
    beat = Beat()
    beat.run(30_000)
    beat.clock.set_wall(beat.clock.now_ms() + step_ms)
    beat.run(30_000)
    assert [beat.count(task) for task in (INGEST_SWEEP, MERGE_SWEEP, JANITOR_SWEEP)] == [30, 6, 2]


def test_after_a_pause_each_sweep_comes_once_and_not_for_each_that_was_missed():
    beat = Beat()
    beat.run(1_000)
    beat.clock.advance(600_000)
    beat.wakeups.woken.clear()
    beat.scheduler.tick()
    assert [beat.count(task) for task in (INGEST_SWEEP, MERGE_SWEEP, JANITOR_SWEEP)] == [1, 1, 1]
