"""Settings of the ingest service, besides those that all services share."""

from typing import Annotated, Self

from icedb_log.object_store import MAX_KEYS_PER_PAGE
from icedb_service.settings import SECOND_MS, SparkServiceSettings
from pydantic import Field, model_validator


class IngestSettings(SparkServiceSettings):
    """What the ingest worker needs to know."""

    flush_interval_ms: Annotated[int, Field(ge=0, le=60 * SECOND_MS)] = SECOND_MS
    """Least time between two commits of a table, milliseconds. Longer makes fewer, larger log and data files;
    shorter makes events visible sooner. A table must stay below 1,000 log files (see `log_grace_ms` of the table)."""

    flush_max_batches: Annotated[int, Field(ge=1, le=MAX_KEYS_PER_PAGE)] = MAX_KEYS_PER_PAGE
    """Most staged batches in one commit."""

    flush_max_mb: Annotated[int, Field(ge=1)] = 512
    """Most staged bytes in one commit, MiB; a single larger batch is taken alone."""

    flush_max_rounds: Annotated[int, Field(ge=1, le=1000)] = 20
    """Commits of one table in a row before another table gets its turn."""

    merge_wake_commits: Annotated[int, Field(ge=1)] = 8
    """After this many commits of a table its merge is woken, without waiting for the sweep."""

    @model_validator(mode="after")
    def _check_interval(self) -> Self:
        if self.flush_interval_ms >= self.message_expiry_ms:
            raise ValueError(
                "ICEDB_FLUSH_INTERVAL_MS < ICEDB_MESSAGE_EXPIRY_MS must hold, but "
                f"{self.flush_interval_ms} >= {self.message_expiry_ms}"
            )
        return self
