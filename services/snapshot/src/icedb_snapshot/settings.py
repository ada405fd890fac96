"""The settings of the snapshot service: what all services share, and its own ``ICEDB_SNAPSHOT_…``."""

import json
import math
import re
from collections.abc import Mapping
from typing import Annotated, Final, Self

from icedb_log.holds.leases import MAX_LEASES, MIN_LEASE_TTL_MS
from icedb_log.holds.stored_holds import MAX_LEASE_TTL_MS
from icedb_log.units import KIB, MIB, MINUTE_MS
from icedb_service.settings import MAX_PORT, ReaderSettings
from pydantic import Field, field_validator, model_validator
from pydantic_settings import NoDecode

MAX_STALENESS_MS: Final = 24 * 60 * 60 * 1000
MAX_WIRE_BYTES: Final = 1024 * MIB
"""gRPC messages and protocol buffers end at 2 GiB; half of it leaves no doubt."""

S3_STANDARD: Final[Mapping[str, float]] = {"put_1000": 0.005, "get_1000": 0.0004, "stored_gb_month": 0.023}
"""Dollars in us-east-1, 2026."""

_ADDRESS: Final = re.compile(r"(?P<host>\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")


class SnapshotSettings(ReaderSettings):
    """What the snapshot service needs to know."""

    snapshot_address: str = "127.0.0.1:50051"
    """Where the gRPC server listens, `host:port`; `0.0.0.0:50051` in containers, port 0 for a free one (logged)."""

    snapshot_max_staleness_ms: Annotated[int, Field(ge=0, le=MAX_STALENESS_MS)] = 1000
    """How old the server's knowledge of a log may be when a caller does not say, milliseconds. 0 reads the log for
    each call; more saves listings."""

    snapshot_max_message_bytes: Annotated[int, Field(ge=KIB, le=MAX_WIRE_BYTES)] = 64 * MIB
    """Largest answer of one message, bytes; about 300 for each data file. Larger ones are streamed. Clients have a
    limit of their own (ours: 64 MiB)."""

    snapshot_commit_wait_ms: Annotated[int, Field(ge=100)] = 60_000
    """Longest wait for a batch that a caller wants to read back (`min_commit`), milliseconds; its own deadline may be
    shorter."""

    snapshot_connection_age_ms: Annotated[int, Field(ge=1000, le=24 * 60 * 60 * 1000)] = 60 * 60 * 1000
    """How old a connection gets, milliseconds: clients open another one by themselves, so that load spreads over
    replicas. Calls that run then may go on for five minutes, and streams that watch are called again."""

    snapshot_max_pending_calls: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """Calls worked on or waiting; those above it are refused at once (RESOURCE_EXHAUSTED)."""

    snapshot_watch_interval_ms: Annotated[int, Field(ge=10)] = 1000
    """How often the log of a watched table is listed while commits are not announced through Redis, milliseconds,
    however many watch it; a table that nobody watches is not. Less tells changes earlier and costs listings: 200 a
    second at most for all tables, which then wait longer."""

    snapshot_watch_idle_interval_ms: Annotated[int, Field(ge=10)] = MINUTE_MS
    """The same while they are, milliseconds: what was not announced (a commit of an embedded program, a table that was
    dropped) is told so late. A table whose commits are announced is read at once, and at most each
    `ICEDB_SNAPSHOT_WATCH_INTERVAL_MS`."""

    snapshot_max_watchers: Annotated[int, Field(ge=1, le=100_000)] = 500
    """Streams of WatchSnapshots at once; those above it are refused (RESOURCE_EXHAUSTED). Each is a pending call."""

    snapshot_max_leases: Annotated[int, Field(ge=1, le=10_000)] = MAX_LEASES
    """Leases of one table that last at once; those above it are refused (RESOURCE_EXHAUSTED). A janitor reads each of
    them in every run."""

    snapshot_max_lease_ttl_ms: Annotated[int, Field(ge=MIN_LEASE_TTL_MS, le=MAX_LEASE_TTL_MS)] = MAX_LEASE_TTL_MS
    """Longest time for which a lease is given or renewed, milliseconds. A reader that died holds dead files for so
    long."""

    snapshot_lag_interval_ms: Annotated[int, Field(ge=200)] = 15_000
    """How often the figures of every table are read for `/metrics`, milliseconds. Costs two listings and four small
    reads for each table; one at which nothing happens is read less often, every twenty minutes at least."""

    store_prices: Annotated[Mapping[str, float], NoDecode] = S3_STANDARD
    """What the store asks for, in dollars: a JSON object with any of `put_1000` (a thousand PUT, COPY and LIST
    requests; 0.005 if not given), `get_1000` (a thousand GET and HEAD requests; 0.0004) and `stored_gb_month` (a GiB
    for a month; 0.023). What is not given is S3 Standard in us-east-1; where nothing is paid for, each is 0."""

    table_cost_budget_dollars: Annotated[float, Field(ge=0)] = 0
    """What one table may cost a day, dollars; above it an alert fires. 0: no table has a budget."""

    @field_validator("store_prices", mode="before")
    @classmethod
    def _read_prices(cls, value: object) -> object:
        try:
            given = json.loads(value) if isinstance(value, str) else value
        except json.JSONDecodeError as error:
            raise ValueError(f'no JSON ({error}); write an object, e.g. {{"put_1000": 0.005}}') from error
        if not isinstance(given, Mapping) or not all(
            name in S3_STANDARD and isinstance(price, int | float) and 0 <= price < math.inf
            for name, price in given.items()
        ):
            raise ValueError(f"write an object of {', '.join(S3_STANDARD)} to dollars, none of them negative")
        return {**S3_STANDARD, **given}

    @model_validator(mode="after")
    def _check_watchers(self) -> Self:
        self._require("snapshot_watch_interval_ms", "<=", "snapshot_watch_idle_interval_ms")
        if self.snapshot_max_watchers >= self.snapshot_max_pending_calls:
            raise ValueError(
                f"snapshot_max_watchers {self.snapshot_max_watchers} is not less than snapshot_max_pending_calls "
                f"{self.snapshot_max_pending_calls}: watchers would leave no room for calls; lower the first "
                "(ICEDB_SNAPSHOT_MAX_WATCHERS) or raise the second (ICEDB_SNAPSHOT_MAX_PENDING_CALLS)"
            )
        return self

    @field_validator("snapshot_address")
    @classmethod
    def _check_address(cls, address: str) -> str:
        match = _ADDRESS.fullmatch(address)
        if match is None or int(match["port"]) > MAX_PORT:
            raise ValueError(f"{address[:80]!r} is not an address; write host:port, e.g. 127.0.0.1:50051")
        return address
