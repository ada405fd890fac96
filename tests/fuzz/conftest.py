"""What the fuzz tests share: examples by profile, logs that are looked at, and a reader of the wire of its own."""

import importlib.util
import logging
import sys
from pathlib import Path

import pytest
import structlog


class LogWatch:
    """Takes what services log, prints nothing, and keeps what tells of a bug: every traceback.

    Attributes:
        crashes: Their texts.
    """

    def __init__(self):
        self.crashes = []

    def __call__(self, _logger, name, fields):
        """Look at one event of structlog; none goes any further."""
        if name == "exception" or fields.get("exc_info"):
            # While it is handled: the formatter would ask for it at the same moment.
            error = sys.exc_info()[1]
            self.crashes.append(f"{fields.get('event')}: {error!r}")
        raise structlog.DropEvent


class _Handler(logging.Handler):
    def __init__(self, watch):
        super().__init__(logging.WARNING)
        self._watch = watch

    def emit(self, record):
        if record.exc_info and record.exc_info[1] is not None:
            self._watch.crashes.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


@pytest.fixture(scope="session")
def all_logs():
    """Watches structlog and the standard library's loggers for the whole run."""
    watch = LogWatch()
    structlog.configure(processors=[watch], cache_logger_on_first_use=False)
    handler = _Handler(watch)
    logging.getLogger().addHandler(handler)
    yield watch
    logging.getLogger().removeHandler(handler)
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def log_watch(all_logs):
    """The crashes of this test; there may be none at its end."""
    all_logs.crashes.clear()
    yield all_logs
    assert all_logs.crashes == []


@pytest.fixture(scope="session")
def strict_reader():
    """The module tests/compat/strict_reader.py."""
    path = Path(__file__).parents[1] / "compat" / "strict_reader.py"
    spec = importlib.util.spec_from_file_location("icedb_fuzz_strict_reader", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
