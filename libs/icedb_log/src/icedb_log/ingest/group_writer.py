"""Collects the batches of many senders by table, and makes each group durable by one PUT (I1).

A sender waits for a future, which ends after the PUT was answered, never before. When a group leaves:

* as many batches wait as were ever on their way at once lately: nobody else is there who could send one. So a lone
  sender waits for nobody, and sixteen that wait for their answers fill a group of sixteen;
* or the linger time has passed since its first batch;
* or it is full (:data:`~icedb_log.ingest.groups.MAX_GROUP_BYTES`, ``MAX_GROUP_BATCHES``).

No more than so many PUTs are under way; what waits for one goes on growing. A group of one is staged alone, and so is a
body that may not be grouped. What is held in memory is the senders' business: they wait.
"""

import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest
from icedb_log.ingest.groups import MAX_GROUP_BATCHES, MAX_GROUP_BYTES, OfferedBatch
from icedb_log.ingest.staging import stage_batch, stage_group
from icedb_log.store.table_store import TableStore
from icedb_log.units import SECOND_MS

REMEMBERED_GROUPS: Final = 8
REMEMBERED_LINGERS: Final = 10
"""How many groups back, and how many linger times, a number of senders counts."""
MAX_TABLES: Final = 10_000
"""Tables of which is remembered how many senders they had."""


@dataclass(slots=True)
class _Group:
    table: TableStore
    begun_ms: int
    batches: dict[str, tuple[OfferedBatch, Future[str]]] = field(default_factory=dict)
    size_bytes: int = 0
    came_ms: list[int] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        return self.size_bytes >= MAX_GROUP_BYTES or len(self.batches) >= MAX_GROUP_BATCHES

    def has_room(self, batch: OfferedBatch) -> bool:
        if not batch.may_be_grouped or not all(each.may_be_grouped for each, _ in self.batches.values()):
            return False
        return not self.is_full and self.size_bytes + len(batch.body) <= MAX_GROUP_BYTES


@dataclass(slots=True)
class _Senders:
    """How many batches of a table were on their way at once."""

    now_count: int = 0
    peak: int = 0
    before: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED_GROUPS))

    def come(self) -> None:
        self.now_count += 1
        self.peak = max(self.peak, self.now_count)

    def leave(self, now_ms: int) -> None:
        self.before.append((now_ms, self.peak))
        self.peak = self.now_count

    def expected(self, since_ms: int) -> int:
        return max([self.peak, *(count for at_ms, count in self.before if at_ms >= since_ms)])


class GroupWriter:
    """Stages batches in groups. Thread-safe.

    Args:
        clock: Measures the linger time.
        linger_ms: How long a group waits for more; 0: each batch is staged alone, at once.
        puts: Most PUTs under way.
        on_copy: Told of the bytes that a group takes besides its bodies, and when it gives them back (negative). By any
            thread.
        on_left: Told of each group that leaves, before its PUT, how long each of its batches has waited for others, or
            for a PUT to end, milliseconds. By any thread.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        linger_ms: int,
        puts: int,
        on_copy: Callable[[int], object] = lambda _: None,
        on_left: Callable[[Sequence[int]], object] = lambda _: None,
    ) -> None:
        self._clock = clock
        self._linger_ms = linger_ms
        self._puts = puts
        self._on_copy = on_copy
        self._on_left = on_left
        self._waiting: dict[str, deque[_Group]] = {}
        """By the prefix of its table: the last one takes what comes."""
        self._senders: dict[str, _Senders] = {}
        self._under_way = 0
        self._is_blocked = False
        """Whether a group is due, and waits for a PUT to end."""
        self._is_closing = False
        self._changed = threading.Condition()
        self._pool = ThreadPoolExecutor(puts, "icedb-groups")
        self._timer: threading.Thread | None = None

    def submit(self, table: TableStore, batch: OfferedBatch, *, here: bool = False) -> Future[str]:
        """Take a batch; the future has the key of the staged object once it is durable, or why it is not.

        Args:
            table: The table.
            batch: The batch.
            here: Whether a group that leaves with this batch may be put by this thread, which waits for it anyway.

        Raises:
            InvalidRequest: Other content waits under this id, or the writer is closed.
        """
        mine: list[tuple[_Group, Sequence[int]]] = []
        with self._changed:
            if self._is_closing:
                raise InvalidRequest(f"table {table.name}: nothing is staged any more: the process is about to end")
            now_ms = self._clock.monotonic_ms()
            groups = self._waiting.setdefault(table.paths.prefix, deque())
            for group in groups:
                if batch.batch_id in group.batches:
                    other, done = group.batches[batch.batch_id]
                    if other.sha256 != batch.sha256:
                        raise InvalidRequest(
                            f"table {table.name}: batch {batch.batch_id} is being staged with other content; an id "
                            "belongs to one batch for ever: use a fresh one"
                        )
                    return done
            if len(self._waiting) == 1 and not groups:
                self._changed.notify_all()  # the first one that waits: those that come later are due later
            if not groups or not self._linger_ms or not groups[-1].has_room(batch):
                groups.append(_Group(table, now_ms))
            done = Future()
            done.set_running_or_notify_cancel()  # nobody can take it out of its group
            groups[-1].batches[batch.batch_id] = batch, done
            groups[-1].size_bytes += len(batch.body)
            groups[-1].came_ms.append(now_ms)
            self._senders_of(table).come()
            self._send_due(now_ms, [groups], mine if here else None)
            if self._waiting and self._timer is None and self._linger_ms:
                self._timer = threading.Thread(target=self._run, name="icedb-linger", daemon=True)
                self._timer.start()
        for group, left in mine:
            self._put(group, left)
        return done

    def close(self) -> None:
        """Stage what waits, and end. Each future has ended when this returns. Idempotent."""
        with self._changed:
            self._is_closing = True
            self._send_due(self._clock.monotonic_ms())
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting and not self._under_way)
        self._pool.shutdown()

    def send_due(self) -> None:
        """Send what is due by the clock now, as the thread does that watches it."""
        with self._changed:
            self._send_due(self._clock.monotonic_ms())

    def _run(self) -> None:
        with self._changed:
            while not (self._is_closing and not self._waiting):
                now_ms = self._clock.monotonic_ms()
                self._send_due(now_ms)
                # What is due by now, and not sent, waits for a PUT to end.
                dues_ms = (groups[0].begun_ms + self._linger_ms for groups in self._waiting.values())
                due_ms = min((due_ms for due_ms in dues_ms if due_ms > now_ms), default=None)
                self._changed.wait(None if due_ms is None else (due_ms - now_ms) / SECOND_MS)

    def _senders_of(self, table: TableStore) -> _Senders:
        found = self._senders.pop(table.paths.prefix, None) or _Senders()
        self._senders[table.paths.prefix] = found  # the one that was used last stands last
        while len(self._senders) > MAX_TABLES:
            del self._senders[next(iter(self._senders))]
        return found

    def _send_due(
        self,
        now_ms: int,
        among: Collection[deque[_Group]] | None = None,
        mine: list[tuple[_Group, Sequence[int]]] | None = None,
    ) -> None:
        """Send what is due, the oldest first, while a PUT is free, or add it to ``mine``. With the lock."""
        while True:
            tables = self._waiting.values() if among is None else among
            due = [groups[0] for groups in tables if groups and self._may_leave(groups, now_ms)]
            if not due:
                self._is_blocked &= among is not None
                return
            if self._under_way == self._puts:
                self._is_blocked = True
                return
            group = min(due, key=lambda each: each.begun_ms)
            prefix = group.table.paths.prefix
            self._waiting[prefix].popleft()
            if not self._waiting[prefix]:
                del self._waiting[prefix]
            self._senders_of(group.table).leave(now_ms)
            self._under_way += 1
            waited_ms = tuple(now_ms - came_ms for came_ms in group.came_ms)
            if mine is None:
                self._pool.submit(self._put, group, waited_ms)
            else:
                mine.append((group, waited_ms))

    def _may_leave(self, groups: deque[_Group], now_ms: int) -> bool:
        """Whether the first group of a table waits for no more batches.

        It does not when it is full, when as many batches wait as there are senders, when its time is over, and when
        the process ends.
        """
        first = groups[0]
        if len(groups) > 1 or first.is_full or self._is_closing:
            return True
        since_ms = now_ms - REMEMBERED_LINGERS * self._linger_ms
        has_all = len(first.batches) >= self._senders_of(first.table).expected(since_ms)
        return has_all or now_ms >= first.begun_ms + self._linger_ms

    def _put(self, group: _Group, waited_ms: Sequence[int]) -> None:
        self._on_left(waited_ms)
        batches = [batch for batch, _ in group.batches.values()]
        copied_bytes = group.size_bytes if len(batches) > 1 else 0
        key, error = "", None
        self._on_copy(copied_bytes)
        try:
            if len(batches) == 1:
                (batch,) = batches
                key = stage_batch(group.table, body=batch.body, staging_format=batch.format, batch_id=batch.batch_id)
            else:
                key = stage_group(group.table, batches)
        except BaseException as raised:  # noqa: BLE001 - the senders are told, whatever it is
            error = raised
        finally:
            self._on_copy(-copied_bytes)
        with self._changed:
            self._under_way -= 1
            senders = self._senders_of(group.table)
            senders.now_count = max(0, senders.now_count - len(batches))
        for _, done in group.batches.values():
            if error is None:
                done.set_result(key)
            else:
                done.set_exception(error)
        with self._changed:
            if self._is_blocked:
                self._send_due(self._clock.monotonic_ms())
                self._changed.notify_all()
            if self._is_closing:
                self._changed.notify_all()
