"""The small HTTP server of every process: ``/metrics``, ``/healthz`` and ``/readyz``.

``/healthz`` says whether this process should be kept (its engine is alive); ``/readyz`` says whether it can work: its
engine is open, and everything it needs answers. An orchestrator restarts on the first and only routes or alerts on the
second: restarting a worker does not bring Redis back.
"""

import json
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from icedb_log.clock import Clock, SystemClock
from icedb_log.errors import IceDBError, Unavailable
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from icedb_service.logs import get_logger

Check = Callable[[], None]
"""Returns if all is well, raises an IceDBError that says what is not."""

BIND_ATTEMPTS: Final = 20
BIND_RETRY_MS: Final = 250
REQUEST_TIMEOUT_S: Final = 10


@dataclass(frozen=True, slots=True)
class HealthChecks:
    """What is looked at.

    Attributes:
        alive: Checks of this process itself, by name.
        ready: Checks of what it needs, by name.
    """

    alive: Mapping[str, Check] = field(default_factory=dict)
    ready: Mapping[str, Check] = field(default_factory=dict)

    def run(self, *, with_ready: bool) -> dict[str, str]:
        """Return, for each check, ``ok`` or what is wrong."""
        checks = {**self.alive, **(self.ready if with_ready else {})}
        return {name: _run_check(check) for name, check in checks.items()}


def start_metrics_server(
    registry: CollectorRegistry,
    *,
    host: str,
    port: int,
    health: HealthChecks | None = None,
    clock: Clock | None = None,
) -> ThreadingHTTPServer | None:
    """Serve metrics and health in a daemon thread.

    Waits a few seconds for a port that a predecessor is about to leave.

    Args:
        registry: What ``/metrics`` shows.
        host: Address to listen on.
        port: Port; 0 serves nothing and returns ``None``.
        health: What ``/healthz`` and ``/readyz`` look at.
        clock: For the waits.

    Raises:
        Unavailable: The address cannot be listened on.
    """
    if port == 0:
        return None
    handler = _make_handler(registry, health or HealthChecks())
    clock = clock or SystemClock()
    for attempt in range(BIND_ATTEMPTS):
        if attempt:
            clock.sleep_ms(BIND_RETRY_MS)
        try:
            server = _Server((host, port), handler)
        except OSError as error:
            failure = error
            continue
        threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
        get_logger().info("metrics_served", host=host, port=port)
        return server
    raise Unavailable(_port_message(host, port, failure)) from failure


def check_port_is_free(host: str, port: int) -> None:
    """Raise Unavailable if nobody could listen there. Port 0 is always fine."""
    if port == 0:
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise Unavailable(_port_message(host, port, error)) from error


def _port_message(host: str, port: int, error: OSError) -> str:
    return (
        f"cannot serve metrics on {host}:{port} ({error.strerror or error}); "
        "set ICEDB_METRICS_HOST and ICEDB_METRICS_PORT to an address of this host that is free, or the port to 0"
    )


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        del request  # a scraper that hung up is not our failure
        get_logger().debug("metrics_request_failed", client=str(client_address))


def _run_check(check: Check) -> str:
    try:
        check()
    except IceDBError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - no more files or threads, say: an answer helps more than none
        return f"{type(error).__name__}: {error}"
    return "ok"


def _make_handler(registry: CollectorRegistry, health: HealthChecks) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_TIMEOUT_S

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                encode, content_type = choose_encoder(self.headers.get("Accept", ""))
                self._answer(HTTPStatus.OK, encode(registry), content_type)
            elif path in ("/healthz", "/readyz"):
                found = health.run(with_ready=path == "/readyz")
                is_well = all(value == "ok" for value in found.values())
                status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
                body = json.dumps({"status": "ok" if is_well else "failing", "checks": found})
                self._answer(status, body.encode(), "application/json")
            else:
                self._answer(HTTPStatus.NOT_FOUND, b"try /metrics, /healthz or /readyz\n", "text/plain")

        def _answer(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's signature
            """Say nothing: a scrape each few seconds is not an event."""

    return Handler
