"""Ours under load by HTTP, until batches are in a snapshot: rates, acknowledgements, and what the front end takes.

The front end and the workers are the services', each in its own process; so is who sends. This process reads the log
all the time, as a reader does that wants to see each commit at once.
"""

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter, sleep
from typing import Final, Self

from icedb_log.clock import SystemClock
from icedb_log.log.reader import LogReader
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig

from bench.enqueue_stack import open_doors
from bench.figures import OURS, Figure, TakesTurns, latency_figures
from bench.http_load import Answered, HttpLoad, HttpSenders
from bench.memory import read_cpu_s, sampled_memory
from bench.processes import Remote
from bench.tiny_work import ROWS_PER_BATCH

S3_LATENCY_MS: Final = 15
WARM_BATCHES: Final = 64
SEEN_LIMIT_S: Final = 60
_LOOK_S: Final = 0.02
_SHARE: Final = 100
_MS: Final = 1000


class Watcher:
    """Reads a table's log in a thread of its own, and notes when each batch was in it first."""

    def __init__(self, place: TableStore) -> None:
        self.seen_s: dict[str, float] = {}
        self._reader = LogReader(place, clock=SystemClock())
        self._known: set[str] = set()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def wait_for(self, batch_ids: Sequence[str]) -> None:
        """Wait until all of some batches have been seen."""
        end_s = perf_counter() + SEEN_LIMIT_S
        while missing := [each for each in batch_ids if each not in self.seen_s]:
            if perf_counter() > end_s:
                raise RuntimeError(f"{len(missing)} batches were acknowledged, and are in no snapshot: {missing[0]}")
            sleep(_LOOK_S)

    def _run(self) -> None:
        while not self._ends.wait(_LOOK_S):
            files, now_s = self._reader.read().files, perf_counter()
            for file in files:
                if file.key not in self._known:
                    self._known.add(file.key)
                    for batch_id in file.log.batch_ids:
                        self.seen_s.setdefault(batch_id, now_s)


class SeenBatches(TakesTurns):
    """Ours, with one load and some settings.

    Args:
        folder: For the stack.
        store: ``s3`` or ``directory``.
        batch_count: How many batches.
        in_flight: How many wait for their answers at once.
        per_second: How many a second; 0: as fast as answers come.
        name: Of the system.
        settings: Of the services.
    """

    def __init__(
        self,
        folder: Path,
        *,
        store: str = "s3",
        batch_count: int,
        in_flight: int,
        per_second: float = 0.0,
        name: str = OURS,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._folder = folder
        self._store = store
        self._count = batch_count
        self._in_flight = in_flight
        self._per_second = per_second
        self._settings = settings
        self._stack = ExitStack()
        self._figures: tuple[Figure, ...] = ()
        self.row_count = batch_count * ROWS_PER_BATCH

    def prepare(self) -> None:
        """Start everything, and send some batches that do not count."""
        more = {"latency_ms": S3_LATENCY_MS} if self._store == "s3" else {}
        self._doors = self._stack.enter_context(
            open_doors(self._folder, self._store, settings=self._settings, has_workers=True, **more)
        )
        self._place = self._doors.store.open().table("events")
        create_table(self._place, TableConfig.create(name="events", sort=("event", "ts")))
        self._senders = Remote()
        self._stack.callback(self._senders.close)
        self._senders.take(HttpSenders())
        self._watcher = self._stack.enter_context(Watcher(self._place))
        warm = self._send(min(WARM_BATCHES, self._count), in_flight=min(16, self._in_flight), per_second=0)
        self._watcher.wait_for([each.batch_id for each in warm])

    def run(self) -> None:
        """Send, and wait until all of it was seen."""
        front_end = self._doors.frontend_id
        cpu_s, began_s = read_cpu_s(front_end), perf_counter()
        with sampled_memory(front_end) as peak:
            answered = self._send(self._count, in_flight=self._in_flight, per_second=self._per_second)
            cpu_s = read_cpu_s(front_end) - cpu_s
            self._watcher.wait_for([each.batch_id for each in answered])
        seen_s = self._watcher.seen_s
        acked_s = max(each.at_s for each in answered) - began_s
        visible_s = max(seen_s[each.batch_id] for each in answered) - began_s
        until_seen = sorted(seen_s[each.batch_id] - each.at_s for each in answered)
        p50, p99 = latency_figures([each.latency_s for each in answered])
        self._figures = (
            Figure("visible", "batches/s", len(answered) / visible_s),
            Figure("acknowledged", "batches/s", len(answered) / acked_s),
            p50,
            p99,
            Figure("seen_p99", "ms", until_seen[len(until_seen) * 99 // 100] * _MS),
            Figure("front end's share of a core", "%", cpu_s / acked_s * _SHARE),
            Figure("front end's peak memory", "MiB", peak.total_mb),
        )

    def check(self) -> Sequence[Figure]:
        """End everything; :meth:`run` has seen each batch."""
        self._stack.close()
        return self._figures

    def _send(self, count: int, *, in_flight: int, per_second: float) -> list[Answered]:
        load = HttpLoad(self._doors.http_port, "events", count, in_flight, per_second)
        return list(self._senders.ask("send", load))
