"""The gRPC door: ``icedb.v1.IngestService`` as ``proto/icedb/v1/ingest.proto`` promises it.

A stream is read only while it has less than its share of batches in flight: not reading is what makes HTTP/2 stop
its sender. Answers keep the order of the requests.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
from icedb_log.clock import new_batch_id, parse_uuid7_ms
from icedb_log.errors import IceDBError, InvalidRequest, Unavailable
from icedb_proto import ingest_pb2
from icedb_service.access.access_file import ANYBODY, Identity, Verb
from icedb_service.access.credentials import GrpcAccess
from icedb_service.grpc_server import call_status, require_readable
from icedb_service.logs import get_logger

from icedb_ingest.frontend.counter import Counter
from icedb_ingest.frontend.desk import Offer
from icedb_ingest.frontend.formats import Compression, Container, join_format

CONTAINERS: Final[dict[int, Container]] = {
    ingest_pb2.FORMAT_NDJSON: "ndjson",
    ingest_pb2.FORMAT_JSON: "json",
    ingest_pb2.FORMAT_CSV: "csv",
    ingest_pb2.FORMAT_PARQUET: "parquet",
    ingest_pb2.FORMAT_ARROW: "arrow",
}
COMPRESSIONS: Final[dict[int, Compression]] = {
    ingest_pb2.COMPRESSION_NONE: "",
    ingest_pb2.COMPRESSION_GZIP: "gz",
    ingest_pb2.COMPRESSION_ZSTD: "zst",
}


class GrpcDoor:
    """The methods of the service.

    Args:
        counter: Accepts batches.
        access: Says who may send what; each batch of a stream is asked for.
    """

    def __init__(self, counter: Counter, access: GrpcAccess) -> None:
        self._counter = counter
        self._access = access

    async def append(self, request: ingest_pb2.AppendRequest, context: Any) -> ingest_pb2.AppendResponse:
        """Accept one batch."""
        started_ms = self._counter.clock.monotonic_ms()
        try:
            answer = await self.accept(request, self._access.recognise(context))
        except Exception as error:  # noqa: BLE001 - the last stop before the wire
            await self._refuse(context, error, method="Append", started_ms=started_ms)
        self._log("Append", "OK", started_ms, table=answer.table, batch=answer.batch_id)
        return answer

    async def append_stream(
        self, requests: AsyncIterator[ingest_pb2.AppendRequest], context: Any
    ) -> AsyncIterator[ingest_pb2.AppendResponse]:
        """Accept a stream of batches; see the protocol."""
        started_ms = self._counter.clock.monotonic_ms()
        accepted_count = 0
        self._counter.metrics.streams.inc()
        flow = _StreamFlow(self, requests, self._counter)
        try:
            flow.sender = self._access.recognise(context)
            async for answer in flow.answers():
                accepted_count += 1
                yield answer
        except Exception as error:  # noqa: BLE001 - the last stop before the wire
            await self._refuse(context, error, method="AppendStream", started_ms=started_ms)
        finally:
            self._counter.metrics.streams.dec()
            flow.close()
        self._log("AppendStream", "OK", started_ms, batches=accepted_count)

    async def accept(self, request: ingest_pb2.AppendRequest, sender: Identity) -> ingest_pb2.AppendResponse:
        """Accept one batch of a call or a stream."""
        counter = self._counter
        with counter.metrics.offered("grpc"):
            require_readable(request)
            self._access.guard.require(sender, Verb.APPEND, request.table)
            started_ms = counter.clock.monotonic_ms()
            offer = _read_request(request, counter)
            async with counter.memory.hold(len(offer.body)):
                accepted = await counter.accept(offer)
            counter.metrics.observe_ack(
                "grpc", started_ms=started_ms, size_bytes=accepted.size_bytes, clock=counter.clock
            )
        return ingest_pb2.AppendResponse(
            batch_id=accepted.batch_id, table=accepted.table, staged_bytes=accepted.size_bytes
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
        which = self._counter.settings.frontend_access_log
        if which == "none" or (which == "errors" and code == "OK"):
            return
        duration_ms = self._counter.clock.monotonic_ms() - started_ms
        get_logger().info("grpc_call", method=method, code=code, duration_ms=duration_ms, **fields)


class _StreamFlow:
    """One stream: reads ahead of the store by a bounded number of batches, answers in order."""

    def __init__(self, door: GrpcDoor, requests: AsyncIterator[ingest_pb2.AppendRequest], counter: Counter) -> None:
        self.sender = ANYBODY
        self._door = door
        self._requests = requests
        self._counter = counter
        self._places = asyncio.Semaphore(counter.settings.frontend_stream_in_flight)
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
        if self._counter.is_draining.is_set():
            raise Unavailable(
                "this front end is stopping; send what was not answered again, with the same ids, to another replica"
            )

    def close(self) -> None:
        """Stop reading. Batches that are being staged may become durable all the same."""
        for task in self._tasks:
            task.cancel()

    async def _read(self) -> None:
        draining = self._start(self._counter.is_draining.wait())
        try:
            while not self._counter.is_draining.is_set():
                await self._places.acquire()
                request = await self._next(draining)
                if request is None:
                    return
                self._running.put_nowait(self._start(self._door.accept(request, self.sender)))
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
            task.exception()  # taken; whoever waits for it has it, too


async def _read_one(requests: AsyncIterator[ingest_pb2.AppendRequest]) -> ingest_pb2.AppendRequest | None:
    try:
        return await anext(requests)
    except StopAsyncIteration:
        return None


def _read_request(request: ingest_pb2.AppendRequest, counter: Counter) -> Offer:
    container = CONTAINERS.get(request.format)
    if container is None:
        raise InvalidRequest(
            f"format {request.format} is not known; say FORMAT_NDJSON, _JSON, _CSV, _PARQUET or _ARROW"
        )
    if request.compression not in COMPRESSIONS:
        raise InvalidRequest(f"compression {request.compression} is not known; say COMPRESSION_NONE, _GZIP or _ZSTD")
    body: bytes = request.data
    if len(body) > counter.settings.max_batch_bytes:
        raise InvalidRequest(f"data has {len(body)} bytes, at most {counter.settings.max_batch_bytes}: cut the batch")
    batch_id: str = request.batch_id if request.HasField("batch_id") else new_batch_id(counter.clock)
    parse_uuid7_ms(batch_id)
    return Offer(request.table, body, join_format(container, COMPRESSIONS[request.compression]), batch_id)
