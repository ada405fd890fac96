"""A merge run: plan; then for each commit fence, read, rewrite, check, commit (F1 to F3, M1, M3, M4, W1 to W3).

The rows are rewritten by a :class:`~icedb_log.jobs.GroupMerger`; everything that decides is here. Safe under
any number of concurrent runs and without any lock: the fence lets one of them commit. A run is planned once, under the
fence, and commits as it goes: what has landed stays, whatever happens next.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from icedb_log.commit.exchange import ExchangeCommit, Exchanged
from icedb_log.commit.table import Table
from icedb_log.errors import CorruptLog
from icedb_log.jobs import ContentCheck, GroupMerger, MergedGroup, MergeGroup, RowChange
from icedb_log.log.fold import union_schema
from icedb_log.merge.merge_plan import NEXT_RUN, MergeIndex, MergeOptions, plan_merge
from icedb_log.model import LogView
from icedb_log.phases import phase
from icedb_log.publish.head import find_narrow_before, read_head


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
        row_count: Rows in the new ones.
        copied_bytes: Bytes of the dead ones that were taken over as they are, without decoding.
        decoded_row_count: Rows that were decoded and sorted.
        misfit_count: Values of rows that got promoted columns which do not fit one, and are NULL there.
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
    copied_bytes: int = 0
    decoded_row_count: int = 0
    misfit_count: int = 0
    folded_log_count: int = 0
    has_more: bool = False

    def plus(self, other: "MergeResult") -> "MergeResult":
        """Return the result of both, in this order."""
        figures = {name: getattr(self, name) + getattr(other, name) for name in _FIGURES}
        return MergeResult(other.committed_key or self.committed_key, has_more=other.has_more, **figures)

    @property
    def is_idle(self) -> bool:
        """Whether nothing was committed."""
        return self.commit_count == 0

    def details(self) -> dict[str, Any]:
        """Return it as the result of a task."""
        return {
            "commits": self.commit_count,
            "groups": self.group_count,
            "files_in": self.input_count,
            "files_out": self.output_count,
            "bytes_in": self.input_bytes,
            "bytes_out": self.output_bytes,
            "rows": self.row_count,
            "bytes_copied": self.copied_bytes,
            "rows_decoded": self.decoded_row_count,
            "misfits": self.misfit_count,
            "folded_log_files": self.folded_log_count,
            "has_more": self.has_more,
        }


_FIGURES: Final = [each.name for each in fields(MergeResult) if each.name not in ("committed_key", "has_more")]


@dataclass(frozen=True, slots=True)
class MergeWatch:
    """Callbacks of a merge run.

    Attributes:
        has_time: Asked between commits; the run ends when it says no.
        on_commit: Told what each commit did, when it has landed.
        on_check: Told of each group what its footers prove of its values, before anything is committed (M6).
    """

    has_time: Callable[[], bool] = lambda: True
    on_commit: Callable[["MergeResult"], None] = lambda _: None
    on_check: Callable[[ContentCheck], None] = lambda _: None


def merge_table(
    table: Table,
    merger: GroupMerger,
    *,
    options: MergeOptions = NEXT_RUN,
    watch: MergeWatch | None = None,
    index: MergeIndex | None = None,
) -> MergeResult:
    """Merge what is worth it in a table, in as many commits as its size asks for.

    Idempotent in effect: a run that is repeated finds nothing left to do. A run that fails anywhere leaves the
    table as its last commit left it; data files of the commit that did not land are orphans (J5).

    Args:
        table: The table.
        merger: Rewrites the groups, with the table's ``merge_query`` if it has one.
        options: What is asked for.
        watch: Callbacks of the run.
        index: Of the same table, kept from an earlier run; ignored if the configuration has changed since.

    Raises:
        Fenced: Another merger took over; drop the job.
        CommitConflict: The commit certainly did not land; run again.
        CommitOutcomeUnknown: Nobody knows yet; the next run settles it.
        HaltError: The table needs a person; also if a live data file is gone.
        Unavailable: A server did not answer, or the job took too long to be committed safely (W3); or outputs do not
            hold what their inputs hold, for the first time (M6).
    """
    watch = watch or MergeWatch()
    config = table.config
    if index is None or (index.config is not config and index.config != config):
        index = MergeIndex(table.paths, config)
    change = None if config.merge_query is None else RowChange("merge_query", config.merge_query)

    def merge_in(
        commit: ExchangeCommit, groups: tuple[MergeGroup, ...], *, folded: Iterable[str], has_more: bool
    ) -> MergeResult:
        whole = [MergeGroup(group.partition, tuple(group.inputs)) for group in groups]  # asked for often from here on
        merged = commit.run(merger, whole, change=change)
        for group in merged:
            watch.on_check(group.contents)
        done_with_rows = change.kind if merged and change else "merge"
        exchanged = commit.land(merged, folded_log_keys=folded, change=done_with_rows)
        made = replace(_result(merged, exchanged), has_more=has_more)
        watch.on_commit(made)
        return made

    with phase("read the log"):
        view = table.read_log()
        index.first_before_ms = _find_narrow_before(table, view)
    with phase("plan"):
        if plan_merge(index, view, options).is_empty:
            return MergeResult()
    with ExchangeCommit(table, state=index.log) as commit:
        with phase("plan"):
            plan = plan_merge(index, commit.view, options)  # F2: only what was read under the fence counts
        if plan.is_empty:
            return MergeResult()
        first, *rest = plan.commits or ((),)
        done = merge_in(commit, first, folded=plan.folded_log_keys, has_more=plan.has_more or bool(rest))
    for number, groups in enumerate(rest, 1):
        if not watch.has_time():
            break
        with ExchangeCommit(table, state=index.log) as commit:
            if not _are_live(groups, commit):
                return replace(done, has_more=True)  # somebody else merges here, too: plan again
            folded = index.find_due_logs(groups)
            done = done.plus(merge_in(commit, groups, folded=folded, has_more=plan.has_more or number < len(rest)))
    return done


def _find_narrow_before(table: Table, view: LogView) -> int:
    """Return before when data files were made that are to be merged first, so that the table can be published; 0: none.

    One request, and none for a table without widened columns.
    """
    if not any(file.log.widened for file in view.files):
        return 0
    try:
        before_ms = find_narrow_before(read_head(table), union_schema(view.table, view.files).widened)
    except CorruptLog:  # publishers halt for it; to merges it is advice
        return 0
    # The outputs get the time of this clock: while it is behind they would be merged first again.
    return before_ms if before_ms <= table.clock.now_ms() else 0


def _are_live(groups: Sequence[MergeGroup], commit: ExchangeCommit) -> bool:
    return all(commit.state.live_marker(marker.path) is not None for group in groups for marker in group.inputs)


def _result(merged: Sequence[MergedGroup], committed: Exchanged) -> MergeResult:
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
        copied_bytes=sum(group.copied_bytes for group in merged),
        decoded_row_count=sum(group.rows_decoded for group in merged),
        misfit_count=sum(group.misfit_count for group in merged),
        folded_log_count=committed.replaced_log_count,
    )
