"""The janitor's process on a real Redis and S3 over HTTP: deletes that are denied, and a death in the middle of deletes."""

import contextlib
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from icedb_log.clean.deletion import find_deletions, read_audit
from icedb_log.clock import SystemClock
from icedb_log.log.codec import decode_log_file, encode_log_file
from icedb_log.names import JANITOR_VACUUM
from icedb_log.store.object_store import list_all
from icedb_log.store.s3 import S3ObjectStore
from icedb_log.store.table_store import TableStore
from icedb_log.warehouse import Warehouse
from icedb_service.celery_app import make_app
from icedb_service.settings import ServiceSettings
from icedb_sim.rigs.redis_server import RedisServer
from icedb_sim.tables.small_table import SmallTable
from processes import free_port, service_env
from waiting import LIMIT_S

pytestmark = [pytest.mark.redis, pytest.mark.s3]

CLOCK = SystemClock()
HOUR_MS = 3_600_000
ROOT = "janitor-faults"
DENIED = re.compile(rb"<Object><Key>([^<]*denied[^<]*)</Key></Object>")


class Guarded(ThreadingHTTPServer):
    """Stands before the S3 server: denies deletes of keys that hold the word ``denied``, and can hold deletes back."""

    daemon_threads = True

    def __init__(self, upstream):
        super().__init__(("127.0.0.1", 0), GuardedHandler)
        self.upstream = upstream
        self.is_denying = True
        self.held = threading.Semaphore(0)
        self.go = threading.Event()
        self.go.set()

    def handle_error(self, request, client_address):
        """A client that was killed is what a test wants."""


class GuardedHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def forward(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        denied: list[bytes] = []
        if self.command == "POST" and "delete" in self.path:
            if not self.server.go.is_set() and b"/_data/" in body:
                self.server.held.release()
                self.server.go.wait(LIMIT_S)
            if self.server.is_denying:
                denied = DENIED.findall(body)
                body = DENIED.sub(b"", body)
            if denied and b"<Object>" not in body:
                body = body.replace(b"</Delete>", b"<Object><Key>none</Key></Object></Delete>")
        request = urllib.request.Request(self.server.upstream + self.path, method=self.command, data=body or None)
        for name, value in self.headers.items():
            if name.lower() not in ("host", "content-length", "connection", "accept-encoding", "content-md5"):
                request.add_header(name, value)
        if not request.has_header("Content-type"):
            request.add_header("Content-Type", "application/octet-stream")  # or urllib calls it a form
        try:
            answer = urllib.request.urlopen(request, timeout=LIMIT_S)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            content = answer.read()
            refusals = b"".join(
                b"<Error><Key>%s</Key><Code>AccessDenied</Code><Message>no</Message></Error>" % key for key in denied
            )
            content = content.replace(b"</DeleteResult>", refusals + b"</DeleteResult>")
            self.send_response_only(answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                    self.send_header(name, value)
            length = answer.headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(content))
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = forward

    def log_message(self, *_):
        """Silent."""


class Stack:
    """The janitor between a Redis and the guarded S3."""

    def __init__(self, folder, redis_url, s3_server, guarded):
        self.folder = folder
        self.metrics_port = free_port()
        endpoint = f"http://127.0.0.1:{guarded.server_port}"
        url = f"s3://{s3_server.bucket}/{ROOT}"
        self.env = service_env(
            ICEDB_STORE=url,
            ICEDB_S3_ENDPOINT=endpoint,
            ICEDB_REDIS_URL=redis_url,
            ICEDB_METRICS_PORT=self.metrics_port,
            ICEDB_LOCK_TTL_MS=12_000,
            AWS_ACCESS_KEY_ID="dev",
            AWS_SECRET_ACCESS_KEY="dev",
        )
        self.app = make_app(ServiceSettings(store=url, redis_url=redis_url))
        self.store = S3ObjectStore(s3_server.bucket, s3_server.options)
        self.warehouse = Warehouse(self.store, ROOT)
        self.popen = None

    def start(self):
        if self.popen is None:
            with (self.folder / "log").open("ab") as log:
                self.popen = subprocess.Popen(
                    [sys.executable, "-m", "icedb_janitor"], env=self.env, cwd=self.folder, stderr=log, stdout=log
                )

    def kill(self):
        if self.popen is not None:
            self.popen.kill()
            self.popen.wait(LIMIT_S)
            self.popen = None

    def send(self, table):
        return self.app.send_task(JANITOR_VACUUM, args=[table])

    def vacuum(self, table):
        """Vacuum until nobody else holds the lock: one of a janitor that was killed has to run out."""
        while (result := self.send(table).get(timeout=LIMIT_S))["outcome"] == "busy":
            CLOCK.sleep_ms(100)
        return result

    def metric(self, name):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=LIMIT_S) as answer:
            text = answer.read().decode()
        return float(next(line.split()[-1] for line in text.splitlines() if line.startswith(name)))

    def put(self, table, *, copied=10**6):
        """Copy a table that was made in memory; of its dead data files only so many, the others are gone already."""
        dead = sorted(table.snapshot().tombstoned_ms)
        skipped = set(dead[copied:])
        for key in table.keys(f"{ROOT}/"):
            if key in skipped:
                continue
            body = table.store.get(key).body
            self.store.put(key, as_old(key, body, table.clock.now_ms()) if "/_log/" in key else body)
        return dead


def as_old(key, body, landed_ms):
    """A log file whose tombstones carry the proof that they landed long ago (J1)."""
    log = decode_log_file(key, body)
    log = replace(
        log,
        markers=tuple(m if m.is_live else replace(m, landed_ms=landed_ms) for m in log.markers),
        log_tombstones=tuple(replace(t, landed_ms=landed_ms) for t in log.log_tombstones),
    )
    return encode_log_file(log)


@pytest.fixture(scope="module")
def guarded(s3_server):
    with Guarded(s3_server.endpoint_url) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.go.set()
        server.shutdown()
        thread.join(LIMIT_S)


@pytest.fixture(scope="module")
def stack(tmp_path_factory, s3_server, guarded):
    with RedisServer() as redis, contextlib.ExitStack() as closing:
        stack = Stack(tmp_path_factory.mktemp("janitor"), redis.url, s3_server, guarded)
        closing.callback(stack.app.close)
        closing.callback(stack.kill)
        yield stack


def make_table(name, partitions):
    """A table from two hours ago with a dead data file for each partition."""
    table = SmallTable(
        name=name, root=ROOT, start_ms=CLOCK.now_ms() - 2 * HOUR_MS, data_grace_ms=1000, log_grace_ms=1000
    )
    for start in range(0, len(partitions), 1000):
        table.stage([{"id": number, "p": name} for number, name in enumerate(partitions[start : start + 1000])])
        table.flush()
    table.drop("p=*")
    return table


def test_deletes_that_are_denied_are_counted_told_and_never_forgotten(stack, guarded):
    table = make_table("events", [f"{'denied' if number < 3 else 'open'}{number}" for number in range(12)])
    dead = stack.put(table)
    denied = [key for key in dead if "denied" in key]
    stack.start()
    first = stack.vacuum("events")
    assert (first["outcome"], first["deleted_data_files"], first["failed"]) == ("done", 9, 3), first
    assert left(stack, table) == denied
    assert stack.metric('icedb_janitor_failed_deletes_total{kind="data_file",reason="denied"}') == 3
    assert stack.metric('icedb_janitor_failing_since_timestamp_seconds{table="events"}') > 0
    assert stack.vacuum("events")["failed"] == 3
    guarded.is_denying = False
    assert stack.vacuum("events")["deleted_data_files"] == 3
    assert left(stack, table) == []
    assert stack.metric('icedb_janitor_failing_since_timestamp_seconds{table="events"}') == 0
    told = [entry for _, entry in find_deletions(TableStore(stack.store, table.paths), denied[0])]
    assert [entry.outcome for entry in told] == ["failed", "failed", "deleted"]
    assert "AccessDenied" in told[0].reason


def test_a_janitor_that_is_killed_in_the_middle_is_gone_on_with_and_the_audit_tells(stack, guarded):
    table = make_table("large", [f"x{number}" for number in range(2000)])
    dead = stack.put(table, copied=40)
    stack.start()
    guarded.go.clear()
    stack.send("large")
    assert guarded.held.acquire(timeout=LIMIT_S), "it deletes"
    stack.kill()
    guarded.go.set()
    assert outcomes(stack, table, dead) == {"announced"}
    stack.start()
    while stack.vacuum("large")["outcome"] != "idle":
        pass
    assert left(stack, table) == []
    assert outcomes(stack, table, dead) == {"deleted"}


def left(stack, table):
    return [info.key for info in list_all(stack.store, table.paths.data_prefix).objects]


def outcomes(stack, table, keys):
    """What the audit says last of some objects."""
    last = {
        entry.key: entry.outcome for part in read_audit(TableStore(stack.store, table.paths)) for entry in part.entries
    }
    return {last[key] for key in keys}
