"""One unit of a flush: some staged batches become sorted data files, one for each partition.

Runs inside a task, or directly in a test: it needs a store, not Spark. A batch is either wholly in the files or
not at all (I5): every check comes before the first row is written. The order of the batches decides who wins a
conflict, so the same unit always ends the same way.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from icedb_log.clock import Clock
from icedb_log.errors import InvariantViolated, NotFound
from icedb_log.jobs import StagedBatch
from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker
from icedb_log.object_store import ObjectStore
from icedb_log.table_config import TableConfig

from icedb_parts.batch_checks import UnitChecks
from icedb_parts.engine import open_engine, open_scratch
from icedb_parts.errors import BatchRejected
from icedb_parts.event_frame import EventFrame
from icedb_parts.footer import make_footer
from icedb_parts.json_types import Kind
from icedb_parts.limits import EngineLimits, FlushUnitLimits
from icedb_parts.part_files import PartFileWriter, PartLayout
from icedb_parts.staged_lines import BatchLines, read_batch_lines

SPLIT_FACTOR: Final = 2
"""A data file ends when it has this many times the target size."""


@dataclass(frozen=True, slots=True)
class FlushUnit:
    """Some batches of a flush job, for one task.

    Attributes:
        paths: Keys of the table.
        config: Its configuration.
        schema: Columns whose type is fixed: the log's schema, declared columns, and what other units found.
        batches: Oldest first.
        commit_id: Goes into each file's footer.
        time_ms: ``created_ms`` of the markers.
        limits: Bounds of a batch.
        engine: Bounds of the task.
    """

    paths: TablePaths
    config: TableConfig
    schema: Mapping[str, str]
    batches: tuple[StagedBatch, ...]
    commit_id: str
    time_ms: int
    limits: FlushUnitLimits
    engine: EngineLimits


@dataclass(frozen=True, slots=True)
class BatchRejection:
    """A batch of a unit that cannot be taken, by id, and why."""

    batch_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class FlushUnitResult:
    """What a unit made. Every batch of the unit is in exactly one of accepted, rejected, missing and deferred.

    Attributes:
        files: Markers of the new data files.
        columns: Columns of the data files.
        new_kinds: Columns that are not in the unit's schema, with the kinds of values in accepted batches.
        accepted: Ids of batches whose rows are all in ``files``.
        rejected: Batches of which nothing is in ``files``.
        missing: Ids of batches whose staged object is gone.
        deferred: Ids of batches that were not looked at, because the unit had enough.
        row_count: Rows in ``files``.
    """

    files: tuple[FileMarker, ...]
    columns: tuple[str, ...]
    new_kinds: Mapping[str, int]
    accepted: tuple[str, ...]
    rejected: tuple[BatchRejection, ...]
    missing: tuple[str, ...]
    deferred: tuple[str, ...]
    row_count: int


def flush_unit(unit: FlushUnit, store: ObjectStore, *, clock: Clock) -> FlushUnitResult:
    """Read, check, sort and upload the events of some batches.

    Not idempotent: each call makes new files under fresh names. After an error uploaded files are orphans (J5).

    Args:
        unit: What to do.
        store: Where the batches are and the files go.
        clock: Gives the ids of the files.

    Raises:
        Unavailable: The store did not answer, or memory and scratch did not suffice.
    """
    return _FlushRun(unit, store, clock).run()


class _FlushRun:
    """The state of one call of :func:`flush_unit`; batches are numbered by their place in the unit."""

    def __init__(self, unit: FlushUnit, store: ObjectStore, clock: Clock) -> None:
        self._unit = unit
        self._store = store
        self._clock = clock
        self._rejected: dict[int, str] = {}
        self._missing: list[int] = []
        self._deferred: list[int] = []

    def run(self) -> FlushUnitResult:
        lines = self._read_lines()
        row_counts = {number: len(batch.lines) for number, batch in lines.items()}
        files: tuple[FileMarker, ...] = ()
        columns: tuple[str, ...] = ()
        new_kinds: Mapping[str, Kind] = {}
        filled = {number: batch for number, batch in lines.items() if len(batch.lines)}
        lines.clear()
        if filled:
            with open_scratch(self._unit.engine) as scratch, open_engine(self._unit.engine, scratch) as engine:
                frame = EventFrame(engine, filled)
                checks = UnitChecks(self._unit.config, self._unit.paths, self._unit.schema, self._unit.limits, frame)
                filled.clear()
                checks.run(tuple(number for number, count in row_counts.items() if count))
                self._rejected.update(checks.rejected)
                columns, new_kinds = tuple(checks.output_columns), checks.new_kinds
                if checks.accepted:
                    files = self._write(frame, checks, scratch)
        accepted = [number for number in row_counts if number not in self._rejected]
        row_count = sum(row_counts[number] for number in accepted)
        written_count = sum(marker.row_count or 0 for marker in files)
        if written_count != row_count:
            raise InvariantViolated(
                f"table {self._unit.paths.name}: a flush read {row_count} rows and wrote {written_count}"
            )
        return FlushUnitResult(
            files=files,
            columns=columns,
            new_kinds={column: int(kinds) for column, kinds in new_kinds.items()},
            accepted=self._ids(accepted),
            rejected=tuple(
                BatchRejection(self._unit.batches[number].batch_id, reason)
                for number, reason in sorted(self._rejected.items())
            ),
            missing=self._ids(self._missing),
            deferred=self._ids(self._deferred),
            row_count=row_count,
        )

    def _ids(self, numbers: list[int]) -> tuple[str, ...]:
        return tuple(self._unit.batches[number].batch_id for number in numbers)

    def _read_lines(self) -> dict[int, BatchLines]:
        lines: dict[int, BatchLines] = {}
        limits = self._unit.limits
        decoded_bytes = 0
        for number, batch in enumerate(self._unit.batches):
            if decoded_bytes >= limits.unit_decoded_bytes:
                self._deferred.append(number)
                continue
            try:
                if batch.size_bytes > limits.batch_staged_bytes:
                    raise BatchRejected(
                        f"the staged object has {batch.size_bytes} bytes; the limit is {limits.batch_staged_bytes}: "
                        "send smaller batches"
                    )
                lines[number] = read_batch_lines(self._store.get(batch.key).body, batch.format, limits)
                decoded_bytes += lines[number].decoded_bytes
            except NotFound:
                self._missing.append(number)
            except BatchRejected as error:
                self._rejected[number] = f"batch {batch.batch_id}: {error}"
        return lines

    def _write(self, frame: EventFrame, checks: UnitChecks, scratch: Path) -> tuple[FileMarker, ...]:
        unit, config = self._unit, self._unit.config
        columns = checks.output_columns
        sort = [column for column in config.sort if column in columns]
        sources = [field.column for field in config.partition if field.column in columns]

        def footer(partition: str) -> dict[str, str]:
            return make_footer(table=unit.paths.name, partition=partition, commit_id=unit.commit_id, kind="flush")

        layout = PartLayout(
            paths=unit.paths,
            partitions=checks.partition_paths,
            footer=footer,
            sort_columns=sort,
            stats_columns=tuple(dict.fromkeys([*sources, *sort])),
            row_group_rows=config.row_group_rows,
            split_bytes=SPLIT_FACTOR * config.target_file_bytes,
            created_ms=unit.time_ms,
        )
        writer = PartFileWriter(
            self._store,
            layout,
            clock=self._clock,
            folder=scratch / "out",
            transfer_count=unit.engine.transfer_count,
        )
        stream: Any = frame.stream_sorted(checks.accepted, columns=columns, sort=sort, partitions=checks.partitions)
        return writer.write_all(stream)
