"""Quarantine: what cannot be committed, kept with the reason (rule I5).

A batch that was refused lies there whole: ``<batch id>.batch.<format>``, as it was staged, and ``<batch id>.json``
with the reason. The reason is written last and the staged object deleted after it, so a crash at any step leads to
the same end. Of a batch that was committed without its bad rows, these rows lie there:
``<batch id>.rows-<hash>.ndjson.zst``, uploaded by the data path, and the reason. Other content under an id that was
used before is an entry of its own (I8): ``<batch id>.conflict-<SHA-256>.batch.<format>`` and ``….json``.
Batches are moved here by :mod:`icedb_log.ingest.refusals`.
"""

import contextlib
import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, get_args

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from icedb_log.clock import Clock
from icedb_log.errors import Fenced, InvariantViolated, NotFound, PreconditionFailed, Unavailable
from icedb_log.jobs import BadRows, RowFault, StagedBatch
from icedb_log.keys import TablePaths
from icedb_log.store.object_store import ObjectInfo, list_all
from icedb_log.store.records import replace_record
from icedb_log.store.table_store import TableStore

Kind = Literal["batch", "rows", "conflict"]
"""``batch``: refused, nothing of it is live; ``rows``: committed but for these rows; ``conflict``: accepted under an id
that stands for other content (I8)."""

BAD_ROWS_FORMAT: Final = "ndjson.zst"
_KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
MAX_DIRECT_READS: Final = 16
"""Up to so many reasons are read by name, without a listing."""
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


def find_quarantined(table: TableStore, batch_ids: Collection[str]) -> dict[str, QuarantinedBatch]:
    """Return which of some batches have an entry in quarantine. Reads the reasons of these batches only.

    Costs one GET for each id; above ``MAX_DIRECT_READS`` ids one listing, and a GET for each that is there.
    """
    asked = tuple(dict.fromkeys(batch_ids))
    if len(asked) > MAX_DIRECT_READS:
        there = {batch_id_of(info.key) for info in _list_reasons(table)}
        asked = tuple(batch_id for batch_id in asked if batch_id in there)
    found = {batch_id: find_reason(table, batch_id) for batch_id in asked}
    return {batch_id: reason.entry for batch_id, reason in found.items() if reason is not None}


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
