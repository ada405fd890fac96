"""What an operator does with a quarantined batch: look into it, retry it, drop it.

A retry stages the payload under a fresh id. The order makes it exactly once, whatever fails and however often it is
repeated: the fresh id is written into the reason with ``If-Match``, the payload is staged under it, then the payload
in quarantine is deleted, and the reason last.
"""

import re
from dataclasses import dataclass
from typing import Final

from icedb_log.clock import Clock, new_batch_id, parse_uuid7_ms
from icedb_log.errors import CorruptLog, InvalidRequest, NotFound, Unavailable
from icedb_log.formats import STAGING_FORMATS, StagingFormat
from icedb_log.ingest.quarantine import (
    QuarantinedBatch,
    StoredReason,
    batch_id_of_object,
    find_reason,
    list_bad_rows,
    put_reason,
    reason_key,
)
from icedb_log.ingest.staging import find_staged, stage_batch
from icedb_log.log.reader import LogReader
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import read_table_config

_MAX_ATTEMPTS: Final = 8
_PAYLOAD_KIND: Final = re.compile(r"(batch|rows-[0-9a-f]+)\.")


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
        InvalidRequest: The batch is staged: a flush is about to say what becomes of it; nothing was deleted.
        Unavailable: The store did not answer; do it again.
    """
    # WARN: before the reason is read. Between the two a flush would refuse the batch as a whole and take it out of
    # staging, and its reason, which nobody has seen, would be deleted instead of the one that was read.
    is_staged = bool(find_staged(table, (batch_id_of_object(batch_id),)))
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
    """Take an entry away from whoever might retry it; return its payloads, which are to be deleted before the reason.

    For the janitor, which deletes by age. The reason is marked by compare-and-set: a retry that begins meanwhile finds
    another ETag, and then no such entry.

    Args:
        table: The table.
        batch_id: The batch.
        etag: Of the reason whose age the caller knows. One that was written since is younger.

    Returns:
        The keys of the payloads; ``None``: the entry is gone, a retry of it has begun, or somebody changed it since.

    Raises:
        Unavailable: The store did not answer.
    """
    found = find_reason(table, batch_id)
    if found is None or _is_newer(found, etag) or _is_retried(found):
        return None
    # WARN: not by looking alone. A retry writes its id after this look, is cut off before it stages, and the payload is
    # deleted: the next try finds none and takes the batch for staged, and it is nowhere.
    if not put_reason(table, batch_id, found.changed(dropped=True), replaces=found):
        return None
    return payloads_of(table, found.entry)


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
    found = _read_entry(table, batch_id)
    retry_id = found.entry.retry_id
    if retry_id is None:
        _check_first_retry(table, found, reader=reader, force=force)
        payload = _read_payload(table, found.entry)
        retry_id = _record_id(table, found, clock=clock)
    else:
        # An id may soon be too old to be staged (I3); half the window is left to clocks and stalls.
        if clock.now_ms() - parse_uuid7_ms(retry_id) >= config.retry_window_ms // 2:
            if _is_known(table, retry_id, reader=reader):
                _delete_entry(table, found.entry)
                return retry_id
            if not force:
                raise InvalidRequest(
                    f"table {table.name}: a retry of batch {batch_id} under {retry_id} was cut off too long ago to "
                    "tell whether its rows are live; look for them, then drop the batch, or retry it by force"
                )
            retry_id = _record_id(table, found, clock=clock)
        try:
            payload = _read_payload(table, found.entry)
        except NotFound:
            _delete_entry(table, found.entry)  # it was staged: only then its payload goes
            return retry_id
    _stage_again(table, found, payload=payload, retry_id=retry_id)
    return retry_id


def _check_first_retry(table: TableStore, found: StoredReason, *, reader: LogReader, force: bool) -> None:
    entry = found.entry
    if entry.is_doubtful and not force:
        raise InvalidRequest(
            f"table {table.name}: nobody can tell whether the rows of batch {entry.batch_id} are live already: "
            f"{entry.reason}. Look for them, then drop the batch or retry it by force"
        )
    if entry.kind != "rows":
        return
    # The reason is written before the commit. Without the commit, the next flush takes the batch anew.
    if find_staged(table, (entry.batch_id,)):
        raise InvalidRequest(
            f"table {table.name}: batch {entry.batch_id} is still staged; wait for the next flush, then retry its "
            "bad rows"
        )
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


def _record_id(table: TableStore, found: StoredReason, *, clock: Clock) -> str:
    """Write a fresh id into the reason, instead of none or of one that is too old; return the id that stands there."""
    key, old = reason_key(table.paths, found.entry.batch_id), found.entry.retry_id
    for _ in range(_MAX_ATTEMPTS):
        body = found.changed(retry=new_batch_id(clock))
        # W2: refused by an earlier try of this very request, or by another operator: only reading tells.
        put_reason(table, found.entry.batch_id, body, replaces=found)
        found = _read_entry(table, found.entry.batch_id)
        if found.entry.retry_id is not None and found.entry.retry_id != old:
            return found.entry.retry_id
    raise Unavailable(f"table {table.name}: {key} was changed by others {_MAX_ATTEMPTS} times; try again later")


def _stage_again(table: TableStore, found: StoredReason, *, payload: QuarantinedPayload, retry_id: str) -> None:
    """Stage what an entry holds under its new id; the entry goes only then (I5)."""
    stage_batch(table, body=payload.body, staging_format=payload.format, batch_id=retry_id)
    _delete_entry(table, found.entry)


def _delete_entry(table: TableStore, entry: QuarantinedBatch) -> None:
    # The payload first: a reason without a payload says that its retry was staged; a payload without a reason nobody
    # would find.
    for keys in (payloads_of(table, entry), [reason_key(table.paths, entry.batch_id)]):
        report = table.store.delete(keys)
        if report.failed:
            raise Unavailable(f"{report.failed[0].key}: {report.failed[0].reason}; do it again")


def payloads_of(table: TableStore, entry: QuarantinedBatch) -> tuple[str, ...]:
    """Return all keys that go with an entry, before its reason. Costs a listing for a whole batch.

    Raises:
        Unavailable: The store did not answer.
    """
    # J6: a reason that names something else must not make us delete it.
    payloads = (
        {entry.payload_key} if entry.payload_key.startswith(table.paths.quarantine_key(entry.batch_id)) else set()
    )
    if entry.kind == "batch":  # for good: what earlier flushes set aside of it is in there
        payloads.update(list_bad_rows(table, entry.batch_id))
    return tuple(sorted(payloads - {reason_key(table.paths, entry.batch_id)}))


def _read_entry(table: TableStore, batch_id: str) -> StoredReason:
    found = find_reason(table, batch_id)
    if found is None or found.is_being_dropped:
        raise _not_there(table, batch_id)
    if not found.fields:
        raise CorruptLog(f"table {table.name}: {found.entry.reason}, or drop it")
    return found


def _read_payload(table: TableStore, entry: QuarantinedBatch) -> QuarantinedPayload:
    name = entry.payload_key.rpartition("/")[2].removeprefix(f"{entry.batch_id}.")
    suffix = _PAYLOAD_KIND.sub("", name, count=1)
    if suffix not in STAGING_FORMATS or not entry.payload_key.startswith(table.paths.quarantine_prefix):
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
