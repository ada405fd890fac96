"""W=seen: batches of ten rows by HTTP until they are in a snapshot: many senders, a rate, one sender; on S3 with the
latency of S3, and on a directory; and the memory of the front end.
"""

import os
from collections.abc import Iterator
from typing import Any, Final

from bench.figures import OURS
from bench.harness import ONE_TURN_S, Case, Workload
from bench.seen_batches import SeenBatches
from bench.servers import KEY
from bench.tiny_work import ROWS_PER_BATCH

EVENTS: Final = 1_000_000
ALONE: Final = f"{OURS}, each batch alone"
LONE: Final = "S3 at 15 ms, one sender"
LONE_DIRECTORY: Final = "a directory, one sender"
LOADS: Final[dict[str, dict[str, Any]]] = {
    "S3 at 15 ms, 16 senders of 16 each": {"batch_count": 30_000, "in_flight": 256},
    "S3 at 15 ms, 300 batches a second": {"batch_count": 9_000, "in_flight": 256, "per_second": 300},
    LONE: {"batch_count": 600, "in_flight": 1},
    LONE_DIRECTORY: {"batch_count": 2_000, "in_flight": 1, "store": "directory"},
    "S3 at 15 ms, 2,000 batches a second": {"batch_count": 40_000, "in_flight": 1_500, "per_second": 2_000},
}
"""Of 1,000,000 events asked for; fewer of less."""


class SeenWorkload(Workload):
    """A case for each load; of one sender also with each batch staged alone."""

    description = f"batches of {ROWS_PER_BATCH} rows by HTTP until they are in a snapshot"

    def cases(self) -> Iterator[Case]:
        """Make one case after the other ready; each starts a stack of its own."""
        os.environ |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": KEY}
        share = min(1.0, self.options.event_count / EVENTS)
        for number, (name, most) in enumerate(LOADS.items()):
            if not self.wants(name):
                continue
            load = {**most, "batch_count": max(most["in_flight"], int(most["batch_count"] * share))}
            systems = [SeenBatches(self.folder / f"seen {number}", **load)]
            if name in (LONE, LONE_DIRECTORY):
                settings = {"ICEDB_FRONTEND_LINGER_MS": "0"}
                systems.append(SeenBatches(self.folder / f"alone {number}", name=ALONE, settings=settings, **load))
            yield Case(name, 1, systems, warm_turn_count=0, is_timed=False, patience_s=ONE_TURN_S)
