"""How a service's process starts and ends when something is wrong: one clear message, an exit code, nothing left."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading

import psutil
import pytest
from icedb_janitor.__main__ import serve
from icedb_janitor.settings import JanitorSettings
from icedb_log.clock import SystemClock
from icedb_log.errors import Unavailable
from icedb_log.names import JANITOR_VACUUM
from icedb_log.store_settings import StoreSettings
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_service.celery_app import make_app
from icedb_service.http_server import HealthChecks, check_port_is_free, start_metrics_server
from icedb_service.main import run_main
from icedb_service.metrics import MetricMaker, make_registry
from icedb_service.settings import ServiceSettings
from icedb_sim.rigs.redis_server import RedisServer
from processes import fetch, free_port, service_env
from waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.redis


SLOW_WORKER = """
from pathlib import Path
from icedb_janitor.metrics import JanitorMetrics
from icedb_log.clock import SystemClock
from icedb_service.main import run_main
from icedb_log.results import Work
from icedb_service.settings import ServiceSettings
from icedb_service.tasks import define_task
from icedb_service.worker import NoEngine, WorkerService, run_worker

def register(app, context):
    def vacuum(table):
        '''Delivery: once.'''
        Path("running").touch()
        SystemClock().sleep_ms(120_000)
        return Work(is_idle=False)
    define_task(app, context, "icedb.janitor.vacuum", vacuum)

def serve(settings):
    return run_worker(WorkerService("janitor", JanitorMetrics(), NoEngine, register), settings)

run_main(ServiceSettings, "janitor", serve)
"""


@pytest.fixture
def env(tmp_path, redis):
    return service_env(ICEDB_STORE=f"file://{tmp_path / 'warehouse'}", ICEDB_REDIS_URL=redis.url)


@contextlib.contextmanager
def running(command, env, cwd):
    process = subprocess.Popen(
        [sys.executable, *command], env=env, cwd=cwd, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(LIMIT_S)
        process.stderr.close()


@pytest.fixture
def ends_with(env, monkeypatch, capfd):
    """Runs what ``python -m icedb_janitor`` runs, here, to the error that ends it; returns its code and its words."""
    monkeypatch.setattr("icedb_service.main.configure_logging", lambda *_settings, **_names: None)

    def ends_with(settings):
        for name in list(os.environ):
            if name.startswith(("ICEDB_", "AWS_")):
                monkeypatch.delenv(name)
        for name in {name for name in env if name.startswith("ICEDB_")} | settings.keys():
            monkeypatch.setenv(name, settings.get(name, env.get(name)))
        with pytest.raises(SystemExit) as left:
            run_main(JanitorSettings, "janitor", serve)
        return left.value.code, capfd.readouterr().err

    return ends_with


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ICEDB_STORE": ""}, "icedb janitor: settings: ICEDB_STORE is not set"),
        ({"ICEDB_STORE": "warehouse"}, "icedb janitor: store URL 'warehouse': use file:///absolute"),
        ({"ICEDB_LOCK_TTL_MS": "soon"}, "icedb janitor: settings: ICEDB_LOCK_TTL_MS='soon'"),
        ({"ICEDB_STORE": "s3://bucket", "ICEDB_S3_ENDPOINT": "minio:9000"}, "icedb janitor: S3 endpoint 'minio:9000'"),
    ],
)
def test_bad_settings_end_the_process_with_one_line(ends_with, settings, message):
    code, errors = ends_with(settings)
    assert code == 2
    assert errors.startswith(message)
    assert errors.count("\n") == 1


def test_a_store_that_ignores_conditions_is_refused(ends_with, s3_server_without_conditions):
    server = s3_server_without_conditions
    settings = {
        "ICEDB_STORE": f"s3://{server.bucket}/start",
        "ICEDB_S3_ENDPOINT": server.endpoint_url,
        "AWS_ACCESS_KEY_ID": "dev",
        "AWS_SECRET_ACCESS_KEY": "dev",
    }
    code, errors = ends_with(settings)
    assert code == 2
    assert "Traceback" not in errors
    assert "condition" in errors.splitlines()[-1]


def test_a_metrics_port_that_is_taken_is_named(ends_with):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, errors = ends_with({"ICEDB_METRICS_PORT": str(port)})
    assert code == 1
    assert errors.startswith(f"icedb janitor: cannot serve metrics on 127.0.0.1:{port}")
    assert errors.count("\n") == 1


def test_servers_that_are_away_are_named_and_waited_for(env, tmp_path):
    port = free_port()
    away = {"ICEDB_REDIS_URL": f"redis://127.0.0.1:{port}/0"}
    for module in ("icedb_janitor", "icedb_service.beat"):
        with running(["-m", module], env | away, tmp_path) as process:
            line = process.stderr.readline()
            assert "server_unavailable" in line
            assert f"redis://127.0.0.1:{port}/0 does not answer" in line
    away = {
        "ICEDB_STORE": "s3://bucket",
        "ICEDB_S3_ENDPOINT": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
    }
    with running(["-m", "icedb_janitor"], env | away, tmp_path) as process:
        line = process.stderr.readline()
        assert "server_unavailable" in line
        assert f"http://127.0.0.1:{port}" in line


def test_a_worker_rides_out_a_restart_of_redis_and_shows_its_health(env, tmp_path):
    with RedisServer() as own:
        port = free_port()
        settings = ServiceSettings(store=env["ICEDB_STORE"], redis_url=own.url)
        warehouse = StoreSettings(env["ICEDB_STORE"]).open()
        create_table(warehouse.table("events"), TableConfig.create(name="events"))
        app = make_app(settings)
        extra = {"ICEDB_REDIS_URL": own.url, "ICEDB_METRICS_PORT": str(port)}
        with running(["-m", "icedb_janitor"], env | extra, tmp_path):
            wait_until(lambda: is_ready(port), "the worker is up, and its engine open")
            own.stop()
            status, body = fetch(port, "/readyz")
            assert status == 503
            assert f"127.0.0.1:{own.port}" in body
            assert fetch(port, "/healthz")[0] == 200
            own.start()
            result = app.send_task(JANITOR_VACUUM, args=["events"], expires=LIMIT_S).get(timeout=LIMIT_S)
            assert result["outcome"] == "idle"
            wait_until(lambda: fetch(port, "/readyz")[0] == 200, "the worker is ready again")
            assert (
                'icedb_janitor_runs_total{outcome="idle",task="icedb.janitor.vacuum"} 1.0' in fetch(port, "/metrics")[1]
            )
        app.close()


def is_ready(port):
    with contextlib.suppress(OSError):
        return fetch(port, "/readyz")[0] == 200
    return False


def test_a_task_that_does_not_end_cannot_hold_up_the_shutdown_for_ever(env, tmp_path, redis):
    app = make_app(ServiceSettings(store=env["ICEDB_STORE"], redis_url=redis.url))
    with running(["-c", SLOW_WORKER], env | {"ICEDB_SHUTDOWN_GRACE_MS": "1000"}, tmp_path) as process:
        app.send_task(JANITOR_VACUUM, args=["events"], ignore_result=True)
        wait_until((tmp_path / "running").exists, "the task runs")
        (child,) = psutil.Process(process.pid).children()
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(LIMIT_S) == 1
        assert "shutdown_forced" in process.stderr.read()
        wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the child is gone")
    app.close()


def test_health_names_what_fails_and_only_readiness_looks_at_servers():
    def fails():
        raise Unavailable("redis is away")

    counter = MetricMaker(make_registry()).counter("icedb_merge_tests_total", "x", outcome=("done",))
    registry = make_registry()
    registry.register(counter)
    port = free_port()
    health = HealthChecks(alive={"engine": lambda: None}, ready={"redis": fails})
    server = start_metrics_server(registry, host="127.0.0.1", port=port, health=health)
    try:
        assert fetch(port, "/healthz") == (200, '{"status": "ok", "checks": {"engine": "ok"}}')
        status, body = fetch(port, "/readyz")
        assert (status, '"redis": "redis is away"' in body) == (503, True)
        assert 'icedb_merge_tests_total{outcome="done"} 0.0' in fetch(port, "/metrics")[1]
        assert fetch(port, "/")[0] == 404
        with pytest.raises(Unavailable, match="set ICEDB_METRICS_HOST and ICEDB_METRICS_PORT"):
            check_port_is_free("127.0.0.1", port)
    finally:
        server.stop()
    check_port_is_free("127.0.0.1", port)
    assert start_metrics_server(registry, host="127.0.0.1", port=0) is None


def test_a_check_that_hangs_keeps_no_other_answer_waiting():
    hanging, released = threading.Event(), threading.Event()

    def hang():
        hanging.set()
        released.wait(LIMIT_S)

    port = free_port()
    server = start_metrics_server(
        make_registry(), host="127.0.0.1", port=port, health=HealthChecks(ready={"store": hang})
    )
    asking = threading.Thread(target=fetch, args=(port, "/readyz"))
    asking.start()
    try:
        assert hanging.wait(LIMIT_S)
        assert fetch(port, "/healthz")[0] == 200
        assert fetch(port, "/metrics")[0] == 200
    finally:
        released.set()
        asking.join()
        server.stop()


def test_a_port_that_a_predecessor_leaves_is_waited_for():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        class Clock(SystemClock):
            def sleep_ms(self, duration_ms):
                assert duration_ms > 0
                taken.close()

        server = start_metrics_server(make_registry(), host="127.0.0.1", port=port, clock=Clock())
    assert fetch(port, "/healthz")[0] == 200
    server.stop()


def test_headers_without_end_are_refused():
    port = free_port()
    server = start_metrics_server(make_registry(), host="127.0.0.1", port=port)
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")
        with contextlib.suppress(ConnectionError):
            for number in range(1000):  # 4 MiB, where 64 KiB are read besides what one read brings
                connection.sendall(b"X-%d: %s\r\n" % (number, b"x" * 4096))
        with contextlib.suppress(ConnectionError):
            answer = connection.recv(4096)
    server.stop()
    assert not answer or answer.startswith(b"HTTP/1.1 431 ")
    assert number < 999
