"""Redis and the store are away for a while, under load: processes stay, say that they are not ready, and go on at once.

The processes are real, and so are Redis, S3 over HTTP and what happens to them: both are stopped as they stand
(SIGSTOP: connections stay open and nothing answers), or ended and started again empty. Short here; a minute as soak.
"""

import contextlib
import json
import os
import signal
import urllib.error
import urllib.request
from contextlib import ExitStack
from functools import partial

import psutil
import pytest
from icedb_log.clock import SystemClock
from icedb_log.store.s3_options import S3Options
from icedb_log.store_settings import StoreSettings
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_sim.rigs.redis_server import RedisServer
from processes import free_port, running, service_env
from waiting import LIMIT_S, wait_until
from worker_process import running_worker

pytestmark = [pytest.mark.redis, pytest.mark.s3]

CLOCK = SystemClock()
BACK_WITHIN_MS = 10_000
"""No pause between two tries to connect may grow with the time that something was away: the longest is 3 s."""


def fetch(port, path="/healthz"):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LIMIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def send(port, number):
    """Send a batch to the front end, once; whether it was acknowledged."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/tables/load/batches",
        data=json.dumps({"n": number}).encode(),
        headers={"Content-Type": "application/x-ndjson"},
        method="POST",
    )
    with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=5) as answer:
        return answer.status < 300
    return False


def count(port, name, **labels):
    """The sum of a counter's samples with these labels."""
    found = 0.0
    for line in fetch(port, "/metrics")[1].splitlines():
        if line.startswith(f"{name}{{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
            found += float(line.rpartition(" ")[2])
    return found


class Stack:
    """A front end, a janitor and beat over S3 and Redis."""

    def __init__(self, stack, folder, redis):
        self.redis = redis
        port = free_port()
        (folder / "s3").mkdir()
        server = ["-m", "icedb_local.dev_s3", "--port", str(port), "--bucket", "outages"]
        self.s3 = stack.enter_context(running(server, service_env(), folder / "s3"))
        endpoint = f"http://127.0.0.1:{port}"
        wait_until(lambda: fetch(port)[0], "the S3 server answers")
        self.ports = {name: free_port() for name in ("frontend", "janitor", "beat", "http", "grpc")}
        common = {
            "ICEDB_STORE": "s3://outages/warehouse",
            "ICEDB_S3_ENDPOINT": endpoint,
            "ICEDB_S3_CONNECT_TIMEOUT_MS": "500",
            "ICEDB_S3_READ_TIMEOUT_MS": "1000",
            "AWS_ACCESS_KEY_ID": "dev",
            "AWS_SECRET_ACCESS_KEY": "dev",
            "ICEDB_REDIS_URL": redis.url,
            "ICEDB_REDIS_TIMEOUT_MS": "300",
            "ICEDB_JANITOR_SWEEP_INTERVAL_MS": "500",
            "ICEDB_FRONTEND_HTTP_PORT": str(self.ports["http"]),
            "ICEDB_FRONTEND_GRPC_PORT": str(self.ports["grpc"]),
            "ICEDB_FRONTEND_ACK_TIMEOUT_MS": "2000",
        }
        warehouse = StoreSettings(
            common["ICEDB_STORE"], S3Options(endpoint, access_key_id="dev", secret_access_key="dev")
        ).open()
        create_table(warehouse.table("load"), TableConfig.create(name="load"))
        modules = {"frontend": "icedb_ingest.frontend", "janitor": "icedb_janitor", "beat": "icedb_service.beat"}
        self.processes = {}
        for name, module in modules.items():
            env = service_env(**common, ICEDB_METRICS_PORT=str(self.ports[name]))
            (folder / name).mkdir()
            self.processes[name] = stack.enter_context(running(["-m", module], env, folder / name))
        for name in modules:
            wait_until(lambda name=name: fetch(self.ports[name], "/readyz")[0] == 200, f"{name} is ready")
        self.go_on()

    def sweeps(self):
        return count(
            self.ports["janitor"], "icedb_janitor_runs_total", task="icedb.janitor.sweep", outcome="done"
        ) + count(self.ports["janitor"], "icedb_janitor_runs_total", task="icedb.janitor.sweep", outcome="idle")

    def go_on(self):
        """Wait until a batch is acknowledged and a sweep has ended well; return how long that took."""
        began_ms, before = CLOCK.monotonic_ms(), self.sweeps()
        wait_until(lambda: send(self.ports["http"], 1), "a batch is acknowledged")
        wait_until(lambda: self.sweeps() > before, "a sweep ends well")
        return CLOCK.monotonic_ms() - began_ms

    def look(self, away):
        """All processes are alive; those that need what is away say that they are not ready."""
        for name, process in self.processes.items():
            assert process.poll() is None, name
            status, words = fetch(self.ports[name])
            assert status == 200, f"{name}: {words}"
        send(self.ports["http"], 2)
        return all(fetch(self.ports[name], "/readyz")[0] == 503 for name in away)


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    with ExitStack() as exits:
        redis = exits.enter_context(RedisServer())
        yield Stack(exits, tmp_path_factory.mktemp("outages"), redis)


def outage(stack, what, duration_ms):
    """Take something away for a time, and look meanwhile; return how long it took to go on when it was back."""
    away = {"redis cut": ("janitor", "beat"), "redis frozen": ("janitor", "beat"), "store": ("janitor", "frontend")}[
        what
    ]
    s3 = stack.s3.send_signal
    begin = {"redis cut": stack.redis.stop, "redis frozen": stack.redis.freeze, "store": partial(s3, signal.SIGSTOP)}[
        what
    ]
    end = {"redis cut": stack.redis.start, "redis frozen": stack.redis.thaw, "store": partial(s3, signal.SIGCONT)}[what]
    began_ms = CLOCK.monotonic_ms()
    begin()
    try:
        wait_until(lambda: stack.look(away), f"{away} are not ready")
        wait_until(lambda: stack.look(away) and CLOCK.monotonic_ms() - began_ms > duration_ms, "the time is over")
    finally:
        end()
    took_ms = stack.go_on()
    wait_until(lambda: all(fetch(stack.ports[name], "/readyz")[0] == 200 for name in stack.processes), "all are ready")
    return took_ms


WHAT = ("redis cut", "redis frozen", "store")


@pytest.mark.parametrize("what", WHAT)
def test_processes_stay_and_go_on_when_it_is_back(stack, what):
    before = {name: process.pid for name, process in stack.processes.items()}
    outage(stack, what, duration_ms=0)
    assert {name: process.pid for name, process in stack.processes.items()} == before


@pytest.mark.soak
@pytest.mark.parametrize("what", WHAT)
def test_after_a_minute_work_goes_on_within_ten_seconds(stack, what):
    took_ms = outage(stack, what, duration_ms=60_000)
    usual_ms = stack.go_on()  # on a machine that is busy, both take longer
    assert took_ms - usual_ms < BACK_WITHIN_MS


@pytest.mark.parametrize(
    "module",
    [
        "icedb_janitor",
        "icedb_ingest.frontend",
        pytest.param("icedb_gateway", marks=pytest.mark.soak),
        pytest.param("icedb_service.beat", marks=pytest.mark.soak),
    ],
)
def test_a_process_that_starts_meanwhile_is_alive_and_not_ready(tmp_path, module):
    port = free_port()
    env = service_env(
        ICEDB_STORE="s3://bucket/nowhere",
        ICEDB_S3_ENDPOINT="http://127.0.0.1:1",
        AWS_ACCESS_KEY_ID="dev",
        AWS_SECRET_ACCESS_KEY="dev",
        ICEDB_REDIS_URL=f"redis://127.0.0.1:{free_port()}/0",
        ICEDB_METRICS_PORT=str(port),
    )
    with running(["-m", module], env, tmp_path) as process:
        wait_until(lambda: fetch(port)[0] == 200, "it is alive")
        status, words = fetch(port, "/readyz")
        assert (status, "waits for Redis or the store" in words) == (503, True)
        assert fetch(port, "/metrics")[0] == 503, "as if it were down: the alerts say so"
        process.kill()


HASTEN = """
import asyncio, os, runpy, signal, sys, threading, types
from pathlib import Path
from icedb_service import http_server, progress

loops, make = [], progress.LoopProgress.__init__

def make_and_note(loop, *given, **fields):
    make(loop, *given, **fields)
    loops.append(loop)

def hasten(*_):
    for loop in loops:
        loop._limit_ms = 1000
        loop.tell()
    Path("hastened").touch()

progress.LoopProgress.__init__ = make_and_note
http_server.StuckWatch.__init__.__kwdefaults__["every_s"] = 0.5
signal.signal(signal.SIGUSR2, hasten)
"""
"""A loop may stand still for a second, but not before it is told so: on a busy machine each does."""


def test_a_parent_whose_loop_hangs_is_told_by_its_child(redis, tmp_path):
    """The child answers, and takes nothing any more: nobody would notice."""
    port = free_port()
    before = f"""
    import os; os.environ['ICEDB_METRICS_PORT'] = '{port}'
    from icedb_service import progress
    progress.LoopProgress.__init__.__kwdefaults__["limit_ms"] = 3000
    """
    with running_worker(redis.url, tmp_path, task="pass", before=before) as process:
        wait_until(lambda: fetch(port, "/readyz")[0] == 200, "it is ready")
        wait_until(lambda: fetch(port)[0] == 200, "it is alive")
        os.kill(process.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: "the loop that takes messages has not come round" in fetch(port)[1], "it is told")
        finally:
            os.kill(process.pid, signal.SIGCONT)
        wait_until(lambda: fetch(port)[0] == 200, "it is alive again")


def test_a_worker_whose_parent_hangs_ends_by_itself_where_nobody_looks_at_it(redis, tmp_path):
    """As under Docker or systemd: whoever started it sees that it has gone, and starts another one."""
    port = free_port()
    before = f"{HASTEN}\nos.environ['ICEDB_METRICS_PORT'] = '{port}'"
    with running_worker(redis.url, tmp_path, task="pass", before=before) as process:
        wait_until(lambda: fetch(port, "/readyz")[0] == 200, "it is ready")
        (child,) = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGUSR2)
        wait_until((tmp_path / "hastened").exists, "it is told")
        process.send_signal(signal.SIGSTOP)
        assert process.wait(LIMIT_S) == -signal.SIGKILL
        wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "its child has gone, too")
        assert '"process_stuck"' in (tmp_path / "log").read_text()


HANGING = f"""
{HASTEN}
hang = threading.Event()

async def sleep(seconds):
    if hang.is_set():
        threading.Event().wait()  # the event loop stands still
    await asyncio.sleep(seconds)

def stand_still(*_):
    hang.set()
    hasten()
    if sys.argv[1] == "main":
        threading.Event().wait()

progress.asyncio = types.SimpleNamespace(sleep=sleep)
signal.signal(signal.SIGUSR1, stand_still)
runpy.run_module(sys.argv[2], run_name="__main__")
"""


@pytest.mark.parametrize(
    ("module", "thread"),
    [
        ("icedb_gateway", "loop"),
        ("icedb_service.beat", "main"),
        pytest.param("icedb_snapshot", "loop", marks=pytest.mark.soak),
        pytest.param("icedb_ingest.frontend", "loop", marks=pytest.mark.soak),
        pytest.param("icedb_console", "loop", marks=pytest.mark.soak),
        pytest.param("icedb_janitor", "main", marks=pytest.mark.soak),
        pytest.param("icedb_ingest.frontend.celery_worker", "main", marks=pytest.mark.soak),
    ],
)
def test_a_process_whose_loop_stands_still_is_told_and_ends(redis, tmp_path, module, thread):
    port = free_port()
    doors = ("FRONTEND_HTTP", "FRONTEND_GRPC", "GATEWAY", "GATEWAY_ICEBERG", "CONSOLE")
    env = service_env(
        ICEDB_STORE=f"file://{tmp_path / 'warehouse'}",
        ICEDB_REDIS_URL=redis.url,
        ICEDB_METRICS_PORT=str(port),
        ICEDB_SNAPSHOT_ADDRESS=f"127.0.0.1:{free_port()}",
        **{f"ICEDB_{door}_PORT": str(free_port()) for door in doors},
    )
    with running(["-c", HANGING, thread, module], env, tmp_path) as process:
        wait_until(lambda: fetch(port, "/readyz")[0] == 200, "it is ready")
        wait_until(lambda: fetch(port)[0] == 200, "it is alive")
        if module == "icedb_service.beat":
            wait_until(lambda: count(port, "icedb_beat_wakes_total", outcome="sent"), "its loop turns")
        process.send_signal(signal.SIGUSR1)
        wait_until(lambda: "has not come round" in fetch(port)[1] or process.poll() is not None, "it is told")
        assert process.wait(LIMIT_S) == 1
        log = (tmp_path / "log").read_text()
        assert '"process_stuck"' in log
        assert "has not come round" in log
