"""Enqueue: acknowledged batches per second, and how long an acknowledgement takes, through every front end.

And ours by HTTP until batches are in a snapshot, in batches of ten rows, on S3 with the latency of S3: many senders, a
rate, one sender, and what the front end takes of memory.
"""

import os
import shutil
from collections.abc import Iterator
from typing import Any, Final

from bench.enqueue_doors import DOORS, ROWS_PER_BATCH, Load
from bench.enqueue_stack import open_doors
from bench.figures import OURS
from bench.harness import ONE_TURN_S, Case, Workload
from bench.seen_batches import SeenBatches
from bench.servers import KEY
from bench.tiny_work import ROWS_PER_BATCH as FEW_ROWS

BATCHES = {("directory", 1): 400, ("directory", 16): 1600, ("s3", 1): 160, ("s3", 16): 480}
"""Of 1,000,000 events asked for; fewer of less."""
EVENTS = 1_000_000
ALONE: Final = f"{OURS}, each batch alone"
SENDERS: Final = "ten rows by HTTP, S3 at 15 ms, 16 senders of 16 each"
RATE: Final = "ten rows by HTTP, S3 at 15 ms, 300 batches a second"
LONE: Final = "ten rows by HTTP, S3 at 15 ms, one sender"
LONE_DIRECTORY: Final = "ten rows by HTTP, a directory, one sender"
MEMORY: Final = "ten rows by HTTP, S3 at 15 ms, 2,000 batches a second"
_LOADS: Final[dict[str, dict[str, Any]]] = {
    SENDERS: {"batch_count": 30_000, "in_flight": 256},
    RATE: {"batch_count": 9_000, "in_flight": 256, "per_second": 300},
    LONE: {"batch_count": 600, "in_flight": 1},
    LONE_DIRECTORY: {"batch_count": 2_000, "in_flight": 1, "store": "directory"},
    MEMORY: {"batch_count": 40_000, "in_flight": 1_500, "per_second": 2_000},
}
"""Of 1,000,000 events asked for; fewer of less."""


class EnqueueWorkload(Workload):
    """Two stores, one and sixteen producers; then ours by HTTP, until batches are seen."""

    description = (
        f"batches of {ROWS_PER_BATCH} rows (webhooks: of one event) until the store has them, and of {FEW_ROWS} until "
        "they are in a snapshot"
    )

    def cases(self) -> Iterator[Case]:
        """Start the servers of a case, and end them after it."""
        os.environ |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": KEY}
        for (store, concurrency), most in BATCHES.items():
            name = f"{store}, {concurrency} at once"
            count = max(concurrency, most * self.options.event_count // EVENTS // concurrency * concurrency)
            if self.wants(name):
                with open_doors(self.folder / "case", store) as doors:
                    systems: list[Any] = [kind(doors, Load(count, concurrency)) for kind in DOORS]
                    yield Case(name=name, row_count=count * ROWS_PER_BATCH, systems=systems)
                shutil.rmtree(self.folder / "case")
        for number, name in enumerate(filter(self.wants, _LOADS)):
            yield self._seen(name, number)

    def _seen(self, name: str, number: int) -> Case:
        load = _LOADS[name]
        share = min(1.0, self.options.event_count / EVENTS)
        load = {**load, "batch_count": max(load["in_flight"], int(load["batch_count"] * share))}
        systems = [SeenBatches(self.folder / f"seen {number}", **load)]
        if name in (LONE, LONE_DIRECTORY):
            settings = {"ICEDB_FRONTEND_LINGER_MS": "0"}
            systems.append(SeenBatches(self.folder / f"alone {number}", name=ALONE, settings=settings, **load))
        return Case(name, 1, systems, warm_turn_count=0, is_timed=False, patience_s=ONE_TURN_S)
