"""What holds for every test, whatever its package.

The examples of Hypothesis; how long it may take; which tests run in one process; ids that are the same in each
process (pytest-xdist shares them); a collector of garbage that looks at what tests make, not again and again at the
thousands of tests themselves; and Ctrl-C: a shell starts what it puts in the background with SIGINT ignored, every
process below inherits that, and programs that tests interrupt must hear of it all the same.
"""

import gc
import re
import signal
from collections.abc import Iterator
from typing import Final

import pytest
import structlog
from icedb_sim.tables.profiles import load_profile
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

load_profile()

TIMEOUT_S: Final = 900
"""Of tests that start Spark or a whole stack, or are long by intent (``spark``, ``e2e``, ``soak``). All others have
``timeout`` of pyproject.toml; one that names its own (``pytest.mark.timeout``) keeps it."""

SHARED_SESSION: Final = "tests/integration/spark/"
"""Tests of one Spark session, which takes longer to get warm than they take."""

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def pytest_configure() -> None:
    """Let this process, and so those that tests start, be interrupted, also if tests run in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests without a look for garbage, and leave what is loaded by then out of every look: it stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


class _ByServer(LoadFileScheduling):
    """Tests of one file run in one process, and so do all that share the Spark session."""

    def _split_scope(self, nodeid: str) -> str:
        return SHARED_SESSION if nodeid.startswith(SHARED_SESSION) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Keep tests together that share servers."""
    return _ByServer(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests that start Spark, a stack, or many runs, the time for it."""
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if item.get_closest_marker("timeout") is None and {"spark", "e2e", "soak"} & marks:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes (a gzip header holds the time) and fresh ids after their argument; pytest numbers equal names."""
    if isinstance(val, bytes):
        return argname
    if isinstance(val, str) and _UUID.search(val):
        return _UUID.sub("id", val)
    return None


@pytest.fixture(autouse=True, scope="module")
def _log_settings_of_a_module() -> Iterator[None]:
    """What the fixtures of a module, or a lake that they open, set up of structlog ends with the module."""
    yield from _keep_log_settings()


@pytest.fixture(autouse=True)
def _log_settings_of_a_test() -> Iterator[None]:
    """What a test sets up ends with the test."""
    yield from _keep_log_settings()


def _keep_log_settings() -> Iterator[None]:
    was_configured, before = structlog.is_configured(), structlog.get_config()
    yield
    if was_configured:
        structlog.configure(**before)
    else:
        structlog.reset_defaults()
