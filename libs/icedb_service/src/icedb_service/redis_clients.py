"""Redis clients that answer soon or fail: short time-outs, one immediate retry, no back-off.

The retry is for a pooled connection that the server closed meanwhile. Anything longer would make a dead majority
of lock masters block a worker for seconds.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from icedb_log.errors import Unavailable
from icedb_log.hosts import redact_url
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry


class _CountingRedis(Redis):
    """A client that tells of each command that was not answered."""

    on_failure: Callable[[], None]

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command. Raises what the base class does."""
        try:
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        except (RedisConnectionError, RedisTimeoutError):
            self.on_failure()
            raise


def _count_nothing() -> None:
    """For clients of which nobody counts anything."""


def open_redis(url: str, *, timeout_ms: int, on_failure: Callable[[], None] = _count_nothing) -> Redis:
    """Return a client; connects on first use. Safe for many threads, not across a fork.

    Args:
        url: ``redis://[user:password@]host:port/db`` or ``rediss://``.
        timeout_ms: Longest wait to connect, and for each answer.
        on_failure: Called for each command that was not answered, from the thread that sent it.
    """
    client = _CountingRedis.from_url(
        url,
        socket_timeout=timeout_ms / 1000,
        socket_connect_timeout=timeout_ms / 1000,
        retry=Retry(NoBackoff(), 1),
    )
    assert isinstance(client, _CountingRedis)  # noqa: S101 - from_url makes one of its own class
    client.on_failure = on_failure
    return client


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
