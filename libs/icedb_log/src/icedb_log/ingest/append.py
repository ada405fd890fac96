"""An append: data files that a foreign job has written become live, all or none, once (rules A1 to A3).

What a flush does for staged batches, for a job that writes its rows itself, such as a Spark write: the data files come
first (W1), then one commit under the ``ingest`` fence that names a batch id of its own. Order: the fence, for which it
waits while others are at work (F6); the log; the store's clock; the commit. Safe under any number of concurrent
appends, flushes, merges and janitors, without any lock.
"""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from icedb_log.clock import Clock, format_ms, parse_uuid7_ms, with_time
from icedb_log.commit.commit import Added, AppendCommit
from icedb_log.commit.table import PATIENCE_MS, Table
from icedb_log.errors import CommitConflict, Fenced, InvalidRequest, Unavailable
from icedb_log.model import FileMarker
from icedb_log.table.column_names import MAX_TABLE_COLUMNS, ColumnNames
from icedb_log.table.table_config import require_takes_batches
from icedb_log.units import SECOND_MS

COMMIT_ATTEMPTS: Final = 8
"""How often the same files are offered when other workers take the fence in between."""

_FIRST_BACKOFF_MS: Final = 100
_MAX_BACKOFF_MS: Final = 2 * SECOND_MS


@dataclass(frozen=True, slots=True)
class AppendJob:
    """Data files that wait for their commit.

    Attributes:
        files: Markers of the files, which are in the store; none for a write without rows.
        columns: Columns that the files may have, with the SQL types they have there.
        batch_id: What the commit is known by (I3): a UUIDv7, made young.
        commit_id: Stands in the footer of each file.
        begun_ms: The store's clock before the first of the files was begun (W3).
    """

    files: tuple[FileMarker, ...]
    columns: Mapping[str, str]
    batch_id: str
    commit_id: str
    begun_ms: int


@dataclass(frozen=True, slots=True)
class AppendResult:
    """What an append did.

    Attributes:
        committed_key: Log file of the commit; ``None`` if there was nothing to commit.
        is_duplicate: Whether a commit under this batch id had landed before: these files are orphans.
    """

    committed_key: str | None
    is_duplicate: bool


def append_files(table: Table, job: AppendJob, *, wait_ms: int = PATIENCE_MS) -> AppendResult:
    """Make data files live in one commit.

    Idempotent for the same batch id, as long as the log is sure to remember it (A2): a second call, with the same
    files or with others, finds the commit of the first and changes nothing.

    Args:
        table: The table.
        job: The files.
        wait_ms: How long each try waits for others who are at work (F6); 0 takes the fence from them.

    Raises:
        NotFound: The table was dropped.
        InvalidRequest: The table is a view, or another one than the files were laid out for; its columns do not fit;
            the batch id is so old, or lies so far in the future, that nobody can tell whether it was committed. Nothing
            was committed.
        Overloaded: The log has no room for a commit now. Nothing was committed.
        Fenced: Other workers took the fence again and again. Nothing was committed.
        CommitConflict: The same.
        CommitOutcomeUnknown: Nobody knows yet; call again with the same batch id.
        HaltError: The table needs a person.
        Unavailable: The store did not answer, or the files are too old to be committed safely (W3).
    """
    last_time_ms = 0

    def next_time_ms() -> int:
        """Return another time for each attempt, and so another key: the one before may be sealed."""
        nonlocal last_time_ms
        last_time_ms = max(table.clock.now_ms(), last_time_ms + 1)
        return last_time_ms

    for attempt in range(1, COMMIT_ATTEMPTS + 1):
        try:
            return _commit_once(replace(table.renewed(), patience_ms=wait_ms), job, next_time_ms=next_time_ms)
        except (Fenced, CommitConflict):
            # Certainly refused: no log file names these files, and none can any more.
            if attempt == COMMIT_ATTEMPTS:
                raise
            table.clock.sleep_ms(min(_FIRST_BACKOFF_MS << attempt, _MAX_BACKOFF_MS))
    raise AssertionError  # the loop returns or raises


def _commit_once(table: Table, job: AppendJob, *, next_time_ms: Callable[[], int]) -> AppendResult:
    require_takes_batches(table.config)
    with AppendCommit(table, commit_id=job.commit_id) as commit:
        if any(job.batch_id in file.log.batch_ids for file in commit.log.files):  # A2
            return AppendResult(None, is_duplicate=True)
        # WARN: A2: the clock is read after the log. Before it: an append lands under this id, and this one reads the
        # clock and sleeps; the commit is merged and vacuumed, the log does not know the id any more: rows twice.
        _require_young_id(table, job, now_ms=table.read_store_clock())
        if not job.files:
            return AppendResult(None, is_duplicate=False)
        after = check_columns(table, job.columns, known=commit.known.effective)
        added = Added(files=job.files, schema=after, batch_ids=(job.batch_id,))
        log = commit.build(added, time_ms=next_time_ms())
        committed = commit.land(log, last_check=lambda: _require_young_files(table, job))  # W3
        return AppendResult(committed.key, is_duplicate=False)


def _require_young_id(table: Table, job: AppendJob, *, now_ms: int) -> None:
    """Raise InvalidRequest unless a commit under this id would still be in the log (A2)."""
    id_ms = parse_uuid7_ms(job.batch_id)
    if now_ms >= id_ms + table.config.retry_window_ms:
        raise InvalidRequest(
            f"table {table.name}: batch {job.batch_id} was begun at {format_ms(id_ms)}, and the log remembers a commit "
            f"for {table.config.log_grace_ms} ms: nobody can tell any more whether an earlier try landed, and nothing "
            "was committed. Look whether its rows are there; if not, write them under a new id"
        )
    if id_ms > now_ms + table.config.id_skew_ms:
        raise InvalidRequest(
            f"table {table.name}: batch {job.batch_id} was made {id_ms - now_ms} ms in the store's future, at most "
            f"{table.config.id_skew_ms} ms are allowed: set this host's clock; nothing was committed"
        )


def _require_young_files(table: Table, job: AppendJob) -> None:
    age_ms = table.read_store_clock() - job.begun_ms
    limit_ms = table.config.orphan_age_ms // 2
    if age_ms > limit_ms:
        # W3: the orphan sweep may be about to delete these files; half the orphan age is the margin.
        raise Unavailable(
            f"table {table.name}: the data files of this write are up to {age_ms} ms old, more than half the orphan "
            f"age ({limit_ms} ms): not committed. Write in smaller parts, or raise orphan_age_ms"
        )


def make_batch_id(clock: Clock, *, store_now_ms: int) -> str:
    """Return a fresh batch id whose time is the store's: however wrong this host's clock is, it is young (A2)."""
    return str(uuid.UUID(hex=with_time(clock.new_id(), store_now_ms)))


def check_columns(table: Table, columns: Mapping[str, str], *, known: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of a table after an append, with types. Pure.

    Raises:
        InvalidRequest: A type is another one, a name differs only in case, or there is no room for a column.
    """
    config = table.config
    after = {**known, **{name: kind for name, kind in config.declared.items() if name not in known}}
    names = ColumnNames(config, after)
    for name, sql_type in columns.items():
        there = names.add(name)
        if there != name or after.get(name, sql_type) != sql_type:
            raise InvalidRequest(
                f"table {table.name}: column {name!r} is {sql_type} in this write, and the table has {there!r} as "
                f"{after.get(there)}: write it with the table's name and type. Nothing was committed"
            )
        if name not in after and config.evolution == "strict":
            raise InvalidRequest(
                f"table {table.name}: it takes declared columns only (evolution strict), and {name!r} is none: leave "
                "it out, or declare it (icedb table alter). Nothing was committed"
            )
        after[name] = sql_type
    if len(after) > MAX_TABLE_COLUMNS:
        raise InvalidRequest(f"table {table.name}: it would have {len(after)} columns, {MAX_TABLE_COLUMNS} at most")
    return after
