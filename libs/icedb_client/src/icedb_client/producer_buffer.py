"""What a producer holds: its bounds, the rows that wait, and the rows that could not be sent.

Pure: no thread, no lock, no clock of its own.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

import orjson
from icedb_log.errors import IceDBError, InvalidRequest, Unavailable
from icedb_log.units import MIB, SECOND_MS

from icedb_client.batches import MAX_BATCH_BYTES
from icedb_client.delivery import DEFAULT_RETRY_MS

MAX_SENDERS: Final = 32
BATCHES_IN_MEMORY: Final = 2
"""The memory of a producer holds at least so many batches: one is filled while another is on its way."""


class BufferFull(Unavailable):
    """A producer's memory is full. What the caller does: send the row again later; it was not taken.

    Attributes:
        taken_rows: Rows of the same call that were taken before.
    """

    def __init__(self, message: str, *, taken_rows: int = 0) -> None:
        super().__init__(message)
        self.taken_rows = taken_rows


class UnsentRows(IceDBError):
    """Rows were not accepted. What the caller does: keep ``batches`` and enqueue each under its id, or let them go.

    Attributes:
        batches: What was not accepted, with ids, rows and reasons.
    """

    def __init__(self, message: str, batches: "tuple[UnsentBatch, ...]") -> None:
        super().__init__(message)
        self.batches = batches


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """The bounds of a producer.

    Attributes:
        max_rows: A batch is sent when it has so many rows.
        max_bytes: … or when another row would make it larger than this, as NDJSON.
        max_age_ms: … or when its first row is so old.
        max_memory_bytes: Most NDJSON held: rows that wait, are on their way, or could not be sent.
        senders: Batches that are on their way at once.
        retry_ms: How long one batch is tried, and how long ``close`` waits; never beyond the table's retry window.
    """

    max_rows: int = 10_000
    max_bytes: int = 4 * MIB
    max_age_ms: int = SECOND_MS
    max_memory_bytes: int = 64 * MIB
    senders: int = 2
    retry_ms: int = DEFAULT_RETRY_MS

    def __post_init__(self) -> None:
        """Check the bounds. Raises InvalidRequest that names the first that is wrong."""
        limits = {"max_bytes": MAX_BATCH_BYTES, "senders": MAX_SENDERS}
        for name, least in (("max_rows", 1), ("max_bytes", 1), ("max_age_ms", 1), ("senders", 1), ("retry_ms", 0)):
            value = getattr(self, name)
            most = limits.get(name)
            if value < least or (most is not None and value > most):
                upper = "" if most is None else f" and at most {most}"
                raise InvalidRequest(f"producer: {name} must be at least {least}{upper}, not {value}")
        if self.max_memory_bytes < BATCHES_IN_MEMORY * self.max_bytes:
            raise InvalidRequest(
                f"producer: max_memory_bytes >= {BATCHES_IN_MEMORY} * max_bytes must hold, "
                f"but {self.max_memory_bytes} < {BATCHES_IN_MEMORY * self.max_bytes}"
            )

    @classmethod
    def of(cls, bounds: Mapping[str, int]) -> Self:
        """Build from names and values. Raises InvalidRequest for a name that is none of the bounds."""
        known = [field.name for field in fields(cls)]
        unknown = [name for name in bounds if name not in known]
        if unknown:
            raise InvalidRequest(f"producer: {unknown[0]!r} is no bound; there are {', '.join(known)}")
        return cls(**bounds)


@dataclass(frozen=True, slots=True)
class SealedRows:
    """Rows that become one batch.

    Attributes:
        number: Ascending in the order of sealing.
        body: NDJSON.
        row_count: Rows.
    """

    number: int
    body: bytes
    row_count: int


@dataclass(frozen=True, slots=True)
class UnsentBatch:
    """A batch that was given up.

    Attributes:
        table: Name of the table.
        batch_id: Its id. It may be staged in spite of all: enqueue it again only under this id.
        body: Its rows as NDJSON, exactly as they were sent: ``client.enqueue(table, batch.body, batch_id=…)``.
        row_count: Rows.
        error: Why.
    """

    table: str
    batch_id: str
    body: bytes
    row_count: int
    error: Exception

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows."""
        return [orjson.loads(line) for line in self.body.splitlines() if line]


@dataclass(frozen=True, slots=True)
class ProducerCounters:
    """What a producer did so far.

    Attributes:
        sent_rows: Rows that ``send`` took.
        accepted_rows: Rows that are durable.
        accepted_batches: Batches of them.
        unsent_rows: Rows that were given up so far, also those taken away meanwhile.
        retries: Attempts that failed and were followed by a pause.
        held_bytes: NDJSON held now.
    """

    sent_rows: int = 0
    accepted_rows: int = 0
    accepted_batches: int = 0
    unsent_rows: int = 0
    retries: int = 0
    held_bytes: int = 0


class RowBuffer:
    """Rows that wait: one open batch that grows, and sealed ones, oldest first.

    Args:
        options: When a batch is sealed.
    """

    def __init__(self, options: ProducerOptions) -> None:
        self._options = options
        self._open = bytearray()
        self._open_rows = 0
        self._due_ms: int | None = None
        self._sealed: deque[SealedRows] = deque()
        self.last_number = 0

    @property
    def due_ms(self) -> int | None:
        """Monotonic time at which the open batch is to be sealed; ``None`` while it has no row."""
        return self._due_ms

    @property
    def has_sealed(self) -> bool:
        """Whether a sealed batch waits."""
        return bool(self._sealed)

    @property
    def first_number(self) -> int:
        """Number of the oldest sealed batch; of the next one if none waits."""
        return self._sealed[0].number if self._sealed else self.last_number + 1

    def add(self, line: bytes, *, now_ms: int) -> bool:
        """Take one line of NDJSON. Returns whether a sender has something new to look at."""
        is_news = False
        if self._open and len(self._open) + len(line) > self._options.max_bytes:
            is_news = self.seal()
        if self._due_ms is None:
            self._due_ms = now_ms + self._options.max_age_ms
            is_news = True
        self._open += line
        self._open_rows += 1
        if self._open_rows >= self._options.max_rows or len(self._open) >= self._options.max_bytes:
            is_news = self.seal()
        return is_news

    def seal(self) -> bool:
        """Close the open batch. Returns whether it had a row."""
        if self._due_ms is None:
            return False
        self.last_number += 1
        self._sealed.append(SealedRows(self.last_number, bytes(self._open), self._open_rows))
        self._open, self._open_rows, self._due_ms = bytearray(), 0, None
        return True

    def seal_due(self, now_ms: int) -> None:
        """Close the open batch if it is old enough."""
        if self._due_ms is not None and now_ms >= self._due_ms:
            self.seal()

    def take(self) -> SealedRows | None:
        """Take away the oldest sealed batch."""
        return self._sealed.popleft() if self._sealed else None
