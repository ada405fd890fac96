"""A flush: many staged batches become one log file, exactly once (rules I1 to I5, F1 to F3, W1 to W3).

The rows are written by a :class:`~icedb_log.jobs.BatchWriter`; everything that decides is here. The order is the
point: fence, log, *then* staging. What becomes of a batch is decided by the commit alone, which names the batches that
it made live and those that it refused. Safe under any number of concurrent flushes, without any lock.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest, InvariantViolated
from icedb_log.feed.views import require_takes_batches
from icedb_log.ingest.content import DIGEST_CHARS
from icedb_log.ingest.flush_checks import require_accounted, require_bad_rows, require_contents
from icedb_log.ingest.quarantine import find_reason, mark_rows_landed, quarantine_rows
from icedb_log.ingest.refusals import Settled, quarantine_again, quarantine_batch, settle_copy
from icedb_log.ingest.staging import list_staged
from icedb_log.ingest.widening_commit import WideningCommit
from icedb_log.jobs import (
    BatchWriter,
    CheckAlive,
    FlushJob,
    FlushOutput,
    RejectedBatch,
    SizeClass,
    StagedBatch,
    never_stop,
)
from icedb_log.keys import TablePaths, parse_staged_key
from icedb_log.log.fence import Committed, HeldFence, acquire_fence
from icedb_log.log.fence_watch import FenceWatch
from icedb_log.log.fold import fold, union_schema
from icedb_log.log.invariants import require_append, require_schema_carried
from icedb_log.log.reader import LogReader
from icedb_log.log.widening import LoggedSchema, grow_schema, state_inexact
from icedb_log.model import FileMarker, LogFile, LogHeads
from icedb_log.stopwatch import Stopwatch
from icedb_log.store.object_store import MAX_KEYS_PER_PAGE, ObjectStore, delete_or_raise
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table_config import TableConfig
from icedb_log.units import MIB


@dataclass(frozen=True, slots=True)
class FlushLimits:
    """Bounds of one flush.

    Attributes:
        max_batches: Batches in one commit, 1..1000; in the search for a large one, batches that are looked at.
        max_bytes: Staged bytes in one commit; a single batch may exceed it.
        sizes: Which batches are taken, by their size; ``large``: one alone. ``None``: all.
        skip: Ids of batches that are known not to be of that size: nobody looks at them again.
    """

    max_batches: int = MAX_KEYS_PER_PAGE
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


def flush_table(
    store: ObjectStore,
    paths: TablePaths,
    *,
    clock: Clock,
    writer: BatchWriter,
    owner: str,
    limits: FlushLimits | None = None,
    reader: LogReader | None = None,
    check_alive: CheckAlive | None = None,
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
        reader: A reader to reuse, with its caches. A flush reads heads; whole log files only if a column is to become
            wider.
        check_alive: Called while the batches are read and written; raises if the run should stop (a lost lock). Saves
            work only.

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
    if not list_staged(store, paths, limit=1, skip=limits.skip).batches:
        return FlushResult()
    reader = reader or LogReader(store, paths, clock=clock, max_refresh_ms=config.log_grace_ms // 2)
    fence = acquire_fence(store, paths, "ingest", owner=owner, clock=clock, incarnation=config.incarnation)
    view = reader.heads.read()  # F2
    # WARN: staging is listed after the log was read. The other way round: a batch is listed, another flush commits
    # it, its log file is merged and vacuumed, and this log read does not know its id any more: rows twice.
    staged = list_staged(store, paths, limit=limits.listed_batches, skip=limits.skip)
    sorted_out = _sort_out(staged.batches, view, config=config, limits=limits)
    watch = FenceWatch(fence, check_alive=check_alive or never_stop, clock=clock)
    conflict_count, left_count = _settle_decided(store, paths, sorted_out, view, clock=clock, still_mine=watch)
    found = FlushResult(
        duplicate_count=len(sorted_out.duplicates) + len(sorted_out.refused) - left_count,
        conflict_count=conflict_count,
        unknown_count=len(staged.unknown),
        has_more=staged.has_more or sorted_out.has_more,
        left_out=sorted_out.left_out,
    )
    if not (sorted_out.taken or sorted_out.late):
        return found
    widening = WideningCommit(store, paths, clock, owner, config.incarnation, reader, view)
    run = _Run(store, paths, clock, config, writer, fence, reader, watch, limits.sizes, widening)
    return run.decide(sorted_out, found=found, known=union_schema(paths.name, view.files))


@dataclass(frozen=True, slots=True)
class _SortedOut:
    taken: tuple[StagedBatch, ...]
    duplicates: tuple[StagedBatch, ...]
    refused: tuple[StagedBatch, ...]
    late: tuple[RejectedBatch, ...]
    has_more: bool
    left_out: tuple[str, ...]


def _settle_decided(
    store: ObjectStore,
    paths: TablePaths,
    sorted_out: _SortedOut,
    view: LogHeads,
    *,
    clock: Clock,
    still_mine: CheckAlive,
) -> tuple[int, int]:
    """Clear staging of what the log has decided; return how many were other content, and how many have to stay (I8)."""
    known = {batch_id: content for file in view.files for batch_id, content in file.log.contents.items()}
    settled: list[Settled] = []
    gone: list[str] = []
    for batch in sorted_out.duplicates:
        still_mine()  # each costs a GET
        # WARN: not by the id alone: another content under it would vanish, though it was accepted.
        found = settle_copy(store, paths, batch.key, known=known.get(batch.batch_id, ""), clock=clock)
        settled.append(found)
        if found != "left":
            gone.append(batch.key)
    if gone:
        # I3: their rows are live already. If none goes, a flush that finds nothing else would be asked for ever.
        delete_or_raise(store, gone)
    settled += [quarantine_again(store, paths, batch=batch, clock=clock) for batch in sorted_out.refused]
    return settled.count("conflict"), settled.count("left")


def _sort_out(
    batches: tuple[StagedBatch, ...], view: LogHeads, *, config: TableConfig, limits: FlushLimits
) -> _SortedOut:
    committed_ids = {batch_id for file in view.files for batch_id in file.log.batch_ids}
    refused_ids = {batch_id for file in view.files for batch_id in file.log.refused_ids}
    decided: set[str] = set()
    has_more = False
    taken: list[StagedBatch] = []
    duplicates: list[StagedBatch] = []
    refused: list[StagedBatch] = []
    late: list[RejectedBatch] = []
    left_out: list[str] = []
    taken_bytes = 0
    for batch in batches:
        if batch.batch_id in committed_ids:
            duplicates.append(batch)
            continue
        if batch.batch_id in refused_ids:
            refused.append(batch)
            continue
        if batch.batch_id in decided:
            # One id, staged in two formats: it waits until the log tells a duplicate from a batch to be taken (I3).
            has_more = True
            continue
        decided.add(batch.batch_id)
        reason = refuse_stale_id(batch, config)
        if reason is not None:
            late.append(RejectedBatch(batch, reason, is_doubtful=True))
            continue
        try:
            require_takes_batches(config)
        except InvalidRequest as error:
            late.append(RejectedBatch(batch, str(error)))
            continue
        if limits.leaves_out(batch):
            left_out.append(batch.batch_id)
            continue
        if len(taken) == limits.max_batches or (taken and taken_bytes + batch.size_bytes > limits.max_bytes):
            has_more = True
            break
        taken.append(batch)
        taken_bytes += batch.size_bytes
    return _SortedOut(tuple(taken), tuple(duplicates), tuple(refused), tuple(late), has_more, tuple(left_out))


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


@dataclass(frozen=True, slots=True)
class _Run:
    """What one flush works with once it holds the fence and knows the log."""

    store: ObjectStore
    paths: TablePaths
    clock: Clock
    config: TableConfig
    writer: BatchWriter
    fence: HeldFence
    reader: LogReader
    still_mine: FenceWatch
    sizes: SizeClass | None
    widening: WideningCommit

    def decide(self, sorted_out: _SortedOut, *, found: FlushResult, known: LoggedSchema) -> FlushResult:
        """Write, commit, and clear staging of what the commit decided."""
        stopwatch = Stopwatch(self.clock)
        commit_id = self.clock.new_id()
        output = FlushOutput((), known.effective, (), (), (), 0)
        if sorted_out.taken:
            output = self._write(sorted_out.taken, known=known, commit_id=commit_id)  # W1: data files first
        rejected = (*sorted_out.late, *output.rejected)
        committed_key: str | None = None
        if output.accepted or rejected:
            log = self._build_log(output, rejected, known=known, commit_id=commit_id)
            self._quarantine_bad_rows(output, commit_id)
            within = partial(stopwatch.require_within, self.config.orphan_age_ms // 2, table=self.paths.name)
            committed_key = self._commit(log, known=known, last_check=within).key  # W3
            self.fence.release()
        if output.accepted:
            delete_or_raise(self.store, [batch.key for batch in output.accepted])  # I2: only now
        moved = [
            quarantine_batch(self.store, self.paths, rejected=refusal, clock=self.clock)  # I5: only now
            for refusal in rejected
        ]
        found = replace(found, conflict_count=found.conflict_count + moved.count("conflict"))
        for bad in output.bad_rows:
            mark_rows_landed(self.store, self.paths, batch_id=bad.batch.batch_id, commit_id=commit_id)
        return self._result(found, output, rejected, committed_key)

    def _commit(self, log: LogFile, *, known: LoggedSchema, last_check: Callable[[], None]) -> Committed:
        proven = log.widened.keys() - known.widened.keys() - self.config.declared.keys()
        if proven:  # S2
            return self.widening.commit(self.fence, log, columns=proven, last_check=last_check)
        return self.fence.commit(log, last_check=last_check)

    def _write(self, batches: tuple[StagedBatch, ...], *, known: LoggedSchema, commit_id: str) -> FlushOutput:
        if self.sizes is None or self.sizes.takes == "small":
            return self._run_job(batches, known=known, commit_id=commit_id)
        for place, batch in enumerate(batches):
            output = self._run_job((batch,), known=known, commit_id=commit_id)  # I6: a large one is alone
            if not output.left_out:
                return replace(output, left_out=batches[:place], deferred=batches[place + 1 :])
        return FlushOutput((), known.effective, (), (), (), 0, left_out=batches)

    def _run_job(self, batches: tuple[StagedBatch, ...], *, known: LoggedSchema, commit_id: str) -> FlushOutput:
        job = FlushJob(
            paths=self.paths,
            config=self.config,
            schema=known.effective,
            batches=batches,
            commit_id=commit_id,
            time_ms=self.clock.now_ms(),
            read_live=self._read_live,
            check_alive=self.still_mine,
            sizes=self.sizes,
            inexact=known.inexact,
        )
        output = self.writer.write_batches(job)
        require_accounted(self.paths, job, output)
        require_bad_rows(self.paths, job, output)
        require_contents(self.paths, output)
        return output

    def _read_live(self) -> tuple[FileMarker, ...]:
        """Read the log whole: rows are only ever added under the fence that this run holds."""
        return tuple(fold(self.reader.read()).live)

    def _build_log(
        self, output: FlushOutput, rejected: tuple[RejectedBatch, ...], *, known: LoggedSchema, commit_id: str
    ) -> LogFile:
        grown = known
        if output.accepted:
            grown = grow_schema(self.paths.name, known, after=output.schema, config=self.config)
        log = LogFile(
            time_ms=self.clock.now_ms(),
            schema=grown.logged,
            markers=output.files,
            commit_id=commit_id,
            batch_ids=tuple(batch.batch_id for batch in output.accepted),
            widened=grown.widened,
            inexact=state_inexact(grown, output.files, looked_up=output.inexact),
            refused_ids=tuple(refusal.batch.batch_id for refusal in rejected),
            contents={batch_id: sha256[:DIGEST_CHARS] for batch_id, sha256 in output.contents.items()},  # I8
        )
        require_schema_carried(self.paths, log, known=known)
        # The heads name no data files, so names are only compared with each other: fresh ids are unique (W1).
        require_append(self.paths, log, known=())
        return log

    def _quarantine_bad_rows(self, output: FlushOutput, commit_id: str) -> None:
        if not output.bad_rows:
            return
        # WARN: look, confirm, write on condition. A run that slept through a takeover would otherwise write over what
        # the other flush said of a batch: that it was refused whole, for one.
        found = [find_reason(self.store, self.paths, bad.batch.batch_id) for bad in output.bad_rows]
        self.fence.confirm()
        for bad, old in zip(output.bad_rows, found, strict=True):
            etag = None if old is None else old.etag
            try:
                quarantine_rows(self.store, self.paths, bad=bad, replaces=etag, commit_id=commit_id, clock=self.clock)
            except InvariantViolated:
                # T5: a run that sleeps since it confirmed finds them purged; the purge has its fence, then.
                self.fence.confirm()
                raise

    def _result(
        self, found: FlushResult, output: FlushOutput, rejected: tuple[RejectedBatch, ...], committed_key: str | None
    ) -> FlushResult:
        return FlushResult(
            committed_key=committed_key,
            batch_count=len(output.accepted),
            row_count=output.row_count,
            file_count=len(output.files),
            partition_count=len({self.paths.partition_of(marker.path) for marker in output.files}),
            size_bytes=sum(marker.size_bytes for marker in output.files),
            bad_row_count=sum(bad.row_count for bad in output.bad_rows),
            rejected=rejected,
            duplicate_count=found.duplicate_count,
            conflict_count=found.conflict_count,
            deferred_count=len(output.deferred),
            unknown_count=found.unknown_count,
            has_more=found.has_more or bool(output.deferred),
            left_out=(*found.left_out, *(batch.batch_id for batch in output.left_out)),
        )
