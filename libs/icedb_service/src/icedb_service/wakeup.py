"""Wake-ups between services, by the contract of :mod:`icedb_log.wake_keys`.

Also commits, announced to whoever listens (:mod:`icedb_service.announcements`), which workers are here and what each
does, who has looked lately at a table that rests and which tables there are, how far a task is, and when the next
commit of a table is due.
"""

from collections.abc import Collection
from contextlib import suppress
from typing import Final

import orjson
from celery import Celery
from icedb_log.errors import Unavailable
from icedb_log.hosts import redact_url
from icedb_log.names import COMMITS_CHANNEL, WAKE_KEY_PREFIX, WORKERS_KEY, Queue, progress_key, turn_key
from icedb_log.wake_keys import WORKER_KEPT_MS, WakeKeys, WorkerLook, decode_workers
from kombu.exceptions import KombuError
from redis import Redis
from redis.exceptions import RedisError

from icedb_service.logs import get_logger
from icedb_service.metrics import WakeCounter
from icedb_service.redis_clients import naming_redis
from icedb_service.settings import ServiceSettings
from icedb_service.tracing import HEADER, current_run

SERVED_MS: Final = 60_000
"""How long a queue counts as served after its worker has last said so."""
SAID_EVERY_S: Final = 5.0
"""How often a worker says that it is here, and what it does."""
LOOK_PREFIX: Final = "icedb:look:"
"""Of the keys that say that one of several workers has looked lately at a table that rests."""
TABLE_PREFIX: Final = "icedb:table:"
"""Of the keys that say that a worker has lately seen that there is such a table."""
SCAN_COUNT: Final = 500
PROGRESS_KEPT_MS: Final = 60_000
"""How long what a task said of its progress counts, if it says nothing more."""


class Wakeups:
    """Sends wake-ups, and takes them in."""

    def __init__(
        self, app: Celery, redis: Redis, *, settings: ServiceSettings, counter: WakeCounter | None = None
    ) -> None:
        self._app = app
        self._redis = redis
        self._settings = settings
        self._counter = counter
        self._keys = WakeKeys(settings.message_expiry_ms)

    def wake(self, task: str, table: str | None = None) -> bool:
        """Send a wake-up unless the same one is on its way. Idempotent.

        Returns:
            True if a message was sent, False if one is already waiting.

        Raises:
            Unavailable: Redis does not answer. The caller may ignore it: the sweep finds the work.
        """
        run = current_run()
        try:
            is_sent = self._keys.send(
                self._redis,
                self._app.send_task,
                task=task,
                table=table,
                headers=None if run is None else {HEADER: run.traceparent},
            )
        except (RedisError, KombuError, OSError) as error:
            self._count("failed")
            raise Unavailable(
                f"cannot wake {task} for table {table or '(all)'}: Redis at {redact_url(self._settings.redis_url)} "
                f"does not answer ({type(error).__name__}); the sweep does it when Redis is back"
            ) from error
        self._count("sent" if is_sent else "collapsed")
        return is_sent

    def try_wake(self, task: str, table: str | None = None) -> bool:
        """Send a wake-up; log and go on when Redis does not answer. Returns whether one is on its way."""
        try:
            self.wake(task, table)
        except Unavailable as error:
            get_logger().warning(
                "wake_failed", woken_task=task, table=table, error=str(error), mitigation="left to the sweep"
            )
            return False
        return True

    def announce_commit(self, table: str) -> None:
        """Tell whoever watches a table that it has a new commit. Best effort: they look by themselves, too."""
        try:
            self._redis.publish(COMMITS_CHANNEL, table)
        except (RedisError, OSError) as error:
            get_logger().debug("commit_not_announced", table=table, error=type(error).__name__)

    def note_turn(self, table: str, *, next_in_ms: int) -> None:
        """Say when the next commit of a table is due, for the other workers of its queue. Best effort."""
        try:
            self._redis.set(turn_key(table), "1", px=next_in_ms)
        except (RedisError, OSError) as error:
            get_logger().debug("turn_not_said", table=table, error=type(error).__name__)

    def turn_in_ms(self, table: str) -> int:
        """Return how long the next commit of a table has to wait, as any worker said; 0 if Redis does not answer."""
        try:
            return max(0, int(self._redis.pttl(turn_key(table))))
        except (RedisError, OSError):
            return 0

    def note_progress(self, task_id: str, what: str, done: int, total: int) -> bool:
        """Say how far a task is, for who waits for it. Returns whether Redis answered."""
        try:
            self._redis.set(progress_key(task_id), orjson.dumps([what, done, total]), px=PROGRESS_KEPT_MS)
        except (RedisError, OSError):
            return False
        return True

    def release(self, task: str, table: str | None = None) -> None:
        """Let the next wake-up through: called when a task begins, before it reads the store.

        A Redis that does not answer is logged only: the key goes with the next release, or runs out with the message
        that it stood for.
        """
        try:
            self._keys.release(self._redis, task=task, table=table)
        except (RedisError, OSError) as error:
            get_logger().warning(
                "wake_key_not_released",
                woken_task=task,
                table=table,
                error=type(error).__name__,
                mitigation="it goes with the next task that begins, or expires by itself; the sweep wakes then",
            )

    def release_queue(self, queue: Queue) -> int:
        """Let every wake-up of a queue through again; return how many were held back.

        Called when a worker starts. A worker that was killed may have taken a message without beginning it, and
        its key would hold the table's wake-ups back until it runs out. At worst a few are sent twice.

        Raises:
            Unavailable: Redis does not answer.
        """
        with naming_redis(self._settings.redis_url):
            keys = list(self._redis.scan_iter(match=f"{WAKE_KEY_PREFIX}icedb.{queue}.*", count=SCAN_COUNT))
            return int(self._redis.delete(*keys)) if keys else 0

    def say_at_work(self, worker: WorkerLook) -> None:
        """Say that a worker is here, and what it does; forget those that have long said nothing. Best effort."""
        try:
            known = decode_workers(self._redis.hgetall(WORKERS_KEY))
            gone = [each.name for each in known if worker.seen_ms - each.seen_ms > WORKER_KEPT_MS]
            with self._redis.pipeline(transaction=False) as pipeline:
                pipeline.hset(WORKERS_KEY, worker.name, worker.encode())
                if gone:
                    pipeline.hdel(WORKERS_KEY, *gone)
                pipeline.pexpire(WORKERS_KEY, WORKER_KEPT_MS)
                pipeline.execute()
        except (RedisError, OSError) as error:
            get_logger().debug("work_not_said", queue=worker.queue, error=type(error).__name__)

    def claim_look(self, what: str, pause_ms: int) -> bool | None:
        """Claim a look that nobody else gets before the pause is over.

        Returns:
            Whether nobody has claimed it before; ``None`` if Redis does not answer.
        """
        try:
            return bool(self._redis.set(f"{LOOK_PREFIX}{what}", "1", nx=True, px=max(1, pause_ms)))
        except (RedisError, OSError):
            return None

    def find_tables(self, names: Collection[str]) -> Collection[str]:
        """Return those of some names of which a worker has lately seen that they are tables'. Best effort."""
        try:
            found = self._redis.mget([f"{TABLE_PREFIX}{name}" for name in names]) if names else []
        except (RedisError, OSError):
            return ()
        return [name for name, seen in zip(names, found, strict=True) if seen is not None]

    def note_tables(self, names: Collection[str], *, for_ms: int) -> None:
        """Spare other workers the look whether these are tables. Best effort."""
        with suppress(RedisError, OSError), self._redis.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.set(f"{TABLE_PREFIX}{name}", "1", px=for_ms)
            pipeline.execute()

    def forget_table(self, name: str) -> None:
        """Let workers look whether this is a table. Best effort."""
        with suppress(RedisError, OSError):
            self._redis.delete(f"{TABLE_PREFIX}{name}")

    def is_served(self, queue: Queue, *, now_ms: int) -> bool:
        """Whether a worker of a queue has lately said that it is here; true if Redis does not answer."""
        try:
            known = decode_workers(self._redis.hgetall(WORKERS_KEY))
        except (RedisError, OSError):
            return True
        return any(each.queue == queue and now_ms - each.seen_ms < SERVED_MS for each in known)

    def _count(self, outcome: str) -> None:
        if self._counter is not None:
            self._counter.labels(outcome).inc()
