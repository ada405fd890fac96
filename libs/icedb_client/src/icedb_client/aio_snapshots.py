"""Asks a snapshot service, and awaits it. Runs the plans of :mod:`icedb_client.grpc_plans` on the event loop."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

import grpc.aio
from icedb_log.clock import Clock
from icedb_log.errors import IceDBError
from icedb_proto import snapshot_pb2 as pb
from icedb_proto import snapshot_pb2_grpc
from tenacity import AsyncRetrying

from icedb_client.grpc_channel import Endpoint, Endpoints
from icedb_client.grpc_errors import explain_unavailable, is_silent, translate
from icedb_client.grpc_plans import Call, Plans, read_event
from icedb_client.grpc_retry import WatchState, retry_policy
from icedb_client.read_requests import Answerer, AnswerT, Request, SnapshotEvent
from icedb_client.settings import ClientSettings


class AioSnapshots:
    """Asks a snapshot service, or several replicas in turn, from one event loop; close it when done.

    Args:
        settings: Addresses, time-out, TLS, token.
        clock: For deadlines.
        answerer: Who is asked for leases by readers, which block.

    Raises:
        InvalidRequest: A file cannot be read, or a token would go over the network in plain text.
    """

    def __init__(self, settings: ClientSettings, *, clock: Clock, answerer: Answerer) -> None:
        self._settings = settings
        self._clock = clock
        self._answerer = answerer
        self._timeout_s = settings.snapshot_timeout_ms / 1000
        self._policy = AsyncRetrying(**retry_policy(self._timeout_s))
        self._plans = Plans(settings.s3)
        self._endpoints = Endpoints(settings, secure=grpc.aio.secure_channel, insecure=grpc.aio.insecure_channel)
        self._stubs = {
            each.address: snapshot_pb2_grpc.SnapshotServiceStub(each.channel) for each in self._endpoints.all
        }

    async def close(self) -> None:
        """Close the channels. May be called again."""
        for endpoint in self._endpoints.all:
            await endpoint.channel.close()

    async def ask(self, request: Request[AnswerT]) -> AnswerT:
        """Return the answer; see :class:`icedb_client.read_requests.Answerer`."""
        plan = self._plans.plan(request, self._answerer)
        try:
            call = next(plan)
            while True:
                try:
                    answer = await self._call(call)
                except IceDBError as error:
                    call = plan.throw(error)
                else:
                    call = plan.send(answer)
        except StopIteration as done:
            return cast("AnswerT", done.value)

    async def watch(self, tables: Sequence[str]) -> AsyncGenerator[SnapshotEvent, None]:
        """Follow events from one replica to the next; see :class:`icedb_client.read_requests.Answerer`."""
        state = WatchState(self._timeout_s, clock=self._clock)
        message = pb.WatchSnapshotsRequest(tables=tables)
        while True:
            endpoint = self._endpoints.next()
            stream = self._stubs[endpoint.address].WatchSnapshots(message, metadata=self._endpoints.metadata())
            try:
                async for event in stream:
                    if state.is_news(event):
                        yield read_event(event)
            except grpc.RpcError as error:
                pause_s = state.pause_s(error)
                if pause_s is None:
                    raise await self._translate(error, endpoint) from error
                await asyncio.sleep(pause_s)
            finally:
                stream.cancel()

    async def _call(self, call: Call) -> Any:
        last: list[Endpoint] = []
        ends_ms = self._clock.monotonic_ms() + self._settings.snapshot_timeout_ms

        async def once() -> Any:
            last[:] = [self._endpoints.next()]
            method = getattr(self._stubs[last[0].address], call.method)
            timeout_s = max(1, ends_ms - self._clock.monotonic_ms()) / 1000
            answer = method(call.message, timeout=timeout_s, metadata=self._endpoints.metadata())
            return [message async for message in answer] if call.is_stream else await answer

        try:
            return await self._policy(once)
        except grpc.RpcError as error:
            raise await self._translate(error, last[0]) from error

    async def _translate(self, error: Any, endpoint: Endpoint) -> IceDBError:
        reason = ""
        if is_silent(error):
            reason = await asyncio.to_thread(explain_unavailable, endpoint.address, self._settings)
        return translate(error, address=endpoint.address, timeout_s=self._timeout_s, reason=reason)
