"""An exchange of live data files: what a commit under the fence of ``merge`` does (M1, M3, M4, M6).

Merges, rewrites, deletions and removals of partitions all go through here. They share one fence, so that none brings
back what another one took away (M4).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from icedb_log.commit.commit import Commit
from icedb_log.commit.fence import HeldFence, acquire_fence
from icedb_log.commit.invariants import require_known_paths, require_merge, require_promoted
from icedb_log.commit.merge_log import build_merge_log
from icedb_log.commit.table import Table
from icedb_log.errors import CorruptLog, IceDBError, InvariantViolated, NotFound, Unavailable
from icedb_log.jobs import GroupMerger, MergedGroup, MergeGroup, MergeJob, RowChange
from icedb_log.keys import log_name
from icedb_log.log.fold import Snapshot, fold, union_schema
from icedb_log.log.requests import Outcomes
from icedb_log.log.state import LogState
from icedb_log.model import EMPTY, LogChange, LogView
from icedb_log.phases import phase
from icedb_log.table.stored_config import read_table_config

MAX_SHOWN: Final = 5
"""Differences, and outputs, that a message names."""


@dataclass(frozen=True, slots=True)
class Exchanged:
    """An exchange that landed.

    Attributes:
        key: Its log file.
        time_ms: Its time; what it took away is tombstoned at this time.
        replaced_log_count: Log files that it replaces.
    """

    key: str
    time_ms: int
    replaced_log_count: int


class ExchangeCommit(Commit):
    """A commit that exchanges live data files for others, or for nothing. Commits at most once.

    Args:
        table: The table.
        state: What is known of its log from an earlier run, to be brought up to date: then a commit costs what has
            changed since, and not what is there.

    Attributes:
        view: The log, as read under the fence.
        state: What it says.
    """

    view: LogView

    def __init__(self, table: Table, *, state: LogState | None = None) -> None:
        super().__init__(table, "merge")
        self.state: Final = state or LogState()
        self._merged: Sequence[MergedGroup] = ()

    def _read_log(self) -> None:
        self.view = self.table.read_log()
        require_known_paths(self.table.config, self.view)
        self.state.update(self.view)

    @cached_property
    def snapshot(self) -> Snapshot:
        """The fold of the log; costs as much as the whole log."""
        return fold(self.view)

    @cached_property
    def schema(self) -> Mapping[str, str]:
        """The columns of the table, with SQL types."""
        return union_schema(self.table.name, self.view.files).effective

    def run(
        self, merger: GroupMerger, groups: Sequence[MergeGroup], *, change: RowChange | None = None
    ) -> tuple[MergedGroup, ...]:
        """Write the new data files of some groups (W1); none for no groups.

        Raises:
            InvariantViolated: The job did not answer for each of its data files once.
            CorruptLog: A live data file is gone: the table needs a person.
            Fenced: The run should stop.
            IceDBError: What the merger raises.
        """
        if not groups:
            return ()
        self.table.check_alive()
        job = MergeJob(
            paths=self.table.paths,
            config=self.table.config,
            schema=self.schema,
            groups=tuple(groups),
            commit_id=self.commit_id,
            time_ms=self.table.clock.now_ms(),
            change=change,
            check_alive=self.still_mine,
        )
        try:
            size_bytes = sum(group.size_bytes for group in groups)
            with phase("write files", groups=len(groups), bytes=size_bytes):
                merged = merger.merge_groups(job)
        except NotFound as error:
            # Under this fence nobody else tombstones data files, and the janitor deletes no others. A view that is
            # stale because the fence passed on is another matter: that run is only late.
            self.fence.require_held()
            read_table_config(self.table)  # T5: nor is the table being purged, which takes no fence
            raise CorruptLog(str(error)) from error
        answered = sorted(path for group in merged for path in _input_paths(group.group))
        if answered != sorted(path for group in groups for path in _input_paths(group)):
            raise InvariantViolated(f"table {self.table.name}: the job did not answer for each of its data files once")
        return merged

    def land(
        self,
        merged: Sequence[MergedGroup],
        *,
        folded_log_keys: Iterable[str] | None = None,
        change: LogChange = "merge",
        requests: Outcomes = EMPTY,
    ) -> Exchanged:
        """Check and commit, and let the fence go.

        Args:
            merged: What became of each group.
            folded_log_keys: Log files that the commit folds (M1); ``None``: all that name an input, so that nothing but
                the grace period keeps what was removed.
            change: What the commit does with rows (M3).
            requests: What it is the answer to, by the request's id (M7); the name of its log file is added.

        Raises:
            Fenced: Another run took over; drop the job.
            CommitConflict: The commit certainly did not land.
            CommitOutcomeUnknown: Nobody knows yet; the next run settles it.
            InvariantViolated: Nothing was written.
            Unavailable: The job took too long to be committed safely (W3), or the store did not answer; or the outputs
                do not hold what the inputs hold, for the first time (M6).
        """
        self._require_same_contents(merged)
        if folded_log_keys is None:
            inputs = [path for group in merged for path in _input_paths(group.group)]
            folded_log_keys = {key for path in inputs for key in self.state.logs_naming(path)}
        config, paths = self.table.config, self.table.paths
        shown, ingest = self._show_filled(merged)
        try:
            log = build_merge_log(
                self.state,
                merged=merged,
                folded_log_keys=folded_log_keys,
                commit_id=self.commit_id,
                now_ms=self.table.clock.now_ms(),
                change=change,
                shown=shown,
                promoted_count=len(config.promoted),
            )
            key = paths.log_key(time_ms=log.time_ms, commit_id=self.commit_id, is_merged=True)
            made = {request_id: {**outcome, "log": log_name(key)} for request_id, outcome in requests.items()}
            log = replace(log, requests={**log.requests, **made})
            require_merge(paths, self.state, log, merged=merged, commit_key=key, shown=shown)
            require_promoted(paths, config, log.schema, [marker for group in merged for marker in group.outputs])
            self.table.check_alive()
        except IceDBError:
            if ingest is not None:
                ingest.release()
            raise
        self._merged = merged
        committed = self._put(log, beside=ingest)
        if ingest is not None:
            ingest.release()
        replaced = sum(1 for dead in log.log_tombstones if not self.state.is_dead_log(dead.path))
        return Exchanged(committed.key, log.time_ms, replaced)

    def find_filled(self, merged: Sequence[MergedGroup] = (), *, state: LogState | None = None) -> dict[str, str]:
        """Return the promoted columns that are hidden, and that every live data file has after an exchange (S4).

        Args:
            merged: What becomes of groups.
            state: A later state of the log.
        """
        config = self.table.config
        if not config.find_hidden(self.schema):
            return {}
        inputs = {path for group in merged for path in _input_paths(group.group)}
        outputs = [marker.promoted_count for group in merged for marker in group.outputs]
        fewest = min((state or self.state).live.fewest_promoted(inputs), *outputs, len(config.promoted))
        return config.find_filled(self.schema, fewest=fewest)

    def _show_filled(self, merged: Sequence[MergedGroup]) -> tuple[dict[str, str], HeldFence | None]:
        """Return the promoted columns that this commit shows (S4), and the fence that it needs for that."""
        if not self.find_filled(merged):
            return {}, None
        # WARN: S4: both fences, and the log after that. Without them: a flush that knows nothing of the path has begun,
        # this commit shows the column, and the flush lands: a data file that lacks what readers see.
        ingest = acquire_fence(replace(self.table, patience_ms=0), "ingest")  # F6: who holds a fence waits for none
        try:
            state = self.state.copy()
            state.update(self.table.read_log())
            filled = self.find_filled(merged, state=state)
        except IceDBError:
            ingest.release()
            raise
        if filled:
            return filled, ingest
        ingest.release()
        return {}, None

    def _before_release(self) -> None:
        """Forget that a merge was refused, if the data file that it was about is not live any more (M6)."""
        differed = self.fence.differed
        if not differed:
            return
        is_input = any(differed in _input_paths(group.group) for group in self._merged)
        if is_input or self.state.live_marker(differed) is None:
            self.fence.forget_difference()

    def _require_same_contents(self, merged: Sequence[MergedGroup]) -> None:
        """Refuse outputs that do not hold what the inputs hold; for the second time, halt the table (M6)."""
        found = next((group for group in merged if group.contents.differences), None)
        if found is None:
            return
        path = found.group.inputs[0].path
        problem = (
            f"table {self.table.name}: partition {found.group.partition or '(none)'}: a merge of {path} and "
            f"{len(found.group.inputs) - 1} more data files wrote other values than it read, by the footers: "
            f"{'; '.join(found.contents.differences[:MAX_SHOWN])}; nothing was committed, inputs and outputs "
            f"({', '.join(marker.path for marker in found.outputs[:MAX_SHOWN])}) stay (M6)"
        )
        if self.fence.differed:
            raise InvariantViolated(
                f"{problem}. It is not the first time: no merge of these files is committed until a person has looked. "
                "Compare the files; if the footer of an input is wrong, rewrite the partition with `icedb rewrite`"
            )
        self.fence.note_difference(path)
        raise Unavailable(f"{problem}. The next run tries once more, and if it is the same again, the table halts")


def _input_paths(group: MergeGroup) -> tuple[str, ...]:
    return tuple(marker.path for marker in group.inputs)
