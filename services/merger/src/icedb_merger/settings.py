"""Settings of the merger, besides those that all services share."""

from typing import Annotated

from icedb_service.settings import SparkServiceSettings
from pydantic import Field


class MergerSettings(SparkServiceSettings):
    """What the merger needs to know."""

    merge_max_rounds: Annotated[int, Field(ge=1, le=1000)] = 4
    """Commits of one table in a row before another table gets its turn. A full merge takes as many as it needs."""

    merge_retain_interval_ms: Annotated[int, Field(ge=1000)] = 3_600_000
    """How often a sweep looks whether partitions of a table with a retention have expired, at most. Longer keeps
    expired rows longer; shorter costs a look at the log each time."""

    merge_erase_interval_ms: Annotated[int, Field(ge=200)] = 60_000
    """How often a sweep looks for open erasures of a table, at most. Longer makes their certificates later by as much;
    shorter costs a listing of at most one key for each table each time."""
