"""Hostile messages in a worker's queue: none runs anything but the task it names, and none ends the worker."""

import base64
import bz2
import contextlib
import json
import os
import pickle
import uuid
import zlib

import pytest
from icedb_log.errors import InvalidRequest
from icedb_log.names import JANITOR_SWEEP, JANITOR_VACUUM
from icedb_service.celery_app import make_app
from icedb_service.redis_clients import open_redis
from icedb_service.settings import ServiceSettings
from icedb_sim.rigs.redis_server import RedisServer
from waiting import LIMIT_MS, wait_until
from worker_process import LIMIT_S, running_worker

pytestmark = pytest.mark.redis

TOKEN = "icedbt_" + "s3cret" * 5

TASK = """Path("ran", str(table)).touch()"""  # leaves a file of the table's name


def make(body=None, *, task=JANITOR_VACUUM, content_type="application/json", encoding="utf-8", raw=None, **headers):
    """Return a message as kombu puts it into Redis."""
    task_id = str(uuid.uuid4())
    payload = raw if raw is not None else json.dumps([["evil"], {}, {}] if body is None else body).encode()
    return json.dumps(
        {
            "body": base64.b64encode(payload).decode(),
            "content-type": content_type,
            "content-encoding": encoding,
            "headers": {"task": task, "id": task_id, "lang": "py", "authorization": f"Bearer {TOKEN}", **headers},
            "properties": {
                "correlation_id": task_id,
                "delivery_info": {"exchange": "", "routing_key": "janitor"},
                "delivery_mode": 2,
                "delivery_tag": str(uuid.uuid4()),
                "body_encoding": "base64",
                "priority": 0,
            },
        }
    )


class Boom:
    def __reduce__(self):
        return os.mkdir, ("ran/pickled",)


SIGNATURE = {
    "task": JANITOR_VACUUM,
    "args": ["evil"],
    "kwargs": {},
    "options": {"queue": "janitor"},
    "subtask_type": None,
}
MESSAGES = {
    "pickle": make(
        raw=pickle.dumps(([Boom()], {}, {})), content_type="application/x-python-serialize", encoding="binary"
    ),
    "yaml": make(raw=b"[[evil], {}, {}]", content_type="application/x-yaml"),
    "raw": make(raw=b"[['evil'], {}, {}]", content_type="application/data", encoding="binary"),
    "unknown task": make(task="os.system"),
    "unknown task without id": make(task="os.system", id=None),
    "sweep that this worker does not have": make(task=JANITOR_SWEEP),
    "celery.map": make([[], {"task": SIGNATURE, "it": [["evil"]]}, {}], task="celery.map"),
    "celery.chain": make([[["evil"]], {}, {}], task="celery.chain"),
    "celery.chord_unlock": make([["g", SIGNATURE], {}, {}], task="celery.chord_unlock"),
    "celery.backend_cleanup": make([[], {}, {}], task="celery.backend_cleanup"),
    "task is a list": make(task=["icedb.janitor.vacuum"]),
    "no task": make(task=None),
    "no id": make(id=None),
    "id is an object": make(id={"a": 1}),
    "long id": make(id="x" * 10_000),
    "id with a newline": make(id="a\nb"),
    "link": make([["linked"], {}, {"callbacks": [SIGNATURE]}]),
    "errback": make([[], {"wrong": 1}, {"errbacks": [SIGNATURE]}]),
    "chain": make([["chained"], {}, {"chain": [SIGNATURE]}]),
    "chord": make([["chorded"], {}, {"chord": SIGNATURE}]),
    "chord in headers": make(chord=SIGNATURE),
    "group": make(group={"a": 1}),
    "eta": make(eta="2999-01-01T00:00:00+00:00"),
    "bad eta": make(eta={}),
    "bad expires": make(expires={"a": 1}),
    "worse expires": make(expires="not a time"),
    "shadow": make(shadow="\x1b[31mroot\n"),
    "stamps": make(stamps={"a": [1]}),
    "compressed": make(raw=zlib.compress(json.dumps([["evil"], {}, {}]).encode()), compression="application/x-gzip"),
    "bomb": make(raw=zlib.compress(b" " * 50_000_000), compression="zlib"),
    "bz2": make(raw=bz2.compress(json.dumps([["evil"], {}, {}]).encode()), compression="bzip2"),
    "unknown compression": make(compression="nope"),
    "body is a number": make(5),
    "body is null": make(raw=b"null"),
    "body is text": make("evil"),
    "body is an object": make({"args": ["evil"], "kwargs": {}}),
    "protocol 1": make({"task": JANITOR_VACUUM, "id": "1", "args": ["evil"], "kwargs": {}}, task=None),
    "body of four": make([["evil"], {}, {}, {}]),
    "args are an object": make([{"table": "evil"}, {}, {}]),
    "kwargs are a list": make([["evil"], [], {}]),
    "embed is a list": make([["evil"], {}, [SIGNATURE]]),
    "no JSON": make(raw=b"\xff\xfe{{{"),
    "deep JSON": make(raw=b"[" * 200_000),
    "huge number": make(raw=b"[[" + b"9" * 100_000 + b"], {}, {}]"),
    "retries": make(retries="many"),
    "root": make(root_id={"a": 1}),
}


def change(place, **fields):
    """Return an envelope with other fields, at its top, in its properties or in its headers."""
    envelope = json.loads(make())
    (envelope[place] if place else envelope).update(fields)
    return json.dumps({name: value for name, value in envelope.items() if value != MISSING})


MISSING = "MISSING"
ENTRIES = {
    "nothing": b"",
    "garbage": b"garbage",
    "bytes": b"\xff\xfe\x00",
    "cut off": make()[:-20],
    "a list": b"[]",
    "null": b"null",
    "a number": b"5",
    "text": b'"text"',
    "an empty object": b"{}",
    "deep lists": b"[" * 200_000,
    "deep objects": b'{"a":' * 200_000,
    "deep headers": change("headers", a=json.loads("[" * 900 + "]" * 900)),
    "huge number": b"9" * 100_000,
    "unknown type of kombu": b'{"__type__":"nope","__value__":1}',
    "bad value of kombu": b'{"__type__":"uuid","__value__":{"a":1}}',
    "body is a number": change("", body=5),
    "body is an object": change("", body={"a": 1}),
    "body is no base64": change("", body="a"),
    "body is not ASCII": change("", body="ä"),
    "no body": change("", body=MISSING),
    "no properties": change("", properties=MISSING),
    "properties are a list": change("", properties=[]),
    "headers are a list": change("", headers=[]),
    "headers are text": change("", headers="x"),
    "no headers": change("", headers=MISSING),
    "content type is an object": change("", **{"content-type": {"a": 1}}),
    "unknown encoding of the body": change("properties", body_encoding="nope"),
    "encoding of the body is a number": change("properties", body_encoding=5),
    "compression is an object": change("headers", compression={"a": 1}),
    **{
        f"delivery_tag is {tag!r}": change("properties", delivery_tag=tag)
        for tag in ({"a": 1}, [1], None, True, 5, "", "\ud800")
    },
    **{
        f"delivery_info is {info!r}": change("properties", delivery_info=info)
        for info in ([], None, "x", {}, {"exchange": {"a": 1}, "routing_key": "janitor"})
    },
}
"""Entries of a queue that kombu cannot even receive."""


@pytest.fixture(scope="module")
def redis_server():
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("messages")
    (folder / "ran").mkdir()
    return folder


@pytest.fixture(scope="module")
def worker(redis_server, folder):
    with contextlib.closing(open_redis(redis_server.url, timeout_ms=LIMIT_MS)) as redis:
        redis.lpush("janitor", "garbage that lies there when it starts")
    with running_worker(redis_server.url, folder, task=TASK, threads=1) as process:
        yield process


def wait_until_ran(worker, folder, name, what):
    def has_run():
        assert worker.poll() is None, f"the worker ended: {(folder / 'log').read_text()[-2000:]}"
        return (folder / "ran" / name).exists()

    wait_until(has_run, what)


def wait_until_settled(redis):
    """The worker acknowledges a message some time after its task has left its trace."""
    wait_until(lambda: redis.hlen("unacked") == 0, "nothing is kept to be delivered again")
    assert redis.llen("janitor") == 0


def test_no_message_runs_more_than_its_task_and_none_ends_the_worker(worker, redis_server, folder):
    app = make_app(ServiceSettings(store=f"file://{folder / 'warehouse'}", redis_url=redis_server.url))
    settled = []
    with contextlib.closing(open_redis(redis_server.url, timeout_ms=LIMIT_MS)) as redis, contextlib.closing(app):
        for number, (name, message) in enumerate(MESSAGES.items()):
            redis.lpush("janitor", message)
            mark = f"after_{number}"
            app.send_task(JANITOR_VACUUM, args=[mark], ignore_result=True)
            wait_until_ran(worker, folder, mark, f"what follows the message {name!r} runs")
            settled.append(mark)
        wait_until_settled(redis)
    assert sorted(path.name for path in (folder / "ran").iterdir()) == sorted(settled), "nothing else ran"
    log = (folder / "log").read_text()
    assert "s3crets3cret" not in log
    assert log.count("message_refused") >= 40
    assert "\x1b" not in log


def test_no_entry_of_a_queue_ends_the_worker_or_takes_a_message_with_it(worker, redis_server, folder):
    refused = (folder / "log").read_text().count("message_refused")
    with (
        contextlib.closing(open_redis(redis_server.url, timeout_ms=LIMIT_MS)) as redis,
        contextlib.closing(redis.pipeline()) as pipeline,
    ):
        for number, entry in enumerate(ENTRIES.values()):
            pipeline.lpush("janitor", entry)
            pipeline.lpush("janitor", make([[f"beside_{number}"], {}, {}]))
        pipeline.execute()
        wait_until_ran(worker, folder, f"beside_{len(ENTRIES) - 1}", "the last message runs")
        wait_until_settled(redis)
        ran = {path.name for path in (folder / "ran").iterdir()}
        assert {f"beside_{number}" for number in range(len(ENTRIES))} <= ran, "every other message was taken"
        assert "evil" not in ran
    log = (folder / "log").read_text()
    assert log.count("message_refused") == refused + len(ENTRIES)
    assert "s3crets3cret" not in log


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("short_limit", {"timelimit": [0.001, 0.001]}),
        ("no_limit_at_all", {"timelimit": "for ever"}),
        ("of_a_group", {"group": "g", "group_index": 0}),
    ],
)
def test_what_a_senders_own_application_adds_is_no_harm(worker, redis_server, folder, what, says):
    with contextlib.closing(open_redis(redis_server.url, timeout_ms=LIMIT_MS)) as redis:
        redis.lpush("janitor", make([[what], {}, {}], **says))
        wait_until_ran(worker, folder, what, "the message runs")


def test_who_waits_for_a_refused_message_is_told(worker, redis_server, folder):
    settings = ServiceSettings(store=f"file://{folder / 'warehouse'}", redis_url=redis_server.url)
    with contextlib.closing(make_app(settings)) as app:
        refused = app.send_task(JANITOR_VACUUM, args=["later"], queue="janitor", countdown=3600)
        with pytest.raises(InvalidRequest, match="says eta, which is not the sender's to say"):
            refused.get(timeout=LIMIT_S)
    assert worker.poll() is None


def test_workers_take_no_orders_but_tasks(tmp_path):
    conf = make_app(ServiceSettings(store=f"file://{tmp_path}"), "janitor").conf
    assert conf.accept_content == conf.result_accept_content == ["json"]
    assert conf.worker_enable_remote_control is False
    assert conf.task_always_eager is False
    assert conf.worker_send_task_events is False
