"""A merge run: plan; then for each commit fence, read, rewrite, check, commit (F1 to F3, M1 to M4, W1 to W3).

The rows are rewritten by a :class:`~icedb_log.jobs.GroupMerger`; everything that decides is here. Safe under
any number of concurrent runs and without any lock: the fence lets one of them commit. A run is planned once, under the
fence, and commits as it goes: what has landed stays, whatever happens next.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from icedb_log.clock import Clock
from icedb_log.jobs import CheckAlive, ContentCheck, GroupMerger, MergedGroup, MergeGroup, RowChange
from icedb_log.keys import TablePaths
from icedb_log.log.reader import LogReader
from icedb_log.merge.merge_plan import Lane, MergeIndex, MergeLimits, plan_merge
from icedb_log.merge.merge_session import MergeCommit, MergeSession
from icedb_log.store.object_store import ObjectStore
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table_config import TableConfig


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What a merge run, or one commit of it, did. All zero and no key: there was nothing to do.

    Attributes:
        committed_key: Log file of the last commit; ``None`` if nothing was committed.
        commit_count: Commits.
        group_count: Groups merged.
        input_count: Data files that died.
        output_count: Data files that were made.
        input_bytes: Bytes of the dead ones.
        output_bytes: Bytes of the new ones.
        row_count: Rows rewritten.
        folded_log_count: Log files that the commits replace.
        has_more: Whether the run's bounds, its time, or a change by others left work for another run.
    """

    committed_key: str | None = None
    commit_count: int = 0
    group_count: int = 0
    input_count: int = 0
    output_count: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    row_count: int = 0
    folded_log_count: int = 0
    has_more: bool = False

    def plus(self, other: "MergeResult") -> "MergeResult":
        """Return the result of both, in this order."""
        return MergeResult(
            committed_key=other.committed_key or self.committed_key,
            commit_count=self.commit_count + other.commit_count,
            group_count=self.group_count + other.group_count,
            input_count=self.input_count + other.input_count,
            output_count=self.output_count + other.output_count,
            input_bytes=self.input_bytes + other.input_bytes,
            output_bytes=self.output_bytes + other.output_bytes,
            row_count=self.row_count + other.row_count,
            folded_log_count=self.folded_log_count + other.folded_log_count,
            has_more=other.has_more,
        )


def merge_table(
    store: ObjectStore,
    paths: TablePaths,
    *,
    clock: Clock,
    merger: GroupMerger,
    owner: str,
    lane: Lane = "hot",
    full: bool = False,
    limits: MergeLimits | None = None,
    has_time: Callable[[], bool] = lambda: True,
    on_commit: Callable[[MergeResult], None] = lambda _: None,
    on_check: Callable[[ContentCheck], None] = lambda _: None,
    check_alive: CheckAlive | None = None,
    reader: LogReader | None = None,
    index: MergeIndex | None = None,
) -> MergeResult:
    """Merge what is worth it in a table, in as many commits as its size asks for.

    Idempotent in effect: a run that is repeated finds nothing left to do. A run that fails anywhere leaves the
    table as its last commit left it; data files of the commit that did not land are orphans (J5).

    Args:
        store: The object store.
        paths: Keys of the table.
        clock: This host's clock.
        merger: Rewrites the groups, with the table's ``merge_query`` if it has one.
        owner: Who runs this, for the fence object.
        lane: Which merges.
        full: Merge everything below the target size, whatever the lane; log files that list a data file twice become
            one that does not.
        limits: Bounds of the run; those of the lane if not given.
        has_time: Asked between commits; the run ends when it says no.
        on_commit: Told what each commit did, when it has landed.
        on_check: Told of each group what its footers prove of its values, before anything is committed (M6).
        check_alive: Called before each step; raises if the run should stop (a lost lock). Saves work only.
        reader: A reader to reuse, with its cache.
        index: Of the same table, kept from an earlier run; ignored if the configuration has changed since.

    Raises:
        NotFound: No such table.
        Fenced: Another merger took over; drop the job.
        CommitConflict: The commit certainly did not land; run again.
        CommitOutcomeUnknown: Nobody knows yet; the next run settles it.
        HaltError: The table needs a person; also if a live data file is gone.
        Unavailable: A server did not answer, or the job took too long to be committed safely (W3); or outputs do not
            hold what their inputs hold, for the first time (M6).
    """
    config = read_table_config(store, paths)
    reader = reader or LogReader(store, paths, clock=clock, max_refresh_ms=config.log_grace_ms // 2)
    if index is None or (index.config is not config and index.config != config):
        index = MergeIndex(paths, config)
    plan_run = partial(plan_merge, paths=paths, config=config, lane=lane, full=full, limits=limits, index=index)
    if plan_run(reader.read()).is_empty:
        return MergeResult()

    open_session = partial(
        MergeSession, store, paths, config=config, clock=clock, owner=owner, reader=reader, check_alive=check_alive
    )
    session = open_session()
    plan = plan_run(session.view)  # F2: only what was read under the fence counts
    if plan.is_empty:
        return MergeResult()
    done = MergeResult(has_more=plan.has_more)
    for number, groups in enumerate(plan.commits or ((),)):
        if number:
            session = open_session()
            if not _are_live(groups, session):
                return replace(done, has_more=True)  # somebody else merges here, too: plan again
        folded = plan.folded_log_keys if number == 0 else ()
        is_last = number + 1 >= len(plan.commits)
        made = _commit(session, merger, groups, folded=folded, config=config, on_check=on_check)
        if plan.has_more or not is_last:
            made = replace(made, has_more=True)
        on_commit(made)
        done = done.plus(made)
        if not is_last and not has_time():
            break
    return done


def _are_live(groups: Sequence[MergeGroup], session: MergeSession) -> bool:
    live = {marker.path for marker in session.snapshot.live}
    return all(marker.path in live for group in groups for marker in group.inputs)


def _commit(
    session: MergeSession,
    merger: GroupMerger,
    groups: tuple[MergeGroup, ...],
    *,
    folded: tuple[str, ...],
    config: TableConfig,
    on_check: Callable[[ContentCheck], None],
) -> MergeResult:
    change = None if config.merge_query is None else RowChange("merge_query", config.merge_query)
    merged = session.run(merger, groups, change=change)
    for group in merged:
        on_check(group.contents)
    committed = session.commit(merged, folded_log_keys=folded, may_change_rows=change is not None)
    return _result(merged, committed)


def _result(merged: Sequence[MergedGroup], committed: MergeCommit) -> MergeResult:
    inputs = [marker for group in merged for marker in group.group.inputs]
    outputs = [marker for group in merged for marker in group.outputs]
    return MergeResult(
        committed_key=committed.key,
        commit_count=1,
        group_count=len(merged),
        input_count=len(inputs),
        output_count=len(outputs),
        input_bytes=sum(marker.size_bytes for marker in inputs),
        output_bytes=sum(marker.size_bytes for marker in outputs),
        row_count=sum(marker.row_count or 0 for marker in outputs),
        folded_log_count=committed.replaced_log_count,
    )
