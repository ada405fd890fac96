"""Settings of the merger, besides those that all services share."""

from typing import Annotated

from icedb_log.merge.merge_plan import HOT_LIMITS
from icedb_service.settings import SparkServiceSettings
from pydantic import Field


class MergerSettings(SparkServiceSettings):
    """What the merger needs to know."""

    merge_turn_ms: Annotated[int, Field(ge=100)] = 30_000
    """How long one table is merged before others get their turn, milliseconds; looked at between commits. What is left
    goes to the end of the queue. Longer costs less per byte, shorter keeps the lag of other tables down."""

    merge_cold_interval_ms: Annotated[int, Field(ge=1000)] = 600_000
    """How often a sweep looks for cold merges of a table, at most, milliseconds. Longer leaves more small files in
    partitions that rest, shorter costs a look at every partition each time."""

    merge_commit_bytes: Annotated[int, Field(ge=1)] = HOT_LIMITS.commit_bytes
    """Bytes of data files from which a run commits before it goes on: about what is lost when a worker dies. Smaller
    loses less, larger writes fewer log files. Spark starts one job for each commit."""

    merge_retain_interval_ms: Annotated[int, Field(ge=1000)] = 3_600_000
    """How often a sweep looks whether partitions of a table with a retention have expired, at most. Longer keeps
    expired rows longer; shorter costs a look at the log each time."""

    merge_erase_interval_ms: Annotated[int, Field(ge=200)] = 60_000
    """How often a sweep looks for open erasures of a table, at most. Longer makes their certificates later by as much;
    shorter costs a listing for each table each time, and a read of each erasure that has not ended."""
