"""What batches cost through each front end, with all that comes after them, as the store itself counted it.

A stack of its own for each: the front end, and the workers that flush, merge and clean at the services' intervals.
Batches of ten rows come at 100 a second, never in step. It is counted between two moments while all of it goes on.
"""

import shutil
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Final

from icedb_log.clock import SystemClock
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader

from bench.counting_s3 import Counts, take_all
from bench.enqueue_doors import (
    AppenderDoor,
    ClientDoor,
    Door,
    GrpcDoor,
    HttpDoor,
    HttpKeyDoor,
    HttpRetryKeyDoor,
    Load,
    WebhookDoor,
)
from bench.enqueue_stack import open_doors
from bench.figures import OURS, Figure, TakesTurns
from bench.growth_day import MILLION, Price
from bench.growth_tables import ROWS_PER_BATCH

PER_SECOND: Final = 100
SENDERS: Final = 64
LATENCY_MS: Final = 15
WARM_S: Final = 15
"""Before it is counted: merges and vacuums are under way by then."""
SEEN_LIMIT_S: Final = 60
GRACES: Final = {"log_grace_ms": 30_000, "data_grace_ms": 60_000}
"""Of tables: what is merged away is deleted while it is counted, as it would be later with longer ones."""
DOORS: Final[Mapping[str, type[Door]]] = {
    "HTTP with ids": HttpDoor,
    "HTTP with keys": HttpKeyDoor,
    "HTTP with keys for retries": HttpRetryKeyDoor,
    "webhooks of one event": WebhookDoor,
    "gRPC": GrpcDoor,
    "client": ClientDoor,
    "appender()": AppenderDoor,
}
SPARING: Final = f"{OURS}, 500 ms, a commit in 5 s"
SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    OURS: {},
    SPARING: {"ICEDB_FRONTEND_LINGER_MS": "500", "ICEDB_FLUSH_INTERVAL_MS": "5000"},
}
_KINDS: Final = {"put": "put", "post": "put", "list": "list", "get": "get", "head": "get"}


@dataclass(frozen=True, slots=True)
class Window:
    """What was counted, and of how many batches."""

    counts: Counts
    batch_count: int
    events_per_batch: int

    def figures(self) -> list[Figure]:
        """Return what it costs by S3's list price."""
        requests: Counter[str] = Counter()
        for operation, count in self.counts.operations.items():
            requests[_KINDS.get(operation, "delete")] += count
        dollars = Price().of_requests(requests)
        by_batch = 1 / max(self.batch_count, 1)
        return [
            Figure("a million events", "$", dollars * by_batch / self.events_per_batch * MILLION),
            Figure("requests of a batch", "requests", sum(requests.values()) * by_batch),
            *(Figure(f"{kind} of a batch", "requests", requests[kind] * by_batch) for kind in ("put", "list", "get")),
            Figure("batches", "", self.batch_count),
        ]


class DoorCost(TakesTurns):
    """One front end with some settings, for a while.

    Args:
        kind: Which front end.
        folder: For the stack.
        name: Of the settings.
        seconds: How long it is counted.
    """

    def __init__(self, kind: type[Door], folder: Path, *, name: str, seconds: float) -> None:
        self.name = name
        self._kind = kind
        self._folder = folder
        self._seconds = seconds
        self._figures: Sequence[Figure] = ()

    def run(self) -> None:
        """Send; count; see that all of it is there."""
        warm_s = min(WARM_S, self._seconds)
        count = int(PER_SECOND * (warm_s + self._seconds + 1)) // SENDERS * SENDERS
        load = Load(count, SENDERS, ROWS_PER_BATCH, PER_SECOND)
        settings = SETTINGS[self.name]
        with open_doors(self._folder, "s3", latency_ms=LATENCY_MS, settings=settings, has_workers=True) as doors:
            door = _with_short_graces(self._kind)(doors, load)
            door.prepare()
            sending = threading.Thread(target=door.run)
            sending.start()
            sleep(warm_s)
            from_s, _ = perf_counter(), take_all(doors.endpoint)
            sleep(self._seconds)
            counts, until_s = take_all(doors.endpoint), perf_counter()
            sending.join()
            _require_all(door)
            door.disconnect()
        batches = sum(from_s <= at_s < until_s for at_s in door.acknowledged_s)
        self._figures = [*Window(counts, batches, door.rows_per_request).figures(), *door.latencies()]
        shutil.rmtree(self._folder)

    def check(self) -> Sequence[Figure]:
        """Return what it costs."""
        return self._figures


def _with_short_graces(kind: type[Door]) -> type[Door]:
    config: dict[str, Any] = {**kind.config, **GRACES}
    return type(kind.__name__, (kind,), {"config": config})


def _require_all(door: Door) -> None:
    """Wait until each row is in a snapshot. Raises RuntimeError."""
    reader, end_s = LogReader(door.place, clock=SystemClock()), perf_counter() + SEEN_LIMIT_S
    while (found := sum(marker.row_count or 0 for marker in fold(reader.read()).live)) != door.row_count:
        if perf_counter() > end_s:
            raise RuntimeError(f"{door.name}: {found} rows are there, not {door.row_count}")
        sleep(0.1)
