"""Asks a snapshot service, and waits for it. Owns the channels; runs the plans of :mod:`icedb_client.grpc_plans`."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import grpc
from icedb_log.clock import Clock
from icedb_log.errors import IceDBError
from icedb_proto import snapshot_pb2 as pb
from icedb_proto import snapshot_pb2_grpc
from tenacity import Retrying

from icedb_client.grpc_channel import Endpoint, Endpoints
from icedb_client.grpc_errors import explain_unavailable, is_silent, translate
from icedb_client.grpc_plans import Call, Plans, read_event
from icedb_client.grpc_retry import WatchState, retry_policy
from icedb_client.read_requests import AnswerT, Request, SnapshotEvent
from icedb_client.settings import ClientSettings


class GrpcSnapshots:
    """Asks a snapshot service, or several replicas of one in turn. Thread-safe; close it when done.

    Args:
        settings: Addresses, time-out, TLS, token.
        clock: For deadlines and pauses.

    Raises:
        InvalidRequest: A file cannot be read, or a token would go over the network in plain text.
    """

    def __init__(self, settings: ClientSettings, *, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._timeout_s = settings.snapshot_timeout_ms / 1000
        self._policy = Retrying(**retry_policy(self._timeout_s), sleep=lambda s: clock.sleep_ms(round(s * 1000)))
        self._plans = Plans(settings.s3)
        self._endpoints = Endpoints(settings, secure=grpc.secure_channel, insecure=grpc.insecure_channel)
        self._stubs = {
            each.address: snapshot_pb2_grpc.SnapshotServiceStub(each.channel) for each in self._endpoints.all
        }

    def close(self) -> None:
        """Close the channels. May be called again."""
        for endpoint in self._endpoints.all:
            endpoint.channel.close()

    def ask(self, request: Request[AnswerT]) -> AnswerT:
        """Return the answer; see :class:`icedb_client.read_requests.Answerer`."""
        plan = self._plans.plan(request, self)
        try:
            call = next(plan)
            while True:
                try:
                    answer = self._call(call)
                except IceDBError as error:
                    call = plan.throw(error)
                else:
                    call = plan.send(answer)
        except StopIteration as done:
            return cast("AnswerT", done.value)

    def watch(self, tables: Sequence[str]) -> Iterator[SnapshotEvent]:
        """Follow events from one replica to the next; see :class:`icedb_client.read_requests.Answerer`."""
        state = WatchState(self._timeout_s, clock=self._clock)
        message = pb.WatchSnapshotsRequest(tables=tables)
        while True:
            endpoint = self._endpoints.next()
            stream = self._stubs[endpoint.address].WatchSnapshots(message, metadata=self._endpoints.metadata())
            try:
                for event in stream:
                    if state.is_news(event):
                        yield read_event(event)
            except grpc.RpcError as error:
                pause_s = state.pause_s(error)
                if pause_s is None:
                    raise self._translate(error, endpoint) from error
                self._clock.sleep_ms(round(pause_s * 1000))
            finally:
                stream.cancel()

    def _call(self, call: Call) -> Any:
        last: list[Endpoint] = []
        ends_ms = self._clock.monotonic_ms() + self._settings.snapshot_timeout_ms

        def once() -> Any:
            last[:] = [self._endpoints.next()]
            method = getattr(self._stubs[last[0].address], call.method)
            timeout_s = max(1, ends_ms - self._clock.monotonic_ms()) / 1000
            answer = method(call.message, timeout=timeout_s, metadata=self._endpoints.metadata())
            return list(answer) if call.is_stream else answer

        try:
            return self._policy(once)
        except grpc.RpcError as error:
            raise self._translate(error, last[0]) from error

    def _translate(self, error: Any, endpoint: Endpoint) -> IceDBError:
        reason = explain_unavailable(endpoint.address, self._settings) if is_silent(error) else ""
        return translate(error, address=endpoint.address, timeout_s=self._timeout_s, reason=reason)
