"""The data path of the simulation: data files that list row numbers, so that every row can be counted.

Row ``n`` belongs to batch ``n >> ROW_BITS``. Sizes are told to the log as if rows were large, so that a few
merges make a file mature.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import orjson
from icedb_log.clock import Clock
from icedb_log.content import hash_content
from icedb_log.errors import InvariantViolated, NotFound
from icedb_log.ingest.quarantine import payload_key
from icedb_log.ingest.staging import read_staged
from icedb_log.jobs import (
    BadRows,
    FlushJob,
    FlushOutput,
    MergedGroup,
    MergeGroup,
    MergeJob,
    RejectedBatch,
    RowChange,
    StagedBatch,
)
from icedb_log.log.widening import is_widening
from icedb_log.model import FileMarker
from icedb_log.store.object_store import ObjectStore
from icedb_log.store.table_store import TableStore
from icedb_log.table.table_config import TableConfig

from icedb_sim.simulation.world import Crash

ROW_BITS: Final = 4
ROW_BYTES: Final = 120
BAD_BODY: Final = b"{not json"
CRASHING_BODY: Final = b"{crash"
"""What makes its reader raise what nobody foresaw."""
KILLING_BODY: Final = b"{kill"
"""What ends the process that reads it."""
PADDING: Final = b" " * 120
"""What makes a body a large one."""
UNREADABLE: Final = (BAD_BODY, CRASHING_BODY, CRASHING_BODY + PADDING, KILLING_BODY, KILLING_BODY + PADDING)


@dataclass(frozen=True, slots=True)
class SimBatchWriter:
    """Writes one data file for each partition of a flush job."""

    store: ObjectStore
    clock: Clock

    def write_batches(self, job: FlushJob) -> FlushOutput:
        """Run a flush job."""
        schema = {**job.schema, **job.config.declared}
        rows: dict[str, list[int]] = defaultdict(list)
        accepted: list[StagedBatch] = []
        rejected: list[RejectedBatch] = []
        missing: list[StagedBatch] = []
        deferred: list[StagedBatch] = []
        bad_rows: list[BadRows] = []
        left_out: list[StagedBatch] = []
        contents: dict[str, str] = {}
        for batch in job.batches:
            try:
                body = read_staged(self.store, batch)
            except NotFound:
                missing.append(batch)
                continue
            if job.sizes is not None and (len(body) > job.sizes.decoded_bytes) != (job.sizes.takes == "large"):
                left_out.append(batch)
                continue
            _crash_over(body)
            if body == BAD_BODY:
                rejected.append(RejectedBatch(batch, "not JSON"))
                continue
            value = orjson.loads(body)
            partitions = rows.keys() | value["rows"].keys()
            if accepted and len(partitions) > job.config.max_partitions_per_flush:
                deferred.append(batch)
                continue
            column, sql_type = value["column"]
            known = schema.get(column, sql_type)
            if known != sql_type and not _fits(known, sql_type, job.config):
                rejected.append(RejectedBatch(batch, f"column {column} is {known}"))
                continue
            if value["bad"]:
                if job.config.on_bad_rows == "quarantine_batch":
                    rejected.append(RejectedBatch(batch, f"{value['bad']} bad rows"))
                    continue
                payload = orjson.dumps(value["bad"])
                key = payload_key(job.paths, batch.batch_id, payload, "ndjson.zst", what="rows")
                self.store.put(key, payload)
                bad_rows.append(BadRows(batch, key, value["bad"], "bad"))
            schema[column] = sql_type if is_widening(known, sql_type) else known
            accepted.append(batch)
            contents[batch.batch_id] = hash_content(body, batch.format)
            for partition, part in value["rows"].items():
                rows[partition] += part
        files = tuple(
            write_rows(
                TableStore(self.store, job.paths),
                partition=partition,
                rows=part,
                clock=self.clock,
                time_ms=job.time_ms,
                promoted_count=len(job.config.promoted),
            )
            for partition, part in sorted(rows.items())
        )
        return FlushOutput(
            files=files,
            schema=schema,
            accepted=tuple(accepted),
            rejected=tuple(rejected),
            missing=tuple(missing),
            row_count=sum(len(part) for part in rows.values()),
            deferred=tuple(deferred),
            bad_rows=tuple(bad_rows),
            left_out=tuple(left_out),
            contents=contents,
        )


def _crash_over(body: bytes) -> None:
    if body.startswith(KILLING_BODY):
        raise Crash("at a batch")
    if body.startswith(CRASHING_BODY):
        raise RuntimeError("nobody foresaw this batch")


def _fits(known: str, sql_type: str, config: TableConfig) -> bool:
    """Return whether a batch's type goes into a column as it is, or into one that it widens."""
    return is_widening(sql_type, known) or (config.evolution == "widen" and is_widening(known, sql_type))


@dataclass(frozen=True, slots=True)
class SimGroupMerger:
    """Merges each group into one data file; half of those of one partition together, into as many by ranges."""

    store: ObjectStore
    clock: Clock

    def merge_groups(self, job: MergeJob) -> tuple[MergedGroup, ...]:
        """Run a merge job."""
        results: list[MergedGroup] = []
        for group, count in _by_ranges(job):
            read = [row for marker in group.inputs for row in orjson.loads(self.store.get(marker.path).body)]
            rows, rows_removed = (read, 0) if job.change is None else self.keep_rows(read, job.change)
            if job.change is not None and not rows:
                results.append(MergedGroup(group, (), len(read), rows_removed))
                continue
            outputs = tuple(
                write_rows(
                    TableStore(self.store, job.paths),
                    partition=group.partition,
                    rows=part,
                    clock=self.clock,
                    time_ms=job.time_ms,
                    promoted_count=len(job.config.promoted),
                )
                for part in _cut(rows, count)
            )
            results.append(MergedGroup(group, outputs, len(read), rows_removed))
        return tuple(results)

    def keep_rows(self, rows: list[int], change: RowChange) -> tuple[list[int], int | None]:
        """Return the rows that a change leaves, and how many it removed. A plain merger changes nothing."""
        raise InvariantViolated(f"{len(rows)} rows are to be changed ({change.kind}) by a merger that cannot")


def _by_ranges(job: MergeJob) -> Iterator[tuple[MergeGroup, int]]:
    """Yield what is merged together, and into how many data files."""
    by_partition: dict[str, list[MergeGroup]] = defaultdict(list)
    for group in job.groups:
        by_partition[group.partition].append(group)
    for partition, groups in by_partition.items():
        inputs = sorted((marker for group in groups for marker in group.inputs), key=attrgetter("path"))
        if job.change is None and len(inputs) % 2:
            yield MergeGroup(partition, tuple(inputs)), len(groups)
        else:
            yield from ((group, 1) for group in groups)


def _cut(rows: list[int], count: int) -> list[list[int]]:
    """Cut rows by ranges."""
    if count == 1:
        return [rows]
    ordered = sorted(rows)
    cuts = [ordered[at * len(rows) // count : (at + 1) * len(rows) // count] for at in range(count)]
    return [part for part in cuts if part]


def read_staged_ids(key: str, body: bytes) -> tuple[str, ...]:
    """Return the ids in a staged object; of a group by the protocol's page, not by the product's code."""
    if not key.endswith(".group"):
        return (key.rpartition("/")[2].partition(".")[0],)
    index_bytes = int.from_bytes(body[-12:-8], "little")
    return tuple(entry[0] for entry in orjson.loads(body[-12 - index_bytes : -12]))


def write_rows(
    table: TableStore, *, partition: str, rows: Sequence[int], clock: Clock, time_ms: int, promoted_count: int = 0
) -> FileMarker:
    """Write one data file under a fresh name and return its marker."""
    key = table.paths.data_key(partition=partition, file_id=clock.new_id())
    table.store.put(key, orjson.dumps(rows) + b" " * promoted_count)
    return FileMarker(key, len(rows) * ROW_BYTES, time_ms, row_count=len(rows), promoted_count=promoted_count)


def count_promoted(body: bytes) -> int:
    """Return how many promoted paths the writer of a data file knew."""
    return len(body) - len(body.rstrip())


def encode_batch(rows: Mapping[str, Sequence[int]], *, column: str, sql_type: str, bad_count: int) -> bytes:
    """Return the body of a batch: rows by partition, one column with its type, and a number of bad rows."""
    return orjson.dumps({"rows": rows, "column": [column, sql_type], "bad": bad_count})
