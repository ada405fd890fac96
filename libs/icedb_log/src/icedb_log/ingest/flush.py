"""A flush: many staged batches become one log file, exactly once (rules I1 to I5, F1 to F3, W1 to W3).

The rows are written by a :class:`~icedb_log.jobs.BatchWriter`; everything that decides is here. The order is the
point: fence, log, *then* staging. What becomes of a batch is decided by the commit alone, which names the batches that
it made live and those that it refused. Safe under any number of concurrent flushes, without any lock.

A batch may crash what reads it in a way that nobody foresaw: by an error that is none of ours, or by the end of a
process. It must not keep the others waiting (I5). A job that crashed is tried with the older half of its batches, and
so on; one that crashes with a single batch is tried with it once more, and that is refused. A job without batches runs
in between: if it crashes as well, the machine is to blame, and nothing is refused. If it was this process that ended,
the fence tells: its next owner finds that it was never released, and takes fewer batches.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Final, cast

from icedb_log.batch_ids import BatchIds, is_keyed, name_of, parse_batch_id_ms
from icedb_log.commit.commit import Added, AppendCommit
from icedb_log.commit.table import Table
from icedb_log.content import DIGEST_CHARS
from icedb_log.errors import InvalidRequest, InvariantViolated, JobCrashed, NotFound, crashes_told
from icedb_log.formats import StagingFormat
from icedb_log.ingest.quarantine import (
    DuplicateOutcome,
    find_reason,
    mark_rows_landed,
    quarantine_again,
    quarantine_batch,
    quarantine_rows,
    resolve_duplicate,
)
from icedb_log.ingest.staging import StagedListing, find_cleared, list_staged, read_staged, stage_batch
from icedb_log.jobs import (
    BatchWriter,
    FlushJob,
    FlushOutput,
    RejectedBatch,
    SizeClass,
    StagedBatch,
)
from icedb_log.log.fold import fold
from icedb_log.model import LogHeads
from icedb_log.phases import phase
from icedb_log.store.object_store import MAX_KEYS_PER_PAGE, delete_or_raise
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table_config import TableConfig, require_takes_batches
from icedb_log.units import MIB, MINUTE_MS

MAX_FLUSH_BATCHES: Final = 5000
"""Batches in one commit. So many ids with their contents make a head of 370 KB, which a flush reads by three GETs."""

GROUP_AGE_MS: Final = MINUTE_MS
"""From this age on a batch that keeps a group is staged alone."""
MAX_STAGED_ALONE: Final = 100
"""So many by one flush: each costs four requests."""

MAX_REASONS: Final = 20
"""Refused batches that the result of a task names; all of them are in quarantine."""

_FIRST_SHIFT: Final = 2
"""After an owner of the fence was lost, a flush takes a quarter of what that may have read: few commits are needed
until the oldest batch, which most often is the one, is alone."""
_NEXT_SHIFT: Final = 4
"""With each further one it takes a 16th of that: few processes are lost."""
MAX_LOST_ALONE: Final = 2
"""So many processes may end while they read one batch alone, after one that read it among others. Others end processes,
too: three times in a row at one batch, and never at another one, is hardly chance."""
_ENDS_PROCESSES: Final = (
    f"{MAX_LOST_ALONE} processes ended without a word while they read this batch, and nothing else, after one that "
    "read it among others: it may need more memory than a worker has, or a reader may fail on it. Give workers more "
    "memory and retry it, or send its rows in another format, and report it"
)


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
        misfit_count: Values of live rows that do not fit a promoted column, and are NULL there.
        rejected: Batches that this commit refused; they are in quarantine, with reasons.
        duplicate_count: Staged objects of batches that were committed or refused before (I3).
        conflict_count: Those of them whose content is another one, and is in quarantine as an entry of its own (I8).
        deferred_count: Batches that wait for the next commit, since this one has partitions enough.
        unknown_count: Objects in staging that are no batches; left alone.
        has_more: Whether more batches are waiting.
        left_out: Ids of batches that were found not to be of the size that this flush takes.
        committed_ids: Ids of the batches that this commit made live.
        log_file_count: Log files of the table after this flush, dead ones too; 0 if it was not looked at.
        crashes: What its jobs raised that nobody foresaw, before a batch was isolated.
    """

    committed_key: str | None = None
    batch_count: int = 0
    row_count: int = 0
    file_count: int = 0
    partition_count: int = 0
    size_bytes: int = 0
    bad_row_count: int = 0
    misfit_count: int = 0
    rejected: tuple[RejectedBatch, ...] = ()
    duplicate_count: int = 0
    conflict_count: int = 0
    deferred_count: int = 0
    unknown_count: int = 0
    has_more: bool = False
    left_out: tuple[str, ...] = ()
    committed_ids: tuple[str, ...] = ()
    log_file_count: int = 0
    crashes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FlushRun:
    """What some flushes of one table did, one after the other."""

    results: Sequence[FlushResult]

    @property
    def commit_count(self) -> int:
        """Commits."""
        return sum(1 for each in self.results if each.committed_key)

    @property
    def is_idle(self) -> bool:
        """Whether no batch was decided, or found to be."""
        return not (self.commit_count or any(each.duplicate_count for each in self.results))

    def details(self) -> dict[str, Any]:
        """Return it as the result of a task; the counts are of all batches, also of those that it does not name."""
        results = self.results
        rejected = [{"batch": each.batch.batch_id, "reason": each.reason} for one in results for each in one.rejected]
        return {
            "commits": self.commit_count,
            "batches": sum(each.batch_count for each in results),
            "rows": sum(each.row_count for each in results),
            "files": sum(each.file_count for each in results),
            "written_bytes": sum(each.size_bytes for each in results),
            "duplicates": sum(each.duplicate_count for each in results),
            "deferred": sum(each.deferred_count for each in results),
            "bad_rows": sum(each.bad_row_count for each in results),
            "misfits": sum(each.misfit_count for each in results),
            "rejected": len(rejected),
            "reasons": rejected[:MAX_REASONS],
        }


def flush_table(
    table: Table, writer: BatchWriter, *, limits: FlushLimits | None = None, is_staged: bool = False
) -> FlushResult:
    """Commit what is staged for a table, in one log file.

    Exactly once: a batch whose id is in the log is not written again (I3), and only the owner of the ``ingest``
    fence commits. A run that fails anywhere leaves the batches staged; the next run takes them. A flush reads the heads
    of the log; whole log files only if a column is to become wider.

    Args:
        table: The table.
        writer: Turns batches into data files.
        limits: Bounds of the run.
        is_staged: The caller has just seen that something is: nobody looks once more before the fence is taken.

    Raises:
        Fenced: Another flush took over; drop the job.
        CommitConflict: The commit certainly did not land; run again.
        CommitOutcomeUnknown: Nobody knows yet; the next run settles it.
        HaltError: The table needs a person.
        Overloaded: The log has as many files as it may.
        JobCrashed: The job fails without any batch, too: what works on batches is broken.
        Unavailable: A server did not answer, or the job took too long (W3).
    """
    limits = limits or FlushLimits()
    if not is_staged and not list_staged(table, limit=1, skip=limits.skip).batches:
        return FlushResult()
    with AppendCommit(table) as commit:
        # WARN: staging is listed after the log was read. The other way round: a batch is listed, another flush commits
        # it, its log file is merged and vacuumed, and this log read does not know its id any more: rows twice.
        with phase("list staged"):
            find_decided = cache(partial(_find_decided, commit.log))
            staged = list_staged(table, limit=limits.listed_batches, skip=limits.skip, find_decided=find_decided)
        classified = _classify_batches(staged.batches, commit.log, config=table.config, limits=limits)
        conflict_count, left_count = _clear_decided(commit, classified, staged)
        if classified.taken or classified.late:
            commit.require_room()
        _take_fewer(commit, classified)
        found = FlushResult(
            duplicate_count=len(classified.duplicates) + len(classified.refused) - left_count,
            conflict_count=conflict_count,
            unknown_count=len(staged.unknown),
            has_more=staged.has_more or classified.has_more,
            left_out=tuple(classified.left_out),
            log_file_count=len(commit.log.files),
        )
        if not (classified.taken or classified.late):
            if not found.has_more:
                _forget_lost(commit, (*found.left_out, *limits.skip))
            return found
        return _decide(commit, writer, classified, found=found, limits=limits, staged=staged)


@dataclass(slots=True)
class _ClassifiedBatches:
    taken: list[StagedBatch] = field(default_factory=list)
    duplicates: list[StagedBatch] = field(default_factory=list)
    refused: list[StagedBatch] = field(default_factory=list)
    late: list[RejectedBatch] = field(default_factory=list)
    decided_as: dict[str, str] = field(default_factory=dict)
    """Under which id the log has decided each of these two: its own, or another one of the same key (I7)."""
    removable: list[StagedBatch] = field(default_factory=list)
    """Copies in groups, to be deleted as soon as all others in their group may be."""
    waiting: list[StagedBatch] = field(default_factory=list)
    """Refused copies in groups that are decided in part: looked at when the group may go."""
    has_more: bool = False
    left_out: list[str] = field(default_factory=list)

    def as_decided(self, batch: StagedBatch) -> StagedBatch:
        """Return a copy under the id by which the log has decided it."""
        return replace(batch, batch_id=self.decided_as[batch.batch_id])


def _find_decided(log: LogHeads) -> BatchIds:
    return BatchIds(batch_id for file in log.files for batch_id in (*file.log.batch_ids, *file.log.refused_ids))


def _clear_decided(commit: AppendCommit, classified: _ClassifiedBatches, staged: StagedListing) -> tuple[int, int]:
    """Clear staging of batches that the log has decided; return how many are conflicts, and how many are left (I8)."""
    table = commit.table
    duplicates = {classified.decided_as[batch.batch_id] for batch in classified.duplicates}
    known = {
        batch_id: file.log.contents[batch_id]
        for file in commit.log.files
        for batch_id in duplicates & file.log.contents.keys()
    }
    outcomes: list[DuplicateOutcome] = []
    done: list[StagedBatch] = []
    for batch in classified.duplicates:
        commit.still_mine()  # each that is alone costs a GET
        # WARN: not by the id alone: another content under it would vanish, though it was accepted.
        copy = classified.as_decided(batch)
        outcome = resolve_duplicate(table, copy, known=known.get(copy.batch_id, ""), clock=table.clock)
        outcomes.append(outcome)
        if outcome != "left":
            done.append(batch)
    young = _find_half_decided(classified, staged)
    for batch in classified.refused:
        if batch.key in young:
            classified.waiting.append(batch)
            outcomes.append("left")
            continue
        copy = classified.as_decided(batch)
        outcome = quarantine_again(table, batch=copy, clock=table.clock)
        outcomes.append(outcome)
        if outcome != "left" and batch.is_grouped:
            done.append(batch)
    if gone := find_cleared(done, staged.groups):
        # I3: their rows are live already. If none goes, a flush that finds nothing else would be asked for ever.
        delete_or_raise(table.store, gone)
    classified.removable += [batch for batch in done if batch.is_grouped and batch.key not in gone]
    return outcomes.count("conflict"), outcomes.count("left")


def _find_half_decided(classified: _ClassifiedBatches, staged: StagedListing) -> frozenset[str]:
    """Return the groups that stay for now, as they have undecided batches, and are young. Pure.

    A refused batch of such a group is looked at when the others are decided, or the group is old: each look writes its
    reason anew, so that nobody drops that before the copy goes (J11).
    """
    decided = {batch.name for batch in (*classified.duplicates, *classified.refused)}
    return frozenset(
        key
        for key, batches in staged.groups.items()
        if not _is_old(batches, staged) and any(batch.name not in decided for batch in batches)
    )


def _is_old(batches: Sequence[StagedBatch], staged: StagedListing) -> bool:
    """Whether what is undecided in a group is to be staged alone."""
    return batches[0].staged_ms + GROUP_AGE_MS <= staged.store_now_ms


def _classify_batches(
    batches: tuple[StagedBatch, ...], log: LogHeads, *, config: TableConfig, limits: FlushLimits
) -> _ClassifiedBatches:
    # The log has the ids of all that came within its grace period: only those that are staged are gathered.
    staged_ids = BatchIds(batch.batch_id for batch in batches)
    committed: dict[str, str] = {}
    refused: dict[str, str] = {}
    for file in log.files:
        committed |= staged_ids.find_in(file.log.batch_ids)
        refused |= staged_ids.find_in(file.log.refused_ids)
    first = _find_first_of_keys(batches)
    decided: set[str] = set()
    found = _ClassifiedBatches(decided_as=refused | committed)
    taken_bytes = 0
    for batch in batches:
        if batch.batch_id in committed:
            found.duplicates.append(batch)
            continue
        if batch.batch_id in refused:
            found.refused.append(batch)
            continue
        name = name_of(batch.batch_id)
        if name in decided or first.get(name, batch) is not batch:
            # Another copy of it: it waits until the log tells a duplicate from a batch to be taken (I3).
            found.has_more = True
            continue
        decided.add(name)
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


def _find_first_of_keys(batches: Iterable[StagedBatch]) -> Mapping[str, StagedBatch]:
    """Return the batch of each key that was staged first (I3): in a listing they lie in the order of their ids."""
    found: dict[str, StagedBatch] = {}
    for batch in batches:
        if is_keyed(batch.batch_id):
            known = found.setdefault(name_of(batch.batch_id), batch)
            if batch.staged_ms < known.staged_ms:
                found[name_of(batch.batch_id)] = batch
    return found


def _take_fewer(commit: AppendCommit, classified: _ClassifiedBatches) -> None:
    """Take a part of the batches if owners of the fence before this one were lost, or interrupted (I5, F6).

    What the last one that was lost did not read goes first, once; then the newest part of what it read, and so on, at
    last one batch alone: of many batches most are committed before the one that ends processes is read again.
    """
    fence, taken, losses = commit.fence, classified.taken, commit.fence.losses
    if not taken:
        return
    if not losses.count:
        classified.taken = taken[: _shrink(len(taken), fence.interrupted)]
        classified.has_more |= len(classified.taken) < len(taken)
        return
    named = [batch for batch in taken if losses.names(batch.batch_id)]
    if named and losses.alone_count >= MAX_LOST_ALONE:
        classified.late.append(RejectedBatch(named[0], _ENDS_PROCESSES))
        classified.has_more |= len(taken) > 1
        classified.taken = []
        fence.forget_lost()
        return
    old = [batch for batch in taken if batch.staged_ms <= losses.last_ms]
    suspects = named or old  # by their ids, as staging is listed
    # WARN: if one ended over what was not suspected, there are several such batches: old ones do not go first any more.
    # Otherwise each of two would end processes in turn as one of the other batches, for ever.
    kept = {batch.batch_id for batch in (*suspects, *(old if losses.is_mixed else ()))}
    others = [batch for batch in taken if batch.batch_id not in kept]
    # WARN: once. New batches that always went first would keep the others waiting for as long as new ones come.
    if others and (fence.follows_lost or not suspects):
        part = others[: _shrink(len(others), fence.interrupted)]
    else:
        shift = _NEXT_SHIFT if named else _FIRST_SHIFT + _NEXT_SHIFT * (losses.count - 1)
        count = _shrink(len(suspects), shift)
        if not named:  # WARN: twice as many each time. Otherwise a few that were lost leave one batch to each commit.
            count = min(count << losses.read_count, _shrink(len(suspects), _FIRST_SHIFT))
        part = suspects[-_shrink(count, fence.interrupted) :]
        # WARN: before it is read. After it there may be nobody who could write.
        fence.read_part(part[0].batch_id, part[-1].batch_id)
    classified.has_more |= len(part) < len(taken)
    classified.taken = part


def _shrink(count: int, shift: int) -> int:
    """Halve a number of batches so many times; one is left."""
    return max(1, count >> shift)


def _forget_lost(commit: AppendCommit, left: Iterable[str]) -> None:
    """Forget lost owners of the fence, unless a batch of another size is left that they may have read (I5, I6)."""
    losses = commit.fence.losses
    if losses.count and not any(map(losses.may_have_read, left)):
        commit.fence.forget_lost()


def refuse_stale_id(batch: StagedBatch, config: TableConfig) -> str | None:
    """Return why a batch id can no longer be checked against the log (I3), or ``None`` if it can.

    Log files stay for their grace period G after a commit, and with them the ids. An id whose time lies at most S
    in the store's future when it is first staged, and which may be staged again until its time plus G - S, is
    therefore always checked against a log that still has it. How long a batch waits in staging does not matter.

    An id that was made from a key is not sent again: a retry of the key has another one (I7). It is staged within S, so
    that a retry which begins within G - 2 S of the first one is always checked against a log that still has that.
    """
    id_ms = parse_batch_id_ms(batch.batch_id)
    window_ms = config.id_skew_ms if is_keyed(batch.batch_id) else config.retry_window_ms
    if batch.staged_ms >= id_ms + window_ms:
        return (
            f"it was staged {batch.staged_ms - id_ms} ms after its id was made; it is possible "
            f"within {window_ms} ms. If it was never accepted before, enqueue it again under a fresh id"
        )
    if id_ms > batch.staged_ms + config.id_skew_ms:
        return (
            f"its id was made {id_ms - batch.staged_ms} ms in the store's future; at most "
            f"{config.id_skew_ms} ms are allowed. Set the producer's clock and enqueue it again under a fresh id"
        )
    return None


def _decide(
    commit: AppendCommit,
    writer: BatchWriter,
    classified: _ClassifiedBatches,
    *,
    found: FlushResult,
    limits: FlushLimits,
    staged: StagedListing,
) -> FlushResult:
    """Write, commit, and clear staging of what the commit decided."""
    table = commit.table
    output = FlushOutput((), commit.known.effective, (), (), (), 0)
    crashes: list[str] = []
    if classified.taken:  # W1: data files first
        output = _write(commit, writer, tuple(classified.taken), sizes=limits.sizes, crashes=crashes)
        commit.fence.note_written()
    rejected = (*classified.late, *output.rejected)
    left_out = (*found.left_out, *(batch.batch_id for batch in output.left_out))
    moved: list[DuplicateOutcome] = []

    def clear() -> None:
        with phase("clear staging"):
            moved.extend(_clear(commit, classified, output, rejected=rejected, staged=staged))  # I2, I5: only now

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
        if not found.has_more:  # after a loss a batch is alone, and alone none is deferred
            _forget_lost(commit, (*left_out, *limits.skip))
        committed_key = commit.land(log, on_landed=clear).key
    else:
        clear()
    return replace(
        found,
        committed_key=committed_key,
        batch_count=len(output.accepted),
        row_count=output.row_count,
        file_count=len(output.files),
        partition_count=len({table.paths.partition_of(marker.path) for marker in output.files}),
        size_bytes=sum(marker.size_bytes for marker in output.files),
        bad_row_count=sum(bad.row_count for bad in output.bad_rows),
        misfit_count=output.misfit_count,
        rejected=rejected,
        conflict_count=found.conflict_count + moved.count("conflict"),
        deferred_count=len(output.deferred),
        has_more=found.has_more or bool(output.deferred),
        left_out=left_out,
        committed_ids=tuple(batch.batch_id for batch in output.accepted),
        log_file_count=found.log_file_count + (committed_key is not None),
        crashes=tuple(crashes),
    )


def _clear(
    commit: AppendCommit,
    classified: _ClassifiedBatches,
    output: FlushOutput,
    *,
    rejected: Sequence[RejectedBatch],
    staged: StagedListing,
) -> list[DuplicateOutcome]:
    """Move what the commit has refused to quarantine, and clear staging of what is decided; return what was moved."""
    table = commit.table
    moved = [quarantine_batch(table, rejected=refusal, clock=table.clock) for refusal in rejected]
    done = [*classified.removable, *output.accepted]
    done += [
        refusal.batch
        for refusal, outcome in zip(rejected, moved, strict=True)
        if refusal.batch.is_grouped and outcome != "left"
    ]
    done += _stage_alone(table, done, staged)
    names = {batch.name for batch in (*done, *classified.waiting)}
    for batch in classified.waiting:
        is_whole = all(other.name in names for other in staged.groups[batch.key])
        copy = classified.as_decided(batch)
        if is_whole and quarantine_again(table, batch=copy, clock=table.clock) != "left":
            done.append(batch)
    if gone := find_cleared(done, staged.groups):
        delete_or_raise(table.store, gone)
    for bad in output.bad_rows:
        mark_rows_landed(table, batch_id=bad.batch.batch_id, commit_id=commit.commit_id)
    return moved


def _stage_alone(table: Table, done: Sequence[StagedBatch], staged: StagedListing) -> list[StagedBatch]:
    """Stage alone what keeps old groups, whose other batches are decided; return the copies that have another one now.

    A deferred or large batch would otherwise hold the bytes of all that came with it, and log files as well (J2).
    """
    decided = {batch.name for batch in done}
    old = [
        key
        for key in dict.fromkeys(batch.key for batch in done if batch.is_grouped)
        if _is_old(staged.groups[key], staged)
    ]
    left = [batch for key in old for batch in staged.groups[key] if batch.name not in decided][:MAX_STAGED_ALONE]
    return [batch for batch in left if _has_own_copy(table, batch)]


def _has_own_copy(table: Table, batch: StagedBatch) -> bool:
    """Stage a batch of a group once more, alone; return whether that copy will do without the one in the group."""
    try:
        body = read_staged(table.store, batch)
        staging_format = cast("StagingFormat", batch.format)  # as its group names it
        key = stage_batch(table, body=body, staging_format=staging_format, batch_id=batch.batch_id)
        info = table.store.head(key)
    except NotFound:
        return True  # another flush has decided it
    except InvalidRequest:
        return False  # other content is there (I8): both wait until one is decided
    # WARN: I3: by the store's time of the copy. It is younger than the group: too young, it would be refused as a retry
    # that comes too late, though the batch was accepted in time. The group stays, and decides.
    return refuse_stale_id(replace(batch, staged_ms=info.modified_ms), table.config) is None


def _write(
    commit: AppendCommit,
    writer: BatchWriter,
    batches: tuple[StagedBatch, ...],
    *,
    sizes: SizeClass | None,
    crashes: list[str],
) -> FlushOutput:
    if sizes is None or sizes.takes == "small":
        return _run_isolating(commit, writer, batches, sizes=sizes, crashes=crashes)
    for place, batch in enumerate(batches):
        output = _run_isolating(commit, writer, (batch,), sizes=sizes, crashes=crashes)  # I6: a large one is alone
        if not output.left_out:
            return replace(output, left_out=batches[:place], deferred=batches[place + 1 :])
    return FlushOutput((), commit.known.effective, (), (), (), 0, left_out=batches)


def _run_isolating(
    commit: AppendCommit,
    writer: BatchWriter,
    batches: tuple[StagedBatch, ...],
    *,
    sizes: SizeClass | None,
    crashes: list[str],
) -> FlushOutput:
    """Run a job over batches; if it crashes over ever fewer of them, until the one that crashes it is refused (I5)."""
    tried = batches
    while len(tried) > 1:
        try:
            output = _run_job(commit, writer, tried, sizes=sizes)
        except JobCrashed as error:
            crashes.append(str(error))
            tried = tried[: len(tried) // 2]
        else:
            return replace(output, deferred=(*output.deferred, *batches[len(tried) :]))
    output = _run_alone(commit, writer, tried, sizes=sizes, crashes=crashes)
    return replace(output, deferred=(*output.deferred, *batches[1:]))


def _run_alone(
    commit: AppendCommit,
    writer: BatchWriter,
    batch: tuple[StagedBatch, ...],
    *,
    sizes: SizeClass | None,
    crashes: list[str],
) -> FlushOutput:
    """Run a job over one batch, twice if need be; refuse that if both crash, and jobs without it do not (I5)."""
    try:
        return _run_job(commit, writer, batch, sizes=sizes)
    except JobCrashed as error:
        crashes.append(str(error))
        _run_job(commit, writer, (), sizes=sizes)
    try:
        return _run_job(commit, writer, batch, sizes=sizes)
    except JobCrashed as error:
        crashes.append(str(error))
        _run_job(commit, writer, (), sizes=sizes)
        reason = (
            f"reading it failed twice, alone, in a way that nobody foresaw ({error}). Send its rows in another format, "
            "and report it"
        )
        return FlushOutput((), commit.known.effective, (), (RejectedBatch(batch[0], reason),), (), 0)


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
    with (
        phase("write files", batches=len(batches), bytes=sum(batch.size_bytes for batch in batches)),
        crashes_told(f"table {table.name}: a flush of {len(batches)} batches"),
    ):
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
            # A run that sleeps since it confirmed may find that another flush refused the batch whole, and somebody
            # retried it, which deletes them; or that the table is purged (T5).
            read_table_config(table)
            commit.fence.require_held()
            raise
