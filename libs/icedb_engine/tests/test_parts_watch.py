"""What the watch over a Spark job does, on a session that is a fake: a job that blocks until it is interrupted."""

import threading

import pytest
from icedb_engine.spark.spark_runner import SparkRunner
from icedb_engine.spark.spark_watch import JobWatch, WatchRules
from icedb_log.errors import Fenced, InvalidRequest, Unavailable
from icedb_sim.fakes.fake_clock import FakeClock
from py4j.protocol import Py4JError

WAIT_S = 20
INTERVAL_S = 0.001


class FakeSession:
    """Has tags, and a job that ends when its tag is interrupted, with an error as Spark's."""

    def __init__(self):
        self.tags = []
        self.removed = []
        self.interrupted = []
        self.arrived = threading.Event()

    def addTag(self, tag):
        self.tags.append(tag)

    def removeTag(self, tag):
        self.removed.append(tag)

    def interruptTag(self, tag):
        self.interrupted.append(tag)
        self.arrived.set()

    def run_job(self):
        assert self.arrived.wait(WAIT_S), "nobody interrupted the job"
        self.arrived.clear()
        raise Py4JError("job cancelled")


def make_watch(session, *, check_alive=None, limit_ms=10**9, clock=None, told=None, **options):
    rules = WatchRules(limit_ms, INTERVAL_S, (told if told is not None else []).append)
    return JobWatch(session, "a job", rules=rules, check_alive=check_alive, clock=clock or FakeClock(), **options)


def lose():
    raise Fenced("another worker took over")


def test_a_job_that_ends_in_time_is_left_alone():
    session, calls = FakeSession(), []
    seen = threading.Event()

    def check_alive():
        calls.append(threading.current_thread())
        seen.set()

    with make_watch(session, check_alive=check_alive):
        assert session.tags != session.removed == []
        assert seen.wait(WAIT_S)
    assert session.removed == session.tags
    assert session.interrupted == []
    assert threading.current_thread() not in calls


def test_a_run_that_should_stop_interrupts_its_job_and_says_why():
    session, told = FakeSession(), []
    with (
        pytest.raises(Fenced, match="another worker took over") as caught,
        make_watch(session, check_alive=lose, told=told),
    ):
        session.run_job()
    assert isinstance(caught.value.__cause__, Py4JError)
    assert set(session.interrupted) == set(session.tags) == set(session.removed)
    assert told == ["stopped"]


def test_every_job_of_a_watch_is_interrupted_not_only_the_first():
    session = FakeSession()
    with pytest.raises(Fenced), make_watch(session, check_alive=lose):
        for _ in range(3):
            with pytest.raises(Py4JError):
                session.run_job()
    assert len(session.interrupted) >= 3


@pytest.mark.parametrize(("is_users", "kind"), [(False, Unavailable), (True, InvalidRequest)])
def test_the_time_limit_names_itself_and_blames_who_can_help(is_users, kind):
    session, told, clock = FakeSession(), [], FakeClock()
    watch = make_watch(session, limit_ms=5000, clock=clock, told=told, is_users=is_users)
    expected = r"a job was stopped after 5000 ms \(ICEDB_SPARK_JOB_LIMIT_MS\).*raise the limit"
    with pytest.raises(kind, match=expected), watch:
        clock.advance(5000)
        session.run_job()
    assert told == ["time_limit"]


def test_a_check_with_a_bug_stops_the_run_too():
    session = FakeSession()
    with pytest.raises(ZeroDivisionError), make_watch(session, check_alive=lambda: 1 // 0):
        session.run_job()


def test_what_ends_this_process_ends_its_job():
    session = FakeSession()
    with pytest.raises(SystemExit), make_watch(session):
        raise SystemExit
    assert session.interrupted == session.tags


def test_an_interrupt_that_fails_is_tried_again():
    session = FakeSession()
    answers = iter([Py4JError("no answer"), OSError("no answer")])
    interrupt = session.interruptTag

    def refuse(tag):
        for error in answers:
            raise error
        interrupt(tag)

    session.interruptTag = refuse
    with pytest.raises(Fenced), make_watch(session, check_alive=lose):
        session.run_job()


def test_a_runner_for_a_run_stops_with_it_and_the_first_one_goes_on():
    session = FakeSession()
    runner = SparkRunner(session, None, rules=WatchRules(interval_s=INTERVAL_S))
    with pytest.raises(Fenced), runner.checking(lose).job("a job"):
        session.run_job()
    count = len(session.interrupted)
    with runner.job("another job"):
        pass
    with pytest.raises(Unavailable, match="Spark lost a third job: job cancelled"), runner.job("a third job"):
        raise Py4JError("job cancelled")
    assert len(session.interrupted) == count


def test_a_session_that_is_gone_is_unavailable():
    session = FakeSession()

    def gone(tag):
        raise Py4JError("answer from Java side is empty")

    session.addTag = gone
    with pytest.raises(Unavailable, match="Spark lost a job"), SparkRunner(session, None).job("a job"):
        pytest.fail("no job on a session that is gone")
