"""Enqueue: acknowledged batches per second, and how long an acknowledgement takes, through every front end."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

from bench.enqueue_doors import DOORS, ROWS_PER_BATCH, Load
from bench.enqueue_stack import open_doors
from bench.harness import Case, Workload
from bench.servers import KEY

BATCHES = {("directory", 1): 400, ("directory", 16): 1600, ("s3", 1): 160, ("s3", 16): 480}
"""Of 1,000,000 events asked for; fewer of less."""
EVENTS = 1_000_000


class EnqueueWorkload(Workload):
    """Two stores, one and sixteen producers."""

    description = f"batches of {ROWS_PER_BATCH} rows (webhooks: of one event) until the store has them"

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
