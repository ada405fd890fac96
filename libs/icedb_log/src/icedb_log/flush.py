"""A flush: many staged batches become one log file, exactly once (rules I1 to I5, F1 to F3, W1 to W3).

The rows are written by a :class:`~icedb_log.jobs.BatchWriter`; everything that decides is here. The order is the
point: fence, log, *then* staging. Safe under any number of concurrent flushes, without any lock.
"""

from dataclasses import dataclass
from functools import partial

from icedb_log.clock import Clock
from icedb_log.errors import InvariantViolated
from icedb_log.fence import acquire_fence
from icedb_log.fold import union_schema
from icedb_log.invariants import require_append, require_schema_carried
from icedb_log.jobs import BatchWriter, FlushJob, FlushOutput, RejectedBatch, StagedBatch
from icedb_log.keys import TablePaths, parse_staged_key
from icedb_log.model import LogFile, LogView
from icedb_log.object_store import MAX_KEYS_PER_PAGE, ObjectStore
from icedb_log.quarantine import quarantine_batch
from icedb_log.reader import LogReader
from icedb_log.staging import list_staged
from icedb_log.stopwatch import Stopwatch
from icedb_log.table_config import MIB, TableConfig, read_table_config
from icedb_log.widening import grow_schema


@dataclass(frozen=True, slots=True)
class FlushLimits:
    """Bounds of one flush.

    Attributes:
        max_batches: Batches in one commit, 1..1000.
        max_bytes: Staged bytes in one commit; a single batch may exceed it.
    """

    max_batches: int = MAX_KEYS_PER_PAGE
    max_bytes: int = 512 * MIB


@dataclass(frozen=True, slots=True)
class FlushResult:
    """What a flush did with the batches it found.

    Attributes:
        committed_key: Log file of the commit; ``None`` if nothing was committed.
        batch_count: Batches that this commit made live.
        row_count: Rows that it made live.
        file_count: Data files that it made live.
        size_bytes: Bytes of these data files.
        rejected: Batches that went to quarantine, with reasons.
        duplicate_count: Staged objects of batches that were committed before (I3).
        unknown_count: Objects in staging that are no batches; left alone.
        has_more: Whether more batches are waiting.
    """

    committed_key: str | None = None
    batch_count: int = 0
    row_count: int = 0
    file_count: int = 0
    size_bytes: int = 0
    rejected: tuple[RejectedBatch, ...] = ()
    duplicate_count: int = 0
    unknown_count: int = 0
    has_more: bool = False


def flush_table(
    store: ObjectStore,
    paths: TablePaths,
    *,
    clock: Clock,
    writer: BatchWriter,
    owner: str,
    limits: FlushLimits | None = None,
    reader: LogReader | None = None,
) -> FlushResult:
    """Commit what is staged for a table, in one log file.

    Exactly once: a batch whose id is in the log is not written again (I3), and only the owner of the ``ingest``
    fence commits. A run that fails anywhere leaves the batches staged; the next run takes them.

    Args:
        store: The object store.
        paths: Keys of the table.
        clock: This host's clock.
        writer: Turns batches into data files.
        owner: Who runs this, for the fence object.
        limits: Bounds of the run.
        reader: A reader to reuse, with its cache.

    Raises:
        NotFound: No such table.
        Fenced: Another flush took over; drop the job.
        CommitConflict: The commit certainly did not land; run again.
        CommitOutcomeUnknown: Nobody knows yet; the next run settles it.
        HaltError: The table needs a person.
        Unavailable: A server did not answer, or the job took too long (W3).
    """
    limits = limits or FlushLimits()
    config = read_table_config(store, paths)
    if not list_staged(store, paths, limit=1).batches:
        return FlushResult()
    reader = reader or LogReader(store, paths, clock=clock, max_refresh_ms=config.log_grace_ms // 2)
    fence = acquire_fence(store, paths, "ingest", owner=owner, clock=clock)
    view = reader.read()  # F2
    # WARN: staging is listed after the log was read. The other way round: a batch is listed, another flush commits
    # it, its log file is merged and vacuumed, and this log read does not know its id any more: rows twice.
    staged = list_staged(store, paths, limit=limits.max_batches)
    sorted_out = _sort_out(staged.batches, view, config=config, limits=limits)
    duplicate_count = len(sorted_out.duplicates)
    if duplicate_count:
        store.delete([batch.key for batch in sorted_out.duplicates])  # I3: their rows are live already
    rejected = list(sorted_out.late)
    result = FlushResult(
        duplicate_count=duplicate_count,
        unknown_count=len(staged.unknown),
        has_more=staged.has_more or sorted_out.has_more,
    )
    output: FlushOutput | None = None
    committed_key: str | None = None
    if sorted_out.taken:
        stopwatch = Stopwatch(clock)
        known = union_schema(paths.name, view.files)
        commit_id = clock.new_id()
        job = FlushJob(paths, config, known.effective, sorted_out.taken, commit_id, clock.now_ms())
        output = writer.write_batches(job)  # W1: data files first
        _require_accounted(paths, job, output)
        rejected.extend(output.rejected)
        if output.accepted:
            grown = grow_schema(paths.name, known, after=output.schema, config=config)
            log = LogFile(
                time_ms=clock.now_ms(),
                schema=grown.logged,
                widened=grown.widened,
                markers=output.files,
                commit_id=commit_id,
                batch_ids=tuple(batch.batch_id for batch in output.accepted),
            )
            require_schema_carried(paths, log, known=known)
            require_append(paths, log, known={m.path for f in view.files for m in f.log.markers})
            within = partial(stopwatch.require_within, config.orphan_age_ms // 2, table=paths.name)
            committed_key = fence.commit(log, last_check=within).key  # W3
            fence.release()
            store.delete([batch.key for batch in output.accepted])  # I2: only now
    for refusal in rejected:
        quarantine_batch(store, paths, rejected=refusal, clock=clock)
    return _with_output(result, committed_key, output, tuple(rejected))


@dataclass(frozen=True, slots=True)
class _SortedOut:
    taken: tuple[StagedBatch, ...]
    duplicates: tuple[StagedBatch, ...]
    late: tuple[RejectedBatch, ...]
    has_more: bool


def _sort_out(
    batches: tuple[StagedBatch, ...], view: LogView, *, config: TableConfig, limits: FlushLimits
) -> _SortedOut:
    known = {batch_id for file in view.files for batch_id in file.log.batch_ids}
    decided: set[str] = set()
    has_twin = False
    taken: list[StagedBatch] = []
    duplicates: list[StagedBatch] = []
    late: list[RejectedBatch] = []
    taken_bytes = 0
    for batch in batches:
        if batch.batch_id in known:
            duplicates.append(batch)
            continue
        if batch.batch_id in decided:
            # One id, staged in two formats: it waits until the log tells a duplicate from a batch to be taken (I3).
            has_twin = True
            continue
        decided.add(batch.batch_id)
        reason = refuse_stale_id(batch, config)
        if reason is not None:
            late.append(RejectedBatch(batch, reason))
            continue
        if taken and taken_bytes + batch.size_bytes > limits.max_bytes:
            return _SortedOut(tuple(taken), tuple(duplicates), tuple(late), has_more=True)
        taken.append(batch)
        taken_bytes += batch.size_bytes
    return _SortedOut(tuple(taken), tuple(duplicates), tuple(late), has_more=has_twin)


def refuse_stale_id(batch: StagedBatch, config: TableConfig) -> str | None:
    """Return why a batch id can no longer be checked against the log (I3), or ``None`` if it can.

    Log files stay for their grace period G after a commit, and with them the ids. An id whose time lies at most S
    in the store's future when it is first staged, and which may be staged again until its time plus G - S, is
    therefore always checked against a log that still has it. How long a batch waits in staging does not matter.
    """
    id_ms = parse_staged_key(batch.key).time_ms
    if batch.staged_ms >= id_ms + config.retry_window_ms:
        return (
            f"batch {batch.batch_id} was staged {batch.staged_ms - id_ms} ms after its id was made; a retry is "
            f"possible within {config.retry_window_ms} ms. If it was never accepted before, enqueue it again "
            "under a fresh id"
        )
    if id_ms > batch.staged_ms + config.id_skew_ms:
        return (
            f"batch {batch.batch_id} has an id made {id_ms - batch.staged_ms} ms in the store's future; at most "
            f"{config.id_skew_ms} ms are allowed. Set the producer's clock and enqueue it again under a fresh id"
        )
    return None


def _require_accounted(paths: TablePaths, job: FlushJob, output: FlushOutput) -> None:
    answered = [b.batch_id for b in (*output.accepted, *(r.batch for r in output.rejected), *output.missing)]
    if sorted(answered) != sorted(batch.batch_id for batch in job.batches):
        raise InvariantViolated(f"table {paths.name}: the flush job did not decide each of its batches once (I5)")
    if output.row_count != sum(marker.row_count or 0 for marker in output.files):
        raise InvariantViolated(f"table {paths.name}: the flush job says {output.row_count} rows, its files differ")


def _with_output(
    result: FlushResult,
    committed_key: str | None,
    output: FlushOutput | None,
    rejected: tuple[RejectedBatch, ...],
) -> FlushResult:
    is_committed = committed_key is not None and output is not None
    files = output.files if output is not None and is_committed else ()
    return FlushResult(
        committed_key=committed_key,
        batch_count=len(output.accepted) if output is not None and is_committed else 0,
        row_count=sum(marker.row_count or 0 for marker in files),
        file_count=len(files),
        size_bytes=sum(marker.size_bytes for marker in files),
        rejected=rejected,
        duplicate_count=result.duplicate_count,
        unknown_count=result.unknown_count,
        has_more=result.has_more,
    )
