"""Before a service starts: are the servers that it needs there, and does the store keep its promises?

A server that does not answer is waited for, with one log line for each try that names its address. A store that
ignores conditional writes is refused at once.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from icedb_log.clock import Clock
from icedb_log.errors import Unavailable

from icedb_service.clocks import require_near_clock
from icedb_service.logs import get_logger
from icedb_service.redis_clients import open_redis, ping_redis
from icedb_service.settings import ServiceSettings

FIRST_PAUSE_MS: Final = 500
MAX_PAUSE_MS: Final = 15_000


def wait_until_available(what: str, check: Callable[[], object], *, clock: Clock) -> None:
    """Call ``check`` until it does not raise Unavailable, with growing pauses. Other errors pass.

    Args:
        what: Named in the log, e.g. ``redis``.
        check: Returns when the server answers.
        clock: For the pauses.
    """
    pause_ms = FIRST_PAUSE_MS
    while True:
        try:
            check()
        except Unavailable as error:
            get_logger().warning("server_unavailable", server=what, error=str(error), retry_in_ms=pause_ms)
        else:
            return
        clock.sleep_ms(pause_ms)
        pause_ms = min(pause_ms * 2, MAX_PAUSE_MS)


def wait_for_servers(settings: ServiceSettings, *, clock: Clock, needs_redis: bool = True) -> None:
    """Wait until Redis and the store answer, probe the store, and wait until this host's clock is near the store's.

    Raises:
        InvalidRequest: The store's address cannot be right.
        UnsupportedFormat: The store ignores conditional writes; it cannot be used.
    """
    if needs_redis:
        wait_until_available("redis", lambda: _ping(settings), clock=clock)
    wait_until_available("store", lambda: _probe(settings), clock=clock)
    wait_for_clock(settings, clock=clock)


def wait_for_clock(settings: ServiceSettings, *, clock: Clock) -> None:
    """Wait until this host's clock is near enough to the store's (``ICEDB_CLOCK_SKEW_LIMIT_MS``)."""
    warehouse = settings.store_settings.open()
    check = partial(require_near_clock, warehouse, clock=clock, limit_ms=settings.clock_skew_limit_ms)
    wait_until_available("clock", check, clock=clock)


def _probe(settings: ServiceSettings) -> None:
    settings.store_settings.open().store.probe()


def _ping(settings: ServiceSettings) -> None:
    client = open_redis(settings.redis_url, timeout_ms=settings.redis_timeout_ms)
    try:
        ping_redis(client, settings.redis_url)
    finally:
        client.close()
