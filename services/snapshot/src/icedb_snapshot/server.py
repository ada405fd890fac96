"""A whole snapshot service: the gRPC server on one event loop in a thread of its own, the exporter, the metrics.

The methods of the service are the functions of their names in :data:`icedb_proto`'s description, in snake case, of the
classes of calls. The interceptor is the one place where errors of calls become statuses
(:mod:`icedb_service.grpc_server`), and where calls are counted. Unknown errors are logged with their traceback and
answered as INTERNAL without it.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from importlib import import_module
from typing import Any, Final

import grpc
from google.protobuf.message_factory import GetMessageClass
from icedb_log.clock import Clock
from icedb_log.errors import IceDBError, InvalidRequest, Overloaded
from icedb_log.serving.batch_commits import check_batch_id
from icedb_log.serving.table_cache import TableCache
from icedb_log.units import MIB, SECOND_MS
from icedb_log.warehouse import Warehouse
from icedb_proto import snapshot_pb2
from icedb_service.access.credentials import GrpcAccess
from icedb_service.access.guard import Places
from icedb_service.announcements import CommitListener
from icedb_service.endpoints import EndpointService
from icedb_service.grpc_server import (
    KEEPALIVE_MS,
    GrpcServer,
    GrpcServerOptions,
    call_status,
    require_readable,
    tolerant,
)
from icedb_service.logs import get_logger
from icedb_service.readers import BlockingWork, TableNames, TableReads
from icedb_service.tls import server_credentials
from icedb_service.tracing import HEADER, tracing

from icedb_snapshot.answers import AnswerTooLarge
from icedb_snapshot.lag import LagExporter
from icedb_snapshot.metrics import METHODS, SnapshotMetrics
from icedb_snapshot.requests import ServiceParts
from icedb_snapshot.settings import SnapshotSettings
from icedb_snapshot.snapshot_calls import SnapshotCalls
from icedb_snapshot.table_calls import TableCalls
from icedb_snapshot.watches import WatchCalls

SERVICE: Final = snapshot_pb2.DESCRIPTOR.services_by_name["SnapshotService"]
MAX_REQUEST_BYTES: Final = 4 * MIB
WRITE_TIMEOUT_MS: Final = 60_000
"""How long a stream waits for its reader to take a page; then it ends."""
CONNECTION_GRACE_MS: Final = 5 * 60 * 1000
"""How long calls of an old connection may go on."""
EXPORTER_STOP_MS: Final = 5_000

_TRACED: Final = ("/GetSnapshot", "/StreamSnapshot", "/GetChanges")
"""Methods of which each call gets a span; others are asked by programs that only look, all the time."""

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
            async with self._watch(context, method, request):
                require_readable(request)
                return await handler.unary_unary(request, context)

        async def stream(request: Any, context: Any) -> None:
            async with self._watch(context, method, request):
                require_readable(request)
                stuck = await self._send(handler.unary_stream(request, context), context, method)
                if stuck is not None:
                    await stuck  # a status can follow only after what is being sent; the rest is let go already
                    raise Overloaded(
                        f"{method.rpartition('/')[2]}: the caller took no message for {self._write_timeout_ms} ms; "
                        "call again, and read while the stream runs",
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
    async def _watch(self, context: Any, method: str, request: Any) -> AsyncIterator[None]:
        started_ms, begun_ms = self._clock.monotonic_ms(), self._clock.now_ms()
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
            code = _code_of(context)
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
            self._trace(context, method, request, code=code.name, begun_ms=begun_ms)

    def _trace(self, context: Any, method: str, request: Any, *, code: str, begun_ms: int) -> None:
        traces = tracing()
        if traces is None or not method.endswith(_TRACED):
            return
        metadata = dict(context.invocation_metadata() or ())
        figures = {
            "rpc.system": "grpc",
            "rpc.method": method.rpartition("/")[2],
            "rpc.grpc.status_code": code,
            "icedb.table": getattr(request, "table", None),
        }
        traces.served(
            method.lstrip("/"),
            (begun_ms, self._clock.now_ms()),
            traceparent=metadata.get(HEADER),
            batch_id=min_commit_of(request),
            attributes=figures,
        )


def min_commit_of(request: Any) -> str:
    """Return the id of the batch that a call waited for; empty: of none."""
    batch_id = str(getattr(request, "min_commit", ""))
    try:
        return batch_id and check_batch_id(batch_id)
    except InvalidRequest:
        return ""


def _code_of(context: Any) -> grpc.StatusCode:
    """Return the code that a handler aborted with; grpc gives it as a number or as the code itself."""
    code = context.code()
    return next((each for each in grpc.StatusCode if code in (each, each.value[0])), grpc.StatusCode.UNKNOWN)


def _to_bytes(message: Any) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()


def make_handlers(*calls: object) -> dict[str, Any]:
    """Return the handlers of all methods of the service, by method. Those that answer bytes serialized them."""
    handlers = {}
    for method in SERVICE.methods:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower()
        function = next(getattr(each, name) for each in calls if hasattr(each, name))
        make = grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
        handlers[method.name] = make(function, GetMessageClass(method.input_type).FromString, _to_bytes)
    return handlers


class SnapshotService(EndpointService[SnapshotSettings, SnapshotMetrics]):
    """A snapshot service in this process. Start it, stop it.

    Health says NOT_SERVING until the store has answered, and while it does not.

    Attributes:
        parts: What its handlers share.
        calls: Answers GetSnapshot.
        port: The port it listens on, once it is started.
    """

    what = "the snapshot service"
    endpoint = "grpc"
    make_metrics = SnapshotMetrics
    mitigation = "they only read, or renew leases that end by themselves"
    waits = False  # a store that does not answer makes it not ready, and nothing else

    def __init__(
        self,
        warehouse: Warehouse,
        *,
        settings: SnapshotSettings,
        clock: Clock,
        metrics: SnapshotMetrics | None = None,
    ) -> None:
        super().__init__(warehouse, settings=settings, clock=clock, metrics=metrics)
        wait_ms = settings.read_wait_ms
        work = BlockingWork(max_jobs=settings.read_threads, wait_ms=wait_ms)
        tables = TableCache(
            warehouse,
            clock=clock,
            max_tables=settings.read_max_tables,
            wait_ms=wait_ms,
            on_refresh=self.metrics.observe_refresh,
        )
        names = TableNames(warehouse, work=work, clock=clock, max_age_ms=settings.snapshot_max_staleness_ms)
        reads = TableReads(tables, work=work)
        setting, size = "ICEDB_SNAPSHOT_MAX_PENDING_CALLS", settings.snapshot_max_pending_calls
        access = GrpcAccess(self._guard, Places("calls", setting=setting, size=size))
        self.parts = ServiceParts(warehouse, settings, self.metrics, clock, reads, names, access)
        self.calls = SnapshotCalls(self.parts)
        self._watches = WatchCalls(self.parts, CommitListener(settings.redis_url, timeout_ms=settings.redis_timeout_ms))
        self._exporter = LagExporter(self.parts)
        self._server: GrpcServer | None = None

    @property
    def host(self) -> str:
        """The address that it is served at, without a port."""
        return self._settings.snapshot_address.rpartition(":")[0]

    def addresses(self) -> dict[str, str]:
        """Return where it is served."""
        return {"address": f"{self.host}:{self.port}"}

    def start(self) -> None:
        """Serve, and begin to export. Raises as the base class does."""
        super().start()
        self._exporter.start()

    def stop(self) -> None:
        """Stop in order: no new calls, running calls end, the exporter ends. May be called again."""
        super().stop()
        self._exporter.stop(timeout_ms=EXPORTER_STOP_MS)

    def load_more(self) -> None:
        """Load the SQL parser, for which the first ``where`` would hold all callers up."""
        for module in ("conditions", "file_pruning"):
            import_module(f"icedb_log.table.{module}")

    async def _show_ready(self, is_ready: bool) -> None:  # noqa: FBT001 - a callback with one meaning
        if self._server is not None:
            await self._server.show_health(is_serving=is_ready)

    async def _open(self, stack: AsyncExitStack) -> None:
        parts, settings = self.parts, self._settings
        stack.callback(parts.reads.work.close)
        stack.callback(parts.reads.tables.close)
        interceptor = ErrorInterceptor(self.metrics, clock=self._clock, write_timeout_ms=WRITE_TIMEOUT_MS)
        self._server = await GrpcServer.start(
            SERVICE.full_name,
            make_handlers(self.calls, TableCalls(parts, self._exporter.documents), self._watches),
            GrpcServerOptions(
                address=settings.snapshot_address,
                remedy="set ICEDB_SNAPSHOT_ADDRESS to a free one, e.g. 127.0.0.1:50052",
                max_calls=settings.snapshot_max_pending_calls,
                credentials=server_credentials(settings, clock=self._clock),
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
        stack.push_async_callback(self._end_calls, self._server)

    async def _end_calls(self, server: GrpcServer) -> None:
        await server.drain()
        self._watches.end()
        await server.stop(grace_ms=self._settings.drain_ms)
