"""Runs the HTTP door: uvicorn inside an event loop that is not its own."""

import asyncio
import math
import socket
from typing import Final, Self

import uvicorn
from icedb_log.errors import Unavailable
from starlette.types import ASGIApp

from icedb_ingest.frontend.http_protocol import make_protocol
from icedb_ingest.frontend.settings import FrontendSettings

BACKLOG: Final = 2048
START_POLL_S: Final = 0.005
MS_PER_S: Final = 1000


class HttpServer:
    """A started server. Use :meth:`start`.

    Attributes:
        port: The port it listens on.
    """

    def __init__(self, server: uvicorn.Server, listener: socket.socket) -> None:
        self.port = int(listener.getsockname()[1])
        self._server = server
        self._serving = asyncio.create_task(server.serve(sockets=[listener]))

    @classmethod
    async def start(cls, app: ASGIApp, settings: FrontendSettings) -> Self:
        """Listen, and return when requests are served. Call it in a thread that is not the main one.

        Raises:
            Unavailable: The address cannot be listened on.
        """
        config = uvicorn.Config(
            app,
            http=make_protocol(header_timeout_ms=settings.frontend_header_timeout_ms),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=settings.frontend_max_connections,
            timeout_keep_alive=math.ceil(settings.frontend_keep_alive_ms / MS_PER_S),
            timeout_graceful_shutdown=math.ceil(settings.frontend_shutdown_ms / MS_PER_S),
        )
        started = cls(uvicorn.Server(config), _listen(settings.frontend_host, settings.frontend_http_port))
        while not started._server.started and not started._serving.done():  # noqa: ASYNC110 - uvicorn has no event
            await asyncio.sleep(START_POLL_S)
        return started

    async def stop(self) -> None:
        """Take no more connections, let running requests end, and stop."""
        self._server.should_exit = True
        await self._serving


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is said; without it each answer on a kept connection takes 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise Unavailable(
            f"cannot listen on {host}:{port} ({error.strerror or error}); set ICEDB_FRONTEND_HOST and "
            "ICEDB_FRONTEND_HTTP_PORT to an address of this host that is free"
        ) from error
    listener.setblocking(False)
    return listener
