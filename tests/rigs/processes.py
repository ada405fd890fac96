"""Processes of services: what they find in their environment, how they run, and what their ports answer."""

import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager

import psutil
from icedb_local.ports import HeldPorts
from waiting import LIMIT_S

PATIENT = {"ICEDB_REDIS_TIMEOUT_MS": "3000"}
"""On a machine that is busy Redis is not away: nobody comes again for a wake-up that was given up, where no beat runs."""
_HELD = HeldPorts()


def service_env(**settings):
    """Return this environment with these settings, and patience, in the place of all that services know."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ICEDB_", "AWS_"))}
    return kept | PATIENT | {name: str(value) for name, value in settings.items()}


def free_port():
    """Return a port on which a server may listen; no other test is given it, in whatever process, before this one ends."""
    return _HELD.draw()


def fetch(port, path):
    """Return the status and the text of an answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LIMIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def read_metrics(port):
    """Return the series of a metrics port; none while nobody serves it."""
    try:
        status, text = fetch(port, "/metrics")
    except OSError:
        return {}
    lines = text.splitlines() if status == 200 else ()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def is_running(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@contextmanager
def running(command, env, folder, log="log"):
    """Run Python in a folder, with all that it says in a log there; kill it in the end."""
    with (folder / log).open("ab") as out:
        process = subprocess.Popen([sys.executable, *command], env=env, cwd=folder, stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.kill()
        process.wait(LIMIT_S)


def start_talking(module, env):
    """Start a service whose log is read from a pipe."""
    return subprocess.Popen([sys.executable, "-m", module], env=env, stderr=subprocess.PIPE, text=True)


def read_port(process, name):
    """Read the log until it says where something is served."""
    for line in process.stderr:
        found = re.search(rf'"{name}": "http://127.0.0.1:(\d+)"', line)
        if found:
            return int(found[1])
    raise AssertionError("the process ended")
