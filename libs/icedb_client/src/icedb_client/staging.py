"""Sends by staging in the bucket: for programs that have its keys.

Keeps two rules: a batch is staged only for a table that is there, and only while the table takes batches
(back-pressure).
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from icedb_log.batch_ids import BatchIds
from icedb_log.clock import Clock, SystemClock, new_batch_id, parse_uuid7_ms
from icedb_log.content import hash_content
from icedb_log.errors import CommitOutcomeUnknown, InvalidRequest, Unavailable
from icedb_log.ingest.group_writer import GroupWriter
from icedb_log.ingest.groups import OfferedBatch
from icedb_log.ingest.idempotency import bind_key, mark_staged
from icedb_log.ingest.pressure import read_pressure
from icedb_log.ingest.quarantine import QuarantinedBatch, batch_id_of, entry_of, find_reason, is_reason
from icedb_log.ingest.staging import Acceptance, list_all_staged
from icedb_log.log.reader import LogReader
from icedb_log.serving.batch_commits import find_decision
from icedb_log.store.object_store import list_all
from icedb_log.store.store_clock import AlignedClock
from icedb_log.store.table_store import TableStore
from icedb_log.units import MINUTE_MS
from icedb_log.warehouse import Warehouse

from icedb_client.bodies import BatchBody
from icedb_client.transport import (
    FIRST_POLL_MS,
    LONGEST_POLL_MS,
    CommitReport,
    EnqueuedBatch,
    Offer,
    make_enqueued,
    warn_once,
)

CONFIG_MAX_AGE_MS: Final = MINUTE_MS
LINGER_MS: Final = 20
"""How long a batch of one thread waits at most for those of others that were at it a moment ago."""
GROUP_PUTS: Final = 16


class StagingGate(Acceptance):
    """Lets batches in. Thread-safe: what several threads stage at once becomes durable by one PUT.

    Implements :class:`icedb_client.transport.Transport`.

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

    def require_table(self, table: str) -> None:
        """Return if the table is there."""
        self.config(table)

    def begin(self, table: str, body: BatchBody, *, batch_id: str | None = None, key: str | None = None) -> Offer:
        """Check the table, and bind the key. The id is chosen once the table takes batches: its window begins (I3).

        Raises:
            InvalidRequest: Besides what is wrong with the table: the key stands for other content, or nobody can tell
                any more whether its batch was accepted.
        """
        config = self.check(table)
        batch_id = batch_id or new_batch_id(self.clock)
        if key is None:
            return Offer(table, body, batch_id, None, config.retry_window_ms)
        content_sha256 = hash_content(body.body, body.format)
        place = self.warehouse.table(table)
        binding = bind_key(place, key=key, batch_id=batch_id, content_sha256=content_sha256)
        age_ms = self.clock.now_ms() - parse_uuid7_ms(binding.batch_id)
        if not binding.is_staged and age_ms >= config.retry_window_ms:  # I3
            raise InvalidRequest(
                f"table {table}: this was sent {age_ms} ms ago as batch {binding.batch_id}, and nobody confirmed that "
                "it was accepted: it can no longer be told from a duplicate. See whether its rows are there, then send "
                "it without a key (--once)"
            )
        return Offer(table, body, binding.batch_id, key, config.retry_window_ms, binding)

    def send(self, offer: Offer) -> EnqueuedBatch:
        """Stage a batch, unless its key says that it is staged, and wake the ingest worker."""
        binding = offer.binding
        if binding is not None and binding.is_staged:
            return self.describe(offer.table, offer.body, offer.batch_id, is_repeated=True)
        accepted = self.stage(offer.table, offer.body, offer.batch_id)
        if binding is not None:
            with suppress(Unavailable, CommitOutcomeUnknown):  # without it a late retry is refused, not doubled
                mark_staged(self.warehouse.store, binding)
        return accepted

    def wait_committed(self, table: str, batch_ids: Sequence[str], *, timeout_ms: int) -> CommitReport:
        """Wait by looking into staging, then into the log and quarantine."""
        return wait_committed(self.warehouse.table(table), batch_ids, clock=self.clock, timeout_ms=timeout_ms)

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
        warn_once(self._warned, table, warning)
        return make_enqueued(
            table, body, batch_id, is_woken=self._wake(table), key=key, is_repeated=is_repeated, warning=warning
        )


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
