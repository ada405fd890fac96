"""Structured logs: one setup for our own events and for what Celery, kombu and others write.

Our events are constant and lower-case with ids as fields. Foreign records go through the same handler; what they
say about lost connections or lost children is one line, never a wall of traceback: the reaction is counted and
logged by us.
"""

import logging
import os
import re
import sys
from collections.abc import MutableMapping
from typing import Any, Final

from icedb_service.settings import ServiceSettings

# structlog takes up rich where it finds it, for tracebacks that it is not let draw (see _render): half a second, with
# Pygments and attrs. So it does not find it.
_rich = sys.modules.get("rich")
sys.modules["rich"] = None  # type: ignore[assignment]  # which is how a module is said not to be there
import structlog  # noqa: E402

sys.modules.pop("rich")
if _rich is not None:
    sys.modules["rich"] = _rich

_QUIET: Final = {
    "amqp": logging.WARNING,
    "botocore": logging.WARNING,
    "celery": logging.INFO,
    "celery.app.trace": logging.WARNING,  # one line for each task: we write our own
    "celery.beat": logging.WARNING,
    "celery.worker.strategy": logging.WARNING,
    "kombu": logging.WARNING,
    "pottery": logging.CRITICAL,  # a traceback for each master that is down: the lock reports that itself
    "py4j": logging.WARNING,
    "pyspark": logging.WARNING,
    "redis": logging.WARNING,
    "urllib3": logging.ERROR,
    "uvicorn": logging.WARNING,
    "uvicorn.error": logging.WARNING,
}
_BRIEF: Final = ("celery", "kombu", "billiard", "multiprocessing")

_CREDENTIAL: Final = re.compile(
    r"(?i:\bbearer\s+)[A-Za-z0-9._~+/=-]{16,}|\bicedbt_[A-Za-z0-9_-]{16,}|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"
)
"""What follows ``Bearer``, tokens that ``icedb-access`` made, and JWTs: libraries log whole messages when they fail."""

EventDict = MutableMapping[str, Any]


def configure_logging(settings: ServiceSettings, *, component: str) -> None:
    """Send all logs of this process, and of children forked later, to standard error.

    The first are warnings about variables of the environment that seem to be settings, misspelt.

    Idempotency: a second call replaces the first.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _add_origin(component),
        _shorten_foreign_errors,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared], processors=_render(settings)
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(settings.log_level.upper())
    for name, level in _QUIET.items():
        logging.getLogger(name).setLevel(max(level, root.level))
    logging.captureWarnings(capture=True)
    for misspelt in settings.find_misspelt(os.environ):
        get_logger().warning("setting_unknown", problem=misspelt, mitigation="it has no effect; correct its name")


def get_logger() -> structlog.stdlib.BoundLogger:
    """Return a logger for constant lower-case events with fields."""
    logger: structlog.stdlib.BoundLogger = structlog.get_logger("icedb")
    return logger


def _render(settings: ServiceSettings) -> list[structlog.typing.Processor]:
    strip = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    if settings.log_format == "console":
        # WARN: not rich's tracebacks, the default: they print the local variables of each frame, passwords and rows.
        people = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
        return [strip, structlog.processors.format_exc_info, _make_visible, people, _hide_credentials]
    render = structlog.processors.JSONRenderer(sort_keys=True)
    return [strip, structlog.processors.format_exc_info, render, _hide_credentials]


def _make_visible(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Spell out line ends, escapes and marks of direction: a name of somebody else's is no line of ours.

    The lines of a traceback are ours; what stands in them is not.
    """
    for name, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            kept = "\n" if name == "exception" else ""
            event[name] = "".join(each if each.isprintable() or each in kept else ascii(each)[1:-1] for each in value)
    return event


def _hide_credentials(_logger: object, _method: str, line: Any) -> str:
    """Replace credentials in a line that is about to be written; nothing of ours logs them, libraries might."""
    return _CREDENTIAL.sub("[hidden]", str(line))


def _add_origin(component: str) -> structlog.typing.Processor:
    def add(_logger: object, _method: str, event: EventDict) -> EventDict:
        event["component"] = component
        event["pid"] = os.getpid()
        return event

    return add


def _shorten_foreign_errors(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Keep the last line of a traceback that libraries log about lost connections, children and JVMs."""
    exc_info = event.get("exc_info")
    if exc_info is True:
        exc_info = sys.exc_info()
    error = exc_info[1] if isinstance(exc_info, tuple) else exc_info
    is_brief = str(event.get("logger", "")).startswith(_BRIEF) or type(error).__module__.startswith("py4j")
    if not is_brief:
        return event
    event.pop("exc_info", None)
    if isinstance(error, BaseException):
        event["error"] = f"{type(error).__name__}: {error}"
    event["event"] = " ".join(str(event.get("event", "")).split("\nTraceback", maxsplit=1)[0].split())
    return event
