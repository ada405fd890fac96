"""Ingest: from staged NDJSON to committed, sorted Parquet, one partition for each day.

1 million events of 6 and 30 columns, over 1 and 30 days. Every system reads the same files, sorts by day, event and
ts, and writes zstd Parquet partitioned by day; each is a process of its own, bound to two cores, warm. Ours does what
production does: fence, read the log, Spark job, checks, commit, clear staging.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.harness import Case, Options
from bench.ingest_events import FEW, MANY, write_input
from bench.ingest_systems import IceDB
from bench.processes import ProcessWork, SystemInProcess
from bench.serve import Peer

DAYS = (1, 30)
COLUMNS = (FEW, MANY)
PEERS = ("DuckDBAlone", "DeltaRs", "DecodeEncode")


@dataclass(frozen=True)
class IngestWorkload:
    """Four cases, one after the other; only one input lies on the disk at a time."""

    name: str
    description: str
    folder: Path
    options: Options

    def cases(self) -> Iterator[Case]:
        """Write a case's input, start its systems, and end them after the case."""
        for column_count in COLUMNS:
            for day_count in DAYS:
                name = f"{column_count} columns, {day_count} partition{'s' if day_count > 1 else ''}"
                if self.options.only in name:
                    with _open_case(name, self.folder / "case", column_count, day_count, self.options) as case:
                        yield case


@contextmanager
def open_workload(folder: Path, options: Options) -> Iterator[IngestWorkload]:
    """Offer the cases."""
    yield IngestWorkload(
        name="ingest",
        description=(
            f"{options.event_count:,} staged events in {options.batch_count} batches of NDJSON, "
            "into committed Parquet, sorted, partitioned by day"
        ),
        folder=folder,
        options=options,
    )


@contextmanager
def _open_case(name: str, folder: Path, column_count: int, day_count: int, options: Options) -> Iterator[Case]:
    source = write_input(
        folder / "input",
        column_count=column_count,
        day_count=day_count,
        event_count=options.event_count,
        batch_count=options.batch_count,
    )
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        works: list[ProcessWork | Peer] = [
            IceDB(source, folder / "icedb"),
            *(Peer(f"bench.peers.ingest:{name}", source, folder / name) for name in PEERS),
        ]
        systems: list[SystemInProcess] = []
        for work in works:
            system = SystemInProcess(work)
            stack.callback(system.close)
            systems.append(system)
        yield Case(name=f"{name}, {source.size_bytes / 1e6:,.0f} MB", row_count=source.row_count, systems=systems)


__all__: Sequence[str] = ["IngestWorkload", "open_workload"]
