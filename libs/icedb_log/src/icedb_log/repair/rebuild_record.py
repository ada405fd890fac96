"""Records of rebuilds: what was found, what was decided, and what is held for a person to look (B4, B5).

Owns ``_icedb/rebuilds/<id>.json``. States, each change by compare-and-set::

    (nothing) ── put if absent, before the commit ──▶ open ──▶ done        it landed, what was damaged is gone
                                                       └─────▶ abandoned   it did not land, and another one did

A record is never deleted here. What records that are not abandoned name as ``held`` is not swept.
"""

import contextlib
from typing import Literal

from pydantic import BaseModel, ConfigDict

from icedb_log.errors import Unavailable, UnsupportedFormat
from icedb_log.store.object_store import list_all
from icedb_log.store.records import parse_record, replace_record
from icedb_log.store.table_store import TableStore

RecordState = Literal["open", "done", "abandoned"]

Side = Literal["inputs", "outputs"]
"""What is live when nobody can tell whether a commit landed: the files that its job read, or those that it wrote."""


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


class Choice(_Model):
    """Something that the files cannot tell, and how it is decided.

    Attributes:
        what: ``commit``: whether a deletion, a rewrite or a merge by a query landed; ``leftover``: whether a file that
            something may have kept is dead, and its rows are in another file.
        commit_id: Of the commit; for a leftover, of the one that wrote the file.
        kind: Which job wrote ``outputs``, or the leftover.
        inputs: Files that are live if it is decided for ``inputs``.
        outputs: Files that are live if it is decided for ``outputs``; of a leftover, the one that may have its rows.
        input_rows: Rows of ``inputs``; ``None``: one of them cannot be read.
        output_rows: Rows of ``outputs``.
        likely: What the evidence speaks for.
        decided: What is done.
        why: In words.
    """

    what: Literal["commit", "leftover"]
    commit_id: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    input_rows: int | None
    output_rows: int
    likely: Side
    decided: Side
    why: str


class Note(_Model):
    """Something that may be otherwise, without a choice.

    Attributes:
        kind: What; see :data:`icedb_log.repair.rebuild_plan.NOTES`.
        text: In words, with what to do.
        file_count: Files that it is about.
        row_count: Rows in them.
        files: Names of the first of them.
    """

    kind: str
    text: str
    file_count: int = 0
    row_count: int = 0
    files: tuple[str, ...] = ()


class LeftOut(_Model):
    """A data file that the rebuilt log does not name, and why.

    Attributes:
        row_count: Its rows; ``None``: cannot be read.
        is_held: Whether the orphan sweep keeps its hands off it, for a person to look (B5).
    """

    key: str
    size_bytes: int
    row_count: int | None
    reason: str
    is_held: bool


class RebuildReport(_Model):
    """What a rebuild found and decided; also its record in the store.

    Attributes:
        rebuild_id: Names the record; empty if nothing is written.
        state: See the module.
        made_ms: The store's clock when the log was read.
        log_key: The new log file.
        damage: What is wrong with the log that a rebuild mends; empty: nothing that is certain.
        whole_log_files: Log files that could be read.
        damaged: The others.
        live_files: Data files that are live afterwards, with their bytes and rows.
        dead_files: Data files that are there and dead afterwards.
        choices: What nobody can tell, and how it is decided.
        notes: What else may be otherwise.
        left_out: Data files that the log does not name.
        digest: Equal for plans that change the same; what a log file says that is whole is no change.
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
    choices: tuple[Choice, ...] = ()
    notes: tuple[Note, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    digest: str = ""


def close_report(table: TableStore, report: RebuildReport, *, state: RecordState, etag: str) -> RebuildReport:
    """Say how a rebuild ended, and return that. Best effort: a record that stays open is looked at by the next."""
    closed = report.model_copy(update={"state": state})
    with contextlib.suppress(Unavailable):
        key = table.paths.rebuild_key(report.rebuild_id)
        replace_record(table.store, key, closed.model_dump_json().encode(), etag=etag)
    return closed


def read_reports(table: TableStore) -> tuple[tuple[RebuildReport, str], ...]:
    """Read all records, oldest first, each with its ETag. Raises UnsupportedFormat, Unavailable."""
    says = (
        "not a record of a rebuild that this release understands ({why}); upgrade, or move it away: then the data "
        "files that it holds may be swept"
    )
    found = [table.store.get(info.key) for info in list_all(table.store, table.paths.rebuilds_prefix).objects]
    return tuple((parse_record(RebuildReport, each, UnsupportedFormat, says), each.info.etag) for each in found)


def read_held(table: TableStore) -> frozenset[str]:
    """Return the data files that wait for a person: the orphan sweep leaves them alone (B5).

    Raises:
        UnsupportedFormat: A record cannot be read: nobody knows what is held, and nothing may be swept.
        Unavailable: The store did not answer.
    """
    reports = (report for report, _ in read_reports(table) if report.state != "abandoned")
    return frozenset(entry.key for report in reports for entry in report.left_out if entry.is_held)
