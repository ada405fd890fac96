"""The gRPC endpoint: ``icedb.v1.IngestService`` as ``proto/icedb/v1/ingest.proto`` promises it.

A stream is read only while it has less than its share of batches in flight: not reading is what makes HTTP/2 stop
its sender. Answers keep the order of the requests.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

import grpc
from icedb_log.clock import Clock, new_batch_id, parse_uuid7_ms
from icedb_log.errors import IceDBError, InvalidRequest, Unavailable
from icedb_log.formats import DATA_FORMATS, Compression, DataFormat, join_format
from icedb_log.units import KIB
from icedb_proto import ingest_pb2
from icedb_service.access.access_file import ANYBODY, Identity, Verb
from icedb_service.access.credentials import GrpcAccess
from icedb_service.grpc_server import GrpcServer, GrpcServerOptions, call_status, require_readable, tolerant
from icedb_service.logs import get_logger
from icedb_service.tls import server_credentials
from icedb_service.tracing import HEADER

from icedb_ingest.frontend.async_gate import AsyncGate
from icedb_ingest.frontend.settings import FrontendSettings
from icedb_ingest.frontend.staging_gate import Offer

STREAM_IN_FLIGHT: Final = 8
"""Batches of one stream that are staged side by side; then it is not read until the first of them is durable."""
CONTAINERS: Final[dict[int, DataFormat]] = {
    ingest_pb2.Format.Value(f"FORMAT_{name.upper()}"): name for name in DATA_FORMATS
}
COMPRESSIONS: Final[dict[int, Compression]] = {
    ingest_pb2.COMPRESSION_NONE: "",
    ingest_pb2.COMPRESSION_GZIP: "gz",
    ingest_pb2.COMPRESSION_ZSTD: "zst",
}


class GrpcEndpoint:
    """The methods of the service."""

    def __init__(self, gate: AsyncGate, access: GrpcAccess) -> None:
        self._gate = gate
        self._access = access

    async def append(self, request: ingest_pb2.AppendRequest, context: Any) -> ingest_pb2.AppendResponse:
        """Accept one batch."""
        started_ms = self._gate.clock.monotonic_ms()
        try:
            answer = await self.accept(request, self._access.recognise(context), traceparent=_traceparent_of(context))
        except Exception as error:  # noqa: BLE001 - the last stop before the wire
            await self._refuse(context, error, method="Append", started_ms=started_ms)
        self._log("Append", "OK", started_ms, table=answer.table, batch=answer.batch_id)
        return answer

    async def append_stream(
        self, requests: AsyncIterator[ingest_pb2.AppendRequest], context: Any
    ) -> AsyncIterator[ingest_pb2.AppendResponse]:
        """Accept a stream of batches; see the protocol."""
        started_ms = self._gate.clock.monotonic_ms()
        accepted_count = 0
        self._gate.metrics.streams.inc()
        flow = _StreamFlow(self, requests, self._gate)
        try:
            flow.sender, flow.traceparent = self._access.recognise(context), _traceparent_of(context)
            async for answer in flow.answers():
                accepted_count += 1
                yield answer
        except Exception as error:  # noqa: BLE001 - the last stop before the wire
            await self._refuse(context, error, method="AppendStream", started_ms=started_ms)
        finally:
            self._gate.metrics.streams.dec()
            flow.close()
        self._log("AppendStream", "OK", started_ms, batches=accepted_count)

    async def accept(
        self, request: ingest_pb2.AppendRequest, sender: Identity, *, traceparent: str | None = None
    ) -> ingest_pb2.AppendResponse:
        """Accept one batch of a call or a stream."""
        gate = self._gate
        with gate.metrics.offered("grpc"):
            require_readable(request)
            self._access.guard.require(sender, Verb.APPEND, request.table)
            started_ms = gate.clock.monotonic_ms()
            offer = replace(_read_request(request, gate), endpoint="grpc", traceparent=traceparent)
            holder = self._access.guard.holder(sender)
            async with gate.budget.hold(len(offer.body), holder):
                accepted = await gate.accept(offer, holder=holder)
            gate.metrics.observe_ack("grpc", started_ms=started_ms, size_bytes=accepted.size_bytes, clock=gate.clock)
        return ingest_pb2.AppendResponse(
            batch_id=accepted.batch_id,
            table=accepted.table,
            staged_bytes=accepted.size_bytes,
            warning=accepted.warning,
        )

    async def _refuse(self, context: Any, error: Exception, *, method: str, started_ms: int) -> None:
        """End a call with the status of an error; does not return."""
        if not isinstance(error, IceDBError):
            get_logger().exception("grpc_call_failed", method=method)
            await context.abort(grpc.StatusCode.INTERNAL, "the front end failed; its log has the reason")
        status = call_status(error)  # type: ignore[arg-type]  # abort does not return
        self._log(method, status.code.name, started_ms, error=type(error).__name__, reason=str(error))
        await context.abort(status.code, status.details, status.trailing_metadata)

    def _log(self, method: str, code: str, started_ms: int, **fields: Any) -> None:
        which = self._gate.settings.access_log
        if which == "none" or (which == "errors" and code == "OK"):
            return
        duration_ms = self._gate.clock.monotonic_ms() - started_ms
        get_logger().info("grpc_call", method=method, code=code, duration_ms=duration_ms, **fields)


class _StreamFlow:
    """One stream: reads ahead of the store by a bounded number of batches, answers in order."""

    def __init__(
        self, endpoint: GrpcEndpoint, requests: AsyncIterator[ingest_pb2.AppendRequest], gate: AsyncGate
    ) -> None:
        self.sender = ANYBODY
        self.traceparent: str | None = None
        self._endpoint = endpoint
        self._requests = requests
        self._gate = gate
        self._places = asyncio.Semaphore(STREAM_IN_FLIGHT)
        self._running: asyncio.Queue[asyncio.Task[ingest_pb2.AppendResponse] | None] = asyncio.Queue()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def answers(self) -> AsyncIterator[ingest_pb2.AppendResponse]:
        """Yield an answer for each request, in order, until the sender is done, one fails, or the process drains."""
        reading = self._start(self._read())
        while (running := await self._running.get()) is not None:
            answer = await running
            self._places.release()
            yield answer
        await reading
        if self._gate.is_draining.is_set():
            raise Unavailable(
                "this front end is stopping; send what was not answered again, with the same ids, to another replica"
            )

    def close(self) -> None:
        """Stop reading. Batches that are being staged may become durable all the same."""
        for task in self._tasks:
            task.cancel()

    async def _read(self) -> None:
        draining = self._start(self._gate.is_draining.wait())
        try:
            while not self._gate.is_draining.is_set():
                await self._places.acquire()
                request = await self._next(draining)
                if request is None:
                    return
                accepting = self._endpoint.accept(request, self.sender, traceparent=self.traceparent)
                self._running.put_nowait(self._start(accepting))
        finally:
            draining.cancel()
            self._running.put_nowait(None)

    async def _next(self, draining: asyncio.Task[Any]) -> ingest_pb2.AppendRequest | None:
        """Return the next request; ``None`` at the end, and when the process drains."""
        coming = self._start(_read_one(self._requests))
        await asyncio.wait((coming, draining), return_when=asyncio.FIRST_COMPLETED)
        if not coming.done():
            coming.cancel()
            return None
        request: ingest_pb2.AppendRequest | None = coming.result()
        return request

    def _start(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved; a waiting caller has it, too


def _traceparent_of(context: Any) -> str | None:
    return next((str(value) for name, value in context.invocation_metadata() or () if name == HEADER), None)


async def _read_one(requests: AsyncIterator[ingest_pb2.AppendRequest]) -> ingest_pb2.AppendRequest | None:
    try:
        return await anext(requests)
    except StopAsyncIteration:
        return None


def _read_request(request: ingest_pb2.AppendRequest, gate: AsyncGate) -> Offer:
    container = CONTAINERS.get(request.format)
    if container is None:
        raise InvalidRequest(
            f"format {request.format} is not known; say FORMAT_{', _'.join(DATA_FORMATS[:-1]).upper()} or "
            f"_{DATA_FORMATS[-1].upper()}"
        )
    if request.compression not in COMPRESSIONS:
        raise InvalidRequest(f"compression {request.compression} is not known; say COMPRESSION_NONE, _GZIP or _ZSTD")
    body: bytes = request.data
    if len(body) > gate.settings.max_batch_bytes:
        raise InvalidRequest(f"data has {len(body)} bytes, at most {gate.settings.max_batch_bytes}: cut the batch")
    batch_id: str = request.batch_id if request.HasField("batch_id") else new_batch_id(gate.clock)
    parse_uuid7_ms(batch_id)
    return Offer(request.table, body, join_format(container, COMPRESSIONS[request.compression]), batch_id)


SERVICE: Final = ingest_pb2.DESCRIPTOR.services_by_name["IngestService"].full_name
ENVELOPE_BYTES: Final = 64 * KIB
"""Room in a message besides the data."""
CLIENT_PING_INTERVAL_MS: Final = 10_000


async def start_grpc(endpoint: GrpcEndpoint, settings: FrontendSettings, *, clock: Clock) -> GrpcServer:
    """Serve the endpoint. Raises Unavailable: the address cannot be listened on."""
    codec = {
        "request_deserializer": tolerant(ingest_pb2.AppendRequest.FromString),
        "response_serializer": ingest_pb2.AppendResponse.SerializeToString,
    }
    host = f"[{settings.frontend_host}]" if ":" in settings.frontend_host else settings.frontend_host
    handlers = {
        "Append": grpc.unary_unary_rpc_method_handler(endpoint.append, **codec),
        "AppendStream": grpc.stream_stream_rpc_method_handler(endpoint.append_stream, **codec),
    }
    options = GrpcServerOptions(
        address=f"{host}:{settings.frontend_grpc_port}",
        remedy="set ICEDB_FRONTEND_HOST and ICEDB_FRONTEND_GRPC_PORT to an address of this host that is free",
        max_calls=settings.frontend_max_calls,
        credentials=server_credentials(settings, clock=clock),
        more=(
            ("grpc.max_receive_message_length", settings.max_batch_bytes + ENVELOPE_BYTES),
            ("grpc.http2.min_ping_interval_without_data_ms", CLIENT_PING_INTERVAL_MS),
        ),
    )
    return await GrpcServer.start(SERVICE, handlers, options)
