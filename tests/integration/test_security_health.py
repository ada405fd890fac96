"""Strangers who watch the health of a gRPC server do not fill it."""

import asyncio
import contextlib

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from icedb_service.grpc_server import BoundedHealth

MAX_CALLS = 8


async def watch_and_check():
    server = grpc.aio.server(maximum_concurrent_rpcs=MAX_CALLS)
    health_pb2_grpc.add_HealthServicer_to_server(BoundedHealth(max_calls=MAX_CALLS), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        kept = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(2)]
        first = [(await call.read()).status for call in kept]
        refused = []
        for name in ("", "", "", "x" * 10_000):
            call = stub.Watch(health_pb2.HealthCheckRequest(service=name))
            with contextlib.suppress(grpc.aio.AioRpcError):
                await call.read()
            refused.append(await call.code())
        answers = await asyncio.gather(*(stub.Check(health_pb2.HealthCheckRequest()) for _ in range(4)))
        for call in kept:
            call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await kept[0].code()
        while True:  # a place that was left is free again, as soon as the server has noticed
            call = stub.Watch(health_pb2.HealthCheckRequest())
            try:
                again = (await call.read()).status
                call.cancel()
                break
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0)
    await server.stop(None)
    return first, refused, [answer.status for answer in answers], again


def test_watches_of_health_have_a_bound_and_checks_go_on():
    first, refused, answers, again = asyncio.run(watch_and_check())
    serving, code = health_pb2.HealthCheckResponse.SERVING, grpc.StatusCode
    assert first == [serving] * 2
    assert refused == [code.RESOURCE_EXHAUSTED] * 3 + [code.INVALID_ARGUMENT]
    assert answers == [serving] * 4
    assert again == serving
