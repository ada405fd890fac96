"""Wake-ups: a message to a worker that says "look at this table", never what to do with it.

The truth of what is to be done is in the store (I4). So a wake-up may be lost, doubled or late: the periodic sweep
makes good what is lost, and duplicates collapse here. The contract, for any sender:

* A wake-up owns the Redis key ``icedb:wake:<task>:<table>`` (``icedb:wake:<task>:`` for a task without a
  table), set with NX and PX = the message's expiry *before* the message is sent. A second sender finds the key
  and sends nothing.
* The worker deletes the key when the task *begins*, before it reads the store. Whoever stages a batch after that
  sends a new message; whoever staged before that is seen by the run.
* A command that was not answered may be carried out later, by a server that hung: whoever sent it takes no key for
  somebody else's afterwards. Else a whole expiry would pass before the next wake-up.
* A worker that starts deletes the keys of its queue: its predecessor may have died with messages in its hands.
* A message that was sent without the key is taken, too; it only may be a duplicate.
* A message expires later than its key, by as much as the clocks of two hosts may be apart: its end is a time of the
  sender's clock, and Celery compares it with the worker's. A worker that is a minute ahead would drop every wake-up.
"""

from collections.abc import Sequence
from typing import Final

import orjson
from celery import Celery
from icedb_log.errors import Unavailable
from icedb_log.hosts import redact_url
from icedb_log.names import TASKS, WAKE_KEY_PREFIX, Queue, progress_key, wake_key
from icedb_log.store.store_clock import MAX_HOST_GAP_MS
from kombu.exceptions import KombuError
from redis import Redis
from redis.exceptions import RedisError

from icedb_service.logs import get_logger
from icedb_service.metrics import WakeCounter
from icedb_service.redis_clients import naming_redis
from icedb_service.settings import ServiceSettings
from icedb_service.tracing import HEADER, current_run, tracing

TRACE_PREFIX: Final = "icedb:trace:"
"""Of the keys that hold the context of a batch whose sender gave a trace of his own, if traces are on."""
TRACE_KEPT_MS: Final = 86_400_000
SERVED_PREFIX: Final = "icedb:served:"
SERVED_MS: Final = 60_000
"""How long a queue counts as served after its worker has last said so."""
SERVED_EVERY_S: Final = 10.0
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
        self._unsure: set[str] = set()
        """Keys that may be set because Redis carried a command out, or did not, after we had given it up."""

    def wake(self, task: str, table: str | None = None) -> bool:
        """Send a wake-up unless the same one is on its way. Idempotent.

        Returns:
            True if a message was sent, False if one is already waiting.

        Raises:
            Unavailable: Redis does not answer. The caller may ignore it: the sweep finds the work.
        """
        key = wake_key(task, table)
        run = current_run()
        try:
            self._keep_traces()
            # One message too many at worst, where the key is somebody else's.
            is_ours = key in self._unsure
            if not self._redis.set(key, "1", nx=not is_ours, px=self._settings.message_expiry_ms):
                self._count("collapsed")
                return False
            self._app.send_task(
                task,
                args=[] if table is None else [table],
                queue=TASKS[task],
                expires=(self._settings.message_expiry_ms + MAX_HOST_GAP_MS) / 1000,
                ignore_result=True,
                retry=False,
                headers=None if run is None else {HEADER: run.ref.traceparent},
                # Else Celery writes the sender's own limits into the message, if it serves that queue itself, and
                # whoever receives it refuses what says how long it may take.
                time_limit=None,
                soft_time_limit=None,
            )
        except (RedisError, KombuError, OSError) as error:
            self._count("failed")
            self._forget(key)
            raise Unavailable(
                f"cannot wake {task} for table {table or '(all)'}: Redis at {redact_url(self._settings.redis_url)} "
                f"does not answer ({type(error).__name__}); the sweep does it when Redis is back"
            ) from error
        self._unsure.discard(key)
        self._count("sent")
        return True

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
        keys = {wake_key(task, table), *self._unsure}
        try:
            self._redis.delete(*keys)
            self._unsure -= keys
        except (RedisError, OSError) as error:
            self._unsure |= keys
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

    def say_served(self, queue: Queue) -> None:
        """Say that a worker serves a queue whose work others do if it has none. Best effort."""
        try:
            self._redis.set(f"{SERVED_PREFIX}{queue}", "1", px=SERVED_MS)
        except (RedisError, OSError) as error:
            get_logger().debug("served_not_said", queue=queue, error=type(error).__name__)

    def is_served(self, queue: Queue) -> bool:
        """Whether a worker has lately said that it serves a queue. True if Redis does not answer: ask again later."""
        try:
            return bool(self._redis.exists(f"{SERVED_PREFIX}{queue}"))
        except (RedisError, OSError):
            return True

    def read_traces(self, batch_ids: Sequence[str]) -> dict[str, str]:
        """Return what front ends have kept of the traces of some batches, by id. Best effort."""
        try:
            found = self._redis.mget([f"{TRACE_PREFIX}{each}" for each in batch_ids]) if batch_ids else []
        except (RedisError, OSError):
            return {}
        texts = (each.decode(errors="replace") if isinstance(each, bytes) else each for each in found)
        return {name: text for name, text in zip(batch_ids, texts, strict=True) if text}

    def _keep_traces(self) -> None:
        """Keep what is to be known of accepted batches, before anybody is woken for them. Best effort."""
        traces = tracing()
        pending = {} if traces is None else traces.take_pending()
        if not pending:
            return
        try:
            with self._redis.pipeline(transaction=False) as pipeline:
                for batch_id, text in pending.items():
                    pipeline.set(f"{TRACE_PREFIX}{batch_id}", text, px=TRACE_KEPT_MS)
                pipeline.execute()
        except (RedisError, OSError) as error:
            get_logger().debug("traces_not_kept", count=len(pending), error=type(error).__name__)

    def _forget(self, key: str) -> None:
        try:
            self._redis.delete(key)
        except (RedisError, OSError):
            self._unsure.add(key)

    def _count(self, outcome: str) -> None:
        if self._counter is not None:
            self._counter.labels(outcome).inc()
