"""A merge run: fence, read, plan, rewrite, check, commit (rules F1 to F3, M1 to M4, W1 to W3).

The rows are rewritten by a :class:`~icedb_log.jobs.GroupMerger`; everything that decides is here. Safe under
any number of concurrent runs and without any lock: the fence lets one of them commit.
"""

from collections.abc import Callable
from dataclasses import dataclass

from icedb_log.clock import Clock
from icedb_log.jobs import GroupMerger, MergedGroup, RowChange
from icedb_log.keys import TablePaths
from icedb_log.merge_plan import MergeLimits, MergePlan, plan_merge
from icedb_log.merge_session import MergeSession
from icedb_log.object_store import ObjectStore
from icedb_log.reader import LogReader
from icedb_log.table_config import read_table_config


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
        merger: Rewrites the groups, with the table's ``merge_query`` if it has one.
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
    session = MergeSession(
        store, paths, config=config, clock=clock, owner=owner, reader=reader, check_alive=check_alive
    )
    plan = plan_merge(session.view, paths=paths, config=config, full=full, limits=limits)
    if plan.is_empty:
        return MergeResult()
    change = None if config.merge_query is None else RowChange("merge_query", config.merge_query)
    merged = session.run(merger, plan.groups, change=change)
    committed = session.commit(merged, folded_log_keys=plan.folded_log_keys, may_change_rows=change is not None)
    return _result(plan, merged, committed_key=committed.key, folded=committed.replaced_log_count)


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
