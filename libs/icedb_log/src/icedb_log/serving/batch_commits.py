"""The status of a batch, and read your own writes: reads a table's log until it names a batch.

A batch leaves staging after the log names it (I2, I5). So a log that is read after a look into staging has it, if it is
not there; unless the log files of that time are deleted, which is when nobody can tell any more. Who waits does so in
that order: :func:`look_for_batch`, read, :meth:`CommitWait.find_pause`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from icedb_log.batch_ids import BatchIds, parse_batch_id_ms
from icedb_log.clock import Clock, format_ms
from icedb_log.errors import InvalidRequest, NotFound, Unavailable
from icedb_log.ingest.quarantine import QuarantinedBatch, find_reason
from icedb_log.ingest.staging import find_staged
from icedb_log.model import LogFile
from icedb_log.serving.table_cache import TableState
from icedb_log.store.table_store import TableStore

FIRST_PAUSE_MS: Final = 50
"""How long is waited after the first look; twice as long after each other one, up to ``LONGEST_PAUSE_MS``."""
LONGEST_PAUSE_MS: Final = 1000


Decided = Literal["committed", "quarantined"]
"""``committed``: its rows are live, but for bad ones; ``quarantined``: it was refused, and waits for a person."""


def find_decision(
    entry: QuarantinedBatch | None, *, is_committed: bool, is_refused: bool, was_staged: bool = False
) -> Decided | None:
    """Return the decision about a batch that is not staged any more (I2, I5); ``None``: unknown.

    Args:
        entry: Its own entry in quarantine, ``None`` if it has none; read when it had left staging, as the log.
        is_committed: Whether the log names it as committed.
        is_refused: Whether the log names it as refused.
        was_staged: Whether it was seen in staging before.
    """
    has_bad_rows = entry is not None and entry.kind == "rows"
    if is_committed or (entry is not None and has_bad_rows and entry.has_landed):
        return "committed"
    # WARN: before bad rows that nobody says to have landed: a flush that lost its fence writes their reason late, when
    # another one has refused the batch whole, and it has been retried even.
    if is_refused or (entry is not None and not has_bad_rows):
        return "quarantined"
    if has_bad_rows:  # they are in quarantine before their batch is committed, and it leaves staging after that
        return "committed"
    # Else the log has forgotten it already (a short log grace period).
    return "committed" if was_staged else None


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """What the store says of a batch besides the log.

    Attributes:
        is_staged: Whether it waits for a flush.
        entry: Its entry in quarantine, if it is not staged and has one.
    """

    is_staged: bool
    entry: QuarantinedBatch | None = None


def check_batch_id(batch_id: str) -> str:
    """Return what a caller gave as ``min_commit``.

    Raises:
        InvalidRequest: Not the id of a batch.
    """
    try:
        parse_batch_id_ms(batch_id)
    except InvalidRequest:
        raise InvalidRequest(
            f"min_commit {batch_id[:80]!r} is no batch id: give the one that the ingest returned, a UUIDv7 "
            "in lower case"
        ) from None
    return batch_id


def look_for_batch(table: TableStore, batch_id: str) -> Whereabouts:
    """Return where a batch is besides the log (R5). Costs what :func:`~icedb_log.ingest.staging.find_staged` does."""
    if find_staged(table, (batch_id,)):
        return Whereabouts(is_staged=True)
    found = find_reason(table, batch_id)
    return Whereabouts(is_staged=False, entry=None if found is None else found.entry)


def find_commit(state: TableState, batch_id: str) -> LogFile | None:
    """Return the log file that names a batch; ``None`` if none does."""
    asked = BatchIds((batch_id,))
    return next((file.log for file in reversed(state.view.files) if asked.find_in(file.log.batch_ids)), None)


@dataclass(slots=True)
class CommitWait:
    """How one caller waits for a batch.

    Attributes:
        batch_id: Its id, well-formed.
        clock: For the waiting.
        timeout_ms: How long at most.
        setting: What bounds that, for whoever waited in vain.
    """

    batch_id: str
    clock: Clock
    timeout_ms: int
    setting: str
    _begun_ms: int = field(init=False)
    _pause_ms: int = FIRST_PAUSE_MS
    _was_staged: bool = False

    def __post_init__(self) -> None:
        self._begun_ms = self.clock.monotonic_ms()

    def find_pause(self, found: Whereabouts, state: TableState) -> int | None:
        """Return how many ms to wait before the next look; ``None``: the state will do.

        Raises:
            InvalidRequest: The batch was refused: it is in quarantine, and nothing will commit it as it is (I5).
            NotFound: Nobody knows it.
            Unavailable: It is still staged after the longest wait.
        """
        if find_commit(state, self.batch_id) is not None:
            return None
        refuse_if_lost(state, self.batch_id, found, was_staged=self._was_staged)
        if not found.is_staged:
            return None  # committed, though the log has forgotten it already (a short log grace period)
        self._was_staged = True
        left_ms = self._begun_ms + self.timeout_ms - self.clock.monotonic_ms()
        if left_ms <= 0:
            raise Unavailable(
                f"table {state.config.name}: batch {self.batch_id} is accepted and still staged after "
                f"{self.timeout_ms} ms ({self.setting}): ingest has not flushed it; try again"
            )
        pause_ms, self._pause_ms = self._pause_ms, min(LONGEST_PAUSE_MS, 2 * self._pause_ms)
        return min(pause_ms, left_ms)


def await_commit(table: TableStore, wait: CommitWait, *, read: Callable[[], TableState]) -> TableState:
    """Return a state whose log has a batch. Raises as :meth:`CommitWait.find_pause`, and what ``read`` raises."""
    while True:
        found, state = _look_and_read(table, wait.batch_id, read)
        pause_ms = wait.find_pause(found, state)
        if pause_ms is None:
            return state
        wait.clock.sleep_ms(pause_ms)


def _look_and_read(table: TableStore, batch_id: str, read: Callable[[], TableState]) -> tuple[Whereabouts, TableState]:
    """Return where a batch is, and the log, read after that: who committed it meanwhile is in it (R5)."""
    found = look_for_batch(table, batch_id)
    return found, read()


def refuse_if_lost(state: TableState, batch_id: str, found: Whereabouts, *, was_staged: bool) -> None:
    """Refuse a batch that the log does not name if it is not staged, and was not so at an earlier look."""
    table = state.config.name
    asked = BatchIds((batch_id,))
    is_refused = any(asked.find_in(file.log.refused_ids) for file in state.view.files)
    was_staged = was_staged or found.is_staged
    decision = find_decision(found.entry, is_committed=False, is_refused=is_refused, was_staged=was_staged)
    if decision == "quarantined":
        why = "" if found.entry is None else f": {found.entry.reason}"
        raise InvalidRequest(
            f"table {table}: batch {batch_id} was refused and is in quarantine{why}. Its rows are in no snapshot; see "
            f"`icedb quarantine list {table}`"
        )
    if decision is None:
        raise NotFound(
            f"table {table}: batch {batch_id} of {format_ms(parse_batch_id_ms(batch_id))} is not staged, not in "
            "quarantine and not in the log: it was never accepted for this table, or was committed longer ago than log "
            f"files are kept ({state.config.log_grace_ms} ms), and then every snapshot has it: leave min_commit out"
        )


def check_commit_time(state: TableState, batch_id: str, name: str, as_of_ms: int) -> None:
    """Return if the state at a time can have a batch; ``name`` is what the caller calls the time.

    Raises:
        InvalidRequest: The batch was committed later.
    """
    commit = find_commit(state, batch_id)
    if commit is not None and commit.time_ms > as_of_ms:
        raise InvalidRequest(
            f"table {state.config.name}: batch {batch_id} was committed at {commit.time_ms} "
            f"({format_ms(commit.time_ms)}), after {name} {as_of_ms}: ask for that time or later"
        )
