"""The gRPC server: methods of all handler classes, health and reflection, on one event loop in a thread of its own.

Its interceptor is the one place where errors of calls become statuses (:mod:`icedb_service.grpc_server`), and where
calls are counted. Unknown errors are logged with their traceback and answered as INTERNAL without it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import grpc
from icedb_log.clock import Clock
from icedb_log.errors import IceDBError, Overloaded
from icedb_log.units import MIB, SECOND_MS
from icedb_log.warehouse import Warehouse
from icedb_proto import snapshot_pb2
from icedb_service.access.credentials import GrpcAccess
from icedb_service.grpc_server import (
    KEEPALIVE_MS,
    GrpcServer,
    GrpcServerOptions,
    call_status,
    require_readable,
    tolerant,
)
from icedb_service.http_server import ServerThread
from icedb_service.logs import get_logger
from icedb_service.readers import TableReads
from icedb_service.tls import server_credentials

from icedb_snapshot.answers import AnswerTooLarge
from icedb_snapshot.metrics import METHODS, SnapshotMetrics
from icedb_snapshot.settings import SnapshotSettings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServiceParts:
    """What handlers share.

    Attributes:
        warehouse: Where the tables lie.
        settings: Limits and defaults.
        metrics: Where calls and answers are counted.
        clock: For ages.
        reads: The state of tables, and threads for work that blocks (``reads.work``).
        access: Asked first by every handler.
    """

    warehouse: Warehouse
    settings: SnapshotSettings
    metrics: SnapshotMetrics
    clock: Clock
    reads: TableReads
    access: GrpcAccess


class Calls(Protocol):
    """Some methods of the service."""

    def methods(self) -> Mapping[str, Any]:
        """Return the handlers by the name of their method: what ``grpc.unary_unary_rpc_method_handler`` returns."""
        ...


@runtime_checkable
class EndlessCalls(Protocol):
    """Methods with streams that do not end by themselves."""

    def end(self) -> None:
        """End them all, for good: the server stops. Called on the event loop."""
        ...


_log = get_logger()


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc ships no types
    """Maps errors of calls to status codes, and counts and times each one, unary ones and server streams.

    Args:
        metrics: Where calls are counted.
        clock: For durations.
        write_timeout_ms: How long a stream waits for its reader.
    """

    def __init__(self, metrics: SnapshotMetrics, *, clock: Clock, write_timeout_ms: int) -> None:
        self._metrics = metrics
        self._clock = clock
        self._write_timeout_ms = write_timeout_ms
        self._wrapped: dict[str, Any] = {}

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Wrap the handler of a method of ours, and of a health check; reflection and health watches pass."""
        method = str(handler_call_details.method)
        wrapped = self._wrapped.get(method)
        if wrapped is None:
            handler = await continuation(handler_call_details)
            if handler is None or method not in METHODS:
                return handler
            wrapped = self._wrapped[method] = self._wrap(handler, method)
        return wrapped

    def _wrap(self, handler: Any, method: str) -> Any:
        codec = {
            "request_deserializer": tolerant(handler.request_deserializer),
            "response_serializer": handler.response_serializer,
        }

        async def call(request: Any, context: Any) -> Any:
            async with self._watch(context, method):
                require_readable(request)
                return await handler.unary_unary(request, context)

        async def stream(request: Any, context: Any) -> None:
            async with self._watch(context, method):
                require_readable(request)
                stuck = await self._send(handler.unary_stream(request, context), context, method)
                if stuck is not None:
                    await stuck  # a status can follow only after what is being sent; the rest is let go already
                    raise Overloaded(
                        f"{method.rpartition('/')[2]}: the caller took no message for {self._write_timeout_ms} ms "
                        "(ICEDB_SNAPSHOT_WRITE_TIMEOUT_MS); call again, and read while the stream runs",
                        retry_after_ms=SECOND_MS,
                    )

        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(call, **codec)
        return grpc.unary_stream_rpc_method_handler(stream, **codec)

    async def _send(self, messages: Any, context: Any, method: str) -> asyncio.Future[Any] | None:
        """Send the messages of a stream; return what is being sent when its reader takes nothing for too long.

        Whoever does not read holds one message then, and not the answer that it was cut from.
        """
        async with aclosing(messages):
            async for message in messages:
                sending: asyncio.Future[Any] = asyncio.ensure_future(context.write(message))
                done, _ = await asyncio.wait((sending,), timeout=self._write_timeout_ms / SECOND_MS)
                if not done:
                    _log.warning("reader_too_slow", method=method, mitigation="its stream ends when it reads again")
                    return sending
                sending.result()
        return None

    @asynccontextmanager
    async def _watch(self, context: Any, method: str) -> AsyncIterator[None]:
        started_ms = self._clock.monotonic_ms()
        code = grpc.StatusCode.OK
        try:
            yield
        except IceDBError as error:
            # An answer that is too large is the caller's mistake, but has a code of its own.
            status = call_status(
                error, code=grpc.StatusCode.RESOURCE_EXHAUSTED if isinstance(error, AnswerTooLarge) else None
            )
            code = status.code
            _log.info("call_refused", method=method, code=code.name, error=type(error).__name__, reason=str(error))
            await context.abort(code, status.details, status.trailing_metadata)
        except grpc.aio.AbortError:
            code = _code_of(context) or grpc.StatusCode.UNKNOWN
            raise
        except (asyncio.CancelledError, GeneratorExit):
            # The caller's deadline passed, or it went away.
            left_s = context.time_remaining()
            has_ended = left_s is not None and left_s <= 0
            code = grpc.StatusCode.DEADLINE_EXCEEDED if has_ended else grpc.StatusCode.CANCELLED
            raise
        except Exception:  # noqa: BLE001 - the last stop before the wire
            code = grpc.StatusCode.INTERNAL
            _log.exception("call_failed", method=method)
            await context.abort(code, "the snapshot service failed; its log has the reason")
        finally:
            self._metrics.observe_call(method, code.name, self._clock.monotonic_ms() - started_ms)


def _code_of(context: Any) -> grpc.StatusCode | None:
    """Return the code that a handler aborted with; grpc gives it as a number or as the code itself."""
    code = context.code()
    if isinstance(code, grpc.StatusCode):
        return code
    return next((known for known in grpc.StatusCode if known.value[0] == code), None)


SERVICE: Final = snapshot_pb2.DESCRIPTOR.services_by_name["SnapshotService"].full_name
MAX_REQUEST_BYTES: Final = 4 * MIB
CONNECTION_GRACE_MS: Final = 5 * 60 * 1000
"""How long calls of an old connection may go on."""
STOP_LIMIT_S: Final = 5


class SnapshotServer:
    """The server. Its methods are called from any thread but the loop's.

    Args:
        parts: What its handlers share.
        calls: Its methods.

    Attributes:
        port: The port it listens on, once it is started.
    """

    def __init__(self, parts: ServiceParts, calls: Sequence[Calls]) -> None:
        self.parts = parts
        self.calls = calls
        self.port = 0
        self.loop = ServerThread(
            self._serve,
            name="icedb-snapshot-loop",
            what="the snapshot service",
            stop_limit_s=STOP_LIMIT_S,
            is_daemon=True,
        )
        self._server: GrpcServer | None = None

    def start(self) -> None:
        """Serve on ``settings.snapshot_address``; health says NOT_SERVING until it is told otherwise.

        Raises:
            Unavailable: The address cannot be bound; the message names it and the setting.
        """
        self.loop.start()

    def show_health(self, *, is_serving: bool) -> None:
        """Answer health checks, of the server as a whole and of the service, from now on."""
        if self._server is not None:
            self.loop.run(self._server.show_health(is_serving=is_serving))

    def stop(self, *, grace_ms: int) -> None:
        """Refuse new calls, let running ones end for at most ``grace_ms``, then stop."""
        self.loop.run(self._stop(grace_ms))

    def close(self) -> None:
        """End the loop, once nobody shows health any more."""
        self.parts.reads.work.close()
        self.loop.stop()

    async def _serve(self) -> None:
        parts, settings = self.parts, self.parts.settings
        interceptor = ErrorInterceptor(
            parts.metrics, clock=parts.clock, write_timeout_ms=settings.snapshot_write_timeout_ms
        )
        self._server = await GrpcServer.start(
            SERVICE,
            {name: handler for each in self.calls for name, handler in each.methods().items()},
            GrpcServerOptions(
                address=settings.snapshot_address,
                remedy="set ICEDB_SNAPSHOT_ADDRESS to a free one, e.g. 127.0.0.1:50052",
                max_calls=settings.snapshot_max_pending_calls,
                credentials=server_credentials(settings, clock=parts.clock),
                more=(
                    # Whoever reads no stream must not keep its place for ever, and load spreads over new replicas.
                    ("grpc.max_connection_age_ms", settings.snapshot_connection_age_ms),
                    ("grpc.max_connection_age_grace_ms", CONNECTION_GRACE_MS),
                    # Pages of a stream have up to 1 MiB, however small the answers of unary calls are to be.
                    ("grpc.max_send_message_length", max(settings.snapshot_max_message_bytes, 2 * MIB)),
                    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
                    # Watchers look whether this server is there; by default gRPC hangs up on such pings.
                    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
                ),
            ),
            interceptors=(interceptor,),
        )
        self.port = self._server.port
        self.loop.show_started()
        await self.loop.wait_for_stop()

    async def _stop(self, grace_ms: int) -> None:
        if self._server is not None:
            await self._server.drain()
            for each in self.calls:
                if isinstance(each, EndlessCalls):
                    each.end()
            await self._server.stop(grace_ms=grace_ms)
