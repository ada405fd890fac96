"""A flush: many staged batches become one log file, exactly once (rules I1 to I5, F1 to F3, W1 to W3).

The rows are written by a :class:`~icedb_log.jobs.BatchWriter`; everything that decides is here. The order is the
point: fence, log, *then* staging. What becomes of a batch is decided by the commit alone, which names the batches that
it made live and those that it refused. Safe under any number of concurrent flushes, without any lock.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from icedb_log.errors import InvalidRequest, InvariantViolated
from icedb_log.feed.views import require_takes_batches
from icedb_log.ingest.content import DIGEST_CHARS
from icedb_log.ingest.quarantine import (
    Settled,
    find_reason,
    mark_rows_landed,
    quarantine_again,
    quarantine_batch,
    quarantine_rows,
    settle_copy,
)
from icedb_log.ingest.staging import list_staged
from icedb_log.jobs import (
    BatchWriter,
    FlushJob,
    FlushOutput,
    RejectedBatch,
    SizeClass,
    StagedBatch,
)
from icedb_log.keys import parse_staged_key
from icedb_log.log.fold import fold
from icedb_log.model import LogHeads
from icedb_log.phases import phase
from icedb_log.store.object_store import MAX_KEYS_PER_PAGE, delete_or_raise
from icedb_log.table.commit import Added, AppendCommit
from icedb_log.table.table import Table
from icedb_log.table.table_config import TableConfig
from icedb_log.units import MIB

MAX_FLUSH_BATCHES: Final = 5000
"""Batches in one commit. So many ids with their contents make a head of 370 KB, which a flush reads by three GETs."""


@dataclass(frozen=True, slots=True)
class FlushLimits:
    """Bounds of one flush.

    Attributes:
        max_batches: Batches in one commit, 1..5000; in the search for a large one, batches that are looked at.
        max_bytes: Staged bytes in one commit; a single batch may exceed it.
        sizes: Which batches are taken, by their size; ``large``: one alone. ``None``: all.
        skip: Ids of batches that are known not to be of that size: nobody looks at them again.
    """

    max_batches: int = MAX_FLUSH_BATCHES
    max_bytes: int = 512 * MIB
    sizes: SizeClass | None = None
    skip: frozenset[str] = frozenset()

    @property
    def listed_batches(self) -> int:
        """Batches to be listed: what is certainly small must not hide a large one."""
        return MAX_KEYS_PER_PAGE if self.sizes is not None and self.sizes.takes == "large" else self.max_batches

    def leaves_out(self, batch: StagedBatch) -> bool:
        """Whether a batch is certainly too small for this flush: nobody has to decode it."""
        return self.sizes is not None and self.sizes.takes == "large" and not self.sizes.may_be_large(batch)


@dataclass(frozen=True, slots=True)
class FlushResult:
    """What a flush did with the batches it found.

    Attributes:
        committed_key: Log file of the commit; ``None`` if there was nothing to decide.
        batch_count: Batches that this commit made live.
        row_count: Rows that it made live.
        file_count: Data files that it made live.
        partition_count: Partitions that these files lie in.
        size_bytes: Bytes of these data files.
        bad_row_count: Rows of these batches that went to quarantine instead.
        rejected: Batches that this commit refused; they are in quarantine, with reasons.
        duplicate_count: Staged objects of batches that were committed or refused before (I3).
        conflict_count: Those of them whose content is another one, and is in quarantine as an entry of its own (I8).
        deferred_count: Batches that wait for the next commit, since this one has partitions enough.
        unknown_count: Objects in staging that are no batches; left alone.
        has_more: Whether more batches are waiting.
        left_out: Ids of batches that were found not to be of the size that this flush takes.
        committed_ids: Ids of the batches that this commit made live.
        log_file_count: Log files of the table after this flush, dead ones too; 0 if it was not looked at.
    """

    committed_key: str | None = None
    batch_count: int = 0
    row_count: int = 0
    file_count: int = 0
    partition_count: int = 0
    size_bytes: int = 0
    bad_row_count: int = 0
    rejected: tuple[RejectedBatch, ...] = ()
    duplicate_count: int = 0
    conflict_count: int = 0
    deferred_count: int = 0
    unknown_count: int = 0
    has_more: bool = False
    left_out: tuple[str, ...] = ()
    committed_ids: tuple[str, ...] = ()
    log_file_count: int = 0


def flush_table(table: Table, writer: BatchWriter, *, limits: FlushLimits | None = None) -> FlushResult:
    """Commit what is staged for a table, in one log file.

    Exactly once: a batch whose id is in the log is not written again (I3), and only the owner of the ``ingest``
    fence commits. A run that fails anywhere leaves the batches staged; the next run takes them. A flush reads the heads
    of the log; whole log files only if a column is to become wider.

    Args:
        table: The table.
        writer: Turns batches into data files.
        limits: Bounds of the run.

    Raises:
        Fenced: Another flush took over; drop the job.
        CommitConflict: The commit certainly did not land; run again.
        CommitOutcomeUnknown: Nobody knows yet; the next run settles it.
        HaltError: The table needs a person.
        Unavailable: A server did not answer, or the job took too long (W3).
    """
    limits = limits or FlushLimits()
    if not list_staged(table, limit=1, skip=limits.skip).batches:
        return FlushResult()
    with AppendCommit(table) as commit:
        # WARN: staging is listed after the log was read. The other way round: a batch is listed, another flush commits
        # it, its log file is merged and vacuumed, and this log read does not know its id any more: rows twice.
        with phase("list staged"):
            staged = list_staged(table, limit=limits.listed_batches, skip=limits.skip)
        sorted_out = _sort_out(staged.batches, commit.log, config=table.config, limits=limits)
        conflict_count, left_count = _settle_decided(commit, sorted_out)
        found = FlushResult(
            duplicate_count=len(sorted_out.duplicates) + len(sorted_out.refused) - left_count,
            conflict_count=conflict_count,
            unknown_count=len(staged.unknown),
            has_more=staged.has_more or sorted_out.has_more,
            left_out=tuple(sorted_out.left_out),
            log_file_count=len(commit.log.files),
        )
        if not (sorted_out.taken or sorted_out.late):
            return found
        return _decide(commit, writer, sorted_out, found=found, sizes=limits.sizes)


@dataclass(slots=True)
class _SortedOut:
    taken: list[StagedBatch] = field(default_factory=list)
    duplicates: list[StagedBatch] = field(default_factory=list)
    refused: list[StagedBatch] = field(default_factory=list)
    late: list[RejectedBatch] = field(default_factory=list)
    has_more: bool = False
    left_out: list[str] = field(default_factory=list)


def _settle_decided(commit: AppendCommit, sorted_out: _SortedOut) -> tuple[int, int]:
    """Clear staging of what the log has decided; return how many were other content, and how many have to stay (I8)."""
    table = commit.table
    duplicates = {batch.batch_id for batch in sorted_out.duplicates}
    known = {
        batch_id: file.log.contents[batch_id]
        for file in commit.log.files
        for batch_id in duplicates & file.log.contents.keys()
    }
    settled: list[Settled] = []
    gone: list[str] = []
    for batch in sorted_out.duplicates:
        commit.still_mine()  # each costs a GET
        # WARN: not by the id alone: another content under it would vanish, though it was accepted.
        found = settle_copy(table, batch.key, known=known.get(batch.batch_id, ""), clock=table.clock)
        settled.append(found)
        if found != "left":
            gone.append(batch.key)
    if gone:
        # I3: their rows are live already. If none goes, a flush that finds nothing else would be asked for ever.
        delete_or_raise(table.store, gone)
    settled += [quarantine_again(table, batch=batch, clock=table.clock) for batch in sorted_out.refused]
    return settled.count("conflict"), settled.count("left")


def _sort_out(
    batches: tuple[StagedBatch, ...], log: LogHeads, *, config: TableConfig, limits: FlushLimits
) -> _SortedOut:
    # The log has the ids of all that came within its grace period: only those that are staged are gathered.
    staged_ids = {batch.batch_id for batch in batches}
    committed_ids = set().union(*(staged_ids.intersection(file.log.batch_ids) for file in log.files))
    refused_ids = set().union(*(staged_ids.intersection(file.log.refused_ids) for file in log.files))
    decided: set[str] = set()
    found = _SortedOut()
    taken_bytes = 0
    for batch in batches:
        if batch.batch_id in committed_ids:
            found.duplicates.append(batch)
            continue
        if batch.batch_id in refused_ids:
            found.refused.append(batch)
            continue
        if batch.batch_id in decided:
            # One id, staged in two formats: it waits until the log tells a duplicate from a batch to be taken (I3).
            found.has_more = True
            continue
        decided.add(batch.batch_id)
        reason = refuse_stale_id(batch, config)
        if reason is not None:
            found.late.append(RejectedBatch(batch, reason, is_doubtful=True))
            continue
        try:
            require_takes_batches(config)
        except InvalidRequest as error:
            found.late.append(RejectedBatch(batch, str(error)))
            continue
        if limits.leaves_out(batch):
            found.left_out.append(batch.batch_id)
            continue
        is_full = taken_bytes + batch.size_bytes > limits.max_bytes or len(found.taken) == limits.max_batches
        if found.taken and is_full:
            found.has_more = True
            break
        found.taken.append(batch)
        taken_bytes += batch.size_bytes
    return found


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


def _decide(
    commit: AppendCommit, writer: BatchWriter, sorted_out: _SortedOut, *, found: FlushResult, sizes: SizeClass | None
) -> FlushResult:
    """Write, commit, and clear staging of what the commit decided."""
    table = commit.table
    output = FlushOutput((), commit.known.effective, (), (), (), 0)
    if sorted_out.taken:
        output = _write(commit, writer, tuple(sorted_out.taken), sizes=sizes)  # W1: data files first
    rejected = (*sorted_out.late, *output.rejected)
    committed_key: str | None = None
    if output.accepted or rejected:
        log = commit.build(
            Added(
                files=output.files,
                schema=output.schema if output.accepted else None,
                batch_ids=tuple(batch.batch_id for batch in output.accepted),
                refused_ids=tuple(refusal.batch.batch_id for refusal in rejected),
                contents={batch_id: sha256[:DIGEST_CHARS] for batch_id, sha256 in output.contents.items()},  # I8
                looked_up=output.inexact,
            )
        )
        _quarantine_bad_rows(commit, output)
        committed_key = commit.land(log).key
    with phase("clear staging"):
        if output.accepted:
            delete_or_raise(table.store, [batch.key for batch in output.accepted])  # I2: only now
        moved = [quarantine_batch(table, rejected=refusal, clock=table.clock) for refusal in rejected]  # I5: only now
        for bad in output.bad_rows:
            mark_rows_landed(table, batch_id=bad.batch.batch_id, commit_id=commit.commit_id)
    return replace(
        found,
        committed_key=committed_key,
        batch_count=len(output.accepted),
        row_count=output.row_count,
        file_count=len(output.files),
        partition_count=len({table.paths.partition_of(marker.path) for marker in output.files}),
        size_bytes=sum(marker.size_bytes for marker in output.files),
        bad_row_count=sum(bad.row_count for bad in output.bad_rows),
        rejected=rejected,
        conflict_count=found.conflict_count + moved.count("conflict"),
        deferred_count=len(output.deferred),
        has_more=found.has_more or bool(output.deferred),
        left_out=(*found.left_out, *(batch.batch_id for batch in output.left_out)),
        committed_ids=tuple(batch.batch_id for batch in output.accepted),
        log_file_count=found.log_file_count + (committed_key is not None),
    )


def _write(
    commit: AppendCommit, writer: BatchWriter, batches: tuple[StagedBatch, ...], *, sizes: SizeClass | None
) -> FlushOutput:
    if sizes is None or sizes.takes == "small":
        return _run_job(commit, writer, batches, sizes=sizes)
    for place, batch in enumerate(batches):
        output = _run_job(commit, writer, (batch,), sizes=sizes)  # I6: a large one is alone
        if not output.left_out:
            return replace(output, left_out=batches[:place], deferred=batches[place + 1 :])
    return FlushOutput((), commit.known.effective, (), (), (), 0, left_out=batches)


def _run_job(
    commit: AppendCommit, writer: BatchWriter, batches: tuple[StagedBatch, ...], *, sizes: SizeClass | None
) -> FlushOutput:
    table = commit.table
    job = FlushJob(
        paths=table.paths,
        config=table.config,
        schema=commit.known.effective,
        batches=batches,
        commit_id=commit.commit_id,
        time_ms=table.clock.now_ms(),
        # The log as a whole: rows are only ever added under the fence that this run holds.
        read_live=lambda: tuple(fold(table.read_log()).live),
        check_alive=commit.still_mine,
        sizes=sizes,
        inexact=commit.known.inexact,
    )
    with phase("write files", batches=len(batches), bytes=sum(batch.size_bytes for batch in batches)):
        output = writer.write_batches(job)
    for problem in _find_problems(job, output):
        raise InvariantViolated(f"table {table.name}: {problem}")
    return output


def _find_problems(job: FlushJob, output: FlushOutput) -> Iterator[str]:
    """Yield what is wrong with the data path's answer; nothing is committed then. Pure.

    Each batch is decided once, deferred, or left out (I5); a job defers never all that it may take (I6).
    """
    rejected = tuple(refusal.batch for refusal in output.rejected)
    undecided = (*output.deferred, *output.left_out)
    answered = [batch.batch_id for batch in (*output.accepted, *rejected, *output.missing, *undecided)]
    if sorted(answered) != sorted(batch.batch_id for batch in job.batches):
        yield "the flush job did not decide each of its batches once (I5)"
    if output.left_out and job.sizes is None:
        yield f"the flush job left {len(output.left_out)} batches out, and was to take all sizes (I6)"
    if output.deferred and len(undecided) == len(job.batches):
        yield (
            f"the flush job deferred all of its {len(output.deferred)} batches: it would never end; one batch beyond "
            "the bound is committed alone (I6)"
        )
    if output.files and not output.accepted:
        yield "the flush job accepted no batch, yet wrote data files (I5)"
    if output.row_count != sum(marker.row_count or 0 for marker in output.files):
        yield f"the flush job says {output.row_count} rows, its files differ"
    yield from _find_bad_row_problems(job, output)


def _find_bad_row_problems(job: FlushJob, output: FlushOutput) -> Iterator[str]:
    """Bad rows belong to accepted batches, lie in this table's quarantine, and only where its policy says so (I5)."""
    if output.bad_rows and job.config.on_bad_rows != "quarantine_rows":
        yield f"the flush job left rows out, but on_bad_rows is {job.config.on_bad_rows} (I5)"
    accepted = Counter(batch.batch_id for batch in output.accepted)
    with_bad_rows = Counter(bad.batch.batch_id for bad in output.bad_rows)
    for batch_id in with_bad_rows - accepted:
        yield f"batch {batch_id} has bad rows, but is not accepted, or twice (I5)"
    for bad in output.bad_rows:
        if bad.row_count < 1 or not bad.payload_key.startswith(job.paths.quarantine_prefix):
            yield (
                f"{bad.row_count} bad rows of batch {bad.batch.batch_id} at {bad.payload_key}: at least one is needed, "
                f"below {job.paths.quarantine_prefix} (I5)"
            )
    if not output.contents.keys() <= accepted.keys():
        yield "the flush job tells contents of batches that it left out (I8)"


def _quarantine_bad_rows(commit: AppendCommit, output: FlushOutput) -> None:
    if not output.bad_rows:
        return
    table = commit.table
    # WARN: look, confirm, write on condition. A run that slept through a takeover would otherwise write over what
    # the other flush said of a batch: that it was refused whole, for one.
    found = [find_reason(table, bad.batch.batch_id) for bad in output.bad_rows]
    commit.fence.confirm()
    for bad, old in zip(output.bad_rows, found, strict=True):
        etag = None if old is None else old.etag
        try:
            quarantine_rows(table, bad=bad, replaces=etag, commit_id=commit.commit_id, clock=table.clock)
        except InvariantViolated:
            # T5: a run that sleeps since it confirmed finds them purged; the purge has its fence, then.
            commit.fence.confirm()
            raise
