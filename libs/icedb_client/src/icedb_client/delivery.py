"""From a body to an accepted batch: the door that every batch of this client goes through, and its retries.

Keeps three rules: a batch is staged only for a table that is there, and only while the table takes batches
(back-pressure); what was once sent is sent again under the same id (I1); and not beyond the table's retry window,
after which the flush would refuse it (I3).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from icedb_log.clock import Clock, new_batch_id, parse_uuid7_ms
from icedb_log.errors import Overloaded, Unavailable
from icedb_log.feed.views import require_takes_batches
from icedb_log.ingest.pressure import PressureGate
from icedb_log.ingest.staging import stage_batch
from icedb_log.store.store_clock import AlignedClock
from icedb_log.table.stored_config import TableConfigs
from icedb_log.table.table_config import TableConfig
from icedb_log.units import MINUTE_MS, SECOND_MS
from icedb_log.warehouse import Warehouse

from icedb_client.batches import BatchBody

CONFIG_MAX_AGE_MS: Final = MINUTE_MS
DEFAULT_RETRY_MS: Final = 5 * MINUTE_MS
FIRST_PAUSE_MS: Final = 100
LONGEST_PAUSE_MS: Final = 5 * SECOND_MS
WINDOW_PARTS_LEFT: Final = 10
"""This fraction of the retry window is left to the last request itself."""


class Undelivered(Unavailable):
    """No attempt to stage a batch was confirmed. What the caller does: the same batch again, under ``batch_id``.

    Attributes:
        batch_id: Its id: one of the attempts may have succeeded all the same.
    """

    def __init__(self, message: str, *, batch_id: str) -> None:
        super().__init__(message)
        self.batch_id = batch_id


@dataclass(frozen=True, slots=True)
class EnqueuedBatch:
    """An accepted batch: durable, to be committed or quarantined.

    Attributes:
        table: Name of the table.
        batch_id: Its id; enqueue it again with this id after a lost answer, and it is taken once.
        key: Key of the staged object.
        row_count: Rows; ``None`` for a body that was passed through.
        raw_bytes: Size before compression.
        staged_bytes: Size as staged.
        is_woken: Whether the ingest worker was told; if not, its periodic sweep finds the batch.
        last_row: Number of its last row in the file it came from; ``None`` if not counted.
        position: Bytes of the file read so far, as stored.
    """

    table: str
    batch_id: str
    key: str
    row_count: int | None
    raw_bytes: int
    staged_bytes: int
    is_woken: bool
    last_row: int | None = None
    position: int = 0


@dataclass(frozen=True, slots=True)
class Wait:
    """A pause before a batch is sent again.

    Attributes:
        error: Why the last attempt failed.
        pause_ms: How long the pause is.
        attempt: How many attempts were made so far.
    """

    error: Unavailable
    pause_ms: int
    attempt: int


class StagingDoor:
    """Lets batches in. Thread-safe.

    Args:
        warehouse: Where the tables lie.
        clock: Time and ids.
        wake: Tells the ingest worker of a table; returns whether that worked.
    """

    def __init__(self, warehouse: Warehouse, *, clock: Clock, wake: Callable[[str], bool]) -> None:
        self.clock: Clock = AlignedClock(clock, warehouse.store, may_ask=True)  # I3: ids have the store's time
        self._warehouse = warehouse
        self._wake = wake
        self._gate = PressureGate(warehouse.store, clock=clock)
        self._configs = TableConfigs(warehouse.store, clock=clock, max_age_ms=CONFIG_MAX_AGE_MS)

    def check(self, table: str) -> TableConfig:
        """Return the configuration of a table that takes batches now.

        Staging does not look at the table: a batch for an unknown one would wait for ever.

        Raises:
            InvalidRequest: Not a table's name, or the table is a view.
            NotFound: No such table.
            Overloaded: The table takes no batches now; says when to try again.
            Unavailable: The store did not answer.
        """
        config = self.config(table)
        self._gate.check(self._warehouse.table(table))
        return config

    def config(self, table: str) -> TableConfig:
        """Return the configuration of a table for batches, at most a minute old.

        Raises:
            InvalidRequest: Not a table's name, or the table is a view.
            NotFound: No such table.
            Unavailable: The store did not answer.
        """
        config = self._configs.config(self._warehouse.table(table))
        require_takes_batches(config)
        return config

    def stage(self, table: str, body: BatchBody, batch_id: str) -> EnqueuedBatch:
        """Stage a body and wake the ingest worker. Raises InvalidRequest, Unavailable; see ``stage_batch``."""
        key = stage_batch(
            self._warehouse.store,
            self._warehouse.table(table),
            body=body.body,
            staging_format=body.format,
            batch_id=batch_id,
        )
        return EnqueuedBatch(
            table=table,
            batch_id=batch_id,
            key=key,
            row_count=body.row_count,
            raw_bytes=body.raw_bytes,
            staged_bytes=len(body.body),
            is_woken=self._wake(table),
            last_row=None if body.row_count is None else body.first_row + body.row_count - 1,
            position=body.position,
        )


class Delivery:
    """One batch on its way through the door, sent again until it is in or its time is over.

    Args:
        door: Where it goes.
        table: Name of the table.
        body: What is staged.
        retry_ms: How long to go on after the first failure. Never beyond the table's retry window.
        on_wait: Told before each pause.
        batch_id: Its id, if it may have been sent before.

    Attributes:
        batch_id: Its id, chosen before it is sent for the first time: nothing was sent while this is ``None``.
    """

    def __init__(
        self,
        door: StagingDoor,
        table: str,
        body: BatchBody,
        *,
        retry_ms: int = DEFAULT_RETRY_MS,
        on_wait: Callable[[Wait], None] | None = None,
        batch_id: str | None = None,
    ) -> None:
        self.batch_id: str | None = None
        self._given_id = batch_id
        self._door = door
        self._table = table
        self._body = body
        self._end_ms = door.clock.monotonic_ms() + retry_ms
        self._on_wait = on_wait

    def run(self) -> EnqueuedBatch:
        """Deliver the batch.

        Raises:
            Overloaded: The table had no room in time; nothing was sent.
            Undelivered: No attempt was confirmed in time. Send it again only under its id.
            Unavailable: The table could not be looked at in time; nothing was sent.
            InvalidRequest: Refused for good.
            NotFound: No such table.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                if self.batch_id is None:
                    self._begin()
                assert self.batch_id is not None  # noqa: S101 - set by _begin
                return self._door.stage(self._table, self._body, self.batch_id)
            except Unavailable as error:
                clock = self._door.clock
                left_ms = self._end_ms - clock.monotonic_ms()
                if left_ms <= 0:
                    if self.batch_id is None:
                        raise
                    raise Undelivered(str(error), batch_id=self.batch_id) from error
                pause_ms = min(left_ms, _pause_ms(error, attempt))
                if self._on_wait is not None:
                    self._on_wait(Wait(error, pause_ms, attempt))
                clock.sleep_ms(pause_ms)

    def _begin(self) -> None:
        """Choose the id once the table takes batches: the retry window begins with the id (I3)."""
        config = self._door.check(self._table)
        clock = self._door.clock
        self.batch_id = self._given_id or new_batch_id(clock)
        age_ms = clock.now_ms() - parse_uuid7_ms(self.batch_id)
        window_ms = config.retry_window_ms - config.retry_window_ms // WINDOW_PARTS_LEFT - max(0, age_ms)
        self._end_ms = min(self._end_ms, clock.monotonic_ms() + window_ms)


def _pause_ms(error: Unavailable, attempt: int) -> int:
    if isinstance(error, Overloaded):
        return max(FIRST_PAUSE_MS, error.retry_after_ms)
    return min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS << min(attempt - 1, 16))
