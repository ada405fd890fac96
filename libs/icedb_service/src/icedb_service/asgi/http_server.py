"""Runs an ASGI application: uvicorn inside an event loop that is not its own."""

import asyncio
import math
import socket
import ssl
from dataclasses import dataclass
from typing import Final, Self

import uvicorn
from icedb_log.errors import Unavailable
from icedb_log.units import SECOND_MS
from starlette.types import ASGIApp

from icedb_service.asgi.http_protocol import make_protocol

BACKLOG: Final = 2048
START_POLL_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class HttpServerOptions:
    """Where and how a door listens.

    Attributes:
        host: Address.
        port: Port; 0 takes a free one.
        address_settings: Names of the settings that say both, for the error of an address that is taken.
        max_connections: Connections at once; requests above it are refused (503).
        header_timeout_ms: How long a connection may take to send a request's headers.
        keep_alive_ms: How long an idle connection is kept.
        shutdown_ms: How long a stop waits for requests that are being answered.
        tls: The server's certificate and what it asks of clients; ``None``: plain text.
    """

    host: str
    port: int
    address_settings: str
    max_connections: int
    header_timeout_ms: int
    keep_alive_ms: int
    shutdown_ms: int
    tls: ssl.SSLContext | None = None


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
    async def start(cls, app: ASGIApp, options: HttpServerOptions) -> Self:
        """Listen, and return when requests are served. Call it in a thread that is not the main one.

        Raises:
            Unavailable: The address cannot be listened on.
        """
        tls = options.tls
        config = uvicorn.Config(
            app,
            http=make_protocol(header_timeout_ms=options.header_timeout_ms),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=options.max_connections,
            timeout_keep_alive=math.ceil(options.keep_alive_ms / SECOND_MS),
            timeout_graceful_shutdown=math.ceil(options.shutdown_ms / SECOND_MS),
            ssl_context_factory=None if tls is None else lambda *_: tls,
        )
        started = cls(uvicorn.Server(config), _listen(options))
        while not started._server.started and not started._serving.done():  # noqa: ASYNC110 - uvicorn has no event
            await asyncio.sleep(START_POLL_S)
        return started

    async def stop(self) -> None:
        """Take no more connections, let running requests end, and stop."""
        self._server.should_exit = True
        await self._serving


def _listen(options: HttpServerOptions) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is said; without it each answer on a kept connection takes 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((options.host, options.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise Unavailable(
            f"cannot listen on {options.host}:{options.port} ({error.strerror or error}); set "
            f"{options.address_settings} to an address of this host that is free"
        ) from error
    listener.setblocking(False)
    return listener
