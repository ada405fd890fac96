"""`make up` twice, beside each other and beside a Redis of somebody else: both serve, each on its own ports."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request

import pytest
from icedb_local.stack_layout import StackPorts
from waiting import LIMIT_S

pytestmark = pytest.mark.e2e

EXPORT = "  export ICEDB_"


@pytest.fixture
def foreign_redis():
    """Somebody's server where our Redis usually is: returns what it has been told, and whether it got the port."""
    told = []

    def serve(server):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(1)
                    told.append(connection.recv(100))

    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        has_port = False  # a stack of another test may have it, which lets it go at any time
        with contextlib.suppress(OSError):
            server.bind(("127.0.0.1", StackPorts().redis))
            server.listen()
            threading.Thread(target=serve, args=(server,), daemon=True).start()
            has_port = True
        yield told, has_port
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def running_up(folder, *arguments):
    folder.mkdir()
    env = {**os.environ, "TMPDIR": str(folder)}
    command = [sys.executable, "-m", "icedb_local.up", "--run-dir", "data", *arguments]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(command, env=env, cwd=folder, stdout=output, stderr=output, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def read_settings(output):
    lines = [line.removeprefix("  export ") for line in output.splitlines() if line.startswith(EXPORT)]
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.soak  # two stacks that start at the same moment may wait for ports that both chose (docs/gaps.md)
def test_two_stacks_run_beside_each_other(tmp_path, foreign_redis, find_processes, wait_until):
    first, second = tmp_path / "first", tmp_path / "second"
    with running_up(first) as one, running_up(second) as two:
        for folder, process in ((first, one), (second, two)):
            wait_until(
                lambda folder=folder, process=process: (
                    "Spark still starts" in (folder / "output").read_text() or process.poll() is not None
                ),
                what="the stack",
            )
        outputs = [(folder / "output").read_text() for folder in (first, second)]
        settings = [read_settings(output) for output in outputs]
        redis_urls = {each["ICEDB_REDIS_URL"] for each in settings}
        assert len(redis_urls) == 2, outputs
        told, has_port = foreign_redis
        assert not (has_port and f"redis://127.0.0.1:{StackPorts().redis}/0" in redis_urls)
        for folder, output in zip((first, second), outputs, strict=True):
            script = f"source data/env && icedb table create {folder.name} && icedb table list"
            done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            assert {"first", "second"} & set(done.stdout.split()) == {folder.name}
            url = [line for line in output.splitlines() if "curl" in line and "/batches" in line][-1].split()[-1]
            request = urllib.request.Request(
                url.replace("/events/", f"/{folder.name}/"),
                b'{"ts": "2026-01-02T03:04:05Z"}',
                {"Content-Type": "application/x-ndjson"},
            )
            with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
                assert answer.status == 202
        again = subprocess.run(
            [sys.executable, "-m", "icedb_local.up", "--run-dir", "data"],
            cwd=first, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert again.returncode == 2
        assert "a stack lives in" in again.stdout
        for process in (one, two):
            process.send_signal(signal.SIGINT)
        for folder, process in ((first, one), (second, two)):
            assert process.wait(LIMIT_S) == 0
            output = (folder / "output").read_text()
            assert output.endswith("Stopped; nothing is left running.\n")
            assert output.replace("\n", "").isprintable(), "no control characters without a terminal"
            assert "Traceback" not in output
    assert find_processes(tmp_path) == {}
    assert not any(told), "nobody talked to the server of somebody else"
