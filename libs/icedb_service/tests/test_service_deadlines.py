"""Each client of a store, a broker or another service is made with a deadline: without one a call may wait for ever.

What has no option for it is watched: the JVM (``icedb_engine.spark.spark_hang``), runs (``TaskRunner.check_progress``).
"""

import ast
from pathlib import Path

import pytest
from icedb_client import grpc_channels
from icedb_service.celery_app import make_app
from icedb_service.settings import ServiceSettings

ROOT = Path(__file__).parents[3]
NEEDED = {
    "Redis": {"socket_timeout", "socket_connect_timeout"},
    "from_url": {"socket_timeout", "socket_connect_timeout"},
    "connection_from_url": {"timeout"},
    "PoolManager": {"timeout"},
    "HTTPConnection": {"timeout"},
    "HTTPSConnection": {"timeout"},
    "urlopen": {"timeout"},
    "opener.open": {"timeout"},
    "session.client": {"config"},  # of boto3; its timeouts are looked at in icedb_log's tests of the store
    "create_connection": {"timeout"},
    "stub": {"timeout"},
}
SECOND = {"create_connection"}
"""Where the deadline may be the second argument."""
FREE = {"self._pool.urlopen", "stub.WatchSnapshots"}
"""Of a pool that was made with one; a stream that ends when the server answers no ping of its keepalive."""


def find_calls(source):
    """Yield the line and the name of each call that needs a deadline and has none."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called in FREE:
            continue
        key = next((each for each in (called, called.rpartition(".")[2]) if each in NEEDED), None)
        if called.startswith(("stub.", "getattr(stub")):
            key = "stub"
        if key is None or (key in SECOND and len(node.args) > 1):
            continue
        if not {word.arg for word in node.keywords} >= NEEDED[key]:
            yield node.lineno, called


def test_every_client_has_a_deadline():
    sources = [path for folder in ("libs", "services") for path in ROOT.glob(f"{folder}/*/src/**/*.py")]
    assert len(sources) > 300
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}" for path in sources for line, name in find_calls(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "Redis.from_url(url, socket_timeout=1)",
        "redis.Redis(host)",
        "urllib3.connection_from_url(url)",
        "urllib.request.urlopen(request)",
        "opener.open(url)",
        "session.client('s3')",
        "socket.create_connection((host, port))",
        "stub.GetSnapshot(message)",
        "getattr(stub, method)(message)",
    ],
)
def test_a_call_without_one_is_found(source):
    assert list(find_calls(source))


def test_celery_and_streams_end_with_a_server_that_is_gone():
    conf = make_app(ServiceSettings(store="file:///nowhere"), "ingest").conf
    times = [conf.broker_connection_timeout, conf.redis_socket_timeout, conf.redis_socket_connect_timeout]
    times += [conf.broker_transport_options[name] for name in ("socket_timeout", "socket_connect_timeout")]
    assert all(0 < each <= 10 for each in times)
    assert conf.task_time_limit > 0
    options = dict(grpc_channels._OPTIONS)
    assert options["grpc.keepalive_time_ms"] + options["grpc.keepalive_timeout_ms"] <= 120_000
