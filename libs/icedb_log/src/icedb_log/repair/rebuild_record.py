"""Records of rebuilds: what was found, what was decided, and what is held for a person to look (B4, B5).

Owns ``_icedb/rebuilds/<id>.json``. States, each change by compare-and-set::

    (nothing) ── put if absent, before the commit ──▶ open ──▶ done        it landed, what was damaged is gone
                                                       └─────▶ abandoned   it did not land, and another one did

A record is never deleted here. What records that are not abandoned name as ``held`` is not swept.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from icedb_log.errors import CommitOutcomeUnknown, PreconditionFailed, Unavailable, UnsupportedFormat
from icedb_log.keys import TablePaths
from icedb_log.repair.rebuild_evidence import RebuildEvidence
from icedb_log.repair.rebuild_plan import RebuildPlan
from icedb_log.store.object_store import ObjectStore, StoredObject, create_record, list_all

RecordState = Literal["open", "done", "abandoned"]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DamagedEntry(_Model):
    """A damaged log file, and where its copy is."""

    key: str
    etag: str
    size_bytes: int
    problem: str
    copy_key: str = ""
    salvaged_count: int = 0


class ChoiceEntry(_Model):
    """See :class:`icedb_log.repair.rebuild_commits.Choice`."""

    what: Literal["commit", "leftover"]
    commit_id: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    input_rows: int | None
    output_rows: int
    likely: Literal["inputs", "outputs"]
    decided: Literal["inputs", "outputs"]
    why: str


class NoteEntry(_Model):
    """See :class:`icedb_log.repair.rebuild_plan.Note`."""

    kind: str
    text: str
    file_count: int = 0
    row_count: int = 0
    files: tuple[str, ...] = ()


class LeftOutEntry(_Model):
    """See :class:`icedb_log.repair.rebuild_plan.LeftOut`."""

    key: str
    size_bytes: int
    row_count: int | None
    reason: str
    is_held: bool


class RebuildReport(_Model):
    """What a rebuild found and decided; also its record in the store.

    Attributes:
        rebuild_id: Names the record; empty if nothing is written.
        table: Name of the table.
        state: See the module.
        made_ms: The store's clock when the log was read.
        log_key: The new log file.
        damage: What is wrong with the log.
        whole_log_files: Log files that could be read.
        damaged: The others.
        live_files: Data files that are live afterwards, with their bytes and rows.
        dead_files: Data files that are there and dead afterwards.
        choices: What nobody can tell, and how it is decided.
        notes: What else may be otherwise.
        left_out: Data files that the log does not name.
        digest: Equal for plans that change the same.
    """

    format: Literal[1] = 1
    rebuild_id: str = ""
    table: str
    state: RecordState = "open"
    made_ms: int
    log_key: str = ""
    damage: tuple[str, ...] = ()
    whole_log_files: int = 0
    damaged: tuple[DamagedEntry, ...] = ()
    live_files: int = 0
    live_bytes: int = 0
    live_rows: int = 0
    dead_files: int = 0
    choices: tuple[ChoiceEntry, ...] = ()
    notes: tuple[NoteEntry, ...] = ()
    left_out: tuple[LeftOutEntry, ...] = ()
    digest: str = ""

    @property
    def held(self) -> frozenset[str]:
        """Data files that wait for a person (B5)."""
        return frozenset(entry.key for entry in self.left_out if entry.is_held)


def make_report(evidence: RebuildEvidence, plan: RebuildPlan) -> RebuildReport:
    """Return the report of a plan that was not carried out yet."""
    footers = [evidence.footers[key] for key in plan.live if key in evidence.footers]
    unread = [evidence.unreadable[key].info for key in plan.live if key in evidence.unreadable]
    damaged = tuple(
        DamagedEntry(
            key=file.key,
            etag=file.etag,
            size_bytes=file.size_bytes,
            problem=file.problem,
            salvaged_count=len(file.markers),
        )
        for file in evidence.log.damaged
    )
    return RebuildReport(
        table=evidence.paths.name,
        made_ms=evidence.store_now_ms,
        damage=plan.damage,
        whole_log_files=len(evidence.log.view.files),
        damaged=damaged,
        live_files=len(plan.live),
        live_bytes=sum(footer.info.size_bytes for footer in footers) + sum(info.size_bytes for info in unread),
        live_rows=sum(footer.row_count for footer in footers),
        dead_files=sum(evidence.is_there(key) for key in plan.dead),
        choices=tuple(ChoiceEntry.model_validate(each, from_attributes=True) for each in plan.choices),
        notes=tuple(NoteEntry.model_validate(each, from_attributes=True) for each in plan.notes),
        left_out=tuple(LeftOutEntry.model_validate(each, from_attributes=True) for each in plan.left_out),
        digest=plan.digest,
    )


def put_report(store: ObjectStore, paths: TablePaths, report: RebuildReport) -> str:
    """Write a new record and return its ETag; when this raises, nothing may be committed.

    Raises:
        CommitOutcomeUnknown: The store did not confirm it.
    """
    return create_record(
        store,
        paths.rebuild_key(report.rebuild_id),
        encode_report(report),
        otherwise=f"nothing was committed to table {paths.name}, run it again",
    )


def close_report(
    store: ObjectStore, paths: TablePaths, report: RebuildReport, *, state: RecordState, etag: str
) -> None:
    """Say how a rebuild ended. Best effort: one that stays open is looked at by the next."""
    body = encode_report(report.model_copy(update={"state": state}))
    try:
        store.put_if_match(paths.rebuild_key(report.rebuild_id), body, etag=etag)
    except (PreconditionFailed, CommitOutcomeUnknown, Unavailable):
        return


def read_reports(store: ObjectStore, paths: TablePaths) -> tuple[tuple[RebuildReport, str], ...]:
    """Read all records, oldest first, each with its ETag. Raises UnsupportedFormat, Unavailable."""
    return tuple(_read(store.get(info.key)) for info in list_all(store, paths.rebuilds_prefix).objects)


def read_held(store: ObjectStore, paths: TablePaths) -> frozenset[str]:
    """Return the data files that wait for a person: the orphan sweep leaves them alone (B5).

    Raises:
        UnsupportedFormat: A record cannot be read: nobody knows what is held, and nothing may be swept.
        Unavailable: The store did not answer.
    """
    held: set[str] = set()
    for report, _ in read_reports(store, paths):
        if report.state != "abandoned":
            held |= report.held
    return frozenset(held)


def encode_report(report: RebuildReport) -> bytes:
    """Return the bytes of a record."""
    return report.model_dump_json().encode()


def _read(stored: StoredObject) -> tuple[RebuildReport, str]:
    try:
        return RebuildReport.model_validate_json(stored.body), stored.info.etag
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UnsupportedFormat(
            f"{stored.info.key}: not a record of a rebuild that this release understands ({where}: {first['msg']}); "
            "upgrade, or move it away: then the data files that it holds may be swept"
        ) from error
