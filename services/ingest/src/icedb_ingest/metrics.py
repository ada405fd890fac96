"""What the ingest service counts."""

from typing import Final

from icedb_log.flush import FlushResult
from icedb_service.metrics import WorkerMetrics, make_counter
from icedb_service.names import INGEST_FLUSH, INGEST_SWEEP
from prometheus_client import CollectorRegistry, Counter

BATCH_OUTCOMES: Final = ("committed", "rejected", "duplicate")


class IngestMetrics(WorkerMetrics):
    """Counters of batches, rows, files and commits."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__("ingest", package="icedb-ingest", tasks=(INGEST_FLUSH, INGEST_SWEEP), registry=registry)
        self.batches = make_counter(
            self.registry,
            "icedb_ingest_batches_total",
            "Batches that left staging; rejected: in quarantine with a reason; duplicate: committed before",
            label="outcome",
            values=BATCH_OUTCOMES,
        )
        self.commits = Counter("icedb_ingest_commits_total", "Log files committed", registry=self.registry)
        self.rows = Counter("icedb_ingest_rows_total", "Rows made live", registry=self.registry)
        self.files = Counter("icedb_ingest_files_total", "Data files made live", registry=self.registry)
        self.written = Counter(
            "icedb_ingest_written_bytes_total", "Bytes of data files made live", registry=self.registry
        )

    def record(self, result: FlushResult) -> None:
        """Count one flush."""
        self.batches.labels("committed").inc(result.batch_count)
        self.batches.labels("rejected").inc(len(result.rejected))
        self.batches.labels("duplicate").inc(result.duplicate_count)
        self.commits.inc(1 if result.committed_key else 0)
        self.rows.inc(result.row_count)
        self.files.inc(result.file_count)
        self.written.inc(result.size_bytes)
