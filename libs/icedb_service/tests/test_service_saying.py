"""What a worker says of itself: on each connection to its queue, with a client of Redis that ends with it."""

from types import SimpleNamespace

import pytest
from icedb_log.wake_keys import decode_workers
from icedb_service import worker
from icedb_service.metrics import WorkerMetrics
from icedb_service.settings import ServiceSettings
from icedb_service.worker import SAID_EVERY_S, WorkerService
from icedb_sim.fakes.fake_clock import FakeClock


class SaidRedis:
    """Keeps what is said; knows whether it was closed."""

    def __init__(self):
        self.said, self.is_closed = {}, False

    def hgetall(self, _key):
        return self.said

    def pipeline(self, transaction):
        return self

    def hset(self, _key, name, body):
        self.said[name] = body

    def pexpire(self, _key, _age_ms):
        pass

    def execute(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.is_closed = True


class Timer:
    """A loop's timer whose turns a test takes."""

    def __init__(self):
        self.turns = []

    def call_repeatedly(self, every_s, turn):
        assert every_s == SAID_EVERY_S
        self.turns.append(turn)
        return SimpleNamespace(cancel=lambda: self.turns.remove(turn))


@pytest.fixture
def opened(monkeypatch):
    opened = []

    def open_redis(_url, *, timeout_ms):
        opened.append(SaidRedis())
        return opened[-1]

    monkeypatch.setattr(worker, "open_redis", open_redis)
    return opened


def test_a_worker_says_what_it_does_while_it_is_connected_and_leaves_no_client_behind(opened):
    service = WorkerService("merge", WorkerMetrics("merge", package="icedb-service", tasks=()), lambda: None, None)
    step_class = worker._make_saying_step(service, ServiceSettings(store="file:///tmp/w"), clock=FakeClock())
    parent = SimpleNamespace(timer=Timer(), app=None, steps=[])
    step = step_class(parent)
    for count in (1, 2):
        step.start(parent)
        (look,) = decode_workers(opened[-1].said)
        assert (look.queue, look.doing) == ("merge", ())
        assert len(parent.timer.turns) == 1
        step.stop(parent)
        assert (parent.timer.turns, [each.is_closed for each in opened]) == ([], [True] * count)
