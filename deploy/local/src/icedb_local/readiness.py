"""Real conditions by which a stack knows that its parts answer: asked once, within about two seconds; none raises."""

import http
import http.client

from icedb_local.ports import LOOPBACK

ASK_TIMEOUT_S = 2.0


def answers_ping(redis_url: str) -> bool:
    """Whether a Redis server answers PING."""
    import redis  # noqa: PLC0415 - it takes half a second to load, and meanwhile the servers start

    try:
        with redis.Redis.from_url(redis_url, socket_timeout=ASK_TIMEOUT_S, retry=None) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def answers_http(port: int) -> bool:
    """Whether an HTTP server on a loopback port answers at all."""
    return _ask(port, "/") > 0


def answers_ok(port: int, path: str) -> bool:
    """Whether an HTTP server on a loopback port answers 200."""
    return _ask(port, path) == http.HTTPStatus.OK


def _ask(port: int, path: str) -> int:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=ASK_TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def is_serving(address: str) -> bool:
    """Whether a gRPC server's health service says SERVING."""
    import grpc  # noqa: PLC0415 - as above
    from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: PLC0415

    with grpc.insecure_channel(address) as channel:
        try:
            request = health_pb2.HealthCheckRequest(service="")
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=ASK_TIMEOUT_S)
        except grpc.RpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
