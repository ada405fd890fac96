import pytest
from icedb_log.errors import InvalidRequest
from icedb_log.names import COMMAND_QUEUES, INGEST_ENQUEUE, JANITOR_VACUUM, MERGE_MERGE, PROGRESS_HEADER, QUEUES, TASKS
from icedb_log.phases import tell_progress
from icedb_log.results import Work
from icedb_service.access.access_file import Verb
from icedb_service.access.credentials import Need, TaskAccess
from icedb_service.celery_app import make_app
from icedb_service.metrics import WorkerMetrics
from icedb_service.settings import ServiceSettings
from icedb_service.tasks import EX_RECYCLE, define_task
from icedb_sim.rigs.guard_rig import TOKEN
from icedb_sim.rigs.task_context import MemoryContext


@pytest.fixture
def settings():
    return ServiceSettings(store="file:///tmp/w")


@pytest.fixture
def context():
    return MemoryContext(WorkerMetrics("merge", package="icedb-service", tasks=(MERGE_MERGE,)))


@pytest.fixture
def app(settings):
    return make_app(settings, "merge")


def merge(table: str, full: bool = False):
    """Delivery: any number of times."""
    return Work(is_idle=False, details={"table_seen": table, "full": full})


def test_a_task_takes_in_its_wake_up_and_answers_json(app, context):
    task = define_task(app, context, MERGE_MERGE, merge)
    result = task("events", full=True)
    assert (result["outcome"], result["table_seen"], result["full"]) == ("done", "events", True)
    assert context.wakeups.released == [(MERGE_MERGE, "events")]
    assert app.tasks[MERGE_MERGE].name == MERGE_MERGE
    assert "Delivery" in app.tasks[MERGE_MERGE].__doc__


def test_the_wake_up_is_taken_in_before_the_work_looks_at_the_store(app, context):
    def work(table: str):
        """Delivery: any number of times."""
        return Work(is_idle=False, details={"released": len(context.wakeups.released)})

    assert define_task(app, context, MERGE_MERGE, work)("events")["released"] == 1


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), (("a", True, 3), {}), (("a",), {"fulll": True})])
def test_wrong_arguments_are_refused_in_words(app, context, args, kwargs):
    result = define_task(app, context, MERGE_MERGE, merge)(*args, **kwargs)
    assert result["outcome"] == "refused"
    assert result["error"]["message"].startswith("icedb.merge.merge(table: str, full: bool = False): ")


def test_a_type_error_inside_the_work_is_a_bug_not_a_wrong_request(app, context):
    def broken(table: str):
        """Delivery: once."""
        return len(5)

    assert define_task(app, context, MERGE_MERGE, broken)("events")["outcome"] == "failed"


def test_a_dead_engine_wakes_the_task_again_and_ends_the_process(app, context):
    context.engine.is_running = False
    task = define_task(app, context, MERGE_MERGE, merge)
    with pytest.raises(SystemExit) as left:
        task("events")
    assert left.value.code == EX_RECYCLE
    assert context.wakeups.woken == [(MERGE_MERGE, "events")]
    without = define_task(app, context, JANITOR_VACUUM, merge, needs_engine=False)
    assert without("events")["outcome"] == "done"


def test_options_and_contracts_are_checked(app, context):
    with pytest.raises(InvalidRequest, match="is unknown; known"):
        define_task(app, context, "icedb.merge.mergee", merge)

    def silent(table):
        return Work(is_idle=True)

    with pytest.raises(InvalidRequest, match="no docstring"):
        define_task(app, context, MERGE_MERGE, silent)


def test_messages_are_json_acknowledged_early_and_go_to_their_queue(app, settings):
    conf = app.conf
    assert (conf.accept_content, conf.task_serializer, conf.result_serializer) == (["json"], "json", "json")
    assert conf.task_acks_late is False
    assert (conf.worker_disable_prefetch, conf.worker_concurrency, conf.worker_pool) == (True, 1, "prefork")
    assert conf.broker_transport_options["visibility_timeout"] * 1000 > settings.task_time_limit_ms
    assert {queue.name for queue in conf.task_queues} == {*QUEUES, *COMMAND_QUEUES.values()}
    for task, queue in TASKS.items():
        assert app.amqp.router.route({}, task)["queue"].name == queue
        # A message that carries a batch must not wait behind flushes, nor be taken by a worker of another kind.
        assert queue == ("enqueue" if task == INGEST_ENQUEUE else task.split(".")[1])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"table": 5}, "table"),
        ({"table": None}, "table"),
        ({"table": ["events"]}, "table"),
        ({"table": "events", "full": "false"}, "full"),
        ({"table": "events", "full": 0}, "full"),
        ({"table": "events", "full": None}, "full"),
    ],
)
def test_an_argument_of_another_type_is_refused_by_its_name(app, context, arguments, named):
    result = define_task(app, context, MERGE_MERGE, merge)(**arguments)
    assert result["outcome"] == "refused"
    assert f"argument {named}: " in result["error"]["message"]


@pytest.mark.parametrize("name", ["self", "_self"])
def test_an_argument_that_python_knows_is_refused_like_any_other(app, context, name):
    result = define_task(app, context, MERGE_MERGE, merge)(**{"table": "events", name: "x"})
    assert result["outcome"] == "refused"
    assert name in result["error"]["message"]


def test_a_message_that_asks_for_several_things_needs_them_all(app, context, guard):
    context.access, wanted = TaskAccess(guard), []
    task = define_task(app, context, MERGE_MERGE, merge, needs=lambda _arguments: wanted)

    def outcome(*needs):
        wanted[:] = needs
        task.push_request(headers={"authorization": f"Bearer {TOKEN}"})
        try:
            return task("a_1")["outcome"]
        finally:
            task.pop_request()

    fine = Need(Verb.READ, "a_1")
    assert outcome(fine, Need(Verb.APPEND, "a_2")) == "done"
    for refused, what in ((Need(Verb.ERASE, "a_1"), "refused"), (Need(Verb.READ, "b_1"), "not_found")):
        assert outcome(refused, fine) == outcome(fine, refused) == what


@pytest.mark.parametrize(
    ("headers", "is_silent", "noted"),
    [({PROGRESS_HEADER: "1"}, False, [0, 2]), ({PROGRESS_HEADER: "1"}, True, [0]), ({}, False, [])],
)
def test_who_waits_and_asks_for_it_is_told_once_a_second_how_far_a_task_is(app, context, headers, is_silent, noted):
    def work(table: str):
        """Delivery: any number of times."""
        for number in range(4):
            tell_progress("merging groups", number, 4)
            context.clock.advance(500)
        return Work(is_idle=False)

    context.wakeups.is_silent = is_silent
    task = define_task(app, context, MERGE_MERGE, work)
    task.push_request(id="t-1", headers=headers)
    assert task("events")["outcome"] == "done"
    assert context.wakeups.noted == [("t-1", "merging groups", number, 4) for number in noted]
    tell_progress("merging groups", 4, 4)
    assert len(context.wakeups.noted) == len(noted)
