"""What the end-to-end tests share: a way to see what a stack left behind, and to wait without sleeping blindly."""

import threading
from pathlib import Path

import psutil
import pytest


def _belongs_to(process, folder):
    """Whether a process was started for something in a folder: by its environment, or by where it runs."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        run_dir = process.environ().get("ICEDB_RUN_DIR", "")
        return Path(run_dir).is_relative_to(folder) or Path(process.cwd()).is_relative_to(folder)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


@pytest.fixture
def find_processes():
    """Return a function: folder -> the processes that live for it, with their command lines."""

    def find(folder):
        found = {}
        for process in psutil.process_iter():
            if _belongs_to(process, folder):
                try:
                    found[process.pid] = " ".join(process.cmdline())[:160]
                except psutil.NoSuchProcess:
                    continue
        return found

    return find


@pytest.fixture
def wait_until():
    """Return a function that polls a condition until it holds, or fails at its deadline."""

    def wait(condition, *, what, timeout_s=240.0):
        tick = threading.Event()
        for _ in range(int(timeout_s * 20)):
            found = condition()
            if found:
                return found
            tick.wait(0.05)
        raise AssertionError(f"waited {timeout_s:g} s for {what}")

    return wait
