"""W=doors: what 100 batches a second cost through each front end, counted by the store, with real services."""

import os
from collections.abc import Iterator
from typing import Final

from bench.door_costs import DOORS, PER_SECOND, SETTINGS, DoorCost
from bench.enqueue_doors import HttpDoor
from bench.figures import OURS
from bench.growth_tables import ROWS_PER_BATCH
from bench.harness import ONE_TURN_S, Case, Workload
from bench.servers import KEY

QUICK_S, LONG_S = 5, 40
_CASE: Final = f"{PER_SECOND} batches a second, "


class DoorsWorkload(Workload):
    """A case for each front end; the systems are the settings."""

    description = (
        f"what {PER_SECOND} batches of {ROWS_PER_BATCH} rows a second cost, with all that comes after them, by S3's "
        "list price; webhooks have one event each"
    )

    def cases(self) -> Iterator[Case]:
        """Start the services of a case, and end them after it."""
        os.environ |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": KEY}
        seconds = QUICK_S if self.options.is_quick else LONG_S
        for number, (door, kind) in enumerate(DOORS.items()):
            name = f"{_CASE}{door}"
            if self.wants(name):
                names = SETTINGS if kind is HttpDoor else (OURS,)
                systems = [DoorCost(kind, self.folder / f"door {number}", name=each, seconds=seconds) for each in names]
                yield Case(name, 1, systems, warm_turn_count=0, is_timed=False, patience_s=ONE_TURN_S)
