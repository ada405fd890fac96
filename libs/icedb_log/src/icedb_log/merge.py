"""A merge run: fence, read, plan, rewrite, check, commit (rules F1 to F3, M1 to M4, W1 to W3).

The rows are rewritten by a :class:`~icedb_log.jobs.GroupMerger`; everything that decides is here. Safe under
any number of concurrent runs and without any lock: the fence lets one of them commit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from icedb_log.clock import Clock
from icedb_log.errors import InvariantViolated
from icedb_log.fence import acquire_fence
from icedb_log.fold import fold
from icedb_log.invariants import require_merge
from icedb_log.jobs import GroupMerger, MergedGroup, MergeGroup, MergeJob
from icedb_log.keys import TablePaths
from icedb_log.merge_plan import MergeLimits, MergePlan, build_merge_log, plan_merge
from icedb_log.model import LogView
from icedb_log.object_store import ObjectStore
from icedb_log.reader import LogReader
from icedb_log.stopwatch import Stopwatch
from icedb_log.table_config import TableConfig, read_table_config


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What a merge run did. All zero and no key: there was nothing to do.

    Attributes:
        committed_key: Log file of the commit; ``None`` if nothing was committed.
        group_count: Groups merged.
        input_count: Data files that died.
        output_count: Data files that were made.
        input_bytes: Bytes of the dead ones.
        output_bytes: Bytes of the new ones.
        row_count: Rows rewritten.
        folded_log_count: Log files that the commit replaces.
        has_more: Whether the limits left work for another run.
    """

    committed_key: str | None = None
    group_count: int = 0
    input_count: int = 0
    output_count: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    row_count: int = 0
    folded_log_count: int = 0
    has_more: bool = False


def merge_table(
    store: ObjectStore,
    paths: TablePaths,
    *,
    clock: Clock,
    merger: GroupMerger,
    owner: str,
    full: bool = False,
    limits: MergeLimits | None = None,
    check_alive: Callable[[], None] | None = None,
    reader: LogReader | None = None,
) -> MergeResult:
    """Merge what is worth it in a table, in one commit.

    Idempotent in effect: a run that is repeated finds nothing left to do. A run that fails anywhere leaves the
    table as it was; data files that it wrote are orphans (J5).

    Args:
        store: The object store.
        paths: Keys of the table.
        clock: This host's clock.
        merger: Rewrites the groups.
        owner: Who runs this, for the fence object.
        full: Merge everything below the target size.
        limits: Bounds of the run.
        check_alive: Called before the commit; raises if the run should stop (a lost lock). Saves work only.
        reader: A reader to reuse, with its cache.

    Raises:
        NotFound: No such table, or a live data file is missing.
        Fenced: Another merger took over; drop the job.
        CommitConflict: The commit certainly did not land; run again.
        CommitOutcomeUnknown: Nobody knows yet; the next run settles it.
        HaltError: The table needs a person.
        Unavailable: A server did not answer, or the job took too long to be committed safely (W3).
    """
    config = read_table_config(store, paths)
    reader = reader or LogReader(store, paths, clock=clock, max_refresh_ms=config.log_grace_ms // 2)
    if plan_merge(reader.read(), paths=paths, config=config, full=full, limits=limits).is_empty:
        return MergeResult()
    fence = acquire_fence(store, paths, "merge", owner=owner, clock=clock)
    view = reader.read()  # F2: only what is read after the fence is mine counts
    plan = plan_merge(view, paths=paths, config=config, full=full, limits=limits)
    if plan.is_empty:
        return MergeResult()
    commit_id = clock.new_id()
    stopwatch = Stopwatch(clock)
    merged = _run_groups(merger, paths=paths, config=config, view=view, plan=plan, commit_id=commit_id, clock=clock)
    log = build_merge_log(
        view, merged=merged, folded_log_keys=plan.folded_log_keys, commit_id=commit_id, now_ms=clock.now_ms()
    )
    key = paths.log_key(time_ms=log.time_ms, commit_id=commit_id, is_merged=True)
    require_merge(paths, view, log, merged=merged, commit_key=key)
    if check_alive is not None:
        check_alive()
    within = partial(stopwatch.require_within, config.orphan_age_ms // 2, table=paths.name)
    committed = fence.commit(log, last_check=within)  # W3
    fence.release()
    dead_before = fold(view).log_tombstoned_ms
    folded = sum(1 for tombstone in log.log_tombstones if tombstone.path not in dead_before)
    return _result(plan, merged, committed_key=committed.key, folded=folded)


def _run_groups(
    merger: GroupMerger,
    *,
    paths: TablePaths,
    config: TableConfig,
    view: LogView,
    plan: MergePlan,
    commit_id: str,
    clock: Clock,
) -> tuple[MergedGroup, ...]:
    if not plan.groups:
        return ()
    job = MergeJob(paths, config, fold(view).schema, plan.groups, commit_id, clock.now_ms())
    merged = merger.merge_groups(job)  # W1: data files first
    answered = sorted(_input_paths(group.group) for group in merged)
    if answered != sorted(_input_paths(group) for group in plan.groups):
        raise InvariantViolated(f"table {paths.name}: the merge job did not answer for each of its groups once")
    return merged


def _input_paths(group: MergeGroup) -> tuple[str, ...]:
    return tuple(marker.path for marker in group.inputs)


def _result(plan: MergePlan, merged: tuple[MergedGroup, ...], *, committed_key: str, folded: int) -> MergeResult:
    outputs = [marker for group in merged for marker in group.outputs]
    return MergeResult(
        committed_key=committed_key,
        group_count=len(merged),
        input_count=len(plan.inputs),
        output_count=len(outputs),
        input_bytes=sum(marker.size_bytes for marker in plan.inputs),
        output_bytes=sum(marker.size_bytes for marker in outputs),
        row_count=sum(marker.row_count or 0 for marker in outputs),
        folded_log_count=folded,
        has_more=plan.has_more,
    )
