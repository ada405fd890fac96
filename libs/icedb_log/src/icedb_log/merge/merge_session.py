"""One ownership of the ``merge`` fence: the log as read under it, the work, and one commit (F1 to F3, M1 to M4, M6).

Everything that exchanges live data files goes through here: merges, rewrites, deletions, removals of partitions. They
share one fence, so that none brings back what another one took away (M4).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from icedb_log.clock import Clock
from icedb_log.errors import CorruptLog, InvariantViolated, NotFound, Unavailable
from icedb_log.jobs import CheckAlive, GroupMerger, MergedGroup, MergeGroup, MergeJob, RowChange, never_stop
from icedb_log.keys import TablePaths
from icedb_log.log.fence import HeldFence, acquire_fence
from icedb_log.log.fence_watch import FenceWatch
from icedb_log.log.fold import fold
from icedb_log.log.invariants import require_merge
from icedb_log.log.reader import LogReader
from icedb_log.merge.merge_log import build_merge_log
from icedb_log.model import LogView, Snapshot
from icedb_log.stopwatch import Stopwatch
from icedb_log.store.object_store import ObjectStore
from icedb_log.table.table_config import TableConfig

MAX_SHOWN: Final = 5
"""Differences, and outputs, that a message names."""


@dataclass(frozen=True, slots=True)
class MergeCommit:
    """A commit that landed.

    Attributes:
        key: Its log file.
        time_ms: Its time; what it took away is tombstoned at this time.
        replaced_log_count: Log files that it replaces.
    """

    key: str
    time_ms: int
    replaced_log_count: int


class MergeSession:
    """A run that holds the fence of ``merge`` from the beginning. Commits at most once.

    Args:
        store: The object store.
        paths: Keys of the table.
        config: Its configuration.
        clock: This host's clock.
        owner: Who runs this, for the fence object.
        reader: Reads the log, after the fence was acquired (F2).
        check_alive: Called before each step, and while a job works.

    Raises:
        Unavailable: The store did not answer, or others kept taking the fence.
        HaltError: The log or the fence cannot be read.
    """

    def __init__(
        self,
        store: ObjectStore,
        paths: TablePaths,
        *,
        config: TableConfig,
        clock: Clock,
        owner: str,
        reader: LogReader,
        check_alive: CheckAlive | None = None,
    ) -> None:
        self._paths: Final = paths
        self._config: Final = config
        self._clock: Final = clock
        self._check_alive: Final[CheckAlive] = check_alive or never_stop
        self._check_alive()
        self._fence: Final[HeldFence] = acquire_fence(
            store, paths, "merge", owner=owner, clock=clock, incarnation=config.incarnation
        )
        self._still_mine: Final = FenceWatch(self._fence, check_alive=self._check_alive, clock=clock)
        self.view: Final[LogView] = reader.read()  # F2: only what is read after the fence is mine counts
        self.snapshot: Final[Snapshot] = fold(self.view)
        self.commit_id: Final = clock.new_id()
        self._stopwatch: Final = Stopwatch(clock)

    def run(
        self, merger: GroupMerger, groups: Sequence[MergeGroup], *, change: RowChange | None = None
    ) -> tuple[MergedGroup, ...]:
        """Write the new data files of some groups (W1); none for no groups.

        Raises:
            InvariantViolated: The job did not answer for each of its groups once.
            CorruptLog: A live data file is gone: the table needs a person.
            Fenced: The run should stop.
            IceDBError: What the merger raises.
        """
        if not groups:
            return ()
        self._check_alive()
        job = MergeJob(
            self._paths,
            self._config,
            self.snapshot.schema,
            tuple(groups),
            self.commit_id,
            self._clock.now_ms(),
            change,
            self._still_mine,
        )
        try:
            merged = merger.merge_groups(job)
        except NotFound as error:
            # Under this fence nobody else tombstones data files, and the janitor deletes no others. A view that is
            # stale because the fence passed on is another matter: that run is only late.
            self._fence.require_held()
            raise CorruptLog(str(error)) from error
        if sorted(_input_paths(group.group) for group in merged) != sorted(_input_paths(group) for group in groups):
            raise InvariantViolated(f"table {self._paths.name}: the job did not answer for each of its groups once")
        return merged

    def commit(
        self, merged: Sequence[MergedGroup], *, folded_log_keys: Iterable[str] = (), may_change_rows: bool = False
    ) -> MergeCommit:
        """Check and commit, and let the fence go.

        Args:
            merged: What became of each group.
            folded_log_keys: Further log files that the commit involves (M1).
            may_change_rows: Whether somebody asked for rows to be removed or made anew (M3).

        Raises:
            Fenced: Another run took over; drop the job.
            CommitConflict: The commit certainly did not land.
            CommitOutcomeUnknown: Nobody knows yet; the next run settles it.
            InvariantViolated: Nothing was written.
            Unavailable: The job took too long to be committed safely (W3), or the store did not answer; or the outputs
                do not hold what the inputs hold, for the first time (M6).
        """
        self._require_same_contents(merged)
        log = build_merge_log(
            self.view,
            merged=merged,
            folded_log_keys=folded_log_keys,
            commit_id=self.commit_id,
            now_ms=self._clock.now_ms(),
        )
        key = self._paths.log_key(time_ms=log.time_ms, commit_id=self.commit_id, is_merged=True)
        require_merge(self._paths, self.view, log, merged=merged, commit_key=key, may_change_rows=may_change_rows)
        self._check_alive()
        within = partial(self._stopwatch.require_within, self._config.orphan_age_ms // 2, table=self._paths.name)
        committed = self._fence.commit(log, last_check=within)  # W3
        self._forget_difference(merged)
        self._fence.release()
        replaced = sum(1 for dead in log.log_tombstones if dead.path not in self.snapshot.log_tombstoned_ms)
        return MergeCommit(committed.key, log.time_ms, replaced)

    def _require_same_contents(self, merged: Sequence[MergedGroup]) -> None:
        """Refuse outputs that do not hold what the inputs hold; for the second time, halt the table (M6)."""
        found = next((group for group in merged if group.contents.differences), None)
        if found is None:
            return
        path = found.group.inputs[0].path
        problem = (
            f"table {self._paths.name}: partition {found.group.partition or '(none)'}: a merge of {path} and "
            f"{len(found.group.inputs) - 1} more data files wrote other values than it read, by the footers: "
            f"{'; '.join(found.contents.differences[:MAX_SHOWN])}; nothing was committed, inputs and outputs "
            f"({', '.join(marker.path for marker in found.outputs[:MAX_SHOWN])}) stay (M6)"
        )
        if self._fence.differed:
            raise InvariantViolated(
                f"{problem}. It is not the first time: no merge of these files is committed until a person has looked. "
                "Compare the files; if the footer of an input is wrong, rewrite the partition with `icedb rewrite`"
            )
        self._fence.note_difference(path)
        raise Unavailable(f"{problem}. The next run tries once more, and if it is the same again, the table halts")

    def _forget_difference(self, merged: Sequence[MergedGroup]) -> None:
        """Forget that a merge was refused, if the data file that it was about is not live any more."""
        inputs = {path for group in merged for path in _input_paths(group.group)}
        live = {marker.path for marker in self.snapshot.live}
        if self._fence.differed and self._fence.differed not in live - inputs:
            self._fence.forget_difference()


def _input_paths(group: MergeGroup) -> tuple[str, ...]:
    return tuple(marker.path for marker in group.inputs)
