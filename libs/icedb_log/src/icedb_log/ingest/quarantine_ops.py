"""What an operator does with a quarantined batch: look into it, retry it, drop it.

A retry stages the payload under a fresh id. The order makes it exactly once, whatever fails and however often it is
repeated: the fresh id is written into the reason with ``If-Match``, the payload is staged under it, then the payload
in quarantine is deleted, and the reason last.
"""

import re
from dataclasses import dataclass
from typing import Final

from icedb_log.clock import Clock, new_batch_id, parse_uuid7_ms
from icedb_log.errors import (
    CommitConflict,
    CommitOutcomeUnknown,
    CorruptLog,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from icedb_log.formats import STAGING_FORMATS, StagingFormat
from icedb_log.ingest.quarantine import (
    QuarantinedBatch,
    StoredReason,
    batch_id_of,
    find_reason,
    list_payloads,
    reason_key,
    reason_object,
)
from icedb_log.ingest.staging import find_staged, stage_batch
from icedb_log.log.reader import LogReader
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import read_table_config

_WHAT: Final = re.compile(r"^(batch|rows)-[0-9a-f]{32}\.")


@dataclass(frozen=True, slots=True)
class QuarantinedPayload:
    """An entry with what lies there.

    Attributes:
        entry: The entry.
        body: The batch, or its bad rows.
        format: Of the body, as it can be staged.
    """

    entry: QuarantinedBatch
    body: bytes
    format: StagingFormat


def read_quarantined(table: TableStore, batch_id: str) -> QuarantinedPayload:
    """Read an entry with its payload.

    Raises:
        NotFound: No such entry, or its payload is gone.
        CorruptLog: The reason does not hold one; inspect it by hand.
        Unavailable: The store did not answer.
    """
    return _read_payload(table, _read_entry(table, batch_id).entry)


def drop_quarantined(table: TableStore, batch_id: str) -> None:
    """Delete an entry with its payload, for good. Idempotent but for the error.

    Raises:
        NotFound: No such entry.
        InvalidRequest: The batch is staged: a flush is about to decide it; nothing was deleted.
        Unavailable: The store did not answer; do it again.
    """
    # WARN: before the reason is read. Between the two a flush would refuse the batch as a whole and take it out of
    # staging, and its reason, which nobody has seen, would be deleted instead of the one that was read.
    is_staged = bool(find_staged(table, (batch_id_of(batch_id),)))
    found = find_reason(table, batch_id)
    if found is None:
        raise _not_there(table, batch_id)
    if is_staged:
        raise InvalidRequest(
            f"table {table.name}: batch {batch_id} is staged, so that a flush may set it aside anew; wait for the next "
            "flush, then drop what it has left"
        )
    _delete_entry(table, found.entry)


def _is_newer(found: StoredReason, etag: str) -> bool:
    """Whether a reason was written since it had an ETag: its age is not that one's (J11)."""
    return found.etag != etag


def _is_retried(found: StoredReason) -> bool:
    """Whether a retry of an entry has begun: whether it went through is not for a clock to say (J11)."""
    return found.entry.retry_id is not None


def begin_drop(table: TableStore, batch_id: str, *, etag: str) -> tuple[str, ...] | None:
    """Mark an entry as being dropped, so that no retry takes it; return its payloads, to be deleted before the reason.

    For the janitor, which deletes by age. The reason is marked by compare-and-set: a retry that begins meanwhile finds
    another ETag, and then no such entry.

    Args:
        table: The table.
        batch_id: The batch.
        etag: Of the reason whose age the caller knows. One that was written since is younger.

    Returns:
        The keys of the payloads; ``None``: the entry is gone, was changed since, or a retry of it has begun.

    Raises:
        Unavailable: The store did not answer.
    """

    def take(found: StoredReason | None) -> StoredReason:
        if found is None:
            raise _not_there(table, batch_id)
        # WARN: not by looking alone. A retry writes its id after this look, is cut off before it stages, and the
        # payload is deleted: the next try finds none and takes the batch for staged, and it is nowhere.
        return found if _is_newer(found, etag) or _is_retried(found) else found.changed(dropped=True)

    try:
        is_taken = reason_object(table, batch_id).update(take).is_new
    except (NotFound, CommitConflict, CommitOutcomeUnknown):
        return None  # one that was taken all the same is found so by the next sweep
    return list_payloads(table, batch_id) if is_taken else None


def retry_quarantined(
    table: TableStore,
    batch_id: str,
    *,
    clock: Clock,
    force: bool = False,
    reader: LogReader | None = None,
) -> str:
    """Stage a quarantined batch, or the bad rows of one, under a fresh id; return that id.

    Exactly once: a call that was cut off is repeated, and goes on with the id that it had chosen.

    Args:
        table: The table.
        batch_id: The batch.
        clock: This host's clock, for the fresh id.
        force: Also where nobody can tell whether the rows are live already. They are committed once more, then.
        reader: A reader to reuse, with its caches.

    Raises:
        NotFound: No such entry, or its payload is gone.
        InvalidRequest: Only ``force`` would do, and the message says why; or the batch is not committed yet, so that
            its bad rows wait for the next flush.
        CorruptLog: The reason does not hold one; inspect it by hand.
        Unavailable: The store did not answer; call again.
    """
    config = read_table_config(table)
    reader = reader or LogReader(table, clock=clock, max_refresh_ms=config.log_grace_ms // 2)
    first_etag = ""
    known: set[str] = set()

    def choose(found: StoredReason | None) -> StoredReason:
        # WARN: decided anew each time by all that stands there. Between the write of an id and the look at it another
        # operator ends the retry, the batch is sent again and refused again: the entry that is there now has no id, and
        # its rows are live. Force is for the entry that its caller has looked at, not for that one.
        nonlocal first_etag
        found = _require_entry(table, batch_id, found)
        first_etag = first_etag or found.etag
        is_forced = force and found.etag == first_etag
        retry_id = found.entry.retry_id
        if retry_id is None:
            _check_first_retry(table, found, reader=reader, force=is_forced)
            _read_payload(table, found.entry)  # what cannot be staged gets no id
        elif clock.now_ms() - parse_uuid7_ms(retry_id) < config.retry_window_ms // 2:
            return found
        # An id may soon be too old to be staged (I3); half the window is left to clocks and stalls.
        elif _is_known(table, retry_id, reader=reader):
            known.add(retry_id)
            return found
        elif not is_forced:
            raise InvalidRequest(
                f"table {table.name}: a retry of batch {batch_id} under {retry_id} was cut off too long ago to "
                "tell whether its rows are live; look for them, then drop the batch, or retry it by force"
            )
        return found.changed(retry=new_batch_id(clock))

    try:
        entry = reason_object(table, batch_id).update(choose, gave_up=Unavailable, in_steps=True).state.entry
    except CommitOutcomeUnknown as error:
        raise Unavailable(f"table {table.name}: {error}; call again") from error
    if entry.retry_id is None:
        raise AssertionError  # chosen above
    if entry.retry_id in known:
        _delete_entry(table, entry)
    else:
        _stage_again(table, entry, retry_id=entry.retry_id)
    return entry.retry_id


def _check_first_retry(table: TableStore, found: StoredReason, *, reader: LogReader, force: bool) -> None:
    entry = found.entry
    if entry.is_doubtful and not force:
        raise InvalidRequest(
            f"table {table.name}: nobody can tell whether the rows of batch {entry.batch_id} are live already: "
            f"{entry.reason}. Look for them, then drop the batch or retry it by force"
        )
    # The reason of bad rows is written before the commit: without the commit, the next flush takes the batch anew. A
    # whole one may be staged in a group that waits for others: the next flush would make an entry of it once more.
    if find_staged(table, (batch_id_of(entry.batch_id),)):
        raise InvalidRequest(
            f"table {table.name}: batch {entry.batch_id} is still staged; wait for the next flush, then retry it"
        )
    if entry.kind != "rows":
        return
    # The write of this reason may land late, when another flush has decided the batch, and even when an operator has
    # dealt with what that one said.
    files = reader.heads.read().files
    commits = {file.log.commit_id for file in files if entry.batch_id in file.log.batch_ids}
    is_refused = any(entry.batch_id in file.log.refused_ids for file in files)
    if (is_refused or (commits and found.fields.get("commit") not in commits)) and not force:
        what = "refused" if is_refused else "committed"
        raise InvalidRequest(
            f"table {table.name}: batch {entry.batch_id} was {what} whole by a later flush, and this entry is left "
            "over from an earlier one; drop it"
        )
    if not (is_refused or commits or entry.has_landed or force):
        raise InvalidRequest(
            f"table {table.name}: the log does not know batch {entry.batch_id} any more, and the flush that set these "
            "rows aside did not say that it landed: another one may have made them live. Look for them, then drop the "
            "entry or retry it by force"
        )


def _stage_again(table: TableStore, entry: QuarantinedBatch, *, retry_id: str) -> None:
    """Stage what an entry holds under its new id; the entry goes only then (I5)."""
    try:
        payload = _read_payload(table, entry)
    except NotFound:
        pass  # it was staged: only then its payload goes
    else:
        stage_batch(table, body=payload.body, staging_format=payload.format, batch_id=retry_id)
    _delete_entry(table, entry)


def _delete_entry(table: TableStore, entry: QuarantinedBatch) -> None:
    # The payload first: a reason without a payload says that its retry was staged; a payload without a reason nobody
    # would find.
    for keys in (list_payloads(table, entry.batch_id), [reason_key(table.paths, entry.batch_id)]):
        report = table.store.delete(keys)
        if report.failed:
            raise Unavailable(f"{report.failed[0].key}: {report.failed[0].reason}; do it again")


def _read_entry(table: TableStore, batch_id: str) -> StoredReason:
    return _require_entry(table, batch_id, find_reason(table, batch_id))


def _require_entry(table: TableStore, batch_id: str, found: StoredReason | None) -> StoredReason:
    if found is None or found.is_being_dropped:
        raise _not_there(table, batch_id)
    if not found.fields:
        raise CorruptLog(f"table {table.name}: {found.entry.reason}, or drop it")
    return found


def _read_payload(table: TableStore, entry: QuarantinedBatch) -> QuarantinedPayload:
    start = table.paths.quarantine_key(f"{entry.batch_id}.")
    suffix = _WHAT.sub("", entry.payload_key.removeprefix(start), count=1)
    if suffix not in STAGING_FORMATS or not entry.payload_key.startswith(start):
        raise CorruptLog(
            f"table {table.name}: the payload of batch {entry.batch_id} at {entry.payload_key[:200]} has no format "
            "that can be staged; inspect it by hand"
        )
    try:
        body = table.store.get(entry.payload_key).body
    except NotFound as error:
        raise NotFound(
            f"table {table.name}: the payload of batch {entry.batch_id} is gone ({entry.payload_key}); drop the entry"
        ) from error
    return QuarantinedPayload(entry, body, suffix)


def _is_known(table: TableStore, batch_id: str, *, reader: LogReader) -> bool:
    """Return whether a batch is staged, or has been decided by a commit that the log still has."""
    if find_staged(table, (batch_id,)):
        return True
    heads = reader.heads.read().files
    return any(batch_id in (*file.log.batch_ids, *file.log.refused_ids) for file in heads)


def _not_there(table: TableStore, batch_id: str) -> NotFound:
    return NotFound(f"table {table.name}: batch {batch_id} is not in quarantine; see `icedb quarantine list`")
