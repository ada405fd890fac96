"""Redis clients that answer soon or fail, and a lock on one role of one table, held on several of them (Redlock).

Clients have short time-outs and one immediate retry, for a pooled connection that the server closed meanwhile. Anything
longer would make a dead majority of lock masters block a worker for seconds.

The lock saves work, the fence saves data (rules F1 to F3): two holders at once cost a wasted run and nothing else.
What is added to the algorithm: renewal while the work runs, and :meth:`TableLock.check_alive`, which a run calls before
it commits. A majority of masters must answer. When it does not, a run is *not* started under the fence alone: every
worker would start the same run at the same moment, and of N such runs the fence throws N-1 away. So the run is left to
the next sweep (:class:`~icedb_log.errors.Unavailable`); staged batches and the log wait.

WARN: a master that restarts empty forgets the lock, and renewal does not give it back there. When a majority has
restarted one after another, the lock is lost although every master answers; ``check_alive`` then says so.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Self

from icedb_log.clock import Clock
from icedb_log.errors import Fenced, Unavailable
from icedb_log.hosts import redact_url
from pottery import ExtendUnlockedLock, QuorumIsImpossible, Redlock, ReleaseUnlockedLock
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from icedb_service.logs import get_logger
from icedb_service.settings import ServiceSettings


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


def ask_redis(settings: ServiceSettings) -> None:
    """Return if Redis answers. Raises Unavailable."""
    client = open_redis(settings.redis_url, timeout_ms=settings.redis_timeout_ms)
    try:
        ping_redis(client, settings.redis_url)
    finally:
        client.close()


RENEWALS_PER_TTL: Final = 3
DRIFT_SHARE: Final = 0.01
"""Share of the time to live that clocks of different hosts may drift apart (as the algorithm's authors have it)."""
_UNLIMITED: Final = 2**62


class LockBusy(Unavailable):
    """Another worker holds the lock. What the caller does: skip the run; the other one is at it."""


class LockLost(Fenced):
    """The lock could not be kept. What the caller does: stop and drop the job, as for a lost fence."""


class TableLock:
    """Holds a lock while a ``with`` block runs. Not reusable, not reentrant.

    Args:
        masters: Clients of independent Redis servers, with short time-outs (:mod:`icedb_service.redis_clients`).
        name: What is locked, ``<component>:<table>``.
        ttl_ms: How long the lock outlives its holder.
        clock: Measures when the lock ran out.
        count: Told what becomes of it: ``acquired``, ``busy`` or ``unavailable``, and ``lost`` after the first.

    Raises:
        LockBusy: On entry: somebody else holds it.
        Unavailable: On entry: fewer than a majority of the masters answered.
    """

    def __init__(
        self,
        masters: Sequence[Redis],
        name: str,
        *,
        ttl_ms: int,
        clock: Clock,
        count: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._name = name
        self._ttl_ms = ttl_ms
        self._clock = clock
        self._count = count
        self._master_count = len(masters)
        self._lock = Redlock(
            key=f"icedb:{name}",
            masters=frozenset(masters),
            raise_on_redis_errors=True,
            auto_release_time=ttl_ms / 1000,
            num_extensions=_UNLIMITED,
        )
        self._valid_until_ms = 0
        self._refused = False
        self.is_lost = False
        """Whether it was found lost when it was renewed or given back."""
        self._ending = threading.Event()
        self._renewal = threading.Thread(target=self._renew_until_end, name=f"renew {name}", daemon=True)

    def __enter__(self) -> Self:
        asked_ms = self._clock.monotonic_ms()
        try:
            acquired = self._lock.acquire(blocking=False)
        except (QuorumIsImpossible, RedisError) as error:
            self._count("unavailable")
            raise Unavailable(
                f"lock {self._name}: fewer than {self._master_count // 2 + 1} of {self._master_count} Redis masters "
                "answer; the next sweep tries again. Check ICEDB_REDLOCK_URLS and the servers"
            ) from error
        if not acquired:
            self._count("busy")
            raise LockBusy(f"lock {self._name} is held by another worker; it does the work")
        self._count("acquired")
        self._extend_validity(asked_ms)
        self._renewal.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ending.set()
        self._renewal.join()
        try:
            self._lock.release()
        except (QuorumIsImpossible, ReleaseUnlockedLock, RedisError) as failure:
            self.is_lost = self._refused or isinstance(failure, ReleaseUnlockedLock)
            # Harmless: what is left of it runs out by itself.
            get_logger().info("lock_not_released", lock=self._name, error=type(failure).__name__, ttl_ms=self._ttl_ms)
        if isinstance(error, LockLost) or self.is_lost:
            self._count("lost")

    def check_alive(self) -> None:
        """Raise LockLost if the lock may have passed to somebody else. Costs no request."""
        if self._refused:
            raise LockLost(
                f"lock {self._name} is lost: most Redis masters do not know it any more (restarted empty, or it ran "
                "out); this run is dropped and done again"
            )
        if self._clock.monotonic_ms() >= self._valid_until_ms:
            raise LockLost(
                f"lock {self._name} ran out: it could not be renewed for {self._ttl_ms} ms; this run is dropped and "
                "done again"
            )

    def _renew_until_end(self) -> None:
        while not self._ending.wait(self._ttl_ms / RENEWALS_PER_TTL / 1000):
            asked_ms = self._clock.monotonic_ms()
            try:
                self._lock.extend()
            except ExtendUnlockedLock:
                self._refused = True
                get_logger().warning("lock_lost", lock=self._name, mitigation="the run stops before its commit")
                return
            except (QuorumIsImpossible, RedisError) as error:
                get_logger().warning(
                    "lock_renewal_failed", lock=self._name, error=type(error).__name__, mitigation="tried again"
                )
                continue
            self._extend_validity(asked_ms)

    def _extend_validity(self, asked_ms: int) -> None:
        """Count from before the request was sent: the masters' time to live began later than that."""
        self._valid_until_ms = asked_ms + int(self._ttl_ms * (1 - DRIFT_SHARE))
