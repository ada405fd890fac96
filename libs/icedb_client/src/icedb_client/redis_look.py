"""What a Redis server says of itself: whether it is fit to wake workers, and to hold locks."""

from collections.abc import Mapping
from dataclasses import dataclass

from icedb_log.errors import Unavailable
from icedb_log.hosts import redact_url
from icedb_log.names import QUEUES
from icedb_log.units import SECOND_MS
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry


@dataclass(frozen=True, slots=True)
class RedisLook:
    """One look at a server.

    Attributes:
        version: Its release.
        run_id: What tells one running server from another.
        is_master: Whether it takes writes.
        may_evict: Whether it throws keys away when its memory is full.
        waiting: How many messages wait in each queue.
    """

    version: str
    run_id: str
    is_master: bool
    may_evict: bool
    waiting: Mapping[str, int]


def look_at_redis(url: str, *, timeout_ms: int) -> RedisLook:
    """Ask a server about itself. Nothing is written.

    Args:
        url: Its address.
        timeout_ms: Longest wait to connect, and for each answer.

    Raises:
        Unavailable: It does not answer, or refuses; the message names its address without a password.
    """
    timeout_s = timeout_ms / SECOND_MS
    try:
        client = Redis.from_url(
            url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 1)
        )
        with client:
            info = client.info()
            waiting: dict[str, int] = {queue: client.llen(queue) for queue in QUEUES}
    except (RedisError, OSError, ValueError) as error:
        raise Unavailable(f"Redis at {redact_url(url)} does not answer ({type(error).__name__}: {error})") from error
    return RedisLook(
        version=str(info.get("redis_version", "of unknown release")),
        run_id=str(info.get("run_id", "")),
        is_master=info.get("role", "master") == "master",
        may_evict=bool(info.get("maxmemory")) and info.get("maxmemory_policy") != "noeviction",
        waiting=waiting,
    )
