"""The TypeScript client of docs/recipes/typescript, made from openapi.json, against a front end and a console."""

import http.server
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from console_lake import running_console
from icedb_engine.local_engine import LocalEngine
from icedb_log.clock import parse_uuid7_ms
from icedb_log.commit.table import Table
from icedb_log.ingest.flush import flush_table
from icedb_sim.rigs.frontend_rig import CLOCK, start_rig
from processes import service_env
from threaded_server import serving_in_thread
from waiting import LIMIT_S

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "recipes" / "typescript"


@pytest.fixture(scope="module")
def built():
    """Make the client from the document and compile it; return a function that runs a program beside it."""
    if not (EXAMPLE / "node_modules" / ".installed").exists():
        subprocess.run(["make", "--no-print-directory", "node"], cwd=ROOT, check=True, timeout=300)
    path = f"{os.environ['PATH']}{os.pathsep}{Path(sys.executable).parent}"
    node = shutil.which("node", path=path)
    page = (ROOT / "docs/recipes/typescript.md").read_text()
    (code,) = re.findall(r"```ts\n(.*?)```", page, re.DOTALL)
    pasted = EXAMPLE / "pasted.ts"
    pasted.write_text(code)
    try:
        npm = shutil.which("npm", path=path)
        env = service_env(PATH=path)
        done = subprocess.run(
            [npm, "run", "build"], cwd=EXAMPLE, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    finally:
        pasted.unlink()
    assert done.returncode == 0, done.stdout + done.stderr

    def run(*arguments, code=0, **settings):
        done = subprocess.run(
            [node, EXAMPLE / "build" / "example.js", *arguments],
            env=service_env(**settings), capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done.stdout.strip() if not code else done.stderr.strip()

    return run


def test_a_table_is_created_filled_and_asked(built, tmp_path):
    rig = start_rig(tmp_path / "store")
    try:
        address = f"http://127.0.0.1:{rig.frontend.port}"
        assert "day(ts)" in built("create", "clicks", ICEDB_ADDRESS=address)
        rows = [json.dumps({"ts": "2026-01-02T03:04:05Z", "n": n}) for n in range(3)]
        parse_uuid7_ms(built("send", "clicks", *rows, ICEDB_ADDRESS=address))
        refused = built("send", "nope", *rows, code=1, ICEDB_ADDRESS=address)
        assert refused.startswith("404 ") and "nope" in refused
    finally:
        rig.frontend.stop()
    table = Table.open(rig.warehouse.table("clicks"), clock=CLOCK, owner="test")
    flush_table(table, LocalEngine(rig.store, clock=CLOCK).writer)
    with running_console(tmp_path / "store") as (_, address):
        assert built("query", "select sum(n), count(*) from clicks", ICEDB_CONSOLE_ADDRESS=address) == "[ [ 3, 3 ] ]"
        assert "400 " in built("query", "drop table clicks", code=1, ICEDB_CONSOLE_ADDRESS=address)


def test_a_batch_is_sent_again_under_its_id_until_it_is_answered(built):
    accepted = {"batch_id": "x", "table": "events", "status": "staged", "status_url": "/"}
    busy = {"type": "urn:icedb:problem:busy", "title": "", "status": 503, "detail": "", "retry_after_ms": 1}
    script, heard = [None, (503, busy), (502, "<html>"), (202, accepted)], []

    class Moody(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            heard.append((self.headers["idempotency-key"], self.headers["content-type"], body))
            answer = script[len(heard) - 1]
            if answer is None:
                self.connection.close()
                return
            text = answer[1] if isinstance(answer[1], str) else json.dumps(answer[1])
            self.send_response(answer[0])
            self.send_header("Content-Type", "text/html" if isinstance(answer[1], str) else "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Moody)
    server.daemon_threads = True
    with serving_in_thread(server):
        address = f"http://127.0.0.1:{server.server_port}"
        assert built("send", "events", '{"n": 1}', '{"n": 2}', ICEDB_ADDRESS=address) == "x"
    assert len(heard) == len(script) and len(set(heard)) == 1
    key, kind, body = heard[0]
    parse_uuid7_ms(key)
    assert (kind, body) == ("application/x-ndjson", b'{"n":1}\n{"n":2}')
