"""Redis clients that answer soon or fail: short time-outs, one immediate retry, no back-off.

The retry is for a pooled connection that the server closed meanwhile. Anything longer would make a dead majority
of lock masters block a worker for seconds.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from icedb_log.errors import Unavailable
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from icedb_service.settings import redact_url


def open_redis(url: str, *, timeout_ms: int) -> Redis:
    """Return a client; connects on first use. Safe for many threads, not across a fork.

    Args:
        url: ``redis://[user:password@]host:port/db`` or ``rediss://``.
        timeout_ms: Longest wait to connect, and for each answer.
    """
    return Redis.from_url(
        url,
        socket_timeout=timeout_ms / 1000,
        socket_connect_timeout=timeout_ms / 1000,
        retry=Retry(NoBackoff(), 1),
    )


@contextmanager
def naming_redis(url: str) -> Iterator[None]:
    """Turn Redis errors inside into Unavailable with the server's address."""
    try:
        yield
    except (RedisError, OSError) as error:
        raise Unavailable(
            f"Redis at {redact_url(url)} does not answer ({type(error).__name__}: {error}); "
            "start it, or correct ICEDB_REDIS_URL"
        ) from error


def ping_redis(client: Redis, url: str) -> None:
    """Check that Redis answers. Raises Unavailable with its address."""
    with naming_redis(url):
        client.ping()
