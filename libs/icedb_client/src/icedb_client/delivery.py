"""From a body to an accepted batch, its retries, and what became of it: committed, in quarantine, or still staged.

Keeps three rules: a batch is staged only for a table that is there, and only while the table takes batches
(back-pressure); what was once sent is sent again under the same id (I1); and not beyond the table's retry window,
after which the flush would refuse it (I3).
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from icedb_log.batch_ids import BatchIds
from icedb_log.clock import Clock, SystemClock, new_batch_id, parse_uuid7_ms
from icedb_log.content import hash_content
from icedb_log.errors import CommitOutcomeUnknown, InvalidRequest, Overloaded, StoreRefused, Unavailable
from icedb_log.ingest.group_writer import GroupWriter
from icedb_log.ingest.groups import OfferedBatch
from icedb_log.ingest.idempotency import Binding, bind_key, mark_staged
from icedb_log.ingest.pressure import read_pressure
from icedb_log.ingest.quarantine import (
    QuarantinedBatch,
    batch_id_of,
    entry_of,
    find_reason,
    is_reason,
)
from icedb_log.ingest.staging import Acceptance, list_all_staged
from icedb_log.log.reader import LogReader
from icedb_log.serving.batch_commits import find_decision
from icedb_log.store.object_store import list_all
from icedb_log.store.store_clock import AlignedClock
from icedb_log.store.table_store import TableStore
from icedb_log.units import MINUTE_MS, SECOND_MS
from icedb_log.warehouse import Warehouse

from icedb_client.bodies import BatchBody

CONFIG_MAX_AGE_MS: Final = MINUTE_MS
LINGER_MS: Final = 20
"""How long a batch of one thread waits at most for those of others that were at it a moment ago."""
GROUP_PUTS: Final = 16
DEFAULT_RETRY_MS: Final = 5 * MINUTE_MS
FIRST_PAUSE_MS: Final = 100
LONGEST_PAUSE_MS: Final = 5 * SECOND_MS
WINDOW_PARTS_LEFT: Final = 10
"""This fraction of the retry window is left to the last request itself."""
_log = logging.getLogger(__name__)
FIRST_POLL_MS: Final = 50
LONGEST_POLL_MS: Final = 1000


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
        key: Key of the staged object; empty if an earlier call has staged it.
        row_count: Rows; ``None`` for a body that was passed through.
        raw_bytes: Size before compression.
        staged_bytes: Size as staged.
        is_woken: Whether the ingest worker was told; if not, its periodic sweep finds the batch.
        is_repeated: Whether an earlier call of the same key had accepted it: nothing was sent.
        last_row: Number of its last row in the file it came from; ``None`` if not counted.
        position: Bytes of the file read so far, as stored.
        warning: Why it may wait for long, in words for people: flushes of the table fail. Do not send it again. Empty:
            nothing is known.
    """

    table: str
    batch_id: str
    key: str
    row_count: int | None
    raw_bytes: int
    staged_bytes: int
    is_woken: bool
    is_repeated: bool = False
    last_row: int | None = None
    position: int = 0
    warning: str = ""


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


class StagingGate(Acceptance):
    """Lets batches in. Thread-safe: what several threads stage at once becomes durable by one PUT.

    Args:
        warehouse: Where the tables lie.
        clock: Time and ids.
        wake: Tells the ingest worker of a table; returns whether that worked.
    """

    def __init__(self, warehouse: Warehouse, *, clock: Clock, wake: Callable[[str], bool]) -> None:
        super().__init__(warehouse, clock=clock, max_age_ms=CONFIG_MAX_AGE_MS)
        self.clock: Clock = AlignedClock(clock, warehouse.store, may_ask=True)  # I3: ids have the store's time
        self._wake = wake
        self._warned: set[str] = set()
        self._groups: tuple[int, GroupWriter] | None = None

    def stage(self, table: str, body: BatchBody, batch_id: str) -> EnqueuedBatch:
        """Stage a body and wake the ingest worker. Raises InvalidRequest, Unavailable."""
        batch = OfferedBatch(batch_id, body.format, body.body, hash_content(body.body, body.format))
        key = self._group_writer().submit(self.warehouse.table(table), batch, here=True).result()
        return self.describe(table, body, batch_id, key=key)

    def _group_writer(self) -> GroupWriter:
        """Return what stages the batches of all threads of this process: one that was forked has threads of its own."""
        # Without a lock: one that is held while the process forks stays so in the child. Of two writers that threads
        # make at once one is kept; what went to the other one is staged all the same.
        pid, groups = os.getpid(), self._groups
        if groups is None or groups[0] != pid:
            groups = self._groups = pid, GroupWriter(clock=SystemClock(), linger_ms=LINGER_MS, puts=GROUP_PUTS)
        return groups[1]

    def describe(
        self, table: str, body: BatchBody, batch_id: str, *, key: str = "", is_repeated: bool = False
    ) -> EnqueuedBatch:
        """Wake the ingest worker for an accepted batch, and say what it is."""
        warning = self.pressure.find_failure(self.warehouse.table(table).paths)
        self._tell_once(table, warning)
        return EnqueuedBatch(
            table=table,
            batch_id=batch_id,
            key=key,
            row_count=body.row_count,
            raw_bytes=body.raw_bytes,
            staged_bytes=0 if is_repeated else len(body.body),
            is_woken=self._wake(table),
            is_repeated=is_repeated,
            last_row=None if body.row_count is None else body.first_row + body.row_count - 1,
            position=body.position,
            warning=warning,
        )

    def _tell_once(self, table: str, warning: str) -> None:
        """Log a warning of a table, once until it is over: there may be thousands of batches meanwhile."""
        if not warning:
            self._warned.discard(table)
        elif table not in self._warned:
            self._warned.add(table)
            _log.warning("%s", warning)


class Delivery:
    """One batch on its way through the gate, sent again until it is in or its time is over.

    Args:
        gate: Where it goes.
        table: Name of the table.
        body: What is staged.
        retry_ms: How long to go on after the first failure. Never beyond the table's retry window.
        on_wait: Told before each pause.
        batch_id: Its id, if it may have been sent before.
        key: What the batch is accepted once for (I7); None: each call makes a batch.
        is_patient: Whether it goes on where only a person can help (no permission, no space): for programs that run on.

    Attributes:
        batch_id: Its id, chosen before it is sent for the first time: nothing was sent while this is ``None``.
    """

    def __init__(
        self,
        gate: StagingGate,
        table: str,
        body: BatchBody,
        *,
        retry_ms: int = DEFAULT_RETRY_MS,
        on_wait: Callable[[Wait], None] | None = None,
        batch_id: str | None = None,
        key: str | None = None,
        is_patient: bool = False,
    ) -> None:
        self.batch_id: str | None = None
        self._key = key
        self._binding: Binding | None = None
        self._is_patient = is_patient
        self._given_id = batch_id
        self._gate = gate
        self._table = table
        self._body = body
        self._end_ms = gate.clock.monotonic_ms() + retry_ms
        self._on_wait = on_wait

    def run(self) -> EnqueuedBatch:
        """Deliver the batch.

        Raises:
            Overloaded: The table had no room in time; nothing was sent.
            Undelivered: No attempt was confirmed in time. Send it again only under its id.
            Unavailable: The table could not be looked at in time; nothing was sent.
            StoreRefused: At once, unless it is patient: nothing was sent.
            InvalidRequest: Refused for good; or the key stands for other content, or nobody can tell any more whether
                its batch was accepted.
            NotFound: No such table.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                if self.batch_id is None:
                    self._begin()
                assert self.batch_id is not None  # noqa: S101 - set by _begin
                return self._send(self.batch_id)
            except Unavailable as error:
                clock = self._gate.clock
                left_ms = self._end_ms - clock.monotonic_ms()
                is_hopeless = isinstance(error, StoreRefused) and not self._is_patient
                if left_ms <= 0 or is_hopeless:
                    if self.batch_id is None or (is_hopeless and attempt == 1):
                        raise
                    raise Undelivered(str(error), batch_id=self.batch_id) from error
                pause_ms = min(left_ms, _pause_ms(error, attempt))
                if self._on_wait is not None:
                    self._on_wait(Wait(error, pause_ms, attempt))
                clock.sleep_ms(pause_ms)

    def _send(self, batch_id: str) -> EnqueuedBatch:
        binding = self._binding
        if binding is not None and binding.is_staged:
            return self._gate.describe(self._table, self._body, batch_id, is_repeated=True)
        accepted = self._gate.stage(self._table, self._body, batch_id)
        if binding is not None:
            with suppress(Unavailable, CommitOutcomeUnknown):  # without it a late retry is refused, not doubled
                mark_staged(self._gate.warehouse.store, binding)
        return accepted

    def _begin(self) -> None:
        """Choose the id once the table takes batches: the retry window begins with the id (I3)."""
        config = self._gate.check(self._table)
        clock = self._gate.clock
        batch_id = self._given_id or new_batch_id(clock)
        if self._key is not None:
            table = self._gate.warehouse.table(self._table)
            content_sha256 = hash_content(self._body.body, self._body.format)
            self._binding = bind_key(table, key=self._key, batch_id=batch_id, content_sha256=content_sha256)
            batch_id = self._binding.batch_id
        self.batch_id = batch_id
        age_ms = clock.now_ms() - parse_uuid7_ms(self.batch_id)
        if self._binding is not None and not self._binding.is_staged and age_ms >= config.retry_window_ms:  # I3
            raise InvalidRequest(
                f"table {self._table}: this was sent {age_ms} ms ago as batch {batch_id}, and nobody confirmed that it "
                "was accepted: it can no longer be told from a duplicate. See whether its rows are there, then send it "
                "without a key (--once)"
            )
        window_ms = config.retry_window_ms - config.retry_window_ms // WINDOW_PARTS_LEFT - max(0, age_ms)
        self._end_ms = min(self._end_ms, clock.monotonic_ms() + window_ms)


def _pause_ms(error: Unavailable, attempt: int) -> int:
    if isinstance(error, Overloaded):
        return max(FIRST_PAUSE_MS, error.retry_after_ms)
    return min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS << min(attempt - 1, 16))


@dataclass(frozen=True, slots=True)
class CommitReport:
    """What became of batches.

    Attributes:
        committed: Ids of batches whose rows every new snapshot has.
        quarantined: Batches that cannot be committed, with the reason.
        bad_rows: Of committed batches: the rows that could not be, with the reason.
        waiting: Ids of batches that are still staged.
        conflicts: Other contents that were accepted under ids of these batches: in quarantine, not in the table.
        halted: Why the table commits nothing, as its ingest worker said; then nobody waited any longer. Else empty.
        failing: Why flushes of the table fail, as its ingest worker said last; the wait went on. Else empty.
        unknown: Ids of which neither staging, the log nor quarantine knows: never accepted, or decided longer ago than
            log files are kept.
    """

    committed: tuple[str, ...]
    quarantined: tuple[QuarantinedBatch, ...]
    waiting: tuple[str, ...]
    bad_rows: tuple[QuarantinedBatch, ...] = ()
    unknown: tuple[str, ...] = ()
    conflicts: tuple[QuarantinedBatch, ...] = ()
    halted: str = ""
    failing: str = ""


def wait_committed(table: TableStore, batch_ids: Iterable[str], *, clock: Clock, timeout_ms: int) -> CommitReport:
    """Wait until no batch is staged any more, at most ``timeout_ms``; see :meth:`Client.wait_committed`."""
    asked = tuple(dict.fromkeys(batch_ids))
    deadline_ms = clock.monotonic_ms() + timeout_ms
    pause_ms = FIRST_POLL_MS
    seen: set[str] = set()
    halted = failing = ""
    while True:
        listing = list_all_staged(table)
        staged = BatchIds(batch.batch_id for batch in listing.batches)
        waiting = tuple(batch_id for batch_id in asked if batch_id in staged)
        seen.update(waiting)
        left_ms = deadline_ms - clock.monotonic_ms()
        said = read_pressure(table) if waiting else None
        halted = "" if said is None else said.find_halt(store_now_ms=listing.store_now_ms)
        failing = "" if said is None else said.find_failure(store_now_ms=listing.store_now_ms)
        if not waiting or left_ms <= 0 or halted:
            break
        clock.sleep_ms(min(pause_ms, left_ms))
        pause_ms = min(LONGEST_POLL_MS, pause_ms * 2)
    gone = set(asked) - set(waiting)
    if not gone:
        return CommitReport((), (), waiting, halted=halted, failing=failing)
    # A batch leaves staging after the log names it (I2, I5), so a log read later does, while that log file stays.
    logs = [file.log for file in LogReader(table, clock=clock).heads.read().files]
    found = tuple(_find_reasons(table, gone))
    entries = {entry.batch_id: entry for entry in found if entry.kind != "conflict"}
    in_log = BatchIds(batch_id for log in logs for batch_id in log.batch_ids)
    refused = BatchIds(batch_id for log in logs for batch_id in log.refused_ids)
    ends = {
        batch_id: find_decision(
            entries.get(batch_id),
            is_committed=batch_id in in_log,
            is_refused=batch_id in refused,
            was_staged=batch_id in seen,
        )
        for batch_id in asked
        if batch_id in gone
    }
    return CommitReport(
        committed=tuple(batch_id for batch_id, end in ends.items() if end == "committed"),
        quarantined=tuple(entries[each] for each, end in ends.items() if end == "quarantined" and each in entries),
        waiting=waiting,
        bad_rows=tuple(entry for entry in entries.values() if entry.kind == "rows"),
        unknown=tuple(batch_id for batch_id, end in ends.items() if end != "committed" and batch_id not in entries),
        conflicts=tuple(entry for entry in found if entry.kind == "conflict"),
        halted=halted,
        failing=failing,
    )


def _find_reasons(table: TableStore, batch_ids: set[str]) -> Iterator[QuarantinedBatch]:
    """Read the reasons of these batches: one listing, and one GET for each entry of them."""
    for info in list_all(table.store, table.paths.quarantine_prefix).objects:
        if is_reason(info.key) and batch_id_of(info.key) in batch_ids:
            found = find_reason(table, entry_of(info.key))
            if found is not None:
                yield found.entry
