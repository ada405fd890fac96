"""The client and the command over a real Redis: wake-ups, tasks with and without a worker, Redis gone."""

import json
import logging
import subprocess
import sys
from datetime import datetime

import pytest
from icedb.cli import status
from icedb.cli.app import run
from icedb_client.client import Client
from icedb_client.settings import ClientSettings
from icedb_client.wakeups import TaskTimeout, WakeupSender
from icedb_log.clock import SystemClock
from icedb_log.errors import Unavailable
from icedb_log.names import INGEST_FLUSH, JANITOR_VACUUM, MERGE_MERGE, WORKERS_KEY, wake_key
from icedb_log.phases import following
from icedb_log.store.store_clock import MAX_HOST_GAP_MS
from icedb_log.store_settings import open_warehouse
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_log.wake_keys import WorkerLook
from redis import Redis
from waiting import LIMIT_MS, LIMIT_S

pytestmark = pytest.mark.redis

# A worker that takes the merger's and the janitor's messages and answers in their form.
WORKER = """
import sys
from celery import Celery
app = Celery("answering", broker=sys.argv[1], backend=sys.argv[1])
app.conf.update(accept_content=["json"], task_serializer="json", result_serializer="json")

@app.task(name="icedb.merge.merge")
def merge(table, full=False):
    if table == "bad":
        return {"task": "icedb.merge.merge", "table": table, "outcome": "halted",
                "error": {"kind": "CorruptLog", "message": "line 0 is not JSON"}}
    return {"task": "icedb.merge.merge", "table": table, "outcome": "done", "files_in": 8 if full else 4}

@app.task(name="icedb.janitor.vacuum")
def vacuum(table):
    return {"task": "icedb.janitor.vacuum", "table": table, "outcome": "idle"}

@app.task(name="icedb.ingest.check_query")
def check_query(table, config, schema=None):
    answer = {"task": "icedb.ingest.check_query", "table": table, "outcome": "done"}
    if "nope" in (config["insert_query"] or config["merge_query"]):
        return {**answer, "outcome": "refused", "error": {"kind": "InvalidRequest", "message": "no column nope"}}
    return {**answer, "schema": {"b": config["source"]["a"], "n": "BIGINT"} if config["insert_query"] else {}}

app.worker_main(["worker", "--pool=solo", "--queues=merge-commands,janitor-commands,ingest-commands", "--loglevel=ERROR",
                 "--without-gossip", "--without-mingle", "--without-heartbeat"])
"""

# A worker as the services are, whose vacuum waits until somebody has seen how far it is.
TELLING = """
import sys
from icedb_log.names import JANITOR_VACUUM
from icedb_log.phases import tell_progress
from icedb_service.celery_app import make_app
from icedb_service.metrics import WorkerMetrics
from icedb_log.results import Work
from icedb_service.settings import ServiceSettings
from icedb_service.tasks import define_task
from icedb_service.wakeup import Wakeups
from icedb_sim.rigs.task_context import MemoryContext
from redis import Redis

settings = ServiceSettings(store="file:///nowhere", redis_url=sys.argv[1])
app = make_app(settings, "janitor")
redis = Redis.from_url(sys.argv[1])
context = MemoryContext(WorkerMetrics("janitor", package="icedb-service", tasks=(JANITOR_VACUUM,)))
context.wakeups = Wakeups(app, redis, settings=settings)

def vacuum(table: str):
    "Delivery: any number of times."
    tell_progress("deleting", 3, 8)
    return Work(is_idle=redis.blpop("seen", 240) is None)

define_task(app, context, JANITOR_VACUUM, vacuum)
app.worker_main(["worker", "--pool=solo", "--loglevel=ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat"])
"""


@pytest.fixture
def url(tmp_path):
    url = f"file://{tmp_path}/warehouse"
    warehouse = open_warehouse(url)
    for name in ("events", "bad"):
        create_table(warehouse.table(name), TableConfig.create(name=name))
    return url


@pytest.fixture
def settings(url, redis_server):
    return ClientSettings(store=url, redis_url=redis_server.url, redis_timeout_ms=10_000, message_expiry_ms=LIMIT_MS)


@pytest.fixture
def worker(redis_server, tmp_path):
    with (tmp_path / "worker.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", WORKER, redis_server.url], stdout=log, stderr=log)
    yield process
    process.terminate()
    process.wait(LIMIT_S)


@pytest.fixture
def icedb(url, redis_server, monkeypatch, capsys):
    def icedb(*arguments, code=0):
        monkeypatch.setenv("ICEDB_STORE", url)
        monkeypatch.setenv("ICEDB_REDIS_URL", redis_server.url)
        monkeypatch.setenv("ICEDB_REDIS_TIMEOUT_MS", "3000")
        monkeypatch.setenv("ICEDB_MESSAGE_EXPIRY_MS", str(LIMIT_MS))
        root = logging.getLogger()
        handlers = list(root.handlers)
        try:
            assert run(arguments) == code
        finally:
            root.handlers = handlers
        return capsys.readouterr()

    return icedb


def messages(redis_server, queue):
    with Redis.from_url(redis_server.url) as redis:
        return [json.loads(message) for message in redis.lrange(queue, 0, -1)]


def test_a_message_outlives_the_gap_between_the_clocks_of_its_sender_and_of_the_worker(settings, redis_server):
    """The worker compares its end with a clock of its own."""
    before_ms = SystemClock().now_ms()
    with Client(settings=settings) as client:
        client.enqueue("events", [{"n": 1}])
        client.workers.send(MERGE_MERGE, "events", arguments={})
    for queue in ("ingest", "merge-commands"):
        (message,) = messages(redis_server, queue)
        ends_ms = datetime.fromisoformat(message["headers"]["expires"]).timestamp() * 1000
        assert ends_ms >= before_ms + settings.message_expiry_ms + MAX_HOST_GAP_MS, queue


def test_a_thousand_batches_are_one_message(settings, redis_server):
    with Client(settings=settings) as client:
        batches = [client.enqueue("events", [{"n": n}]) for n in range(20)]
    assert all(batch.is_woken for batch in batches)
    (message,) = messages(redis_server, "ingest")
    assert message["headers"]["task"] == INGEST_FLUSH
    assert message["headers"]["ignore_result"]
    assert message["headers"]["expires"]
    with Redis.from_url(redis_server.url) as redis:
        assert 0 < redis.pttl(wake_key(INGEST_FLUSH, "events")) <= LIMIT_MS
        # What a worker does when its task begins: the next batch sends a message again.
        redis.delete(wake_key(INGEST_FLUSH, "events"))
    with Client(settings=settings) as client:
        client.enqueue("events", [{}])
    assert len(messages(redis_server, "ingest")) == 2


def test_redis_gone_is_a_warning_once_and_not_an_error(settings, redis_server, caplog):
    redis_server.stop()
    with Client(settings=settings) as client, caplog.at_level(logging.WARNING):
        batches = [client.enqueue("events", [{"n": n}]) for n in range(5)]
        assert not any(batch.is_woken for batch in batches)
        assert client.wait_committed("events", [b.batch_id for b in batches], timeout_ms=0).waiting
    assert len(caplog.records) == 1
    assert redis_server.url in caplog.text
    assert "sweep" in caplog.text


def test_status_names_the_worker_that_others_wait_for(icedb, redis_server, settings, monkeypatch):
    monkeypatch.setattr(status, "LATE_MS", 0)
    with Client(settings=settings) as client:
        client.enqueue("bad", [{"n": 1}])
    workers = {"ingest": ("icedb.ingest.flush", "events"), "merge": ("icedb.merge.merge", "events")}
    with Redis.from_url(redis_server.url) as redis:
        for pid, (queue, doing) in enumerate(workers.items(), 4711):
            look = WorkerLook(queue, "host-of-ours", pid, "1.0.0", SystemClock().now_ms(), (doing,))
            redis.hset(WORKERS_KEY, look.name, look.encode())
        waits = "staged batches wait while ingest-4711@host-of-ours runs icedb.ingest.flush of table events"
        shown = " ".join(icedb("status").err.split())
        assert (waits in shown, "4712" in shown) == (True, False)
        assert waits in " ".join(icedb("status", "bad", "-o", "json").err.split())
        assert "wait" not in icedb("status", "events").err, "it has no batch that waits"
        look = WorkerLook(
            "ingest", "host-of-ours", 4711, "1.0.0", SystemClock().now_ms(), (("icedb.ingest.flush", "bad"),)
        )
        redis.hset(WORKERS_KEY, look.name, look.encode())
        assert "wait" not in icedb("status").err, "its own batches are on their way"
    redis_server.stop()
    assert "cannot be asked: Redis at" in " ".join(icedb("status").err.split())


def test_a_message_that_cannot_be_sent_leaves_no_key_behind(settings, redis_server, monkeypatch):
    sender = WakeupSender(settings, clock=SystemClock())

    def fail(*_args, **_options):
        raise ConnectionResetError

    with monkeypatch.context() as patch:
        patch.setattr(sender._app, "send_task", fail)
        assert not sender.wake(INGEST_FLUSH, "events")
    with Redis.from_url(redis_server.url) as redis:
        assert redis.get(wake_key(INGEST_FLUSH, "events")) is None
    # So the next batch, of anybody, wakes the worker.
    other = WakeupSender(settings, clock=SystemClock())
    assert other.wake(INGEST_FLUSH, "events")
    assert len(messages(redis_server, "ingest")) == 1
    for each in (sender, other):
        each.close()


def test_tasks_are_run_and_their_result_shown(icedb, worker, tmp_path):
    done = json.loads(icedb("merge", "events", "--full", "-o", "json", "--timeout", f"{LIMIT_S}s").out)
    assert (done["outcome"], done["files_in"]) == ("done", 8)
    assert "4 data files" in icedb("merge", "events", "--timeout", f"{LIMIT_S}s").out
    assert "nothing to do" in icedb("vacuum", "events", "--timeout", f"{LIMIT_S}s").out
    halted = icedb("merge", "bad", "--timeout", f"{LIMIT_S}s", code=5)
    assert "line 0 is not JSON" in halted.err
    assert halted.out == ""
    check_that_an_insert_query_gives_the_columns(icedb, tmp_path)


def check_that_an_insert_query_gives_the_columns(icedb, tmp_path):
    path = tmp_path / "query.sql"
    path.write_text("select a as b, 1 as n from _rows\n")
    options = ("--source", "a:VARCHAR", "--column", "n:DOUBLE", "--timeout", f"{LIMIT_S}s")
    done = json.loads(icedb("table", "create", "t", "--insert-query", f"@{path}", *options, "-o", "json").out)
    assert done["config"]["insert_query"] == "select a as b, 1 as n from _rows"
    assert done["config"]["declared"] == {"b": "VARCHAR", "n": "DOUBLE"}
    shown = icedb("table", "show", "t").out
    assert "select a as b" in shown
    assert "a VARCHAR" in shown
    refused = icedb("table", "create", "u", "--insert-query", "select nope from _rows", *options, code=2)
    assert "the insert_query of table u is refused: no column nope" in refused.err
    assert icedb("table", "show", "u", code=3).out == ""
    merge_query = "select b, max(n) as n from source_files group by b"
    options = ("--merge-query", merge_query, "--timeout", f"{LIMIT_S}s")
    altered = json.loads(icedb("table", "alter", "t", *options, "-o", "json").out)
    assert (altered["changed"], altered["config"]["merge_query"]) == (True, merge_query)
    assert merge_query in icedb("table", "show", "t").out
    refused = icedb("table", "alter", "t", "--merge-query", "select nope from source_files", *options[2:], code=2)
    assert "the merge_query of table t is refused: no column nope" in refused.err
    assert (
        json.loads(icedb("table", "alter", "t", "--merge-query", "off", "-o", "json").out)["config"]["merge_query"]
        is None
    )


def test_who_waits_is_told_how_far_a_task_is(settings, redis_server, tmp_path):
    told = []
    with (
        (tmp_path / "worker.log").open("wb") as log,
        subprocess.Popen([sys.executable, "-c", TELLING, redis_server.url], stdout=log, stderr=log) as process,
        Redis.from_url(redis_server.url) as redis,
    ):

        def follow(*how_far):
            told.append(how_far)
            redis.rpush("seen", "yes")

        sender = WakeupSender(settings, clock=SystemClock())
        try:
            with following(follow):
                done = sender.run(JANITOR_VACUUM, "events", arguments={}, timeout_ms=LIMIT_MS)
            assert done["outcome"] == "done", (tmp_path / "worker.log").read_text()
            assert set(told) == {("deleting", 3, 8)}
            assert redis.keys("icedb:progress:*") == redis.keys("celery-task-meta-*") == []
        finally:
            sender.close()
            process.terminate()


def test_without_a_worker_waiting_ends(icedb, redis_server, settings):
    answer = icedb("merge", "events", "--timeout", "300ms", code=6)
    assert "no worker finished icedb.merge.merge within 0.3 s" in answer.err
    assert "queue 'merge'" in answer.err
    sent = json.loads(icedb("merge", "events", "--no-wait", "-o", "json").out)
    assert sent["outcome"] == "sent"
    assert sent["task_id"] in {message["headers"]["id"] for message in messages(redis_server, "merge-commands")}
    assert icedb("merge", "nope", code=3).out == ""
    query = ("--insert-query", "select a from _rows", "--source", "a:VARCHAR", "--timeout", "300ms")
    answer = icedb("table", "create", "t", *query, code=6)
    assert "was not checked, and nothing was changed: no ingest worker answered within 0.3 s" in answer.err
    assert icedb("table", "show", "t", code=3).out == ""
    sender = WakeupSender(settings, clock=SystemClock())
    with pytest.raises(TaskTimeout):
        sender.run(MERGE_MERGE, "events", arguments={}, timeout_ms=200)
    redis_server.stop()
    with pytest.raises(Unavailable, match="ICEDB_REDIS_URL"):
        sender.run(MERGE_MERGE, "events", arguments={}, timeout_ms=200)
    sender.close()
