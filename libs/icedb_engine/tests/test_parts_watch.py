"""What the watch over a Spark job does, on a session that is a fake: a job that blocks until it is interrupted."""

import threading

import pytest
from icedb_engine.spark.spark_runner import SparkRunner
from icedb_engine.spark.spark_watch import JobWatch, WatchRules
from icedb_log.errors import Fenced, InvalidRequest, Unavailable
from icedb_sim.fakes.fake_clock import FakeClock
from py4j.protocol import Py4JError
from waiting import LIMIT_S

INTERVAL_S = 0.001


class FakeSession:
    """Has job groups, and a job that ends when its group is cancelled, with an error as Spark's."""

    def __init__(self):
        self.groups = []
        self.current = {}
        self.cancelled = []
        self.arrived = threading.Event()
        self.master = "spark://host:1"
        self.sparkContext = self._jsc = self
        self.executor_count = 1

    def sc(self):
        return self

    def getExecutorMemoryStatus(self):
        return self

    def size(self):
        return 1 + self.executor_count

    def setJobGroup(self, group, description, interruptOnCancel):
        assert (description, interruptOnCancel) != ("", False)
        self.groups.append(group)
        self.current["spark.jobGroup.id"] = group

    def setLocalProperty(self, name, value):
        self.current[name] = value

    def cancelJobGroup(self, group):
        self.cancelled.append(group)
        self.arrived.set()

    def run_job(self):
        assert self.arrived.wait(LIMIT_S), "nobody interrupted the job"
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
        assert session.current == {"spark.jobGroup.id": session.groups[-1]}
        assert seen.wait(LIMIT_S)
    assert set(session.current.values()) == {None}
    assert session.cancelled == []
    assert threading.current_thread() not in calls


def test_a_run_that_should_stop_interrupts_its_job_and_says_why():
    session, told = FakeSession(), []
    with (
        pytest.raises(Fenced, match="another worker took over") as caught,
        make_watch(session, check_alive=lose, told=told),
    ):
        session.run_job()
    assert isinstance(caught.value.__cause__, Py4JError)
    assert set(session.cancelled) == set(session.groups)
    assert set(session.current.values()) == {None}
    assert told == ["stopped"]


def test_every_job_of_a_watch_is_interrupted_not_only_the_first():
    session = FakeSession()
    with pytest.raises(Fenced), make_watch(session, check_alive=lose):
        for _ in range(3):
            with pytest.raises(Py4JError):
                session.run_job()
    assert len(session.cancelled) >= 3


@pytest.mark.parametrize(("is_users", "kind"), [(False, Unavailable), (True, InvalidRequest)])
def test_the_time_limit_names_itself_and_blames_who_can_help(is_users, kind):
    session, told, clock = FakeSession(), [], FakeClock()
    watch = make_watch(session, limit_ms=5000, clock=clock, told=told, is_users=is_users)
    expected = r"a job was stopped after 5000 ms \(ICEDB_SPARK_JOB_LIMIT_MS\).*raise the limit"
    with pytest.raises(kind, match=expected), watch:
        clock.advance(5000)
        session.run_job()
    assert told == ["time_limit"]


class FakeJvm:
    def __init__(self):
        self.calls = []

    def kill(self):
        self.calls.append("kill")

    def wait(self):
        self.calls.append("wait")


def test_a_cluster_that_gives_no_executor_any_more_costs_the_session_not_the_whole_time_limit(monkeypatch):
    session, told, clock, jvm = FakeSession(), [], FakeClock(), FakeJvm()
    monkeypatch.setattr("icedb_engine.spark.spark_watch._find_jvm", lambda: jvm)
    session.executor_count = 0
    watch = make_watch(session, clock=clock, told=told)
    with pytest.raises(Unavailable, match="a job has had no executor for 120000 ms: look"), watch:
        clock.advance(120_000)
        session.run_job()
    assert told == ["no_executors"]
    assert jvm.calls == ["kill", "wait"]


@pytest.mark.parametrize(("master", "executor_count"), [("spark://host:1", 1), ("local[2]", 0)])
def test_a_job_that_has_executors_or_needs_none_is_left_alone(master, executor_count):
    session, told, clock = FakeSession(), [], FakeClock()
    session.master, session.executor_count = master, executor_count
    looks = threading.Semaphore(0)
    with make_watch(session, clock=clock, told=told, check_alive=looks.release):
        for _ in range(3):
            clock.advance(1_000_000)
            assert looks.acquire(timeout=LIMIT_S)
    assert (told, session.cancelled) == ([], [])


def test_a_check_with_a_bug_stops_the_run_too():
    session = FakeSession()
    with pytest.raises(ZeroDivisionError), make_watch(session, check_alive=lambda: 1 // 0):
        session.run_job()


def test_what_ends_this_process_ends_its_job():
    session = FakeSession()
    with pytest.raises(SystemExit), make_watch(session):
        raise SystemExit
    assert session.cancelled == session.groups


def test_an_interrupt_that_fails_is_tried_again():
    session = FakeSession()
    answers = iter([Py4JError("no answer"), OSError("no answer")])
    cancel = session.cancelJobGroup

    def refuse(group):
        for error in answers:
            raise error
        cancel(group)

    session.cancelJobGroup = refuse
    with pytest.raises(Fenced), make_watch(session, check_alive=lose):
        session.run_job()


def test_a_runner_for_a_run_stops_with_it_and_the_first_one_goes_on():
    session = FakeSession()
    runner = SparkRunner(session, None, rules=WatchRules(interval_s=INTERVAL_S))
    with pytest.raises(Fenced), runner.checking(lose).job("a job"):
        session.run_job()
    count = len(session.cancelled)
    with runner.job("another job"):
        pass
    with pytest.raises(Unavailable, match="Spark lost a third job: job cancelled"), runner.job("a third job"):
        raise Py4JError("job cancelled")
    assert len(session.cancelled) == count


def test_a_session_that_is_gone_is_unavailable():
    session = FakeSession()

    def gone(*_, **__):
        raise Py4JError("answer from Java side is empty")

    session.setJobGroup = gone
    with pytest.raises(Unavailable, match="Spark lost a job"), SparkRunner(session, None).job("a job"):
        pytest.fail("no job on a session that is gone")
