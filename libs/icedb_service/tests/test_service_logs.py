import io
import json
import logging
import sys

import pytest
import structlog
from icedb_service.logs import configure_logging, get_logger
from icedb_service.settings import ServiceSettings


@pytest.fixture
def logs(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    configure_logging(ServiceSettings(store="file:///tmp/w"), component="merge")
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.handlers, level = before
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


def test_an_event_is_one_json_line_with_its_context(logs):
    with structlog.contextvars.bound_contextvars(table="events"):
        get_logger().info("task_ended", rows=3)
    (line,) = logs()
    assert line["event"] == "task_ended"
    assert (line["component"], line["table"], line["rows"], line["level"]) == ("merge", "events", 3, "info")
    assert line["timestamp"].endswith("Z")


def test_a_foreign_connection_error_is_one_line_without_traceback(logs):
    try:
        raise ConnectionError("gone")
    except ConnectionError:
        logging.getLogger("celery.worker.consumer.consumer").warning("lost.\nTrying again", exc_info=True)
    (line,) = logs()
    assert line["error"] == "ConnectionError: gone"
    assert line["event"] == "lost. Trying again"
    assert "exception" not in line


def test_our_own_bug_keeps_its_traceback(logs):
    try:
        raise KeyError("bug")
    except KeyError:
        get_logger().exception("task_crashed")
    (line,) = logs()
    assert "KeyError: 'bug'" in line["exception"]
    assert "Traceback" in line["exception"]


def test_chatty_libraries_are_held_back(logs):
    logging.getLogger("pottery").error("a master is down")
    logging.getLogger("celery.worker.strategy").info("task received")
    get_logger().debug("not at this level")
    assert logs() == []


def test_a_misspelt_setting_is_told_first(monkeypatch, request):
    monkeypatch.setenv("ICEDB_LOCK_TLL_MS", "1000")
    monkeypatch.setenv("ICEDB_FLUSH_INTERVAL_MS", "1000")  # another service's
    (line,) = request.getfixturevalue("logs")()
    assert (line["event"], line["level"]) == ("setting_unknown", "warning")
    assert line["problem"] == "ICEDB_LOCK_TLL_MS is no setting; did you mean ICEDB_LOCK_TTL_MS?"
