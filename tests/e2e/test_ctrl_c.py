"""However a run of the demo is ended, and whenever: no process and no port is left behind."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.spark]

EXIT_INTERRUPTED = 130


@pytest.fixture
def start_demo(tmp_path):
    """Return a function that starts the demo in a process group of its own, as a terminal would."""
    started = []

    def start():
        env = {**os.environ, "TMPDIR": str(tmp_path), "TERM": "dumb"}
        process = subprocess.Popen(
            [sys.executable, "-m", "icedb_local.demo", "--events", "2000000", "--batches", "400"],
            env=env,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def find_ports(pids):
    ports = set()
    for pid in pids:
        try:
            connections = psutil.Process(pid).net_connections(kind="tcp")
        except psutil.NoSuchProcess:
            continue
        ports |= {one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN}
    return ports


def is_running(commands, name):
    return any(name in command for command in commands.values())


def has_staged(tmp_path):
    return any(tmp_path.glob("icedb-demo-*/warehouse/events/_icedb/staging/*"))


MOMENTS = {
    "redis was started": lambda tmp_path, commands: is_running(commands, "redis-server"),
    "Spark is starting": lambda tmp_path, commands: is_running(commands, "java"),
    "events come in": lambda tmp_path, commands: has_staged(tmp_path),
}


@pytest.mark.parametrize(
    ("moment", "number", "status"),
    [
        # `make test` interrupts the same stack in test_up.py.
        pytest.param("redis was started", signal.SIGINT, EXIT_INTERRUPTED, marks=pytest.mark.soak),
        pytest.param("Spark is starting", signal.SIGINT, EXIT_INTERRUPTED, marks=pytest.mark.soak),
        pytest.param("events come in", signal.SIGINT, EXIT_INTERRUPTED, marks=pytest.mark.soak),
        pytest.param("events come in", signal.SIGKILL, -signal.SIGKILL, marks=pytest.mark.soak),
    ],
)
def test_nothing_is_left(tmp_path, start_demo, find_processes, wait_until, moment, number, status):
    demo = start_demo()
    wait_until(lambda: MOMENTS[moment](tmp_path, find_processes(tmp_path)), what=moment)
    ports = find_ports(find_processes(tmp_path))
    assert ports
    os.killpg(demo.pid, number)
    output = demo.communicate(timeout=240)[0].decode()
    assert demo.returncode == status, output[-2000:]
    assert "Traceback" not in output
    if number == signal.SIGKILL:  # the guard is left to clean up
        wait_until(lambda: not find_processes(tmp_path), what="the guard to end everything")
    assert find_processes(tmp_path) == {}
    listening = {one.laddr.port for one in psutil.net_connections(kind="tcp") if one.status == psutil.CONN_LISTEN}
    assert not ports & listening
