"""Settings of the ingest service, besides those that all services share."""

from typing import Annotated, Self

from icedb_engine.limits import EngineLimits, FlushUnitLimits, JobLimits
from icedb_log.ingest.flush import MAX_FLUSH_BATCHES
from icedb_log.units import MIB, MINUTE_MS, SECOND_MS
from icedb_service.settings import CommaSeparated, SparkServiceSettings
from pydantic import Field, field_validator, model_validator

from icedb_ingest.frontend.settings import BatchBoundSettings


class IngestSettings(SparkServiceSettings, BatchBoundSettings):
    """What the ingest workers need to know: that of the queue `ingest`, and that of `ingest-large`."""

    flush_interval_ms: Annotated[int, Field(ge=0, le=60 * SECOND_MS)] = SECOND_MS
    """Least time from the beginning of one flush of a table to that of the next, milliseconds. Longer makes fewer,
    larger log and data files; shorter makes events visible sooner: after it and the time of a flush at the latest.
    Back-pressure stretches it, so that a table stays below 1,000 log files. Above a second it is kept to within
    `ICEDB_INGEST_SWEEP_INTERVAL_MS`: longer waits are left to the sweep."""

    flush_max_interval_ms: Annotated[int, Field(ge=SECOND_MS, le=10 * MINUTE_MS)] = MINUTE_MS
    """Longest time between two commits of a table under back-pressure, milliseconds. Longer takes more load off a
    table whose merges or vacuum do not keep up; events become visible that much later."""

    flush_max_batches: Annotated[int, Field(ge=1, le=MAX_FLUSH_BATCHES)] = MAX_FLUSH_BATCHES
    """Most staged batches in one commit, which takes 512 MiB of them at most. With a commit a second it is also how
    many a table takes a second; fewer make smaller log files."""

    flush_large_mb: Annotated[int, Field(ge=1)] = 64
    """A batch above this, after decompression, is large, MiB, and so is one of more than 1,000,000 rows: it is
    committed alone, by the worker of the queue `ingest-large` where one runs, so that other tables do not wait for it.
    Lower keeps the others faster; higher puts more batches into one commit."""

    merge_wake_commits: Annotated[int, Field(ge=1)] = 8
    """After this many commits of a table its merge is woken, without waiting for the sweep; under back-pressure after
    each."""

    import_sources: CommaSeparated = ()
    """What `icedb import` may make this worker read: URL prefixes, comma separated, e.g. `s3://lake/in,file:///data/in`.
    Empty: every `s3://` that its credentials can read, and the warehouse's own folder if that is a directory; with
    `ICEDB_ACCESS_FILE`, nothing. Wider saves copying; narrower keeps senders of tasks from reading what only the worker
    can read: leave the warehouse itself out where there are tenants."""

    @property
    def job_limits(self) -> JobLimits:
        """The bounds of flushes and of the batches in them. A unit holds no more than one batch may have."""
        most = self.batch_max_decoded_bytes
        batch = FlushUnitLimits(
            batch_decoded_bytes=most,
            batch_rows=self.batch_max_rows,
            unit_decoded_bytes=min(most, FlushUnitLimits().unit_decoded_bytes),
        )
        return JobLimits(
            batch=batch,
            engine=EngineLimits(memory_bytes=self.task_memory_mb * MIB),
            direct_bytes=min(most, JobLimits().direct_bytes),
        )

    @field_validator("import_sources")
    @classmethod
    def _check_import_sources(cls, prefixes: tuple[str, ...]) -> tuple[str, ...]:
        for prefix in prefixes:
            if not prefix.startswith(("s3://", "file:///")) or ".." in prefix.split("/"):
                raise ValueError(f"{prefix[:120]!r} is no URL prefix; write s3://bucket/path or file:///folder")
        return prefixes

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        self._require("flush_large_mb", "<=", "batch_max_decoded_mb")
        whole_batch = " (one task holds a whole batch)"
        self._require("batch_max_decoded_mb", "<=", "task_memory_mb", factor=4, why=whole_batch)
        self._require("flush_interval_ms", "<", "message_expiry_ms")
        self._require("flush_interval_ms", "<=", "flush_max_interval_ms")
        return self
