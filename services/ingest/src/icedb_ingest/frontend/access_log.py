"""One structured event for each HTTP request: ASGI middleware."""

from typing import Any, Final

from icedb_log.clock import Clock, SystemClock
from icedb_service.logs import get_logger
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FIRST_ERROR: Final = 400
FIRST_FAILURE: Final = 500
PROBES: Final = ("/healthz", "/readyz")
"""Asked every few seconds: no event."""
_NOTES: Final = "icedb"


class AccessLog:
    """Logs requests when they end.

    Args:
        app: What answers them.
        which: ``all``, ``errors`` (status 400 and above) or ``none``.
        clock: For durations.
    """

    def __init__(self, app: ASGIApp, *, which: str, clock: Clock | None = None) -> None:
        self._app = app
        self._which = which
        self._clock = clock or SystemClock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or self._which == "none" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        started_ms = self._clock.monotonic_ms()
        status = 0

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            if self._which == "all" or not 0 < status < FIRST_ERROR:
                self._log(scope, status, self._clock.monotonic_ms() - started_ms)

    @staticmethod
    def _log(scope: Scope, status: int, duration_ms: int) -> None:
        client = scope.get("client")
        fields: dict[str, Any] = {
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "duration_ms": duration_ms,
            "client": client[0] if client else None,
            **scope.get(_NOTES, {}),
        }
        is_failure = not 0 < status < FIRST_FAILURE
        (get_logger().warning if is_failure else get_logger().info)("http_request", **fields)


def note(request: Request, **fields: Any) -> None:
    """Add fields to a request's event, and to its problem if it ends in one."""
    request.scope.setdefault(_NOTES, {}).update({name: value for name, value in fields.items() if value is not None})
