"""Whether traces are on (OpenTelemetry), and what makes them: where a batch spent its time until its rows were live.

Off unless the standard ``OTEL_…`` variables ask for traces; nothing of OpenTelemetry is imported then, and what works
asks one variable. On, :mod:`icedb_service.spans` makes the spans.
"""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from icedb_log.errors import InvalidRequest

if TYPE_CHECKING:
    from icedb_service.spans import RunTrace, Tracing

EXPORTERS: Final = ("otlp", "console")
HEADER: Final = "traceparent"
ENABLING: Final = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Any of these variables asks for traces."""


@dataclass(slots=True)
class _Process:
    """What this process knows: for whom it traces, if it does, and what makes the spans."""

    component: str = ""
    tracing: "Tracing | None" = None
    lock: threading.Lock = field(default_factory=threading.Lock)


_process: Final = _Process()


def is_wanted(variables: Mapping[str, str] = os.environ) -> bool:
    """Return whether the standard variables ask for traces."""
    if variables.get("OTEL_SDK_DISABLED", "").lower() == "true" or variables.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    return any(variables.get(name) for name in ENABLING)


def configure_tracing(component: str) -> None:
    """Make spans from now on, in this process and in those that it forks, if the environment wants them.

    Raises:
        InvalidRequest: It does, and OpenTelemetry is not installed, or it names an exporter that there is not.
    """
    if not is_wanted():
        return
    for each in _chosen_exporters():
        if each not in EXPORTERS:
            raise InvalidRequest(f"OTEL_TRACES_EXPORTER {each[:40]!r} is none of: {', '.join(EXPORTERS)}, none")
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        raise InvalidRequest(
            "OTEL_… asks for traces, and OpenTelemetry is not installed: pip install 'icedb-service[otel]', or set "
            "OTEL_SDK_DISABLED=true"
        )
    import icedb_service.spans  # noqa: F401, PLC0415 - half a second that no request should wait for

    _process.component = component


def tracing() -> "Tracing | None":
    """Return what makes spans in this process; ``None``: traces are off."""
    if _process.component and _process.tracing is None:
        from icedb_service.spans import Tracing  # noqa: PLC0415 - only where traces are on

        with _process.lock:
            if _process.tracing is None:
                _process.tracing = Tracing(_process.component, _chosen_exporters())
    return _process.tracing


def current_run() -> "RunTrace | None":
    """Return the trace of the run in this thread; ``None``: there is none, or traces are off."""
    return None if _process.tracing is None else _process.tracing.current_run()


@contextmanager
def traced_by(found: "Tracing") -> Iterator[None]:
    """Make spans in this process by another one within a block: for tests."""
    before, _process.tracing = _process.tracing, found
    try:
        yield
    finally:
        _process.tracing = before


def header_of(request: Any, name: str) -> object:
    """Return a header of the message of a task; ``None``: it came without."""
    headers = getattr(request, "headers", None)
    found = headers.get(name) if isinstance(headers, Mapping) else None
    return found if found is not None else getattr(request, name, None)


def flush_traces() -> None:
    """Export what is there, before a process ends."""
    if _process.tracing is not None:
        _process.tracing.flush()


def _chosen_exporters() -> list[str]:
    """Return where the environment sends traces, by the names that the standard has for it."""
    return os.environ.get("OTEL_TRACES_EXPORTER", "otlp").split(",")
