"""For every test: how long it may take, ids that are the same in each process (pytest-xdist shares them), and Ctrl-C.

A shell starts what it puts in the background with SIGINT ignored, and every process below inherits that; programs that
tests interrupt must hear of it all the same.
"""

import re
import signal
from typing import Final

import pytest

TIMEOUTS_S: Final = {"soak": 900, "e2e": 900, "spark": 300, "simulation": 300, "fuzz": 300}
"""By marker or folder, the first that fits: of tests that start a stack or a JVM (a busy machine takes minutes to start
several), or that try thousands of schedules or inputs. All others have ``timeout`` of pyproject.toml; one that names
its own (``pytest.mark.timeout``) keeps it."""

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def pytest_configure() -> None:
    """Let this process, and so those that tests start, be interrupted, also if tests run in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests that take more than a process, or many runs, the time for it."""
    for item in items:
        if item.get_closest_marker("timeout") is not None:
            continue
        folders = item.path.relative_to(item.config.rootpath).parts
        names = {*folders, *(mark.name for mark in item.iter_markers()), *getattr(item, "fixturenames", ())}
        seconds = next((limit for name, limit in TIMEOUTS_S.items() if name in names), None)
        if seconds is not None:
            item.add_marker(pytest.mark.timeout(seconds))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes (a gzip header holds the time) and fresh ids after their argument; pytest numbers equal names."""
    if isinstance(val, bytes):
        return argname
    if isinstance(val, str) and _UUID.search(val):
        return _UUID.sub("id", val)
    return None
