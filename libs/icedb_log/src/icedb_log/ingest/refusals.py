"""Staged copies on their way out: into quarantine, or away because their content is there already (rules I3, I5, I8).

Whoever is about to delete a staged copy that no commit of its own has taken asks here first. Order: the content is an
entry of quarantine, with its payload and its reason, or is certainly that of rows or of an entry; then the copy goes.
"""

from typing import Literal

import orjson

from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest, NotFound, Unavailable
from icedb_log.ingest.content import hash_content, is_same_content
from icedb_log.ingest.quarantine import (
    MAX_REASON_ATTEMPTS,
    StoredReason,
    conflict_name,
    find_reason,
    make_reason,
    payload_key,
    put_reason,
    reason_key,
)
from icedb_log.jobs import RejectedBatch, StagedBatch
from icedb_log.keys import parse_staged_key
from icedb_log.store.object_store import ObjectStore, delete_or_raise
from icedb_log.store.table_store import TableStore

Settled = Literal["same", "conflict", "left"]
"""What a staged copy is. ``same``: its content is rows, or an entry of quarantine, by its id; ``conflict``: it is
other content, or may be, and has an entry of its own now; ``left``: it has to stay: the janitor is dropping its entry
just now. A copy that is gone is ``same``: another run has settled it."""


def quarantine_batch(table: TableStore, *, rejected: RejectedBatch, clock: Clock) -> Settled:
    """Move a staged batch to quarantine. Idempotent; a batch that is gone already was moved by another run.

    Only after a commit has refused it (I5). Another run may have moved it meanwhile, and an operator may have begun a
    retry: what they wrote stays. If other content is in quarantine under its id, this becomes an entry of its own (I8).

    Returns:
        What it was; it is deleted unless it is left.

    Raises:
        Unavailable: The store did not answer; the batch stays staged, and the next run does it again.
    """
    batch = rejected.batch
    try:
        body = table.store.get(batch.key).body
    except NotFound:
        return "same"
    sha256 = hash_content(body, batch.format)
    payload = payload_key(table.paths, batch)
    reason = make_reason(
        "batch",
        batch.batch_id,
        rejected.reason,
        payload=payload,
        size_bytes=batch.size_bytes,
        now_ms=clock.now_ms(),
        sha256=sha256,
        doubtful=rejected.is_doubtful,
    )
    for _ in range(MAX_REASON_ATTEMPTS):
        found = find_reason(table, batch.batch_id)
        if found is not None and found.entry.kind == "rows" and found.entry.has_landed:
            # WARN: I8: its id was committed, and the log has forgotten that. Written over, the reason of the bad rows
            # would be gone, and with this entry they would be dropped.
            why = f"{rejected.reason}. A batch was committed under this id, but for bad rows"
            settled = _keep_conflict(table, batch.key, body=body, sha256=sha256, reason=why, clock=clock)
        elif found is not None and found.entry.kind == "batch":
            again = _settle_refused(table, batch=batch, body=body, sha256=sha256, found=found, clock=clock)
            if again is None:
                continue
            settled = again
        else:
            table.store.put(payload, body)
            if not put_reason(table, batch.batch_id, orjson.dumps(reason), replaces=found):
                continue
            settled = "same"
        if settled != "left":
            delete_or_raise(table.store, [batch.key])
        return settled
    raise _unconfirmed(table, batch.batch_id)


def quarantine_again(table: TableStore, *, batch: StagedBatch, clock: Clock) -> Settled:
    """Clear staging of a batch that a commit in the log has refused already (I5). Idempotent.

    It is in quarantine, and was staged once more; or the flush that refused it was cut off before it was moved; or it
    is other content under the id (I8).
    """
    reason = (
        f"batch {batch.batch_id} was refused before; it was staged again since, or the flush that refused it was cut "
        "off before it could say why. See whether it was retried or dropped meanwhile before you retry it"
    )
    return quarantine_batch(table, rejected=RejectedBatch(batch, reason, is_doubtful=True), clock=clock)


def settle_copy(table: TableStore, key: str, *, known: str, clock: Clock) -> Settled:
    """Look at another staged copy of a committed batch before it is deleted; make an entry of other content (I8).

    Args:
        table: The table.
        key: Where the copy is staged; its id stands in the log.
        known: What the commit says of its content; empty: nothing, so that nobody can tell.
        clock: This host's clock.

    Raises:
        Unavailable: The store did not answer; the copy has to stay.
    """
    try:
        body = table.store.get(key).body
    except NotFound:
        return "same"
    name = parse_staged_key(key)
    sha256 = hash_content(body, name.format)
    if is_same_content(known, sha256):
        return "same"
    if known:
        why = (
            f"batch {name.batch_id} was committed with other content, and an id has one: this was accepted under it "
            "as well, and is not in the table. If it does not say the same in other words, retry it by force: that "
            "stages it under a fresh id"
        )
    else:
        why = (
            f"batch {name.batch_id} was committed by a writer that did not say with which content, so that nobody can "
            "tell whether this, accepted under the same id, is the same. Look for its rows in the table; if they are "
            "not there, retry it by force: that stages it under a fresh id"
        )
    return _keep_conflict(table, key, body=body, sha256=sha256, reason=why, clock=clock)


def _settle_refused(
    table: TableStore,
    *,
    batch: StagedBatch,
    body: bytes,
    sha256: str,
    found: StoredReason,
    clock: Clock,
) -> Settled | None:
    """Settle a copy of a batch that is in quarantine; ``None``: somebody else has just changed the entry."""
    if _is_content_of(table.store, found, sha256):
        # WARN: an entry that the janitor is dropping keeps nothing: the batch waits until it is gone, and becomes one.
        if found.is_being_dropped:
            return "left"
        # WARN: J11: written anew, not only looked at, as in :func:`_keep_conflict`. An entry whose retry has begun is
        # dropped by nobody.
        is_safe = found.entry.retry_id is not None or not found.fields
        again = found.changed(again_ms=clock.now_ms())
        return "same" if is_safe or put_reason(table, batch.batch_id, again, replaces=found) else None
    why = (
        f"batch {batch.batch_id} was refused with other content, and an id has one: this was accepted under it as "
        "well. Look at both; retry this one by force, which stages it under a fresh id, or drop it"
    )
    return _keep_conflict(table, batch.key, body=body, sha256=sha256, reason=why, clock=clock)


def _keep_conflict(table: TableStore, key: str, *, body: bytes, sha256: str, reason: str, clock: Clock) -> Settled:
    """Make an entry of a staged body whose id stands for other content, before the copy is deleted (I8). Idempotent.

    The entry is named after its content, so that whoever does it again, or at the same time, makes the same one.
    """
    staged = parse_staged_key(key)
    name = conflict_name(staged.batch_id, sha256)
    payload = table.paths.quarantine_key(f"{name}.batch.{staged.format}")
    for _ in range(MAX_REASON_ATTEMPTS):
        found = find_reason(table, name)
        if found is None or not found.fields:
            table.store.put(payload, body)
            entry = make_reason(
                "conflict",
                staged.batch_id,
                reason,
                payload=payload,
                size_bytes=len(body),
                now_ms=clock.now_ms(),
                sha256=sha256,
                doubtful=True,
            )
            written = orjson.dumps(entry)
        elif found.is_being_dropped:
            return "left"
        else:
            # WARN: written anew, not only looked at. A janitor that takes the entry for old would drop it between this
            # look and the delete of the copy; it compares the ETag (J11).
            written = found.changed(quarantined_ms=clock.now_ms())
        if put_reason(table, name, written, replaces=found):
            return "conflict"
    raise _unconfirmed(table, name)


def _is_content_of(store: ObjectStore, found: StoredReason, sha256: str) -> bool:
    """Whether a content is the one that is in quarantine (I8); not, if an older release put it there and it is gone."""
    known = found.fields.get("sha256")
    if known is not None:
        return bool(known == sha256)
    try:
        body = store.get(found.entry.payload_key).body
    except (NotFound, InvalidRequest):
        return False
    return hash_content(body, found.entry.payload_key.rpartition(".batch.")[2]) == sha256


def _unconfirmed(table: TableStore, name: str) -> Unavailable:
    return Unavailable(
        f"table {table.name}: {reason_key(table.paths, name)} was not confirmed, or changed by others, "
        f"{MAX_REASON_ATTEMPTS} times; the next run goes on"
    )
