"""What happens on the day: its tables, its producers, its hours, and the rows of each batch. Pure; the same by seed."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from icedb_log.clock import format_ms
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_log.units import HOUR_MS, MIB, MINUTE_MS, SECOND_MS

HOURS: Final = 24
SCHEMA_HOUR: Final = 9
"""From here on orders have a column more, and amounts with cents."""
DEPLOY_HOUR: Final = 12
BURST_HOURS: Final = (18.0, 18.5)
BURST_FACTOR: Final = 10
ERASE_HOUR: Final = 20
"""When user 7 asks for erasure and closes the account: no later batch has a row of that user."""
CLOSED_USER: Final = "u7"
RETENTION_MS: Final = 12 * HOUR_MS
LATE_SHARE: Final = 0.05
MAX_LATE_MS: Final = 6 * HOUR_MS
USER_COUNT: Final = 200
BAD_LINES: Final = ('{"ts": ', "<html>502 Bad Gateway</html>")
"""What the broken producer sends among its rows."""
NO_TABLE: Final = "no_such_table"
WRONG_TABLE_EVERY: Final = 4
"""Of the broken producer's batches, each fourth goes there."""
STOP_GRACE_MS: Final = 45 * SECOND_MS
"""How long a running task may go on when its worker is stopped."""
MIN_LOG_GRACE_MS: Final = 90 * SECOND_MS
"""Three quarters of it bound how long a producer sends a batch again: longer than a restart of the front end."""


@dataclass(frozen=True, slots=True)
class Producer:
    """Who sends.

    Attributes:
        name: In words.
        table: Where to.
        door: How: ``http``, ``grpc`` or ``staging``.
        rows: Of a batch.
        batches_s: Batches a second on average, at the rate 1.
        hourly: Send one batch an hour of the day instead.
        bursts: Whether it sends ten times as much for half an hour.
        repeats: Whether it sends each batch twice, under the same id.
        is_broken: Whether each batch has lines that are no rows, and some are for a table that does not exist.
    """

    name: str
    table: str
    door: str
    rows: int
    batches_s: float = 0.0
    hourly: bool = False
    bursts: bool = False
    repeats: bool = False
    is_broken: bool = False


PRODUCERS: Final = (
    Producer("web", "events", "http", rows=40, batches_s=1.5, bursts=True),
    Producer("app", "events", "grpc", rows=20, batches_s=0.5),
    Producer("shop", "orders", "http", rows=10, batches_s=0.8),
    Producer("broken partner", "orders", "http", rows=5, batches_s=0.1, is_broken=True),
    Producer("devices", "metrics", "staging", rows=30, batches_s=0.5),
    Producer("stubborn gateway", "metrics", "http", rows=15, batches_s=0.3, repeats=True),
    Producer("auditor", "audit", "http", rows=3, hourly=True),
)
TABLES: Final = tuple(dict.fromkeys(each.table for each in PRODUCERS))


def rhythm(hour: float) -> float:
    """Return the pace at an hour: least at two in the night, most at two in the afternoon, 1 on average."""
    return 1 - 0.75 * math.cos(2 * math.pi * (hour - 2) / HOURS)


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch.

    Attributes:
        number: Of all.
        producer: Who sends it.
        table: Where to.
        hour: When, of the day.
        has_closed: Whether user 7 has closed the account by then.
    """

    number: int
    producer: Producer
    table: str
    hour: float
    has_closed: bool

    @property
    def is_refused(self) -> bool:
        """Whether the door refuses it."""
        return self.table == NO_TABLE

    @property
    def bad_lines(self) -> tuple[str, ...]:
        """Its lines that are no rows."""
        return BAD_LINES if self.producer.is_broken else ()


@dataclass(frozen=True, slots=True)
class DayPlan:
    """One day.

    Attributes:
        minutes: How long it takes; 1440: real hours.
        rate: Factor of all rates.
        seed: Of the rows.
        begin_ms: The time of its first rows, unix ms; its last ones are of the time at which they are sent.
    """

    minutes: float
    rate: float
    seed: int
    begin_ms: int

    @property
    def duration_ms(self) -> int:
        """How long it takes."""
        return round(self.minutes * MINUTE_MS)

    def pause_s(self, producer: Producer, hour: float) -> float:
        """Return how long a producer waits before its next batch."""
        if producer.hourly:
            return self.duration_ms / HOURS / SECOND_MS
        is_burst = producer.bursts and BURST_HOURS[0] <= hour < BURST_HOURS[1]
        return 1 / (producer.batches_s * self.rate * rhythm(hour) * (BURST_FACTOR if is_burst else 1))

    def table_of(self, producer: Producer, sent_count: int) -> str:
        """Return where a producer's next batch goes."""
        return NO_TABLE if producer.is_broken and not (sent_count + 1) % WRONG_TABLE_EVERY else producer.table

    def config(self, table: str) -> TableConfig:
        """Return a table's configuration: grace periods as short as the day is."""
        by_hour = table == "metrics"
        return TableConfig.create(
            name=table,
            partition=(PartitionField.parse("h=hour(ts)" if by_hour else "d=day(ts)"),),
            sort=("user_id", "ts"),
            declared={"ts": "TIMESTAMP"},
            retention_ms=RETENTION_MS if by_hour else None,
            target_file_bytes=8 * MIB,
            merge_fan_in=4,
            log_grace_ms=max(MIN_LOG_GRACE_MS, min(self.duration_ms // 10, 10 * MINUTE_MS)),
            data_grace_ms=max(MIN_LOG_GRACE_MS, min(self.duration_ms // 10, 6 * HOUR_MS)),
            orphan_age_ms=max(4 * MINUTE_MS, self.duration_ms // 10),
        )

    @property
    def env(self) -> dict[str, str]:
        """Settings of the services: what happens each hour happens each hour of the day."""
        hour_ms = self.duration_ms // HOURS
        return {
            "ICEDB_JANITOR_SWEEP_INTERVAL_MS": str(max(2_000, min(30_000, hour_ms // 4))),
            "ICEDB_ORPHAN_SWEEP_INTERVAL_MS": str(max(10_000, hour_ms)),
            "ICEDB_JANITOR_ORPHAN_SHARE": "1",  # what a deploy cuts off is much in tables so small
            "ICEDB_MERGE_COLD_INTERVAL_MS": str(max(5_000, hour_ms // 6)),
            "ICEDB_MERGE_RETAIN_INTERVAL_MS": str(max(2_000, hour_ms // 2)),
            "ICEDB_MERGE_ERASE_INTERVAL_MS": str(max(2_000, min(60_000, hour_ms // 4))),
            "ICEDB_SHUTDOWN_GRACE_MS": str(STOP_GRACE_MS),
            "ICEDB_SNAPSHOT_LAG_INTERVAL_MS": str(max(2_000, min(15_000, hour_ms // 4))),
            "ICEDB_SPARK_MEMORY_MB": "512",
            "ICEDB_SPARK_MASTER": "local[2]",
            "ICEDB_TASK_MEMORY_MB": "256",
            "ICEDB_BATCH_MAX_DECODED_MB": "64",
        }

    def rows(self, batch: Batch) -> Iterator["Row"]:
        """Yield the rows of a batch, without the lines that are none."""
        count = batch.producer.rows
        rng = np.random.default_rng((self.seed, batch.number))
        sent_ms = self.begin_ms + round(batch.hour * HOUR_MS)
        late_ms = np.where(rng.random(count) < LATE_SHARE, rng.integers(0, MAX_LATE_MS, count), 0)
        users, values = rng.integers(0, USER_COUNT, count), rng.integers(1, 1000, count)
        for number in range(count):
            user = f"u{users[number]}"
            if user == CLOSED_USER and batch.has_closed:
                user = "u8"
            yield Row(number, sent_ms - int(late_ms[number]), user, int(values[number]))

    def body(self, batch: Batch) -> bytes:
        """Return a batch as NDJSON."""
        is_new = batch.table == "orders" and batch.hour >= SCHEMA_HOUR
        lines = [json.dumps(row.to_json(batch.number, is_new=is_new)) for row in self.rows(batch)]
        return ("\n".join([*lines, *batch.bad_lines]) + "\n").encode()


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        number: In its batch.
        ts_ms: Its time, unix ms.
        user_id: Whose.
        value: A number.
    """

    number: int
    ts_ms: int
    user_id: str
    value: int

    def to_json(self, batch: int, *, is_new: bool) -> dict[str, Any]:
        """Return it as it is sent; ``is_new``: with the column that came at nine, and cents."""
        row = {
            "ts": format_ms(self.ts_ms),
            "user_id": self.user_id,
            "batch": batch,
            "row": self.number,
            "value": self.value,
            "amount": self.value + 0.25 if is_new else self.value,
        }
        return row | {"coupon": f"c{self.value % 5}"} if is_new else row

    def is_expired(self, now_ms: int) -> bool:
        """Whether retention has removed its hour by a time."""
        return (self.ts_ms // HOUR_MS + 1) * HOUR_MS + RETENTION_MS <= now_ms
