"""Compares what readers find with what producers sent. The only judge of a run; pure but for its memory and a lock.

What must hold of every read, whoever read it and whatever failed meanwhile: each batch is one that was sent to that
table, and is there whole, once and unchanged; none is deadly; whatever a read that had *ended* before this one *began*
had found is there. Of a read of the past: whatever a read that had ended before that time had found is there, and all
of it again whenever it is repeated. At the end: everything that was acknowledged.
"""

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from icedb_local.chaos.batches import MAX_ROWS, BatchContent, BatchEntry, BatchLedger, encode_batch, expected_content

MAX_VIOLATIONS = 50
CLOCK_SLACK_MS = 1_000
"""A commit may be named a little later than it lands."""


@dataclass(frozen=True, slots=True)
class Read:
    """What one reader found in one snapshot of a table.

    Attributes:
        reader: Who.
        table: Which.
        began_ms: Before the snapshot was asked for, monotonic.
        ended_ms: After the last row was read.
        found: Content of each batch by number.
        snapshot: What names it, for messages.
        as_of_ms: The time that was asked for; ``None``: the newest.
        state_ms: The same by the monotonic clock.
    """

    reader: str
    table: str
    began_ms: int
    ended_ms: int
    found: Mapping[int, BatchContent] = field(repr=False)
    snapshot: str = ""
    as_of_ms: int | None = None
    state_ms: int | None = None

    @property
    def complete_ms(self) -> int:
        """What was seen before this must be there."""
        return self.began_ms if self.state_ms is None else self.state_ms - CLOCK_SLACK_MS


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not be.

    Attributes:
        what: In words.
        table: Where.
        reader: Who found it.
        snapshot: In which snapshot.
        batches: The numbers of the batches that it is about, at most ten.
        entries: What the ledger says of them.
    """

    what: str
    table: str
    reader: str
    snapshot: str
    batches: tuple[int, ...]
    entries: tuple[BatchEntry, ...]


class ContentChecker:
    """The judge.

    Args:
        ledger: What was sent.
        seed: Of the rows.
        max_rows: Of a batch.
    """

    def __init__(self, ledger: BatchLedger, *, seed: int, max_rows: int = MAX_ROWS) -> None:
        self._ledger = ledger
        self._seed = seed
        self._max_rows = max_rows
        self._lock = threading.Lock()
        self._seen_ms: dict[str, dict[int, int]] = {}
        self._violations: list[Violation] = []
        self.checked_count = 0
        self.checked_rows = 0
        self.compared_count = 0

    @property
    def violations(self) -> tuple[Violation, ...]:
        """What was found so far."""
        with self._lock:
            return tuple(self._violations)

    @property
    def first_seen_ms(self) -> dict[int, int]:
        """Number of each batch that was seen, and when the first read that found it ended."""
        with self._lock:
            return {number: ms for seen in self._seen_ms.values() for number, ms in seen.items()}

    def entries(self, table: str) -> dict[int, BatchEntry]:
        """Return what the ledger says of the batches of a table, by number."""
        return self._ledger.entries(table)

    def encode(self, entry: BatchEntry) -> bytes:
        """Return what was sent of a batch."""
        return encode_batch(self._seed, entry.number, self._max_rows, crash=entry.crash)

    def check(self, read: Read) -> None:
        """Judge a read of the newest state or of the past."""
        with self._lock:
            self.checked_count += 1
            self.checked_rows += sum(content.rows for content in read.found.values())
            before = dict(self._seen_ms.get(read.table, {}))
        self._check_content(read)
        due = (number for number, seen_ms in before.items() if seen_ms < read.complete_ms)
        gone = [number for number in due if number not in read.found]
        self._note(read, "was there in an earlier read and is gone", gone)
        if read.as_of_ms is not None:
            return
        with self._lock:
            seen = self._seen_ms.setdefault(read.table, {})
            for number in read.found:
                seen[number] = min(seen.get(number, read.ended_ms), read.ended_ms)

    def check_same(self, read: Read, earlier: Read, *, was_stable: bool) -> None:
        """Judge a read of a past that ``earlier`` has read before.

        Args:
            read: The later one.
            earlier: The one before it.
            was_stable: Nothing may have come since; else a commit that was under way may have landed.
        """
        with self._lock:
            self.compared_count += 1
        numbers = read.found.keys() | earlier.found.keys() if was_stable else earlier.found.keys()
        differing = [number for number in numbers if read.found.get(number) != earlier.found.get(number)]
        self._note(read, f"the same time as of {read.as_of_ms} has other rows than before", differing)

    def check_end(self, read: Read, *, set_aside: Collection[str] = ()) -> None:
        """Judge a read of the newest state after everything became quiet.

        Args:
            read: It.
            set_aside: Ids of batches that wait in quarantine: they were accepted, but staged after their retry window.
        """
        self.check(read)
        lost = [
            number
            for number, entry in self._ledger.entries(read.table).items()
            if entry.state == "acknowledged" and number not in read.found and entry.batch_id not in set_aside
        ]
        self._note(read, "was acknowledged and is not there at the end", lost)

    def note(self, what: str, *, table: str, reader: str) -> None:
        """Record something else that must not be."""
        with self._lock:
            if len(self._violations) < MAX_VIOLATIONS:
                self._violations.append(Violation(what, table, reader, "", (), ()))

    def _check_content(self, read: Read) -> None:
        sent = self._ledger.entries(read.table)
        deadly = [number for number in read.found if number in sent and sent[number].crash]
        self._note(read, "crashes whoever reads it, and rows of it are there", deadly)
        self._note(read, "is there and was never sent", [number for number in read.found if number not in sent])
        twice, part, changed = [], [], []
        for number, content in read.found.items():
            expected = expected_content(self._seed, number, self._max_rows)
            if number not in sent or content == expected:
                continue
            if content.rows > content.distinct_rows:
                twice.append(number)
            elif content.rows < expected.rows:
                part.append(number)
            else:
                changed.append(number)
        self._note(read, "has rows twice", twice)
        self._note(read, "is there in part", part)
        self._note(read, "has other rows than were sent", changed)

    def _note(self, read: Read, what: str, numbers: list[int]) -> None:
        if not numbers:
            return
        shown = tuple(sorted(numbers)[:10])
        entries = tuple(entry for number in shown if (entry := self._ledger.entry(number)) is not None)
        with self._lock:
            if len(self._violations) < MAX_VIOLATIONS:
                words = f"{len(numbers)} batches, e.g. {shown[0]}: {what}"
                self._violations.append(Violation(words, read.table, read.reader, read.snapshot, shown, entries))
