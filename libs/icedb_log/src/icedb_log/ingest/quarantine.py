"""Quarantine: what cannot be committed, kept with the reason, and how it gets there (rules I3, I5, I8).

A batch that was refused lies there whole: ``<batch id>.batch.<format>``, as it was staged, and ``<batch id>.json``
with the reason. The reason is written last and the staged object deleted after it, so a crash at any step leads to
the same end. Of a batch that was committed without its bad rows, these rows lie there:
``<batch id>.rows-<hash>.ndjson.zst``, uploaded by the data path, and the reason. Other content under an id that was
used before is an entry of its own (I8): ``<batch id>.conflict-<SHA-256>.batch.<format>`` and ``….json``.

Whoever is about to delete a staged copy that no commit of its own has taken asks here first. Order: the content is an
entry, with its payload and its reason, or is certainly that of rows or of an entry; then the copy goes.
"""

import contextlib
import hashlib
import re
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, get_args

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from icedb_log.clock import Clock
from icedb_log.errors import Fenced, InvalidRequest, InvariantViolated, NotFound, PreconditionFailed, Unavailable
from icedb_log.ingest.content import hash_content, is_same_content
from icedb_log.jobs import BadRows, RejectedBatch, RowFault, StagedBatch
from icedb_log.keys import TablePaths, parse_staged_key
from icedb_log.store.object_store import ObjectInfo, ObjectStore, delete_or_raise, list_all
from icedb_log.store.records import replace_record
from icedb_log.store.table_store import TableStore

Kind = Literal["batch", "rows", "conflict"]
"""``batch``: refused, nothing of it is live; ``rows``: committed but for these rows; ``conflict``: accepted under an id
that stands for other content (I8)."""

BAD_ROWS_FORMAT: Final = "ndjson.zst"
_KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
MAX_REASON_ATTEMPTS: Final = 4

_REASON_SUFFIX: Final = ".json"
_BAD_ROWS_INFIX: Final = ".rows-"
_CONFLICT_INFIX: Final = ".conflict-"
_CONFLICT: Final = re.compile(re.escape(_CONFLICT_INFIX) + "[0-9a-f]{64}")


class QuarantinedBatch(BaseModel):
    """One entry in quarantine.

    Attributes:
        batch_id: Name of the entry: the id of the batch, with :func:`conflict_name` for a conflict.
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
        """Number in the batch of each of the first bad rows, and what is wrong with it, as they lie in the payload.

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
    """A reason as it was read, for whoever wants to replace it."""

    entry: QuarantinedBatch
    fields: dict[str, Any]
    etag: str

    @property
    def is_being_dropped(self) -> bool:
        """Whether the janitor has taken the entry away: what is left of it is to be deleted, nobody retries it."""
        return self.fields.get("dropped") is True

    def changed(self, **fields: object) -> bytes:
        """Return the reason with other fields; those that are not known here stay."""
        return orjson.dumps({**self.fields, **fields})


def bad_rows_key(paths: TablePaths, batch_id: str, payload: bytes) -> str:
    """Return where the data path puts the bad rows of a batch: a name of their own for other rows.

    Which rows are bad depends on what a flush knows. A write that lands late, by a flush that lost the fence or a task
    that Spark runs again, must not replace what a commit has left out.
    """
    digest = hashlib.sha256(payload).hexdigest()[:32]
    return paths.quarantine_key(f"{batch_id}{_BAD_ROWS_INFIX}{digest}.{BAD_ROWS_FORMAT}")


def is_bad_rows(key: str) -> bool:
    """Return whether an object below the quarantine holds bad rows of a batch."""
    return _BAD_ROWS_INFIX in key.rpartition("/")[2]


def conflict_name(batch_id: str, sha256: str) -> str:
    """Return the name of the entry for a content that was accepted under an id which stands for another one (I8)."""
    return f"{batch_id}{_CONFLICT_INFIX}{sha256}"


def list_conflicts(table: TableStore, batch_id: str) -> tuple[str, ...]:
    """Return the names of the entries with other content under an id (I8). Costs a listing."""
    keys = _list_keys(table, f"{batch_id}{_CONFLICT_INFIX}")
    return tuple(entry_of_object(key) for key in keys if is_reason(key))


def list_bad_rows(table: TableStore, batch_id: str) -> tuple[str, ...]:
    """Return the keys of all bad rows that were ever set aside of a batch. Costs a listing."""
    return _list_keys(table, f"{batch_id}{_BAD_ROWS_INFIX}")


def _list_keys(table: TableStore, name: str) -> tuple[str, ...]:
    return tuple(info.key for info in list_all(table.store, f"{table.paths.quarantine_prefix}{name}").objects)


def payload_key(paths: TablePaths, batch: StagedBatch) -> str:
    """Return where a refused batch is kept. Not under its staged name: in the format ``json`` that is the reason's."""
    return paths.quarantine_key(f"{batch.batch_id}.batch.{batch.format}")


def reason_key(paths: TablePaths, batch_id: str) -> str:
    """Return where the reason of an entry is, by its name: a batch's id, or :func:`conflict_name`."""
    return paths.quarantine_key(batch_id + _REASON_SUFFIX)


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


def put_reason(table: TableStore, batch_id: str, body: bytes, *, replaces: StoredReason | None) -> bool:
    """Write a reason over the one that was read, or over none; return whether it certainly was written (W2)."""
    etag = None if replaces is None else replaces.etag
    return replace_record(table.store, reason_key(table.paths, batch_id), body, etag=etag)


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
    try:
        if replaces is None:
            table.store.put_if_absent(key, body)
        else:
            table.store.put_if_match(key, body, etag=replaces)
    except PreconditionFailed:
        found = find_reason(table, bad.batch.batch_id)
        if found is None or found.fields != reason:  # else refused by its own first try (W2)
            raise Fenced(f"table {table.name}: another flush wrote {key} meanwhile; this run stops") from None


def mark_rows_landed(table: TableStore, *, batch_id: str, commit_id: str) -> None:
    """Say of bad rows that the commit which leaves them out has landed. Best effort.

    Without it nobody can tell, once the log has forgotten the commit, such an entry from that of a flush which never
    committed, while another one made the rows live.
    """
    with contextlib.suppress(Unavailable):
        found = find_reason(table, batch_id)
        if found is not None and found.fields.get("commit") == commit_id:
            put_reason(table, batch_id, found.changed(landed=True), replaces=found)


def find_reason(table: TableStore, batch_id: str) -> StoredReason | None:
    """Read the reason of one entry, by its name; ``None`` if it is not in quarantine."""
    try:
        stored = table.store.get(reason_key(table.paths, batch_id))
    except NotFound:
        return None
    return parse_reason(stored.info, stored.body)


def list_quarantined(table: TableStore, *, limit: int | None = None) -> tuple[QuarantinedBatch, ...]:
    """Read every entry in quarantine, or the ``limit`` oldest, oldest id first. A listing and one GET for each entry.

    A reason that cannot be read does not hide the others: it comes as an entry that says so.
    """
    found: list[QuarantinedBatch] = []
    for info in _list_reasons(table)[:limit]:
        try:
            found.append(parse_reason(info, table.store.get(info.key).body).entry)
        except NotFound:
            continue  # an operator has just taken it away
    return tuple(found)


def parse_reason(info: ObjectInfo, body: bytes) -> StoredReason:
    """Return what a reason object says; one that cannot be read says so itself."""
    try:
        value = orjson.loads(body)
        entry = QuarantinedBatch.model_validate(value)
        if entry.kind == "conflict":
            entry = entry.model_copy(update={"batch_id": batch_id_of(info.key)})
    except ValueError as error:
        entry = QuarantinedBatch(
            batch_id=batch_id_of(info.key),
            reason=f"{info.key} does not hold a reason ({type(error).__name__}); inspect it by hand",
            payload_key=info.key,
            size_bytes=info.size_bytes,
            quarantined_ms=info.modified_ms,
        )
        value = {}
    return StoredReason(entry, value, info.etag)


def batch_id_of(key: str) -> str:
    """Return the entry that the object at a key, a reason or bad rows, is about."""
    name = key.rpartition("/")[2]
    return name.partition(_BAD_ROWS_INFIX)[0].removesuffix(_REASON_SUFFIX)


def batch_id_of_object(key: str) -> str:
    """Return the batch that any object below the quarantine is about, a payload or a reason."""
    return key.rpartition("/")[2].partition(".")[0]


def entry_of_object(key: str) -> str:
    """Return the name of the entry to which any object below the quarantine belongs."""
    batch_id, _, rest = key.rpartition("/")[2].partition(".")
    conflict = _CONFLICT.match(f".{rest}")
    return batch_id if conflict is None else f"{batch_id}{conflict.group()}"


def _list_reasons(table: TableStore) -> list[ObjectInfo]:
    return [info for info in list_all(table.store, table.paths.quarantine_prefix).objects if is_reason(info.key)]


def is_reason(key: str) -> bool:
    """Return whether an object below the quarantine is a reason, and no payload."""
    name = batch_id_of(key)
    return key.endswith(_REASON_SUFFIX) and "." not in _CONFLICT.sub("", name, count=1)


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
