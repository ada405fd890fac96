"""What every gRPC server shares: how errors end a call, where it listens, requests that cannot be read, health.

A typed error survives the wire: its class name travels as trailing metadata, its message as the status details. One
that says when to try again carries that twice: as google.rpc.RetryInfo, which retry libraries read, and as plain
metadata. Unknown errors are INTERNAL, without their text. Needs the extra ``grpc`` of this package.

A request that cannot be parsed is the caller's fault; gRPC itself would answer UNKNOWN, with a traceback in the log.
So it is parsed to :class:`Unreadable`, which the handler refuses as it refuses others: after it knows who calls.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from grpc_status import rpc_status
from icedb_log.errors import IceDBError, InvalidRequest, Overloaded, TableNotFound, Unavailable
from icedb_log.keys import TABLE_NAME
from icedb_log.units import SECOND_MS
from icedb_proto.errors import ERROR_METADATA_KEY, RETRY_METADATA_KEY, TABLE_METADATA_KEY, status_code

KEEPALIVE_MS: Final = 60_000
KEEPALIVE_TIMEOUT_MS: Final = 20_000
MAX_DETAILS_CHARS: Final = 2000
"""Details travel in a header, and headers are limited to 8 KiB."""


@dataclass(frozen=True, slots=True)
class CallStatus:
    """How a call ends."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str | bytes], ...]


def call_status(error: IceDBError, *, code: grpc.StatusCode | None = None) -> CallStatus:
    """Return how a call ends that raised an error of ours."""
    code = code or status_code(error)
    details = str(error)[:MAX_DETAILS_CHARS]
    metadata: list[tuple[str, str | bytes]] = [(ERROR_METADATA_KEY, error_name(error))]
    if isinstance(error, TableNotFound) and TABLE_NAME.fullmatch(error.table):
        metadata.append((TABLE_METADATA_KEY, error.table))
    if isinstance(error, Overloaded):
        metadata.append((RETRY_METADATA_KEY, str(error.retry_after_ms)))
        info, packed = error_details_pb2.RetryInfo(), any_pb2.Any()
        info.retry_delay.FromMilliseconds(error.retry_after_ms)
        packed.Pack(info)
        status = rpc_status.to_status(status_pb2.Status(code=code.value[0], message=details, details=[packed]))
        metadata.extend(status.trailing_metadata)
    return CallStatus(code, details, tuple(metadata))


def error_name(error: IceDBError) -> str:
    """Return the name of the nearest class of :mod:`icedb_log.errors`: what clients know."""
    for kind in type(error).__mro__:
        if kind.__module__ == IceDBError.__module__:
            return kind.__name__
    return IceDBError.__name__


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands in for a request."""

    size_bytes: int


def tolerant(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return a deserializer that gives :class:`Unreadable` where ``parse`` raises."""

    def read(body: bytes) -> Any:
        try:
            return parse(body)
        except DecodeError:
            return Unreadable(len(body))

    return read


def require_readable(request: Any) -> None:
    """Raise InvalidRequest for a request that could not be parsed."""
    if isinstance(request, Unreadable):
        raise InvalidRequest(
            f"the request is no message of this method: its {request.size_bytes} bytes cannot be parsed; generate "
            "the client from the protocol buffers of this release (proto/icedb/v1)"
        )


MAX_WATCHES: Final = 64
SHARE_OF_CALLS: Final = 4
"""At most every fourth place is a watch's."""
MAX_NAME_CHARS: Final = 200


class BoundedHealth(health.aio.HealthServicer):  # type: ignore[misc]  # grpc_health has no types
    """Answers checks, and so many watches at once."""

    def __init__(self, *, max_calls: int) -> None:
        super().__init__()
        self._room = max(1, min(MAX_WATCHES, max_calls // SHARE_OF_CALLS))

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802 - the name of the method in the protocol
        """Watch a service; RESOURCE_EXHAUSTED when too many do."""
        if len(request.service) > MAX_NAME_CHARS:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this is the name of no service")
        if self._room < 1:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "too many watch this server; ask with Check",
            )
        self._room -= 1
        try:
            await super().Watch(request, context)
        finally:
            self._room += 1


@dataclass(frozen=True, slots=True)
class GrpcServerOptions:
    """Where and how a gRPC server listens.

    Attributes:
        address: Host and port; port 0: any that is free.
        remedy: For the message about an address that is taken: what to set, and to what.
        max_calls: Calls at once; those above it are refused (RESOURCE_EXHAUSTED).
        credentials: Of the server; ``None``: no TLS.
        more: Options of gRPC, besides those that all servers have.
    """

    address: str
    remedy: str
    max_calls: int
    credentials: Any | None = None
    more: Sequence[tuple[str, int]] = ()


class GrpcServer:
    """A started asyncio server with health and reflection. Use :meth:`start`."""

    def __init__(self, server: Any, servicer: BoundedHealth, service: str, port: int) -> None:
        self.port = port
        self._server = server
        self._health = servicer
        self._service = service

    @classmethod
    async def start(
        cls,
        service: str,
        handlers: Mapping[str, Any],
        options: GrpcServerOptions,
        *,
        interceptors: Sequence[Any] = (),
    ) -> Self:
        """Serve a service's methods; health says NOT_SERVING until :meth:`show_health` says otherwise.

        Raises:
            Unavailable: The address cannot be listened on.
        """
        server = grpc.aio.server(
            interceptors=tuple(interceptors),
            maximum_concurrent_rpcs=options.max_calls,
            options=(
                ("grpc.so_reuseport", 0),
                # A caller whose host is gone says nothing, and neither does its connection: it must not keep its place.
                ("grpc.keepalive_time_ms", KEEPALIVE_MS),
                ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
                *options.more,
            ),
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, dict(handlers)),))
        servicer = BoundedHealth(max_calls=options.max_calls)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        reflection.enable_server_reflection((service, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        started = cls(server, servicer, service, _listen(server, options))
        await started.show_health(is_serving=False)
        await server.start()
        return started

    async def show_health(self, *, is_serving: bool) -> None:
        """Answer health checks, of the server as a whole and of the service, from now on."""
        status = health_pb2.HealthCheckResponse
        for name in ("", self._service):
            await self._health.set(name, status.SERVING if is_serving else status.NOT_SERVING)

    async def drain(self) -> None:
        """Say NOT_SERVING, for good."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, *, grace_ms: int) -> None:
        """Refuse new calls, let running ones end for at most ``grace_ms``, then stop."""
        await self.drain()
        await self._server.stop(grace_ms / SECOND_MS)


def _listen(server: Any, options: GrpcServerOptions) -> int:
    address, credentials = options.address, options.credentials
    try:
        port = int(server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address))
    except RuntimeError:
        port = 0
    if port == 0:
        raise Unavailable(
            f"cannot listen on {address}: the port is taken, or the host is not of this machine; {options.remedy}"
        )
    return port
