"""What a worker says of itself: ready when its engine is open, healthy as long as that is not dead."""

import pytest
from celery import Celery
from icedb_log.errors import Unavailable
from icedb_log.names import MERGE_SWEEP
from icedb_log.results import Work
from icedb_service.metrics import SparkWorkerMetrics
from icedb_service.settings import ServiceSettings
from icedb_service.worker import WorkerContext
from icedb_sim.fakes.fake_clock import FakeClock


class FakeEngine:
    def __init__(self):
        self.lives = True

    def is_alive(self):
        return self.lives

    def close(self):
        pass


@pytest.fixture
def make(tmp_path):
    def make(open_engine, **options):
        settings = ServiceSettings(store=tmp_path.as_uri())
        metrics = SparkWorkerMetrics("merge", package="icedb-service", tasks=(MERGE_SWEEP,))
        return WorkerContext(
            settings, app=Celery("t"), metrics=metrics, open_engine=open_engine, clock=FakeClock(), **options
        )

    return make


def ask(context, *, with_ready):
    return context.health().run(with_ready=with_ready)["engine"]


def test_a_worker_is_ready_when_its_engine_is_open(make):
    engine = FakeEngine()
    context = make(lambda: engine)
    assert ask(context, with_ready=False) == "ok"
    assert "not open yet" in ask(context, with_ready=True)
    assert context.engine is engine
    assert ask(context, with_ready=True) == "ok"
    engine.lives = False
    assert "dead" in ask(context, with_ready=True)
    assert "dead" in ask(context, with_ready=False)


def test_a_worker_whose_engine_cannot_be_opened_is_not_ready_and_stays(make):
    def fail():
        raise OSError("no memory")

    for opens_late in (False, True):
        context = make(fail, opens_late=opens_late)
        assert (ask(context, with_ready=True) == "ok") is opens_late, "until a task has tried"
        with pytest.raises(Unavailable, match="no memory"):
            _ = context.engine
        name = "icedb_merge_engine_failures_total"
        assert context.metrics.registry.get_sample_value(name, {"reason": "not_opened"}) == 1
        assert "does not open, and is tried again with each task: no memory" in ask(context, with_ready=True)
        assert ask(context, with_ready=False) == "ok"


def test_a_worker_whose_engine_opened_in_the_end_is_ready(make):
    tries = []

    def open_engine():
        tries.append(len(tries))
        if tries == [0]:
            raise Unavailable("Java is not there")
        return FakeEngine()

    context = make(open_engine, opens_late=True)
    with pytest.raises(Unavailable):
        _ = context.engine
    assert "Java is not there" in ask(context, with_ready=True)
    _ = context.engine
    assert ask(context, with_ready=True) == "ok"


def test_a_worker_whose_engine_opens_late_is_ready_without_it(make, monkeypatch):
    opened = []
    for opens_late in (False, True):
        context = make(lambda: opened.append(FakeEngine()) or opened[-1], opens_late=opens_late)
        monkeypatch.setattr(context, "_serve_metrics", lambda: None)
        context.open_here()
        assert ask(context, with_ready=True) == "ok"
        assert len(opened) == 1, "at once, and not at once"
    assert context.engine is opened[1]
    opened[1].lives = False
    assert "dead" in ask(context, with_ready=True)


def test_a_worker_is_not_worth_keeping_while_a_run_hangs_or_its_loop_stands_still(make):
    context = make(FakeEngine)
    settings = context.settings

    def hang():
        context.clock.advance(settings.task_time_limit_ms + settings.shutdown_grace_ms)
        assert context.health().run(with_ready=False)["runs"] == "ok"
        context.clock.advance(1)
        assert "it hangs" in context.health().run(with_ready=False)["runs"]
        return Work(is_idle=True)

    context.runner.run(hang, task=MERGE_SWEEP, task_id="1", table=None)
    told = context.health().run(with_ready=False)
    assert told["runs"] == "ok"
    assert "has not come round" in told["loop"]
    context.loop.tell()
    assert set(context.health().run(with_ready=False).values()) == {"ok"}
