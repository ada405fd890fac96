"""What the merger counts."""

from typing import Final, Literal, get_args

from icedb_log.changes.partition_removal import RemovalResult
from icedb_log.changes.retention import RetentionResult, count_kept
from icedb_log.changes.row_changes import ChangeResult
from icedb_log.jobs import ContentCheck
from icedb_log.merge.merge import MergeResult
from icedb_log.names import (
    MERGE_CHANGE,
    MERGE_COLD,
    MERGE_DROP_PARTITIONS,
    MERGE_ERASE,
    MERGE_MERGE,
    MERGE_RETAIN,
    MERGE_SWEEP,
)
from icedb_service.metrics import OPEN, SparkWorkerMetrics

DIRECTIONS: Final = ("in", "out")
LaneLabel = Literal["hot", "cold", "full"]
LANE_LABELS: Final[tuple[LaneLabel, ...]] = get_args(LaneLabel)
TurnEnd = Literal["done", "time", "amount", "stopped"]
TURN_ENDS: Final[tuple[TurnEnd, ...]] = get_args(TurnEnd)
CHECK_RESULTS: Final = ("equal", "unproven", "differs")
ERASURE_ENDS: Final = ("complete", "refused")
ChangeCause = Literal["delete", "rewrite"]
"""What somebody asked for."""


TASKS: Final = (MERGE_MERGE, MERGE_COLD, MERGE_SWEEP, MERGE_CHANGE, MERGE_DROP_PARTITIONS, MERGE_RETAIN, MERGE_ERASE)


class MergeMetrics(SparkWorkerMetrics):
    """Counters of commits, files, bytes and rows."""

    def __init__(self) -> None:
        super().__init__("merge", package="icedb-merger", tasks=TASKS)
        make = self.make
        self.commits = make.counter("icedb_merge_commits_total", "Log files committed")
        self.files = make.counter(
            "icedb_merge_files_total", "Data files; in: merged and tombstoned, out: made", direction=DIRECTIONS
        )
        self.moved = make.counter(
            "icedb_merge_bytes_total", "Bytes of data files; in: merged, out: made", direction=DIRECTIONS
        )
        self.misfits = make.counter(
            "icedb_merge_promoted_misfits_total",
            "Values that do not fit a promoted column, in rows that rewrites made and that backfills gave the column",
        )
        self.checks = make.counter(
            "icedb_merge_content_checks_total",
            "Nulls and bounds of columns, compared between inputs and outputs of a merge by their footers; unproven: a "
            "footer does not say, differs: nothing of it was committed",
            result=CHECK_RESULTS,
        )
        self.turns = make.counter(
            "icedb_merge_turns_total",
            "Turns of tables; done: nothing was left, time and amount: others went first, since that bound was met, "
            "stopped: the turn failed, its earlier commits stay",
            lane=LANE_LABELS,
            end=TURN_ENDS,
        )
        self.folded = make.counter("icedb_merge_folded_log_files_total", "Log files that a commit replaced")
        self.changes = make.counter(
            "icedb_merge_changes_total",
            "Changes of rows that were committed, by what was asked for",
            kind=get_args(ChangeCause),
        )
        self.changed_rows = make.counter(
            "icedb_merge_changed_rows_total",
            "Rows that changes took away; what a rewrite adds is not taken off",
            kind=get_args(ChangeCause),
        )
        self.retention_kept = make.gauge(
            "icedb_merge_retention_kept_partitions",
            "Partitions that the last run of retention kept, by reason (docs/partitions.md)",
            table=OPEN,
            reason=OPEN,
        )
        self.erasures = make.counter(
            "icedb_merge_erasures_total",
            "Erasures that ended; complete: every object is gone, refused: the condition does not fit the table",
            state=ERASURE_ENDS,
        )

    def record_check(self, check: ContentCheck) -> None:
        """Count what was compared of one group."""
        self.checks.labels("equal").inc(check.equal_count)
        self.checks.labels("unproven").inc(check.unproven_count)
        self.checks.labels("differs").inc(len(check.differences))

    def record_change(self, kind: ChangeCause, result: ChangeResult) -> None:
        """Count what one change of rows committed; a dry run commits nothing."""
        if result.committed_key is None:
            return
        self.commits.inc()
        self.changes.labels(kind).inc()
        self.changed_rows.labels(kind).inc(max(0, result.rows_removed))
        self.files.labels("in").inc(result.file_count)
        self.files.labels("out").inc(result.output_count)
        self.moved.labels("in").inc(result.input_bytes)
        self.moved.labels("out").inc(result.output_bytes)
        self.misfits.inc(result.misfit_count)

    def record_removal(self, removal: RemovalResult) -> None:
        """Count the commit of a removal, if it has made one."""
        if removal.committed_key is not None:
            self.commits.inc()

    def record_retention(self, table: str, result: RetentionResult) -> None:
        """Count one run of retention."""
        self.record_removal(result.removal)
        for reason, count in count_kept(result.plan).items():
            self.retention_kept.labels(table, reason).set(count)

    def record(self, result: MergeResult) -> None:
        """Count one commit of a merge."""
        self.commits.inc(result.commit_count)
        self.files.labels("in").inc(result.input_count)
        self.files.labels("out").inc(result.output_count)
        self.moved.labels("in").inc(result.input_bytes)
        self.moved.labels("out").inc(result.output_bytes)
        self.misfits.inc(result.misfit_count)
        self.folded.inc(result.folded_log_count)
