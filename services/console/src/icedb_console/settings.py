"""Settings of the console, besides those that all services share."""

from typing import Annotated, Final, Self

from icedb_log.units import HOUR_MS, MIB, MINUTE_MS, SECOND_MS
from icedb_service.settings import MAX_PORT, HttpServiceSettings, ReaderSettings
from pydantic import Field, SecretStr, model_validator

MIN_SECRET_CHARS: Final = 32
MAX_ROWS: Final = 10_000


class ConsoleSettings(HttpServiceSettings, ReaderSettings):
    """What the console needs to know."""

    console_host: str = "127.0.0.1"
    """Address that the console listens on; `0.0.0.0` in containers. Another one than loopback needs
    `ICEDB_ACCESS_FILE`, or `ICEDB_OPEN_ACCESS`."""

    console_port: Annotated[int, Field(ge=0, le=MAX_PORT)] = 8090
    """Port of the console; 0 takes a free one (logged)."""

    console_refresh_ms: Annotated[int, Field(ge=500, le=10 * MINUTE_MS)] = 5 * SECOND_MS
    """How often the figures of all tables are read while a page is open, milliseconds; not at all otherwise.
    A round costs six small requests to the store for each table; one at which nothing happens is read each minute."""

    console_max_queries: Annotated[int, Field(ge=0, le=1000)] = 4
    """Queries that run at once, each in a process of its own, half of them of one identity; more are refused. 0 turns
    the query box off."""

    console_query_limit_ms: Annotated[int, Field(ge=100, le=HOUR_MS)] = 30 * SECOND_MS
    """How long a query may take, milliseconds; then its process is killed."""

    console_query_memory_mb: Annotated[int, Field(ge=128)] = 1024
    """Memory of a query, MiB, the log of its tables aside; above it the query fails. With `ICEDB_CONSOLE_MAX_QUERIES`
    it bounds what all of them take."""

    console_query_rows: Annotated[int, Field(ge=1, le=MAX_ROWS)] = 1000
    """Rows of a result that are shown."""

    console_session_ms: Annotated[int, Field(ge=MINUTE_MS)] = 12 * HOUR_MS
    """How long a browser stays signed in, milliseconds."""

    console_secret: SecretStr | None = None
    """What sessions of browsers are sealed with: 32 characters or more, the same at all replicas. A new one ends all
    sessions. Empty: each process makes one up, so that there may be one replica, and its restart ends all sessions."""

    @model_validator(mode="after")
    def _check_console(self) -> Self:
        if self.console_secret is not None and len(self.console_secret.get_secret_value()) < MIN_SECRET_CHARS:
            raise ValueError(f"ICEDB_CONSOLE_SECRET: use {MIN_SECRET_CHARS} characters or more")
        return self

    @property
    def query_memory_bytes(self) -> int:
        """Memory of a query."""
        return self.console_query_memory_mb * MIB
