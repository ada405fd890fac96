"""How batches get into a table in this process: staged, committed in groups, with a little merging and cleaning.

A batch is accepted when it is staged; it is committed here, or by whoever flushes the table first. What else is done to
a table is :mod:`icedb.lake_table`'s.
"""

import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from icedb_client.bodies import BatchBody
from icedb_client.files import to_body
from icedb_log.clean.deletion import AuditLog
from icedb_log.clean.vacuum import VacuumBounds, VacuumCaches, VacuumResult, vacuum_table
from icedb_log.clock import new_batch_id
from icedb_log.commit.fence import look_at_fence
from icedb_log.commit.invariants import MAX_LOG_FILES
from icedb_log.commit.table import Table
from icedb_log.content import hash_content, is_same_content
from icedb_log.errors import (
    CommitConflict,
    CommitOutcomeUnknown,
    Fenced,
    HaltError,
    IceDBError,
    InvalidRequest,
    Overloaded,
    Unavailable,
)
from icedb_log.formats import DataFormat
from icedb_log.holds.stored_holds import HoldReader
from icedb_log.ingest.flush import FlushResult, flush_table
from icedb_log.ingest.pressure import end_trouble, find_trouble, is_failure, publish_trouble
from icedb_log.ingest.quarantine import find_reason
from icedb_log.ingest.staging import find_staged
from icedb_log.log.reader import LogReader
from icedb_log.merge.merge import merge_table
from icedb_log.merge.merge_plan import MergeLimits, MergeOptions
from icedb_log.serving.batch_commits import find_decision
from icedb_log.store.object_store import list_all
from icedb_log.store.store_clock import SteadyTime
from icedb_log.table.stored_config import read_table_config
from icedb_log.units import MIB, MINUTE_MS, SECOND_MS

from icedb.session import LakeSession

COMMIT_ATTEMPTS: Final = 12
"""How often a batch is offered when other workers take the fence in between."""
LOOK_EVERY_MS: Final = SECOND_MS
"""How often an append looks whether a worker of the stack is alive, at most."""
WORKER_WAIT_MS: Final = 5 * SECOND_MS
"""How long it leaves the commit to that worker: longer than its sweep takes to find the batch. If it was in vain, not
again for a minute."""
WORKER_POLL_MS: Final = 50
UNDECIDED_EVERY_MS: Final = 200
"""How often a commit that waits, or works, looks whether others have decided its batches, at most: each is a LIST."""
TIDY_EVERY: Final = 32
"""So many commits of this process are followed by a small merge and a vacuum."""
TIDY_LIMITS: Final = MergeLimits(max_groups=64, max_files=1024, max_bytes=64 * MIB, commit_bytes=64 * MIB)
TIDY_OBJECTS: Final = 1000
ROOM_WAIT_MS: Final = 30 * SECOND_MS
"""How long an append waits for room in the log."""
SUSTAINED_FILES: Final = 750
"""Commits that the log takes in a grace period: merges write log files, too."""
_FIRST_PAUSE_MS: Final = 20
_MAX_PAUSE_MS: Final = 2000


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A batch that was accepted; by default one of which only its id is known.

    Attributes:
        row_count: Rows in it, if they were counted.
        sha256: Of its content: an id that the log has is this batch only with this content (I8).
    """

    row_count: int | None = None
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Appended:
    """The outcome of one batch.

    Attributes:
        batch_id: Its id.
        committed_key: The log file that made it live; ``None`` if the log has forgotten it since.
        row_count: Rows of it that are live now; ``None`` where they were not counted.
        bad_row_count: Rows that went to quarantine instead, by the table's ``on_bad_rows``.
        is_duplicate: Whether it had been committed before this call.
    """

    batch_id: str
    committed_key: str | None
    row_count: int | None
    bad_row_count: int = 0
    is_duplicate: bool = False


class TableWriter:
    """Accepts and commits batches of one table. Thread-safe.

    Attributes:
        fences: How often commits of this process took the fence, by whether it was ``free``, ``abandoned``, or of one
            who was ``working`` (F6).
        flushing: Held around what takes the fence ``ingest``: one thread at a time, for the same owner does not wait
            for itself (F6). Taken before ``merging``, where both are.
        merging: The same of the fence ``merge``.
    """

    def __init__(self, lake: LakeSession, name: str) -> None:
        self.lake: Final = lake
        self.name: Final = name
        self.place = lake.warehouse.table(name)
        config = read_table_config(self.place)
        # Kept from one append to the next: what is known of the log is not read again.
        self._reader = LogReader(self.place, clock=lake.clock, max_refresh_ms=config.log_grace_ms // 2)
        self._holds = HoldReader()
        self._steady = SteadyTime(config.data_grace_ms)
        self.flushing = threading.Lock()
        self.merging = threading.Lock()
        self.fences: Counter[str] = Counter()
        self._commit_count = 0
        self._alone_until_ms = 0
        self._looked_ms = 0
        self._log_file_count: int | None = None
        self._failure_count = 0
        self._is_in_trouble = True
        """Whether the table may be said to be: by this process, or before it began."""

    def __repr__(self) -> str:
        return f"{self.lake!r}.table({self.name!r})"

    def open(self) -> Table:
        """Open the table for one run. Raises NotFound, Unavailable, UnsupportedFormat, InvalidRequest after a fork."""
        self.lake.require_own_process()
        return Table.open(self.place, clock=self.lake.clock, owner=self.lake.owner, reader=self._reader)

    def append(self, rows: Any, *, batch_id: str | None = None, data_format: DataFormat | None = None) -> Appended:
        """Commit one batch: when this returns, every new snapshot has its rows.

        Idempotency: a call with the same ``batch_id`` and the same rows is safe within the table's retry window (three
        quarters of its log grace period); the batch is committed once. A batch that this call accepted and could not
        commit stays accepted: the next append or flush of the table commits it.

        Args:
            rows: Objects of column to value; Arrow data or a DataFrame; bytes or a :class:`~pathlib.Path` of NDJSON,
                JSON, CSV, Parquet or Arrow; see :meth:`icedb_client.Client.enqueue`.
            batch_id: A UUIDv7 chosen by the caller, who means to try again; a fresh one by default.
            data_format: What bytes or a file hold, where they do not show it (CSV).

        Raises:
            InvalidRequest: Bad rows or id, or the batch was refused as a whole; the message says why.
            NotFound: No such table.
            Overloaded: The table takes no batches now; the message says what to do.
            Unavailable: The store did not answer, or others kept taking the fence.
            CommitOutcomeUnknown: Nobody knows whether the commit landed; call again with the same ``batch_id``.
            HaltError: The table needs a person.
        """
        body = to_body(rows, data_format)
        if batch_id is not None and (known := self._find_commit(batch_id, hash_content(body.body, body.format))):
            return known
        batch_id, staged = self.stage(body, batch_id)
        try:
            found = self.commit({batch_id: staged})[batch_id]
        except (Unavailable, CommitOutcomeUnknown, Fenced, CommitConflict, HaltError) as error:
            accepted = f"batch {batch_id} is accepted; whether it is committed is not known yet"
            error.args = (f"{error}. {accepted}: calling again with this batch_id and the same rows is safe",)
            raise
        if isinstance(found, InvalidRequest):
            raise found
        return found

    def stage(self, body: BatchBody, batch_id: str | None) -> tuple[str, StagedBatch]:
        """Accept a batch, to be committed by :meth:`commit`. Raises as :meth:`append`; idempotent for the same id."""
        self.lake.require_own_process()
        gate = self.lake.gate
        gate.check(self.name)
        if self.lake.warehouse.table(self.name).paths != self.place.paths:
            raise InvalidRequest(
                f"table {self.name} was dropped and purged since it was opened, and a table of that name is another "
                f"one: lake.table({self.name!r}) opens it"
            )
        batch_id = batch_id or new_batch_id(gate.clock)
        gate.stage(self.name, body, batch_id)
        return batch_id, StagedBatch(body.row_count, hash_content(body.body, body.format))

    def commit(self, batches: Mapping[str, StagedBatch]) -> Mapping[str, Appended | InvalidRequest]:
        """Flush here until batches that are staged are decided, by these flushes or by those of others.

        Args:
            batches: By their ids, as :meth:`stage` has returned them.

        Returns:
            What became of each: an InvalidRequest says why it was refused.

        Raises:
            IceDBError: As :meth:`append`; those that are not decided stay accepted.
        """
        left, done = dict(batches), dict[str, Appended | InvalidRequest]()
        clock = self.lake.clock
        room_ends_ms = clock.monotonic_ms() + ROOM_WAIT_MS  # from here: who waits behind others has waited with them
        is_first = self.flushing.acquire(blocking=False)
        if not is_first:
            self.flushing.acquire()  # whoever flushes in this process takes these along
        try:
            if not is_first:
                self._take_decided(left, done)
            self._leave_to_worker(left, done)
            table = self.open().watched_by(
                partial(self._require_undecided, left),
                on_fence=lambda acquired: self.fences.update([acquired.previous_holder]),
            )
            failure_count = 0
            is_opened = True
            self._looked_ms = clock.monotonic_ms()
            while left:
                problem: IceDBError | None = None
                self._wait_for_room(room_ends_ms)
                try:
                    table = table if is_opened else table.renewed()
                    is_opened = False
                    result = self._flush(table, is_staged=True)
                except Overloaded:
                    self._log_file_count = None  # others have filled the log since it was counted
                    continue
                except (Fenced, CommitConflict, CommitOutcomeUnknown) as error:
                    problem = error
                else:
                    for batch_id in left.keys() & set(result.committed_ids):
                        done[batch_id] = self._describe(batch_id, left.pop(batch_id).row_count, result)
                    self._keep_tidy(result)
                if not left or self._take_decided(left, done) or (problem is None and result.committed_key):
                    failure_count = 0
                    continue
                failure_count += 1
                if failure_count == COMMIT_ATTEMPTS:
                    raise problem or Unavailable(
                        f"table {self.name}: {len(left)} batches are staged, and no flush takes them"
                    )
                clock.sleep_ms(min(_FIRST_PAUSE_MS << failure_count, _MAX_PAUSE_MS))
        finally:
            self.flushing.release()
        return done

    def flush(self, *, is_staged: bool = False) -> FlushResult:
        """Commit all staged batches in one commit. Raises as :meth:`append`; idempotent in effect.

        Args:
            is_staged: The caller has just seen that something is staged: it is not looked for once more.
        """
        with self.flushing:
            return self._flush(self.open(), is_staged=is_staged)

    def _flush(self, table: Table, *, is_staged: bool = False) -> FlushResult:
        """Flush, and say in the table if that halts or fails, to people and to who sends batches."""
        try:
            result = flush_table(table, self.lake.engine.writer, is_staged=is_staged)
        except Exception as error:
            self._tell_trouble(error)
            raise
        self._failure_count = 0
        if self._is_in_trouble:
            with suppress(IceDBError):  # what is said runs out by itself
                end_trouble(self.place)
                self._is_in_trouble = False
        return result

    def _tell_trouble(self, error: Exception) -> None:
        if not is_failure(error):
            return
        self._failure_count += 1
        trouble = find_trouble(error, failure_count=self._failure_count)
        if trouble is not None:
            self._is_in_trouble = True
            with suppress(IceDBError):  # the next try says it
                publish_trouble(self.place, trouble, str(error), clock=self.lake.clock)

    def vacuum(self, *, dry_run: bool = False, max_objects: int | None = None) -> VacuumResult:
        """Delete what is dead and past its grace period. Idempotent.

        Args:
            dry_run: Touch nothing; the result says what would go, and what keeps the rest.
            max_objects: Begin nothing new after so many data files.

        Raises:
            Unavailable: The store did not answer, or its clock jumped; nothing was deleted.
            HaltError: The table needs a person; nothing was deleted.
        """
        table = self.open()
        caches = VacuumCaches(holds=self._holds, steady=self._steady)
        bounds = VacuumBounds(max_objects=max_objects)
        return vacuum_table(table, dry_run=dry_run, audit=self.audit, caches=caches, bounds=bounds)

    @property
    def audit(self) -> AuditLog:
        """Where it is written down what is deleted."""
        return AuditLog(self.place, clock=self.lake.clock, owner=self.lake.owner)

    def _keep_tidy(self, result: FlushResult) -> None:
        """Now and then, merge and clean a little, so that an append costs the same however many there were.

        What goes wrong here is no matter of the append, which has landed: the next time finds it.
        """
        self._commit_count += 1
        self._log_file_count = result.log_file_count
        if self._commit_count % TIDY_EVERY and result.log_file_count < MAX_LOG_FILES:
            return
        self._tidy()

    def _tidy(self) -> None:
        """Merge one small run, unless somebody merges, and clean a little. Whatever goes wrong is said in the log."""
        try:
            if self.merging.acquire(blocking=False):
                try:
                    if not look_at_fence(self.place, "merge").claimed_ms:
                        merge_table(self.open(), self.lake.engine.merger, options=MergeOptions(limits=TIDY_LIMITS))
                finally:
                    self.merging.release()
            self.vacuum(max_objects=TIDY_OBJECTS)
        except Exception as error:  # noqa: BLE001 - the append that this comes with has landed, or waits for room
            from structlog import get_logger  # noqa: PLC0415 - the engine has loaded it

            get_logger(__name__).warning(
                "tidying_failed",
                table=self.name,
                error=type(error).__name__,
                reason=str(error)[:500],
            )

    def _wait_for_room(self, ends_ms: int) -> None:
        """Return once the log takes a commit. Raises Overloaded if it does not until then, by the clock that waits."""
        if self._log_file_count is None:
            self._log_file_count = len(list_all(self.place.store, self.place.paths.log_prefix).objects)
        clock = self.lake.clock
        while self._log_file_count >= MAX_LOG_FILES:
            self._tidy()
            self._log_file_count = len(list_all(self.place.store, self.place.paths.log_prefix).objects)
            if self._log_file_count < MAX_LOG_FILES:
                return
            if clock.monotonic_ms() >= ends_ms:
                grace_ms = self.open().config.log_grace_ms
                rate = SUSTAINED_FILES * SECOND_MS / grace_ms
                raise Overloaded(
                    f"table {self.name}: its log has {self._log_file_count} files, most of them merged away, and each "
                    f"stays for log_grace, {grace_ms / SECOND_MS:g} s: it bears {rate:.2g} commits a second for long. "
                    "Append more rows at once, or use appender(), which commits at most once a second, or create the "
                    'table with a shorter log_grace, e.g. "30s"',
                    retry_after_ms=min(grace_ms, MINUTE_MS),
                )
            clock.sleep_ms(SECOND_MS)

    def _leave_to_worker(self, left: dict[str, StagedBatch], done: dict[str, Appended | InvalidRequest]) -> None:
        """Wait a few seconds for the commit of a worker of the stack, if one is alive: it would lose its work to us."""
        clock = self.lake.clock
        now_ms = clock.monotonic_ms()
        if not left or now_ms < self._alone_until_ms:
            return
        if not look_at_fence(self.place).is_worker_alive:
            self._alone_until_ms = now_ms + LOOK_EVERY_MS
            return
        ends_ms = now_ms + WORKER_WAIT_MS
        while left and clock.monotonic_ms() < ends_ms:
            clock.sleep_ms(WORKER_POLL_MS)
            self._take_decided(left, done)
        if left:
            self._alone_until_ms = clock.monotonic_ms() + MINUTE_MS

    def _require_undecided(self, left: Mapping[str, StagedBatch]) -> None:
        """Raise Fenced if others have decided all batches while this process waits for the fence, or works."""
        now_ms = self.lake.clock.monotonic_ms()
        if now_ms - self._looked_ms < UNDECIDED_EVERY_MS:
            return
        self._looked_ms = now_ms
        if not find_staged(self.place, left):
            raise Fenced(f"table {self.name}: others have committed what was staged")

    def _take_decided(self, left: dict[str, StagedBatch], done: dict[str, Appended | InvalidRequest]) -> bool:
        """Move the batches that are not staged any more to those that are done; return whether there were any."""
        gone = left.keys() - find_staged(self.place, left).keys()
        if not gone:
            return False
        # R5: a batch leaves staging after the log names it; the log is read after that look.
        files = self._reader.heads.read().files
        keys = {batch_id: file.key for file in files for batch_id in gone.intersection(file.log.batch_ids)}
        contents = {
            batch_id: content
            for file in files
            for batch_id, content in file.log.contents.items()
            if batch_id in gone and content
        }
        refused = {batch_id for file in files for batch_id in gone.intersection(file.log.refused_ids)}
        for batch_id in gone:
            staged, found = left.pop(batch_id), find_reason(self.place, batch_id)
            decision = find_decision(
                None if found is None else found.entry,
                is_committed=batch_id in keys,
                is_refused=batch_id in refused,
                was_staged=True,
            )
            if staged.sha256 and batch_id in contents and not is_same_content(contents[batch_id], staged.sha256):
                done[batch_id] = InvalidRequest(
                    f"table {self.name}: batch {batch_id} was committed with other rows before. None of these is in "
                    f"the table; they are in quarantine (`icedb quarantine list {self.name}`): append them under an "
                    "id of their own"
                )
            elif decision == "quarantined":
                why = "" if found is None else f": {found.entry.reason}"
                done[batch_id] = InvalidRequest(
                    f"table {self.name}: batch {batch_id} is refused{why}. None of its rows is in the table; it is in "
                    f"quarantine: `icedb quarantine list {self.name} {batch_id}`"
                )
            else:
                bad_count = 0 if found is None else found.entry.row_count or 0
                good_count = None if staged.row_count is None else staged.row_count - bad_count
                done[batch_id] = Appended(batch_id, keys.get(batch_id), good_count, bad_count)
        return True

    def _describe(self, batch_id: str, row_count: int | None, result: FlushResult) -> Appended:
        bad_count = 0
        if result.bad_row_count:
            found = find_reason(self.place, batch_id)
            bad_count = 0 if found is None else found.entry.row_count or 0
        if len(result.committed_ids) == 1:
            row_count = result.row_count
        elif row_count is not None:
            row_count -= bad_count
        return Appended(batch_id, result.committed_key, row_count, bad_count)

    def _find_commit(self, batch_id: str, digest: str) -> Appended | None:
        """Return the commit of a batch with this content, if the log has it."""
        for file in self._reader.heads.read().files:
            if is_same_content(file.log.contents.get(batch_id, ""), digest):
                return Appended(batch_id, file.key, None, is_duplicate=True)
        return None
