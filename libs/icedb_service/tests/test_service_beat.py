from icedb_service.beat import make_beat
from icedb_service.celery_app import make_app
from icedb_service.names import INGEST_SWEEP, JANITOR_SWEEP, MERGE_SWEEP
from icedb_service.settings import ServiceSettings


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
    scheduler = make_beat(app, wakeups).scheduler
    for entry in scheduler.schedule.values():
        scheduler.apply_entry(entry, producer=scheduler.producer)
    assert sorted(wakeups.woken) == sorted([(INGEST_SWEEP, None), (MERGE_SWEEP, None), (JANITOR_SWEEP, None)])
    assert list(tmp_path.iterdir()) == []
