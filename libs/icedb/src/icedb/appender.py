"""Many small appends: each is durable at once, and they are committed in groups."""

import threading
from types import TracebackType
from typing import Any, Final, Self

from icedb_client.files import to_body
from icedb_log.errors import CommitConflict, CommitOutcomeUnknown, Fenced, InvalidRequest, Unavailable
from icedb_log.units import SECOND_MS

from icedb.table_writer import StagedBatch, TableWriter

MAX_KEPT_REASONS: Final = 20


class Appender:
    """Stages batches, and commits what it has staged by a thread of its own. Thread-safe; use it in a ``with`` block.

    A batch that :meth:`append` returned for is accepted: durable, to be committed exactly once, by this appender, by
    another one, or by a worker, also if this process dies. The end of the block commits what is left.

    Args:
        table: The table.
        commit_every_ms: Least time between two commits.

    Attributes:
        committed_count: Batches that are committed.
        row_count: Rows of them, without bad ones, as far as they were counted.
        bad_row_count: Rows of them that went to quarantine.
    """

    def __init__(self, table: TableWriter, *, commit_every_ms: int = SECOND_MS) -> None:
        self.committed_count = 0
        self.row_count = 0
        self.bad_row_count = 0
        self._table = table
        self._wait_s = commit_every_ms / SECOND_MS
        self._staged: dict[str, StagedBatch] = {}
        self._refusals: list[InvalidRequest] = []
        self._refused_count = 0
        self._problem: BaseException | None = None
        self._lock = threading.Lock()
        self._accepting_count = 0
        self._changed = threading.Condition(self._lock)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._commit_on, name=f"icedb-appender-{table.name}", daemon=True)

    def __enter__(self) -> Self:
        self._table.lake.gate.config(self._table.name)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:
            self._ends.set()
            self._changed.wait_for(lambda: not self._accepting_count)
        self._thread.join()
        if error is None:
            self._commit()
            self._raise_refusals()

    def append(self, rows: Any, *, batch_id: str | None = None) -> str:
        """Accept one batch: it is durable when this returns, and committed soon. Idempotent for the same ``batch_id``.

        Args:
            rows: As of :meth:`~icedb.LakeTable.append`.
            batch_id: A UUIDv7 chosen by the caller, who means to try again; a fresh one by default.

        Returns:
            The batch's id.

        Raises:
            InvalidRequest: Bad rows or id; nothing was accepted.
            Overloaded: The table takes no batches now; call again later.
            Unavailable: The store did not confirm; call again with the same ``batch_id``.
            HaltError: The table needs a person.
            Exception: What ended the commits of this appender; nothing was accepted.
        """
        body = to_body(rows, None)
        # WARN: never beside the end of the block: what is staged after its last commit waits for somebody else's.
        # Threads stage side by side: what they stage at once shares an object.
        with self._lock:
            if self._ends.is_set() or not self._thread.is_alive():
                raise self._problem or InvalidRequest(
                    f"table {self._table.name}: append to an appender inside of its `with` block; nothing was accepted"
                )
            self._accepting_count += 1
        try:
            batch_id, staged = self._table.stage(body, batch_id)
            with self._lock:
                self._staged[batch_id] = staged
        finally:
            with self._lock:
                self._accepting_count -= 1
                self._changed.notify_all()
        return batch_id

    def _commit_on(self) -> None:
        while not self._ends.wait(self._wait_s):
            try:
                self._commit()
            except (Unavailable, Fenced, CommitConflict, CommitOutcomeUnknown):
                continue  # tried again; the end of the block says it if it lasts
            except BaseException as error:  # noqa: BLE001 - the next append raises it
                self._problem = error
                return

    def _commit(self) -> None:
        """Commit what is staged. Raises as :meth:`TableWriter.commit`; then it stays staged."""
        with self._lock:
            batches = dict(self._staged)
        if not batches:
            return
        for batch_id, found in self._table.commit(batches).items():
            with self._lock:
                del self._staged[batch_id]
            if isinstance(found, InvalidRequest):
                self._refused_count += 1
                self._refusals = [*self._refusals, found][:MAX_KEPT_REASONS]
                continue
            self.committed_count += 1
            self.row_count += found.row_count or 0
            self.bad_row_count += found.bad_row_count

    def _raise_refusals(self) -> None:
        if self._refused_count:
            more = f"; and {self._refused_count - 1} more" if self._refused_count > 1 else ""
            raise InvalidRequest(f"{self._refusals[0]}{more}")
