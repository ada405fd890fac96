"""What a record of an erasure says, its form as JSON, and the certificate that is made of it. Pure (E6).

:mod:`icedb_log.erasure.erasures` writes and reads records.
"""

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from icedb_log.errors import UnsupportedFormat
from icedb_log.store.object_store import StoredObject
from icedb_log.store.records import parse_record

State = Literal["requested", "deleted", "complete", "refused"]
Reason = Literal["rewritten", "tombstoned", "orphan"]
"""Why an object had to go: live until the erasure rewrote it; dead already and not deleted; or named by no log file."""
Witness = Literal["janitor", "absent"]
"""How the time of a deletion is known: the janitor had deleted it by then; or it was looked for then, and gone."""

MAX_NAMES: Final = 1000
"""So many names of one kind are listed in a record; the count is always whole."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ErasureTarget(_Model):
    """An object that has to be gone.

    Attributes:
        key: Of the data file.
        size_bytes: Its size; ``None``: it was gone before anybody could look.
        row_count: Rows in it that the condition covers; ``None``: it could not be read any more, so it is taken for
            one that has some.
        reason: See :data:`Reason`.
        due_ms: When the janitor may delete it, by the store's clock, unless a lease holds it for longer.
        gone_ms: By when it was gone, by the store's clock; ``None``: it may still be there.
        known_by: How that is known.
    """

    key: str
    size_bytes: int | None
    row_count: int | None
    reason: Reason
    due_ms: int | None = None
    gone_ms: int | None = None
    known_by: Witness | None = None


class DeletedFile(_Model):
    """A live data file that a deletion rewrites, and how many of its rows the condition covers."""

    key: str
    size_bytes: int
    row_count: int | None


class DeletionRun(_Model):
    """A deletion, written down before its commit, so that a crash behind the commit loses no figure.

    Attributes:
        commit_id: Of the commit.
        begun_ms: When it wrote its first data file, by the worker's clock.
        row_count: Rows that it removes.
        files: What it rewrites.
        log_key: The commit's log file, once it is known.
        has_landed: Whether it was committed; ``None``: not known (yet, or any more).
        dialect: As the record's, when it ran: one by an earlier condition says nothing of the rows of this one.
    """

    commit_id: str
    begun_ms: int
    row_count: int
    files: tuple[DeletedFile, ...]
    log_key: str | None = None
    has_landed: bool | None = None
    dialect: Literal["duckdb"] | None = None


class NamedObjects(_Model):
    """How many of something there are, and the names of the first of them."""

    count: int = 0
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, names: Collection[str]) -> Self:
        """Return the count of some names, and the first, ascending."""
        return cls(count=len(names), names=tuple(sorted(names)[:MAX_NAMES]))

    def plus(self, other: Self) -> Self:
        """Return both together; the count is a lower bound if one of them has more than it names."""
        names = {*self.names, *other.names}
        count = max(len(names), self.count, other.count)
        return self.model_copy(update={"count": count, "names": tuple(sorted(names)[:MAX_NAMES])})


class NotCovered(_Model):
    """What may hold such rows and was left alone, as it stood when the rows were deleted.

    Attributes:
        quarantine: Batches in quarantine, whole or with bad rows; also those that were there at the request.
        unknown_staged: Objects in staging that are no batches.
        unknown_data: Objects among the data files that are none.
        import_sources: Where imported files were copied from; what lies there is not this table's.
        views: Tables that are fed by this one.
        view_of: The table that feeds this one.
        late: Data files with such rows that were committed after the request.
    """

    quarantine: NamedObjects = NamedObjects()
    unknown_staged: NamedObjects = NamedObjects()
    unknown_data: NamedObjects = NamedObjects()
    import_sources: NamedObjects = NamedObjects()
    views: NamedObjects = NamedObjects()
    view_of: str | None = None
    late: NamedObjects = NamedObjects()


class Erasure(_Model):
    """One erasure.

    Attributes:
        erasure_id: A UUIDv7.
        table: Name of the table.
        condition: SQL; rows for which it is true are erased.
        dialect: Whose SQL it is; ``None``: Spark's, of a release before revision 7. Such a condition is not used.
        requested_by: Who asked, in words.
        note: Why, in words.
        state: See :mod:`icedb_log.erasure.erasures`.
        refusal: Why it is refused.
        requested_ms: By the store's clock. Rows that were accepted by then are covered.
        runs: Deletions that were tried, oldest first.
        deleted_ms: By when the rows were deleted from all that is live, by the store's clock.
        targets: Objects that have to be gone.
        suspects: Those of the targets that the last look at all objects found.
        checked_ms: When all objects were last looked at, by the store's clock.
        completed_ms: When it ended, by the store's clock.
        not_covered: See there.
    """

    format: Literal[1] = 1
    erasure_id: str
    table: str
    condition: str
    dialect: Literal["duckdb"] | None = None
    requested_by: str = ""
    note: str = ""
    state: State = "requested"
    refusal: str | None = None
    requested_ms: int
    runs: tuple[DeletionRun, ...] = ()
    deleted_ms: int | None = None
    targets: tuple[ErasureTarget, ...] = ()
    suspects: tuple[str, ...] = ()
    checked_ms: int | None = None
    completed_ms: int | None = None
    not_covered: NotCovered = Field(default_factory=NotCovered)

    @property
    def is_closed(self) -> bool:
        """Whether it has ended."""
        return self.state in ("complete", "refused")

    @property
    def open_targets(self) -> tuple[ErasureTarget, ...]:
        """Targets that may still be there."""
        return tuple(target for target in self.targets if target.gone_ms is None)

    @property
    def row_count(self) -> int:
        """Rows that were removed from live data files, by all deletions that are known to have landed."""
        return sum(run.row_count for run in self.runs if run.has_landed)

    @property
    def is_row_count_exact(self) -> bool:
        """Whether no deletion is left of which nobody knows whether it landed; else :attr:`row_count` may be low."""
        return all(run.has_landed is not None for run in self.runs)


def mark_gone(erasure: Erasure, keys: Collection[str], *, gone_ms: int, known_by: Witness) -> Erasure:
    """Return a record in which some objects are gone; what is known of them already stays."""
    if erasure.is_closed or not any(target.key in keys for target in erasure.open_targets):
        return erasure
    targets = tuple(
        target.model_copy(update={"gone_ms": gone_ms, "known_by": known_by})
        if target.gone_ms is None and target.key in keys
        else target
        for target in erasure.targets
    )
    return erasure.model_copy(update={"targets": targets})


def encode_erasure(erasure: Erasure) -> bytes:
    """Return the bytes of a record."""
    return erasure.model_dump_json().encode()


def decode_erasure(stored: StoredObject) -> Erasure:
    """Parse a record. Raises UnsupportedFormat."""
    says = (
        "not a record of an erasure that this release understands ({why}); upgrade, or restore it: without it nobody "
        "can tell what was erased"
    )
    return parse_record(Erasure, stored, UnsupportedFormat, says)


PROVES: Final = (
    "Every row that was accepted before requested_at and for which the condition is true was removed from the table.",
    "Every object that is known to have held such rows, or that could not be read, is listed in objects.",
    "Each of them was absent from the object store at its gone_at and at checked_at.",
    "No log file names one of them any more: no statistics of them are left.",
    "At checked_at all data objects were listed, and those that no log file named were searched for such rows.",
    "None of these had any, but for rows that came after requested_at (not_covered.late).",
)

LIMITS: Final = (
    "Rows that were accepted after requested_at are not covered.",
    "Older versions of objects in a versioned bucket, replicas and backups are not covered: see to the bucket's rules.",
    "What readers copied before deleted_at, and logs of services, are not covered.",
    "What not_covered lists was left alone.",
    "A worker that stalled before deleted_at and uploads after checked_at leaves an object that no log file names.",
    "Nobody reads such an object, and the janitor deletes it after the table's orphan age.",
)


def certificate(erasure: Erasure) -> dict[str, Any]:
    """Return the certificate of an erasure, or how far it is, as JSON values. Times are ISO 8601 in UTC."""
    return {
        "format": erasure.format,
        "table": erasure.table,
        "id": erasure.erasure_id,
        "state": erasure.state,
        "condition": erasure.condition,
        "requested_by": erasure.requested_by,
        "note": erasure.note,
        "refusal": erasure.refusal,
        "requested_at": _time(erasure.requested_ms),
        "deleted_at": _time(erasure.deleted_ms),
        "checked_at": _time(erasure.checked_ms),
        "completed_at": _time(erasure.completed_ms),
        "clock": "the object store's",
        "rows_removed": erasure.row_count,
        "rows_removed_is_exact": erasure.is_row_count_exact,
        "commits": [
            {"log_file": run.log_key, "rows_removed": run.row_count, "data_files": len(run.files)}
            for run in erasure.runs
            if run.has_landed
        ],
        "objects": [_object(target) for target in erasure.targets],
        "not_covered": erasure.not_covered.model_dump(mode="json"),
        "proves": list(PROVES) if erasure.state == "complete" else [],
        "limits": list(LIMITS),
    }


def _object(target: ErasureTarget) -> dict[str, Any]:
    return {
        "key": target.key,
        "bytes": target.size_bytes,
        "rows": target.row_count,
        "reason": target.reason,
        "due_at": _time(target.due_ms),
        "gone_at": _time(target.gone_ms),
        "known_by": target.known_by,
    }


def _time(time_ms: int | None) -> str | None:
    if time_ms is None:
        return None
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
