"""Quarantine: what cannot be committed, kept with the reason, and how it gets there (rules I3, I5, I8).

An entry is two objects: the reason, ``<entry>.json``, and the payload, ``<entry>.<what>-<hash>.<format>``. Its name is
the id of its batch, and of other content under that id (I8) ``<id>.conflict-<SHA-256>``. The payload is the batch as it
was staged (``batch``), or the bad rows of one that was committed without them (``rows``), which the data path uploads.
It is named by its content, so a late write changes nothing of an entry. The reason is written last and the
staged object deleted after it, so a crash at any step leads to the same end.

A staged copy that no commit of the caller has taken is resolved here before it is deleted. Order: its content becomes
an entry, with payload and reason, or is certainly that of committed rows or of an entry; then the copy is deleted.
"""

import contextlib
import hashlib
import re
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, get_args

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from icedb_log.clock import Clock
from icedb_log.content import hash_content, is_same_content
from icedb_log.errors import (
    CommitConflict,
    CommitOutcomeUnknown,
    Fenced,
    InvalidRequest,
    InvariantViolated,
    NotFound,
    Unavailable,
)
from icedb_log.ingest.staging import read_staged
from icedb_log.jobs import BadRows, RejectedBatch, RowFault, StagedBatch
from icedb_log.keys import TablePaths
from icedb_log.store.object_store import ObjectInfo, StoredObject, delete_or_raise, list_all
from icedb_log.store.records import CasObject, put_over
from icedb_log.store.table_store import TableStore

Kind = Literal["batch", "rows", "conflict"]
"""``batch``: refused, nothing of it is live; ``rows``: committed but for these rows; ``conflict``: accepted under an id
that stands for other content (I8)."""

_KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

_ENTRY: Final = re.compile(r"[^.]+(\.conflict-[0-9a-f]{64})?(?=\.)")
_CONFLICT_INFIX: Final = ".conflict-"
_REASON: Final = ".json"

What = Literal["batch", "rows"]
"""What a payload is: a whole batch, as it was staged, or bad rows of one."""


class QuarantinedBatch(BaseModel):
    """One entry in quarantine.

    Attributes:
        batch_id: Name of the entry: the id of the batch, for a conflict :func:`conflict_name`.
        reason: Why it, or its bad rows, could not be committed, in words for its producer: a line for each of the first
            rows, then the others by count.
        payload_key: Where the batch, or its bad rows, are.
        size_bytes: Size of the payload.
        quarantined_ms: When, by the worker's clock.
        kind: Whether it is a whole batch, the bad rows of a committed one, or other content under the id of one.
        row_count: Bad rows; ``None`` for a whole batch, whose rows nobody counted.
        retry_id: Id under which a retry that has begun stages the payload again.
        is_doubtful: Nobody can tell whether its rows are live already, by its id or by an earlier retry.
        has_landed: For bad rows: whether the commit that left them out said that it landed.
        faults: For bad rows: what is wrong with each of the first ones, where the data path said so.
    """

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    batch_id: str
    reason: str
    payload_key: str = Field(alias="payload")
    size_bytes: int = Field(alias="bytes")
    quarantined_ms: int
    kind: Annotated[Kind, BeforeValidator(lambda kind: kind if kind in _KINDS else "batch")] = "batch"
    row_count: int | None = Field(alias="rows", default=None)
    retry_id: str | None = Field(alias="retry", default=None)
    is_doubtful: bool = Field(alias="doubtful", default=False)
    has_landed: bool = Field(alias="landed", default=False)
    faults: tuple[RowFault, ...] = ()

    @property
    def row_reasons(self) -> tuple[tuple[int, str], ...]:
        """Number in the batch of each of the first bad rows, and what is wrong with it, in the order of the payload.

        Of the very first rows it is their own line of :attr:`reason`, which has the value and what was expected.
        """
        found = sorted((number, fault.what) for fault in self.faults for number in fault.rows)
        lines = [*self.reason.splitlines(), *[""] * len(found)]
        return tuple(
            (number, line if re.search(rf"\b(?!and )[a-z]+ {number}\b", line) else what)
            for line, (number, what) in zip(lines, found, strict=False)
        )


@dataclass(frozen=True, slots=True)
class StoredReason:
    """A reason as it was read, to be replaced."""

    entry: QuarantinedBatch
    fields: dict[str, Any]
    etag: str = ""

    @property
    def is_being_dropped(self) -> bool:
        """Whether the janitor has taken the entry away: what is left of it is to be deleted, nobody retries it."""
        return self.fields.get("dropped") is True

    def changed(self, **fields: object) -> "StoredReason":
        """Return the reason with other fields; those that are not known here stay."""
        return replace(self, fields={**self.fields, **fields})


def conflict_name(batch_id: str, sha256: str) -> str:
    """Return the name of the entry for a content that was accepted under an id which stands for another one (I8)."""
    return f"{batch_id}{_CONFLICT_INFIX}{sha256}"


def reason_key(paths: TablePaths, entry: str) -> str:
    """Return where the reason of an entry is."""
    return paths.quarantine_key(entry + _REASON)


def payload_key(paths: TablePaths, entry: str, body: bytes, staging_format: str, *, what: What) -> str:
    """Return where the payload of an entry is: another name for other bytes.

    A write that lands late, by a flush that lost the fence or a task that Spark runs again, must not replace what an
    entry, or a commit that left bad rows out, counts on.
    """
    digest = hashlib.sha256(body).hexdigest()[:32]
    return paths.quarantine_key(f"{entry}.{what}-{digest}.{staging_format}")


def entry_of(key: str) -> str:
    """Return the name of the entry to which any object below the quarantine belongs."""
    name = key.rpartition("/")[2]
    found = _ENTRY.match(name)
    return name if found is None else found.group()


def batch_id_of(key: str) -> str:
    """Return the batch that an entry, or any object below the quarantine, is about."""
    return key.rpartition("/")[2].partition(".")[0]


def is_reason(key: str) -> bool:
    """Return whether an object below the quarantine is a reason, and no payload."""
    return key.endswith(f"/{entry_of(key)}{_REASON}")


def is_bad_rows(key: str) -> bool:
    """Return whether an object below the quarantine holds bad rows of a batch."""
    return key.rpartition("/")[2].startswith(f"{entry_of(key)}.rows-")


def list_conflicts(table: TableStore, batch_id: str) -> tuple[str, ...]:
    """Return the names of the entries with other content under an id (I8). Costs a listing."""
    listing = list_all(table.store, table.paths.quarantine_key(f"{batch_id}{_CONFLICT_INFIX}"))
    return tuple(entry_of(info.key) for info in listing.objects if is_reason(info.key))


def list_payloads(table: TableStore, entry: str) -> tuple[str, ...]:
    """Return the keys of all payloads of an entry: the one that its reason names, and those of earlier flushes.

    Whatever a reason says: nothing that is not of this entry is among them (J6). Costs a listing.
    """
    listing = list_all(table.store, table.paths.quarantine_key(f"{entry}."))
    return tuple(info.key for info in listing.objects if entry_of(info.key) == entry and not is_reason(info.key))


def make_reason(
    kind: Kind, batch_id: str, reason: str, *, payload: str, size_bytes: int, now_ms: int, **more: object
) -> dict[str, Any]:
    """Return what a reason says, see :class:`QuarantinedBatch`."""
    return {
        "batch_id": batch_id,
        "reason": reason,
        "payload": payload,
        "bytes": size_bytes,
        "quarantined_ms": now_ms,
        "kind": kind,
        **more,
    }


def reason_object(table: TableStore, entry: str) -> CasObject[StoredReason]:
    """Return the reason of an entry, to be read and changed."""
    key = reason_key(table.paths, entry)
    return CasObject(table.store, key, parse_reason, lambda reason: orjson.dumps(reason.fields))


def quarantine_rows(table: TableStore, *, bad: BadRows, replaces: str | None, commit_id: str, clock: Clock) -> None:
    """Write the reason of rows that a commit leaves out, before that commit.

    A crash in between is harmless: the batch is still staged, and the next flush writes the same again.

    Args:
        table: The table.
        bad: The rows, which the data path has uploaded.
        replaces: ETag of the reason that was there before the fence was confirmed; ``None`` if there was none.
        commit_id: Of the commit.
        clock: This host's clock.

    Raises:
        Fenced: Another flush wrote a reason since.
        InvariantViolated: The data path has not uploaded the rows.
        CommitOutcomeUnknown: No usable answer.
    """
    try:
        size_bytes = table.store.head(bad.payload_key).size_bytes
    except NotFound as error:
        raise InvariantViolated(
            f"table {table.name}: the bad rows of batch {bad.batch.batch_id} are not at {bad.payload_key} (I5)"
        ) from error
    reason = make_reason(
        "rows",
        bad.batch.batch_id,
        bad.reason,
        payload=bad.payload_key,
        size_bytes=size_bytes,
        now_ms=clock.now_ms(),
        rows=bad.row_count,
        commit=commit_id,
    )
    if bad.faults:
        reason["faults"] = [{"what": fault.what, "rows": list(fault.rows)} for fault in bad.faults]
    key, body = reason_key(table.paths, bad.batch.batch_id), orjson.dumps(reason)
    if put_over(table.store, key, body, etag=replaces) is None:
        raise Fenced(f"table {table.name}: another flush wrote {key} meanwhile; this run stops")


def mark_rows_landed(table: TableStore, *, batch_id: str, commit_id: str) -> None:
    """Say of bad rows that the commit which leaves them out has landed. Best effort.

    Without it nobody can tell, once the log has forgotten the commit, such an entry from that of a flush which never
    committed, while another one made the rows live.
    """

    def mark(found: StoredReason | None) -> StoredReason:
        if found is None:
            raise NotFound(f"table {table.name}: batch {batch_id} has left quarantine")
        return found.changed(landed=True) if found.fields.get("commit") == commit_id else found

    with contextlib.suppress(Unavailable, CommitOutcomeUnknown, CommitConflict, NotFound):
        reason_object(table, batch_id).update(mark)


def find_reason(table: TableStore, batch_id: str) -> StoredReason | None:
    """Read the reason of one entry, by its name; ``None`` if it is not in quarantine."""
    return reason_object(table, batch_id).read()


def list_quarantined(table: TableStore, *, limit: int | None = None) -> tuple[QuarantinedBatch, ...]:
    """Read every entry in quarantine, or the ``limit`` oldest, oldest id first. A listing and one GET for each entry.

    A reason that cannot be read does not hide the others: it comes as an entry that says so.
    """
    found: list[QuarantinedBatch] = []
    for info in _list_reasons(table)[:limit]:
        try:
            found.append(parse_reason(table.store.get(info.key)).entry)
        except NotFound:
            continue  # an operator has just taken it away
    return tuple(found)


def parse_reason(stored: StoredObject) -> StoredReason:
    """Return what a reason object says; one that cannot be read says so itself."""
    info = stored.info
    try:
        value = orjson.loads(stored.body)
        entry = QuarantinedBatch.model_validate(value).model_copy(update={"batch_id": entry_of(info.key)})
    except ValueError as error:
        entry = QuarantinedBatch(
            batch_id=entry_of(info.key),
            reason=f"{info.key} does not hold a reason ({type(error).__name__}); inspect it by hand",
            payload_key=info.key,
            size_bytes=info.size_bytes,
            quarantined_ms=info.modified_ms,
        )
        value = {}
    return StoredReason(entry, value, info.etag)


def _list_reasons(table: TableStore) -> list[ObjectInfo]:
    return [info for info in list_all(table.store, table.paths.quarantine_prefix).objects if is_reason(info.key)]


DuplicateOutcome = Literal["same", "conflict", "left"]
"""What a staged copy turned out to be. ``same``: its content is in the table, or in quarantine under its id, or another
run has deleted it; ``conflict``: it is other content, or may be, and is now a quarantine entry of its own; ``left``: it
stays staged, since the janitor is deleting its quarantine entry."""


def quarantine_batch(table: TableStore, *, rejected: RejectedBatch, clock: Clock) -> DuplicateOutcome:
    """Move a staged batch to quarantine. Idempotent; a batch that is gone already was moved by another run.

    Only after a commit has refused it (I5). Another run may have moved it meanwhile, and an operator may have begun a
    retry: what they wrote stays. If other content is in quarantine under its id, this becomes an entry of its own (I8).

    Returns:
        The outcome. Unless it is ``left``, a copy with an object of its own is deleted, and one in a group may be.

    Raises:
        Unavailable: The store did not answer; the batch stays staged, and the next run does it again.
    """
    batch = rejected.batch
    try:
        body = read_staged(table.store, batch)
    except NotFound:
        return "same"
    outcome = _keep(table, batch, body, reason=rejected.reason, is_doubtful=rejected.is_doubtful, clock=clock)
    if outcome != "left" and not batch.is_grouped:
        delete_or_raise(table.store, [batch.key])
    return outcome


def quarantine_again(table: TableStore, *, batch: StagedBatch, clock: Clock) -> DuplicateOutcome:
    """Clear staging of a batch that a commit in the log has refused already (I5). Idempotent.

    It is in quarantine, and was staged once more; or the flush that refused it was cut off before it was moved; or it
    is other content under the id (I8).
    """
    reason = (
        "it was refused before; it was staged again since, or the flush that refused it was cut "
        "off before it could say why. See whether it was retried or dropped meanwhile before you retry it"
    )
    return quarantine_batch(table, rejected=RejectedBatch(batch, reason, is_doubtful=True), clock=clock)


def resolve_duplicate(table: TableStore, batch: StagedBatch, *, known: str, clock: Clock) -> DuplicateOutcome:
    """Look at another staged copy of a committed batch before it is deleted; make an entry of other content (I8).

    Args:
        table: The table.
        batch: The copy; its id stands in the log. Of a grouped one of the same content nothing is read.
        known: What the commit says of its content; empty: nothing, so that nobody can tell.
        clock: This host's clock.

    Raises:
        Unavailable: The store did not answer; the copy has to stay.
    """
    if batch.sha256 and is_same_content(known, batch.sha256):
        return "same"
    try:
        body = read_staged(table.store, batch)
    except NotFound:
        return "same"
    sha256 = hash_content(body, batch.format)
    if is_same_content(known, sha256):
        return "same"
    if known:
        why = (
            "a batch with its id was committed with other content, and an id has one: this was accepted under it "
            "as well, and is not in the table. If it does not say the same in other words, retry it by force: that "
            "stages it under a fresh id"
        )
    else:
        why = (
            "a batch with its id was committed by a writer that did not say with which content, so that nobody can "
            "tell whether this, accepted under the same id, is the same. Look for its rows in the table; if they are "
            "not there, retry it by force: that stages it under a fresh id"
        )
    return _keep(table, batch, body, reason=why, is_conflict=True, clock=clock)


def _keep(
    table: TableStore,
    batch: StagedBatch,
    body: bytes,
    *,
    reason: str,
    clock: Clock,
    is_conflict: bool = False,
    is_doubtful: bool = False,
) -> DuplicateOutcome:
    """Make an entry of a staged body, or see that it is one, before the copy is deleted. Idempotent.

    An entry of other content (I8) is named after it, so that a repeated or a concurrent call makes the same one.
    """
    sha256 = hash_content(body, batch.format)
    entry = conflict_name(batch.batch_id, sha256) if is_conflict else batch.batch_id

    def keep(found: StoredReason | None) -> StoredReason:
        nonlocal is_doubtful
        if found is not None and not is_conflict and (other := _find_other_content(found, sha256)):
            raise _OtherContent(other)
        if found is not None and found.is_being_dropped:
            # WARN: an entry that the janitor is dropping keeps nothing: the batch waits until it is gone, and becomes
            # one.
            return found
        there = found if found is not None and _is_content_of(found, sha256) else None
        if there is not None and there.entry.retry_id is not None:
            return there  # dropped by nobody
        payload, now_ms = payload_key(table.paths, entry, body, batch.format, what="batch"), clock.now_ms()
        table.store.put(payload, body)
        if there is not None:
            # WARN: J11: written anew, not only looked at. A janitor that takes the entry for old would drop it between
            # this look and the delete of the copy; it compares the ETag.
            return there.changed(payload=payload, bytes=len(body), again_ms=now_ms)
        kind: Kind = "conflict" if is_conflict else "batch"
        why = {"sha256": sha256, "doubtful": is_doubtful or is_conflict}
        fields = make_reason(kind, batch.batch_id, reason, payload=payload, size_bytes=len(body), now_ms=now_ms, **why)
        # WARN: W2: asked again, it may have landed, and an operator has retried the entry, so that it is gone.
        is_doubtful = True
        return StoredReason(QuarantinedBatch.model_validate(fields), fields)

    try:
        kept = reason_object(table, entry).update(keep, gave_up=Unavailable).state
    except _OtherContent as error:
        why = f"{reason}. {error}"
        return _keep(table, batch, body, reason=why, is_conflict=True, clock=clock)
    except CommitOutcomeUnknown as error:
        raise Unavailable(f"table {table.name}: {error}; the next run goes on") from error
    if kept.is_being_dropped:
        return "left"
    return "conflict" if is_conflict else "same"


class _OtherContent(InvalidRequest):
    """An id stands for other content (I8)."""


def _find_other_content(found: StoredReason, sha256: str) -> str:
    """Return why an id stands for other content than one that was refused under it; empty: it does not (I8)."""
    if found.entry.kind == "rows" and found.entry.has_landed:
        # WARN: its id was committed, and the log has forgotten that. Written over, the reason of the bad rows would be
        # gone, and with this entry they would be dropped.
        return "A batch was committed under this id, but for bad rows"
    if found.entry.kind == "batch" and not _is_content_of(found, sha256):
        return (
            "Other content was refused under this id, and an id has one. Look at both; retry this one by force, which "
            "stages it under a fresh id, or drop it"
        )
    return ""


def _is_content_of(found: StoredReason, sha256: str) -> bool:
    """Whether a content is the one that is in quarantine (I8)."""
    return bool(found.fields.get("sha256") == sha256)
