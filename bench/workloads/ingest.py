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
from bench.ingest_work import IngestInput
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
        """Write a case's input; the systems work on all cases, for to start Spark takes longer than a case."""
        systems: list[SystemInProcess] = []
        with ExitStack() as stack:
            for column_count in COLUMNS:
                for day_count in DAYS:
                    name = f"{column_count} columns, {day_count} partition{'s' if day_count > 1 else ''}"
                    if self.options.only in name:
                        source = self._write_input(column_count, day_count)
                        systems = systems or self._start(source, stack)
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

    def _start(self, source: IngestInput, stack: ExitStack) -> list[SystemInProcess]:
        works: list[ProcessWork | Peer] = [
            IceDB(source, self.folder / "icedb"),
            *(Peer(f"bench.peers.ingest:{name}", source, self.folder / name) for name in PEERS),
        ]
        systems = []
        for work in works:
            systems.append(system := SystemInProcess(work, is_split=isinstance(work, IceDB)))
            stack.callback(system.close)
        return systems


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


__all__: Sequence[str] = ["IngestWorkload", "open_workload"]
