"""W=append: one row an append, by one process, on a directory: how long the 100th takes, and the 10,000th.

Ours is the embedded lake, with a short ``log_grace``, as a table has that is only ever used so. Each append is durable
and visible when it returns; staged ones are durable, and visible within about a second.
"""

from collections.abc import Iterator

from bench.append_systems import Embedded
from bench.append_work import MEASURED
from bench.harness import Case, Workload
from bench.processes import ProcessWork, started
from bench.serve import Peer

COUNTS = {"small": (100,), "middle": (100, 1_000), "full": (100, 1_000, 10_000)}
PEER_APPENDS = 1_000
"""A peer has no more: each of its appends reads the log of all before it, and nobody compacts."""


class AppendWorkload(Workload):
    """A directory."""

    description = "appends of one row each"

    def cases(self) -> Iterator[Case]:
        """Start the systems of a case, and end them after it."""
        for count in COUNTS[self.options.size]:
            name = f"{count:,} appends before"
            if not self.wants(name):
                continue
            works: list[ProcessWork | Peer] = [
                Embedded(self.folder / f"ours-{count}", count),
                Embedded(self.folder / f"staged-{count}", count, is_staged=True),
            ]
            if count <= PEER_APPENDS:
                works.append(Peer("bench.peers.append:DeltaRs", self.folder / f"delta-{count}", count))
            with started(*works) as systems:
                yield Case(
                    name=name, row_count=MEASURED, systems=systems, unit="appends", axis="appends before", at=count
                )
