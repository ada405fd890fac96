"""The rows that producers send, and what they know of each batch: the truth that readers are compared with.

Each row says which batch it belongs to and which row of it it is. So a reader can tell of every batch whether it is
there whole, in part, twice or changed, by its number alone.

A batch is *sent* from before its first request on: its rows may be seen. It is *acknowledged* once a door has said so:
its rows may not be lost. It is *unknown* when the producer has stopped asking without an answer: its rows may be there
whole or not at all, for good.

A *deadly* batch says in its content how it crashes whoever reads it in a chaos run (:mod:`deadly_reader`); everywhere
else it is a batch like any other. Its rows may never be seen: once it is acknowledged it ends in quarantine, whole.
"""

import datetime as dt
import functools
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

FIRST_DAY: Final = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
DAY_COUNT: Final = 4
MAX_ROWS: Final = 60
Crash = Literal["raises", "exits"]
"""What a deadly batch does to its reader: an error that nobody foresaw, or the end of the process."""
DEADLY_MARKS: Final[Mapping[Crash, str]] = {"raises": "chaos: its reader raises", "exits": "chaos: its reader exits"}
_PRIME: Final = 7919
_MODULUS: Final = 100_003


@dataclass(frozen=True, slots=True)
class BatchContent:
    """What there is of one batch, as one query finds it.

    Attributes:
        rows: Rows.
        distinct_rows: Different row numbers.
        last_row: Highest row number.
        checksum: Sum of the rows' values.
    """

    rows: int
    distinct_rows: int
    last_row: int
    checksum: int


CONTENT_COLUMNS: Final = 'count(*), count(DISTINCT "row"), max("row"), sum("value")::BIGINT'
"""What to select, grouped by ``batch``, to get the fields of :class:`BatchContent`."""


@functools.lru_cache(maxsize=100_000)
def expected_content(seed: int, number: int, max_rows: int = MAX_ROWS) -> BatchContent:
    """Return what a reader finds of a batch that is there."""
    count = _row_count(seed, number, max_rows)
    return BatchContent(count, count, count - 1, sum(_value(seed, number, row) for row in range(count)))


def encode_batch(seed: int, number: int, max_rows: int = MAX_ROWS, *, crash: Crash | None = None) -> bytes:
    """Return the rows of a batch as NDJSON, marked if it is deadly; the same bytes each time."""
    note = f"batch {number}" if crash is None else DEADLY_MARKS[crash]
    lines = [
        json.dumps(
            {
                "ts": (FIRST_DAY + dt.timedelta(days=(number + row) % DAY_COUNT, seconds=row)).isoformat(),
                "batch": number,
                "row": row,
                "value": _value(seed, number, row),
                "note": f"{note}, row {row}",
            }
        )
        for row in range(_row_count(seed, number, max_rows))
    ]
    return ("\n".join(lines) + "\n").encode()


def _row_count(seed: int, number: int, max_rows: int) -> int:
    return 1 + (seed * 31 + number * _PRIME) % max_rows


def _value(seed: int, number: int, row: int) -> int:
    return (seed + number * _PRIME + row * 31 + 1) % _MODULUS


State = Literal["sent", "acknowledged", "unknown"]
STATES: Final[tuple[State, ...]] = ("acknowledged", "unknown", "sent")


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """One batch.

    Attributes:
        number: Of the batch, in all tables.
        table: Where it goes.
        door: Through which.
        batch_id: Its id; every try has the same.
        sent_ms: When the first try began, monotonic.
        state: What the producer knows.
        tries: Requests so far.
        last_error: Of the last try that failed.
        crash: What it does to its reader; ``None``: nothing.
    """

    number: int
    table: str
    door: str
    batch_id: str
    sent_ms: int
    state: State = "sent"
    tries: int = 0
    last_error: str = ""
    crash: Crash | None = None


class BatchLedger:
    """All batches of a run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[int, BatchEntry] = {}
        self._crashes: list[Crash] = []

    def ask_for_deadly(self, crash: Crash) -> None:
        """Make one of the next batches deadly."""
        with self._lock:
            self._crashes.append(crash)

    def count_deadly(self, crash: Crash) -> int:
        """Return how many batches that crash their reader so are acknowledged: somebody reads them, now or later."""
        with self._lock:
            return sum(one.crash == crash and one.state == "acknowledged" for one in self._entries.values())

    def record_sent(self, *, table: str, door: str, batch_id: str, now_ms: int) -> BatchEntry:
        """Note a batch before its first request; returns its entry with its number."""
        with self._lock:
            crash = self._crashes.pop(0) if self._crashes else None
            entry = BatchEntry(len(self._entries), table, door, batch_id, now_ms, crash=crash)
            self._entries[entry.number] = entry
            return entry

    def record_try(self, number: int, *, error: str = "") -> None:
        """Note a request, and why it failed if it did."""
        with self._lock:
            entry = self._entries[number]
            self._entries[number] = replace(entry, tries=entry.tries + 1, last_error=error or entry.last_error)

    def record_settled(self, number: int, state: State) -> None:
        """Note what became of a batch."""
        with self._lock:
            self._entries[number] = replace(self._entries[number], state=state)

    def entry(self, number: int) -> BatchEntry | None:
        """Return a batch."""
        with self._lock:
            return self._entries.get(number)

    def entries(self, table: str | None = None) -> dict[int, BatchEntry]:
        """Return all batches, or those of one table, by number."""
        with self._lock:
            return {number: entry for number, entry in self._entries.items() if table is None or entry.table == table}
