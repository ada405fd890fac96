import pytest
from icedb_log import errors
from icedb_log.names import MERGE_MERGE, MERGE_SWEEP
from icedb_log.results import Work
from icedb_service import metrics as metrics_module
from icedb_service.metrics import WorkerMetrics
from icedb_service.redis_clients import LockBusy, LockLost
from icedb_service.runs import CONFLICT_ATTEMPTS, TaskRunner, backoff_key, outcome_of
from icedb_sim.fakes.manual_clock import ManualClock


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def metrics():
    return WorkerMetrics("merge", package="icedb-service", tasks=(MERGE_MERGE, MERGE_SWEEP))


@pytest.fixture
def runner(metrics, clock):
    return TaskRunner(metrics=metrics, clock=clock)


def run(runner, work, table="events"):
    return runner.run(work, task=MERGE_MERGE, task_id="id-1", table=table)


def raising(error):
    def work():
        raise error

    return work


def count(metrics, outcome):
    return metrics.registry.get_sample_value("icedb_merge_runs_total", {"task": MERGE_MERGE, "outcome": outcome})


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (LockBusy("x"), "busy"),
        (LockLost("x"), "lock_lost"),
        (errors.Fenced("x"), "fenced"),
        (errors.CommitConflict("x"), "conflict"),
        (errors.PreconditionFailed("x"), "conflict"),
        (errors.CommitOutcomeUnknown("x"), "outcome_unknown"),
        (errors.Unavailable("x"), "unavailable"),
        (errors.CorruptLog("x"), "halted"),
        (errors.SchemaConflict("x"), "halted"),
        (errors.UnsupportedFormat("x"), "halted"),
        (errors.InvariantViolated("x"), "halted"),
        (errors.NotFound("x"), "not_found"),
        (errors.InvalidRequest("x"), "refused"),
        (RuntimeError("x"), "failed"),
        (errors.IceDBError("x"), "failed"),
    ],
)
def test_each_error_has_one_outcome(runner, metrics, error, outcome):
    result = run(runner, raising(error))
    assert result["outcome"] == outcome
    assert result["error"] == {"kind": type(error).__name__, "message": "x"}
    assert count(metrics, outcome) == 1
    assert sum(count(metrics, each) for each in metrics_module.OUTCOMES) == 1


def test_every_error_class_of_the_log_is_known():
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.IceDBError) and kind is not errors.IceDBError:
            assert (outcome_of(kind("x")) == "failed") == (kind is errors.JobCrashed), kind


def test_a_result_carries_what_the_work_did(runner, metrics):
    result = run(runner, lambda: Work(is_idle=False, details={"rows": 7}))
    assert result == {
        "task": MERGE_MERGE, "task_id": "id-1", "table": "events", "outcome": "done", "duration_ms": 0, "rows": 7,
    }  # fmt: skip
    assert run(runner, lambda: Work(is_idle=True))["outcome"] == "idle"
    assert count(metrics, "done") == count(metrics, "idle") == 1


def test_a_conflict_is_planned_again_at_once_a_few_times(runner, clock):
    attempts = []

    def work():
        attempts.append(1)
        if len(attempts) < CONFLICT_ATTEMPTS:
            raise errors.CommitConflict("x")
        return Work(is_idle=False)

    assert run(runner, work)["outcome"] == "done"
    assert len(clock.slept_ms) == CONFLICT_ATTEMPTS - 1
    attempts.clear()
    always = raising(errors.CommitConflict("x"))
    assert run(runner, always)["outcome"] == "conflict"


@pytest.mark.parametrize("error", [errors.Unavailable("x"), errors.CommitOutcomeUnknown("x"), errors.Fenced("x")])
def test_other_errors_are_not_tried_again_at_once(runner, clock, error):
    calls = []

    def work():
        calls.append(1)
        raise error

    run(runner, work)
    assert len(calls) == 1
    assert clock.slept_ms == []


def test_a_halted_table_is_shown_until_a_run_ends_well(runner, metrics):
    def halted():
        return metrics.registry.get_sample_value("icedb_merge_halted", {"table": "events"})

    run(runner, raising(errors.CorruptLog("x")))
    assert halted() == 1
    run(runner, raising(errors.Unavailable("x")))
    assert halted() == 1
    run(runner, lambda: Work(is_idle=True))
    assert halted() == 0


@pytest.mark.parametrize(
    ("error", "pauses"),
    [
        (errors.Unavailable("x"), True),
        (errors.CorruptLog("x"), True),
        (RuntimeError("x"), True),
        (LockBusy("x"), False),
        (errors.Fenced("x"), False),
        (errors.InvalidRequest("x"), False),
    ],
)
def test_sweeps_pause_after_what_will_not_soon_be_better(runner, error, pauses):
    run(runner, raising(error))
    assert runner.backoff.is_due(backoff_key(MERGE_MERGE, "events")) is not pauses
    assert runner.backoff.is_due(backoff_key(MERGE_MERGE, "other"))


def test_label_sets_are_complete_from_the_start(metrics):
    assert count(metrics, "fenced") == 0
    assert metrics.registry.get_sample_value("icedb_merge_lock_attempts_total", {"outcome": "lost"}) == 0
    assert metrics.registry.get_sample_value("icedb_merge_wakes_total", {"outcome": "collapsed"}) == 0


def test_a_run_that_hangs_is_named_while_it_runs_and_not_after(runner, clock):
    def hang():
        clock.advance(1001)
        runner.check_progress(1001)
        with pytest.raises(errors.Unavailable, match="merge of table events has run for 1001 ms, longer than 1000"):
            runner.check_progress(1000)
        return Work(is_idle=True)

    assert run(runner, hang)["outcome"] == "idle"
    runner.check_progress(0)
