"""Tasks that say what is to be done want a token: a real worker over a real Redis, and the enqueue task's message."""

import json
import threading

import pytest
from celery.exceptions import Retry
from icedb_client.settings import ClientSettings
from icedb_client.wakeups import WakeupSender
from icedb_ingest import tasks as ingest_tasks
from icedb_ingest.frontend.enqueue_task import EnqueueWork, register_enqueue
from icedb_ingest.frontend.metrics import FrontendMetrics
from icedb_ingest.metrics import IngestMetrics
from icedb_ingest.settings import IngestSettings
from icedb_janitor import tasks as janitor_tasks
from icedb_janitor.metrics import JanitorMetrics
from icedb_janitor.settings import JanitorSettings
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.errors import IceDBError, InvalidRequest, PermissionDenied, TableNotFound, Unauthenticated, Unavailable
from icedb_log.names import (
    INGEST_CHECK_QUERY,
    INGEST_ENQUEUE,
    INGEST_FEED,
    INGEST_FLUSH,
    INGEST_IMPORT,
    INGEST_LARGE_FLUSH,
    INGEST_SWEEP,
    JANITOR_ORPHANS,
    JANITOR_PURGE,
    JANITOR_SWEEP,
    JANITOR_VACUUM,
    MERGE_CHANGE,
    MERGE_COLD,
    MERGE_DROP_PARTITIONS,
    MERGE_ERASE,
    MERGE_MERGE,
    MERGE_RETAIN,
    MERGE_SWEEP,
    TASKS,
)
from icedb_log.store_settings import open_warehouse
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_merger import tasks as merger_tasks
from icedb_merger.metrics import MergeMetrics
from icedb_merger.settings import MergerSettings
from icedb_service.access.access_file import Verb
from icedb_service.access.credentials import TaskAccess
from icedb_service.access.guard import AccessGuard
from icedb_service.access.policy import AccessSource
from icedb_service.celery_app import make_app
from icedb_service.redis_clients import open_redis
from icedb_service.settings import ServiceSettings
from icedb_sim.rigs.access_rig import token_entry, write_access
from icedb_sim.rigs.task_context import MemoryContext
from processes import running, service_env
from waiting import LIMIT_MS

pytestmark = pytest.mark.redis

KEEPER, READER, STRANGER, SENDER = (
    f"icedbt_{name}-0123456789abcdef" for name in ("keeper", "reader", "stranger", "sender")
)

CLOCK = SystemClock()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    warehouse = open_warehouse(f"file://{folder}/warehouse")
    create_table(warehouse.table("events"), TableConfig.create(name="events"))
    write_access(
        folder / "access.json",
        {
            "identities": {
                name: {"tokens": [token_entry(token)]}
                for name, token in {"keeper": KEEPER, "reader": READER, "stranger": STRANGER, "sender": SENDER}.items()
            },
            "grants": [
                {"identities": ["keeper"], "tables": ["events"], "verbs": ["maintain"]},
                {"identities": ["sender"], "tables": ["events"], "verbs": ["append"]},
                {"identities": ["reader"], "tables": ["events"], "verbs": ["read"]},
            ],
        },
    )
    return folder


@pytest.fixture(scope="module")
def janitor(redis, folder):
    env = service_env(
        ICEDB_STORE=f"file://{folder}/warehouse",
        ICEDB_REDIS_URL=redis.url,
        ICEDB_ACCESS_FILE=folder / "access.json",
        ICEDB_LOG_LEVEL="debug",
    )
    with running(["-m", "icedb_janitor"], env, folder) as process:
        yield process


ERASE, MAINTAIN, APPEND, READ = Verb.ERASE, Verb.MAINTAIN, Verb.APPEND, Verb.READ
WANTED = [
    # Wake-ups: what the periodic sweeps do anyway.
    *((task, {}, {}) for task in (INGEST_SWEEP, MERGE_SWEEP, JANITOR_SWEEP)),
    *(
        (task, {"table": "t"}, {})
        for task in (
            INGEST_FLUSH,
            INGEST_LARGE_FLUSH,
            INGEST_FEED,
            MERGE_MERGE,
            MERGE_COLD,
            MERGE_RETAIN,
            MERGE_ERASE,
            JANITOR_VACUUM,
            JANITOR_PURGE,
        )
    ),
    # Orders.
    (INGEST_IMPORT, {"table": "t", "sources": []}, {"t": APPEND}),
    (INGEST_CHECK_QUERY, {"table": "t", "config": {}}, {"t": MAINTAIN}),
    (INGEST_CHECK_QUERY, {"table": "t", "config": {"view_of": "s"}}, {"t": MAINTAIN, "s": READ}),
    (MERGE_MERGE, {"table": "t", "full": True}, {"t": MAINTAIN}),
    (MERGE_CHANGE, {"table": "t", "kind": "delete", "sql": ""}, {"t": ERASE}),
    (MERGE_CHANGE, {"table": "t", "kind": "rewrite", "sql": "", "dry_run": True}, {"t": ERASE}),
    (MERGE_DROP_PARTITIONS, {"table": "t", "globs": []}, {"t": ERASE}),
    (MERGE_RETAIN, {"table": "t", "force": True}, {"t": ERASE}),
    (MERGE_ERASE, {"table": "t", "preview": "x = 1"}, {"t": ERASE}),
    (JANITOR_ORPHANS, {"table": "t"}, {"t": MAINTAIN}),
]


def test_every_task_but_wake_ups_says_what_it_needs():
    app = make_app(ServiceSettings(store="file:///w"))
    for kind, register, settings in (
        (IngestMetrics, ingest_tasks.register_tasks, IngestSettings),
        (IngestMetrics, ingest_tasks.register_large_tasks, IngestSettings),
        (MergeMetrics, merger_tasks.register_tasks, MergerSettings),
        (JanitorMetrics, janitor_tasks.register_tasks, JanitorSettings),
    ):
        metrics = kind()
        register(app, MemoryContext(metrics), settings=settings(store="file:///w"), metrics=metrics)
    assert {task for task, _, _ in WANTED} == set(TASKS) - {INGEST_ENQUEUE}  # that one asks by itself
    for name, arguments, wanted in WANTED:
        task = app.tasks[name]
        bound = task.signature_of_run.bind(**arguments).arguments
        assert {need.table: need.verb for need in (task.needs(bound) if task.needs else ())} == wanted, name


class Refusing:
    """A desk in front of a store that does not answer."""

    def accept(self, offer):
        raise Unavailable("the store does not answer")


def test_a_message_that_is_put_off_keeps_its_token(folder, redis):
    settings = ServiceSettings(store="file:///w", redis_url=redis.url)
    app = make_app(settings)
    client = open_redis(redis.url, timeout_ms=LIMIT_MS)
    stopping = threading.Event()
    stopping.set()
    metrics = FrontendMetrics()
    source = AccessSource(folder / "access.json", clock=CLOCK)
    work = EnqueueWork(
        Refusing(),
        metrics=metrics,
        clock=CLOCK,
        max_batch_bytes=100,
        is_stopping=stopping,
        access=TaskAccess(AccessGuard(source)),
    )
    task = register_enqueue(app, work)
    message = {"table": "events", "batch_id": new_batch_id(CLOCK), "rows": [{"a": 1}]}
    refusals = {}
    for name, token in {"nobody": None, "reader": READER, "stranger": STRANGER, "sender": SENDER}.items():
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        task.push_request(id=name, args=(), kwargs=message, headers=headers, called_directly=False)
        try:
            task.run(**message)
        except (IceDBError, Retry) as error:
            refusals[name] = type(error)
        finally:
            task.pop_request()
    sent = [json.loads(each)["headers"] for each in client.lrange("enqueue", 0, -1)]
    client.close()
    app.close()
    assert refusals == {
        "nobody": Unauthenticated,
        "reader": PermissionDenied,
        "stranger": TableNotFound,
        "sender": Retry,
    }
    assert [headers["authorization"] for headers in sent] == [f"Bearer {SENDER}"]


def ask(redis, task, token, table="events", url=None, **settings):
    sender = WakeupSender(ClientSettings(redis_url=url or redis.url, token=token, **settings), clock=CLOCK)
    try:
        return sender.run(task, table, arguments={}, timeout_ms=LIMIT_MS)
    finally:
        sender.close()


def test_a_worker_does_for_a_token_what_it_may_and_no_log_or_result_shows_it(janitor, redis, folder):
    def outcome(token, task=JANITOR_ORPHANS, table="events"):
        result = ask(redis, task, token, table)
        return (
            result["outcome"],
            (result.get("error") or {}).get("kind"),
            (result.get("error") or {}).get("message", ""),
        )

    assert outcome(KEEPER)[0] == "idle"
    assert outcome(None)[:2] == ("refused", "Unauthenticated")
    assert outcome("icedbt_unknown-0123456789")[:2] == ("refused", "Unauthenticated")
    assert outcome(READER)[:2] == ("refused", "PermissionDenied")
    hidden, nothing = outcome(STRANGER), outcome(STRANGER, table="nothing")
    assert hidden[:2] == nothing[:2] == ("not_found", "TableNotFound")
    assert hidden[2].replace("events", "T") == nothing[2].replace("nothing", "T")
    assert outcome(None, JANITOR_VACUUM)[0] == "idle"  # what the sweep does anyway
    # A task that no worker of this release knows: Celery logs its whole message, headers and all.
    client = open_redis(redis.url, timeout_ms=LIMIT_MS)
    message = {
        "body": "W1tdLCB7fSwge31d",
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"lang": "py", "task": "icedb.unknown", "id": "x", "authorization": f"Bearer {KEEPER}"},
        "properties": {
            "delivery_tag": "1",
            "delivery_info": {"exchange": "", "routing_key": "janitor"},
            "body_encoding": "base64",
        },
    }
    client.lpush("janitor", json.dumps(message))
    assert outcome(KEEPER)[0] == "idle"
    log = (folder / "log").read_text()
    assert "icedb.unknown" in log
    assert "access_denied" in log
    kept = "".join(str(client.get(key)) for key in client.scan_iter("celery-task-meta-*"))
    client.close()
    for token in (KEEPER, READER, STRANGER):
        assert token not in log
        assert token not in kept


def test_a_token_goes_to_another_machine_only_where_it_is_hidden_or_asked_for(redis):
    with pytest.raises(InvalidRequest, match=r"redis://redis\.internal:6379/0 in plain text.*rediss://"):
        ask(redis, JANITOR_ORPHANS, KEEPER, url="redis://user:pw@redis.internal:6379/0")


def test_wake_ups_carry_no_token(redis):
    sender = WakeupSender(ClientSettings(redis_url=redis.url, token=KEEPER), clock=CLOCK)
    client = open_redis(redis.url, timeout_ms=LIMIT_MS)
    try:
        assert sender.wake(MERGE_MERGE, "quiet")
        sender.send(MERGE_CHANGE, "events", arguments={})
        sent = [
            json.loads(message)["headers"]
            for queue in ("merge", "merge-commands")
            for message in client.lrange(queue, 0, -1)
        ]
    finally:
        sender.close()
        client.close()
    assert {headers["task"]: headers.get("authorization") for headers in sent} == {
        MERGE_MERGE: None,
        MERGE_CHANGE: f"Bearer {KEEPER}",
    }
