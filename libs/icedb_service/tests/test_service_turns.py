"""Turns of many tables at one queue, in simulated time: the real wake-ups and sweeps, a model of Redis and workers.

A table that is big has work whenever it is looked at, and takes the longest turn that a service gives. What may not be:
that another table waits for more than its own and everybody else's turn.
"""

import heapq
from collections import Counter, deque
from dataclasses import dataclass, replace

import pytest
from icedb_log.names import INGEST_FLUSH, INGEST_SWEEP, JANITOR_SWEEP, JANITOR_VACUUM, MERGE_MERGE, MERGE_SWEEP
from icedb_log.units import HOUR_MS, MINUTE_MS, SECOND_MS
from icedb_log.wake_keys import WakeKeys
from icedb_service.metrics import WorkerMetrics
from icedb_service.settings import ServiceSettings
from icedb_service.worker import sweep_tables
from icedb_sim.rigs.task_context import MemoryContext

TABLE_COUNT = 300
BIG = "big"
IDLE_RUN_MS = 50
"""Of a wake-up that finds nothing to do: a lock, and a look at the store."""


class TimedRedis:
    """Keys that expire."""

    def __init__(self, clock):
        self._clock = clock
        self._ends_ms = {}

    def set(self, key, _value, *, nx, px):
        now_ms = self._clock.monotonic_ms()
        if nx and self._ends_ms.get(key, now_ms) > now_ms:
            return None
        self._ends_ms[key] = now_ms + px
        return True

    def delete(self, *keys):
        for key in keys:
            self._ends_ms.pop(key, None)


@dataclass(frozen=True)
class Load:
    """What tables ask of a service.

    Attributes:
        task: What a wake-up asks for.
        sweep: The task that sweeps.
        sweep_ms: Between two sweeps.
        small_ms: A turn of a small table.
        big_ms: The longest turn that the service gives.
        every_ms: How long after its turn a small table has work again.
        workers: How many serve the queue.
        tables: Small ones.
    """

    task: str
    sweep: str
    sweep_ms: int
    small_ms: int
    big_ms: int
    every_ms: int
    workers: int
    tables: int = TABLE_COUNT

    @property
    def round_ms(self):
        """Longest fair wait: everybody is due at once, and the big table's turns and the sweeps go on beside them."""
        work_ms = self.tables * self.small_ms // self.workers
        return work_ms + 2 * self.big_ms + 2 * self.sweep_ms + work_ms // 4


class Queue:
    """Messages of one queue, those who take them, and what came of it.

    Attributes:
        waits_ms: How long each turn of a small table came after it was due.
        idle_count: Wake-ups that found nothing to do.
        most_waiting: Messages that waited at once.
    """

    def __init__(self, load, *, expiry_ms):
        self.load = load
        self.context = MemoryContext(WorkerMetrics("merge", package="icedb-merger", tasks=[load.task]))
        self.clock = self.context.clock
        self.context.wakeups = self
        self.context.list_tables = lambda: self.names
        self.names = (BIG, *(f"t{number:04}" for number in range(load.tables)))
        self.due_ms = dict.fromkeys(self.names, self.clock.monotonic_ms())
        self.waits_ms, self.turns = [], Counter()
        self.idle_count = self.most_waiting = 0
        self._keys = WakeKeys(expiry_ms)
        self._redis = TimedRedis(self.clock)
        self._messages = deque()
        self._locked = set()

    def wake(self, task, table=None):
        return self._keys.send(self._redis, self._send, task=task, table=table)

    def _send(self, task, *, args, expires, **_options):
        self._messages.append((task, *args, self.clock.monotonic_ms() + round(expires * SECOND_MS)))
        self.most_waiting = max(self.most_waiting, len(self._messages))

    def run(self, duration_ms):
        """Let time pass, event by event: beat, and each worker as soon as it is free."""
        begin_ms = self.clock.monotonic_ms()
        events = [(begin_ms, 0, "beat", "")] + [
            (begin_ms, 1 + worker, "free", "") for worker in range(self.load.workers)
        ]
        heapq.heapify(events)
        while events[0][0] < begin_ms + duration_ms:
            at_ms, who, what, table = heapq.heappop(events)
            self.clock.advance(max(0, at_ms - self.clock.monotonic_ms()))
            if what == "beat":
                self.wake(self.load.sweep)
                heapq.heappush(events, (at_ms + self.load.sweep_ms, who, "beat", ""))
                continue
            if table:
                self._end(table)
            took_ms, table = self._take()
            heapq.heappush(events, (at_ms + took_ms, who, "free", table))

    def _take(self):
        """Begin what waits longest; return how long it takes, and of which table it is a turn."""
        now_ms = self.clock.monotonic_ms()
        while self._messages:
            task, *args, ends_ms = self._messages.popleft()
            if ends_ms < now_ms:
                continue
            table = args[0] if args else None
            self._keys.release(self._redis, task=task, table=table)
            if table is None:
                sweep_tables(self.context, task=self.load.task, is_needed=lambda paths: self._is_due(paths.name))
                return 1 + len(self.names) // 10, ""  # most of them rest
            if table in self._locked or not self._is_due(table):
                self.idle_count += table not in self._locked
                return IDLE_RUN_MS, ""
            self._locked.add(table)
            self.turns[table] += 1
            if table != BIG:
                self.waits_ms.append(now_ms - self.due_ms[table])
            return (self.load.big_ms if table == BIG else self.load.small_ms), table
        return IDLE_RUN_MS, ""

    def _end(self, table):
        self._locked.discard(table)
        if table == BIG:
            self.wake(self.load.task, BIG)  # there is always more
        else:
            self.due_ms[table] = self.clock.monotonic_ms() + self.load.every_ms

    def _is_due(self, table):
        return self.due_ms[table] <= self.clock.monotonic_ms()


MERGES = Load(MERGE_MERGE, MERGE_SWEEP, 10_000, small_ms=700, big_ms=30_000, every_ms=5 * MINUTE_MS, workers=1)
LOADS = {
    "merges": MERGES,
    "more merges than one worker can do": replace(MERGES, every_ms=MINUTE_MS),
    "merges by three workers": replace(MERGES, small_ms=1700, workers=3),
    # Of 200 batches a second: a commit of each table in ten seconds, a merge of ten of them.
    "merges of a thousand tables by ten workers": replace(MERGES, every_ms=100_000, workers=10, tables=1000),
    "flushes": Load(INGEST_FLUSH, INGEST_SWEEP, 2_000, small_ms=350, big_ms=20_000, every_ms=MINUTE_MS, workers=1),
    "vacuums": Load(JANITOR_VACUUM, JANITOR_SWEEP, 30_000, small_ms=1700, big_ms=60_000, every_ms=MINUTE_MS, workers=4),
}


@pytest.mark.parametrize("name", LOADS)
def test_no_table_waits_for_more_than_everybodys_turn(name):
    load = LOADS[name]
    queue = Queue(load, expiry_ms=ServiceSettings.model_fields["message_expiry_ms"].default)
    queue.run(HOUR_MS)
    still_ms = [queue.clock.monotonic_ms() - due_ms for table, due_ms in queue.due_ms.items() if table != BIG]
    assert max(*queue.waits_ms, *still_ms) <= load.round_ms
    assert queue.most_waiting <= len(queue.names) + 1, "each waits once, and the sweep"
    assert queue.idle_count <= len(queue.waits_ms) // 20, "found nothing: sent a second time"
    assert queue.turns[BIG] > 5


def test_wake_ups_that_end_before_their_turn_let_the_big_table_starve_the_others():
    load = LOADS["more merges than one worker can do"]
    queue = Queue(load, expiry_ms=MINUTE_MS)
    queue.run(HOUR_MS)
    assert queue.most_waiting > 2 * len(queue.names)
    assert max(queue.waits_ms) > 2 * load.round_ms
