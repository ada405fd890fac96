"""What the ingest service counts."""

from typing import Final

from icedb_log.feed.feeds import FeedResult
from icedb_log.imports.imports import ImportResult
from icedb_log.ingest.flush import FlushResult
from icedb_log.names import INGEST_FEED, INGEST_FLUSH, INGEST_IMPORT, INGEST_LARGE_FLUSH, INGEST_SWEEP
from icedb_log.units import SECOND_MS
from icedb_service.metrics import DURATION_BUCKETS_S, SparkWorkerMetrics

BATCH_OUTCOMES: Final = ("committed", "rejected", "duplicate", "conflict")
FEED_OUTCOMES: Final = ("taken", "refused")
INGEST_TASKS: Final = (INGEST_FLUSH, INGEST_SWEEP, INGEST_IMPORT, INGEST_FEED)
LARGE_TASKS: Final = (INGEST_LARGE_FLUSH,)
LARGE_OUTCOMES: Final = ("left", "flushed", "flushed_here")
PUT_OFF_REASONS: Final = ("interval", "log_full")
BATCH_BUCKETS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
FILE_BUCKETS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


class IngestMetrics(SparkWorkerMetrics):
    """Counters of batches, rows, files and commits.

    Args:
        tasks: What the worker serves: the tasks of the queue ``ingest``, or ``LARGE_TASKS``.
    """

    def __init__(self, *, tasks: tuple[str, ...] = INGEST_TASKS) -> None:
        super().__init__("ingest", package="icedb-ingest", tasks=tasks)
        make = self.make
        self.batches = make.counter(
            "icedb_ingest_batches_total",
            "Batches that left staging; rejected: in quarantine with a reason; duplicate: committed before; "
            "conflict: their id stands for other content, in quarantine as entries of their own",
            outcome=BATCH_OUTCOMES,
        )
        self.commits = make.counter("icedb_ingest_commits_total", "Log files committed")
        self.rows = make.counter("icedb_ingest_rows_total", "Rows made live")
        self.written = make.counter("icedb_ingest_written_bytes_total", "Bytes of data files made live")
        self.deferred = make.counter(
            "icedb_ingest_deferred_batches_total",
            "Batches parsed and left to the next commit, because one commit takes only so many partitions",
        )
        self.bad_rows = make.counter(
            "icedb_ingest_bad_rows_total",
            "Rows that went to quarantine while the others of their batches were committed",
        )
        self.misfits = make.counter(
            "icedb_ingest_promoted_misfits_total",
            "Values that do not fit a promoted column: NULL there, and as they were sent in the text",
        )
        self.large = make.counter(
            "icedb_ingest_large_batches_total",
            "Large batches; left: found, and left to a flush of their own; flushed: committed or refused by the worker "
            "of the queue ingest-large; flushed_here: by that of the queue ingest, because no worker serves the other",
            outcome=LARGE_OUTCOMES,
        )
        self.put_off = make.counter(
            "icedb_ingest_put_off_total",
            "Flush runs that left batches staged; interval: the next commit is not due; log_full: the log has no room",
            reason=PUT_OFF_REASONS,
        )
        self.feed_commits = make.counter(
            "icedb_ingest_feed_commits_total",
            "Commits of their sources that views took; refused: a view's query cannot run over its rows",
            outcome=FEED_OUTCOMES,
        )
        self.feed_duration = make.histogram(
            "icedb_ingest_feed_duration_seconds",
            "Time of one feed of a view, from the lock to the commit",
            buckets=DURATION_BUCKETS_S,
        )
        self.flush_duration = make.histogram(
            "icedb_ingest_flush_duration_seconds",
            "Time of one commit, from the lock to the last delete; a run makes many and waits in between",
            buckets=DURATION_BUCKETS_S,
        )
        self.commit_batches = make.histogram(
            "icedb_ingest_commit_batches", "Batches in one commit", buckets=BATCH_BUCKETS
        )
        self.commit_files = make.histogram(
            "icedb_ingest_commit_files", "Data files in one commit", buckets=FILE_BUCKETS
        )

    def record(self, result: FlushResult, *, duration_ms: int) -> None:
        """Count one flush."""
        self.flush_duration.observe(duration_ms / SECOND_MS)
        if result.committed_key:
            self.commit_batches.observe(result.batch_count)
            self.commit_files.observe(result.file_count)
        self.batches.labels("committed").inc(result.batch_count)
        self.batches.labels("rejected").inc(len(result.rejected))
        self.batches.labels("duplicate").inc(result.duplicate_count - result.conflict_count)
        self.batches.labels("conflict").inc(result.conflict_count)
        self.deferred.inc(result.deferred_count)
        self.bad_rows.inc(result.bad_row_count)
        self.misfits.inc(result.misfit_count)
        self._record_live(result, 1 if result.committed_key else 0)

    def record_feed(self, result: FeedResult, *, duration_ms: int) -> None:
        """Count one feed of a view; what it wrote counts as what a flush writes."""
        self.feed_duration.observe(duration_ms / SECOND_MS)
        self.feed_commits.labels("taken").inc(result.commit_count)
        self.feed_commits.labels("refused").inc(len(result.refused))
        self.misfits.inc(result.misfit_count)
        self._record_live(result, 1 if result.committed_key else 0)

    def record_import(self, result: ImportResult) -> None:
        """Count one import."""
        self._record_live(result, len(result.committed_keys))

    def _record_live(self, result: FlushResult | FeedResult | ImportResult, commits: int) -> None:
        self.commits.inc(commits)
        self.rows.inc(result.row_count)
        self.written.inc(result.size_bytes)
