"""Ingest: from staged NDJSON to committed, sorted Parquet, one partition for each day.

1 million events of 6 and 30 columns, over 1 and 30 days. Every system reads the same files, sorts by day, event and
ts, and writes zstd Parquet partitioned by day; each is a process of its own, bound to two cores, warm. Ours does what
production does: fence, read the log, Spark job, checks, commit, clear staging.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Case, Options, Workload
from bench.ingest_events import FEW, MANY, write_input
from bench.ingest_systems import IceDB
from bench.ingest_work import IngestInput
from bench.processes import started
from bench.serve import Peer

DAYS = (1, 30)
COLUMNS = (FEW, MANY)
PEERS = ("DuckDBAlone", "DeltaRs", "DecodeEncode")


class IngestWorkload(Workload):
    """Four cases, one after the other; only one input lies on the disk at a time."""

    def __init__(self, folder: Path, options: Options) -> None:
        super().__init__(folder, options)
        self.description = (
            f"{options.event_count:,} staged events in {options.batch_count} batches of NDJSON, "
            "into committed Parquet, sorted, partitioned by day"
        )

    def cases(self) -> Iterator[Case]:
        """Write a case's input; the systems work on all cases, for to start Spark takes longer than a case."""
        names = {
            f"{column_count} columns, {day_count} partition{'s' if day_count > 1 else ''}": (column_count, day_count)
            for column_count in COLUMNS
            for day_count in DAYS
        }
        wanted = [name for name in names if self.wants(name)]
        if not wanted:
            return
        source = self._write_input(*names[wanted[0]])
        peers = (Peer(f"bench.peers.ingest:{name}", source, self.folder / name) for name in PEERS)
        with started(IceDB(source, self.folder / "icedb"), *peers, split=(IceDB,)) as systems:
            for name in wanted:
                source = source if name == wanted[0] else self._write_input(*names[name])
                for system in systems:
                    system.tell("take", source)
                case = f"{name}, {source.size_bytes / 1e6:,.0f} MB"
                yield Case(name=case, row_count=source.row_count, systems=systems)
                shutil.rmtree(self.folder / "input")

    def _write_input(self, column_count: int, day_count: int) -> IngestInput:
        return write_input(
            self.folder / "input",
            column_count=column_count,
            day_count=day_count,
            event_count=self.options.event_count,
            batch_count=self.options.batch_count,
        )
