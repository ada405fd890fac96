"""Who sends on the day, what became of each batch, and how soon its rows could be read."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Literal

from icedb_client import Client
from icedb_log.clock import Clock, new_batch_id
from icedb_log.errors import CommitOutcomeUnknown, IceDBError, Unavailable
from icedb_log.units import MINUTE_MS

from icedb_local.background import BackgroundThread
from icedb_local.chaos.batches import BatchEntry
from icedb_local.chaos.chaos_producers import Send
from icedb_local.day.day_plan import HOURS, Batch, DayPlan, Producer

AT_ONCE: Final = 8
"""Batches of one producer on their way at once."""
PROBES: Final = 8
"""Batches that are waited for at once, to learn when they can be read."""
RETRY_PAUSE_MS: Final = 250
MAX_WORDS: Final = 60
"""Of a refusal that are kept."""
GIVE_UP_MS: Final = 10 * MINUTE_MS

BatchState = Literal["sent", "acknowledged", "refused", "unknown"]


@dataclass(frozen=True, slots=True)
class Freshness:
    """When a batch could be read.

    Attributes:
        table: Of which.
        hour: In which hour of the day it was sent.
        seconds: From the first try to send it until a snapshot had its rows.
    """

    table: str
    hour: int
    seconds: float


class DayLedger:
    """All batches of the day. Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: dict[int, tuple[Batch, BatchState]] = {}
        self._has_closed = False
        self.tries: Counter[str] = Counter()
        """Requests by producer, those that were sent again among them."""
        self.refusals: Counter[str] = Counter()
        """What doors said to batches that they refused."""

    def begin(self, producer: Producer, table: str, hour: float) -> Batch:
        """Note a batch before it is sent."""
        with self._lock:
            batch = Batch(len(self._batches), producer, table, hour, self._has_closed)
            self._batches[batch.number] = batch, "sent"
            return batch

    def end(self, batch: Batch, state: BatchState) -> None:
        """Note what became of a batch."""
        with self._lock:
            self._batches[batch.number] = batch, state

    def count_try(self, producer: Producer, problem: str = "") -> None:
        """Note a request, and the words of a refusal."""
        with self._lock:
            self.tries[producer.name] += 1
            if problem:
                self.refusals[problem] += 1

    def close_account(self) -> int:
        """Let no batch from now on have a row of the user who leaves; return the number of the first such batch."""
        with self._lock:
            self._has_closed = True
            return len(self._batches)

    def is_settled(self, before: int | None = None) -> bool:
        """Whether it is known what became of all batches, or of those before a number."""
        with self._lock:
            return not any(
                state == "sent" for batch, state in self._batches.values() if before is None or batch.number < before
            )

    def batches(self, *states: BatchState) -> tuple[Batch, ...]:
        """Return the batches in some states, by number."""
        with self._lock:
            return tuple(batch for batch, state in self._batches.values() if state in states)


class FreshnessProbe:
    """Waits for some of the batches with a reader's patience, so many at once.

    Args:
        client: Asks the snapshot service.
        clock: For times.
    """

    def __init__(self, client: Client, *, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._pool = ThreadPoolExecutor(PROBES, "probe")
        self._free = threading.Semaphore(PROBES)
        self.found: list[Freshness] = []
        self.failures: Counter[str] = Counter()

    def watch(self, batch: Batch, batch_id: str, sent_ms: int) -> None:
        """Wait for a batch in another thread, unless as many are waited for as may be."""
        if self._free.acquire(blocking=False):
            self._pool.submit(self._wait, batch, batch_id, sent_ms)

    def close(self) -> None:
        """End when what is waited for has come."""
        self._pool.shutdown()

    def _wait(self, batch: Batch, batch_id: str, sent_ms: int) -> None:
        try:
            while True:
                try:
                    self._client.snapshot(batch.table, min_commit=batch_id, max_staleness_ms=0)
                    break
                except Unavailable:  # still staged after a minute, or the service is deployed: a reader asks again
                    if self._clock.monotonic_ms() - sent_ms > GIVE_UP_MS:
                        raise
                    self._clock.sleep_ms(RETRY_PAUSE_MS)
            seconds = (self._clock.monotonic_ms() - sent_ms) / 1000
            self.found.append(Freshness(batch.table, int(batch.hour), seconds))
        except IceDBError as error:
            self.failures[type(error).__name__] += 1
        finally:
            self._free.release()


class DayProducer(BackgroundThread):
    """A thread that sends batches until midnight; use as a context manager.

    Args:
        producer: Who it is.
        plan: Of the day.
        send: Its door.
        ledger: Where batches are noted.
        probe: Learns when some of them can be read.
        hour: Returns the hour of the day.
        clock: For ids and times.
    """

    def __init__(
        self,
        producer: Producer,
        plan: DayPlan,
        send: Mapping[str, Send],
        *,
        ledger: DayLedger,
        probe: FreshnessProbe,
        hour: Callable[[], float],
        clock: Clock,
    ) -> None:
        super().__init__(producer.name)
        self._producer = producer
        self._plan = plan
        self._send = send[producer.door]
        self._ledger = ledger
        self._probe = probe
        self._hour = hour
        self._clock = clock
        self.problems: list[str] = []

    def _run(self) -> None:
        sent_count = 0
        with ThreadPoolExecutor(AT_ONCE, self._producer.name) as pool:
            while not self._stop.wait(self._plan.pause_s(self._producer, self._hour())):
                hour = self._hour()
                if hour >= HOURS:
                    return
                table = self._plan.table_of(self._producer, sent_count)
                sent_count += 1
                pool.submit(self._send_one, self._ledger.begin(self._producer, table, hour))

    def _send_one(self, batch: Batch) -> None:
        begin_ms = self._clock.monotonic_ms()
        entry = BatchEntry(batch.number, batch.table, self._producer.door, new_batch_id(self._clock), begin_ms)
        try:
            self._deliver(batch, entry)
            if self._producer.repeats:
                self._deliver(batch, entry)
        except IceDBError as error:
            self._ledger.count_try(self._producer, f"{type(error).__name__}: {error}"[:MAX_WORDS])
            self._ledger.end(batch, "refused")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            self.problems.append(f"{self._producer.name}: {type(error).__name__}: {error}")
            self._ledger.end(batch, "unknown")

    def _deliver(self, batch: Batch, entry: BatchEntry) -> None:
        body = self._plan.body(batch)
        while True:
            try:
                self._send(entry, body)
            except (Unavailable, CommitOutcomeUnknown):
                self._ledger.count_try(self._producer)
                if self._clock.monotonic_ms() - entry.sent_ms > GIVE_UP_MS:
                    raise TimeoutError(f"batch {batch.number} was not answered for {GIVE_UP_MS} ms") from None
                self._clock.sleep_ms(RETRY_PAUSE_MS)
            else:
                self._ledger.count_try(self._producer)
                self._ledger.end(batch, "acknowledged")
                self._probe.watch(batch, entry.batch_id, entry.sent_ms)
                return
