"""Wake-ups: a message to a worker that says "look at this table", never what to do with it.

The truth of what is to be done is in the store (I4). So a wake-up may be lost, doubled or late: the periodic sweep
makes good what is lost, and duplicates collapse here. The contract, for any sender:

* A wake-up owns the Redis key ``icedb:wake:<task>:<table>`` (``icedb:wake:<task>:`` for a task without a
  table), set with NX and PX = the message's expiry *before* the message is sent. A second sender finds the key
  and sends nothing: a thousand batches do not become a thousand messages.
* The worker deletes the key when the task *begins*, before it reads the store. Whoever stages a batch after that
  sends a new message; whoever staged before that is seen by the run.
* A command that was not answered may be carried out later, by a server that hung: whoever sent it takes no key for
  somebody else's afterwards. Else a whole expiry would pass before the next wake-up.
* A worker that starts deletes the keys of its queue: its predecessor may have died with messages in its hands.
* A message that was sent without the key is taken, too; it only may be a duplicate.
* A message expires later than its key, by as much as the clocks of two hosts may be apart: its end is a time of the
  sender's clock, and Celery compares it with the worker's. A worker that is a minute ahead would drop every wake-up.

A commit is announced in the same spirit, to all who listen and not to one worker: the table's name, published in the
channel ``icedb:commits`` once the commit has landed. It may be lost, doubled, late or false. Who hears it looks at the
store, and looks now and then without it.

Also what a worker says of itself, for people who look, and for the worker of ``ingest``: it leaves large batches to the
worker of ``ingest-large`` while one is here.

Knows neither Redis' client nor Celery: senders load them only where somebody listens.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from icedb_log.names import TASKS, wake_key
from icedb_log.store.store_clock import MAX_HOST_GAP_MS
from icedb_log.units import HOUR_MS, SECOND_MS

WORKER_KEPT_MS: Final = HOUR_MS
"""What a worker that says nothing more has said is shown for so long."""


@dataclass(frozen=True, slots=True)
class WorkerLook:
    """A worker, as it said last.

    Attributes:
        queue: The queue that it serves.
        host: Its host.
        pid: Its process there.
        version: Its release.
        seen_ms: When it said so, by its host's clock.
        doing: The tasks that it runs, each with its table; empty for a task without one.
    """

    queue: str
    host: str
    pid: int
    version: str
    seen_ms: int
    doing: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """What tells it from all others."""
        return f"{self.queue}-{self.pid}@{self.host}"

    def encode(self) -> bytes:
        """Return what stands in Redis."""
        return msgspec.json.encode(self)


def decode_workers(stored: Mapping[Any, bytes | str]) -> tuple[WorkerLook, ...]:
    """Return the workers of the hash, by queue and name; what cannot be read is left out."""
    found = []
    for body in stored.values():
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            found.append(msgspec.json.decode(body, type=WorkerLook))
    return tuple(sorted(found, key=lambda each: (each.queue, each.name)))


class WakeKeys:
    """Sends wake-ups, each while no other of its kind waits.

    Args:
        expiry_ms: How long one waits at most.
    """

    def __init__(self, expiry_ms: int) -> None:
        self._expiry_ms = expiry_ms
        self._unsure: set[str] = set()
        """Keys that may be set because Redis carried a command out after we had given it up."""

    @property
    def message_expiry_s(self) -> float:
        """How long a message may wait, by this host's clock."""
        return (self._expiry_ms + MAX_HOST_GAP_MS) / SECOND_MS

    def send(
        self,
        redis: Any,
        send_task: Callable[..., object],
        *,
        task: str,
        table: str | None,
        headers: dict[str, str] | None = None,
    ) -> bool:
        """Send a wake-up unless the same one is on its way; return whether it was sent. Idempotent.

        Raises whatever the client of Redis or ``send_task`` raises; the next one is sent, whoever has the key.
        """
        key = wake_key(task, table)
        is_set = False
        try:
            # One message too many at worst, where the key is somebody else's.
            is_set = bool(redis.set(key, "1", nx=key not in self._unsure, px=self._expiry_ms))
            if is_set:
                send_task(
                    task,
                    args=[] if table is None else [table],
                    queue=TASKS[task],
                    expires=self.message_expiry_s,
                    ignore_result=True,
                    retry=False,
                    headers=headers,
                    # Else Celery writes the sender's own limits into the message, if it serves that queue itself, and
                    # whoever receives it refuses what says how long it may take.
                    time_limit=None,
                    soft_time_limit=None,
                )
        except Exception:
            self._unsure.add(key)
            if is_set:
                with suppress(Exception):
                    redis.delete(key)
            raise
        self._unsure.discard(key)
        return is_set

    def release(self, redis: Any, *, task: str, table: str | None) -> None:
        """Let the next one through, for a task that begins. Raises what the client raises; the next release does it."""
        self._unsure.add(wake_key(task, table))
        keys = tuple(self._unsure)
        redis.delete(*keys)
        self._unsure.difference_update(keys)
