"""Tags: named snapshots that last for a time or until they are deleted (rule J4).

A tag is a hold with a list (:mod:`icedb_log.holds.stored_holds`): a snapshot written down in the form of a log file,
its schema and its live data files, without statistics. So a tag needs no log file: the log is cleaned as if there were
none, and reading at a tag reads one object.

``pending`` holds every dead data file, cannot be read and runs out by itself; ``active`` holds the files that it lists,
and was proven to; ``ended`` holds them for one grace period more, for those who are reading.

Order of making: the ``pending`` object; the other tags of that name; the log; the proof; the snapshot, by
compare-and-set over the pending object.
"""

import contextlib
from dataclasses import replace
from typing import Final

from icedb_log.commit.table import Table
from icedb_log.errors import (
    CommitConflict,
    CommitOutcomeUnknown,
    CorruptLog,
    IceDBError,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    Unavailable,
)
from icedb_log.holds.guards import Hold
from icedb_log.holds.stored_holds import (
    HoldStatus,
    ListedHolds,
    StoredHold,
    decode_snapshot,
    encode_hold,
    end_body,
    list_holds,
    put_hold,
    replace_hold,
    require_certain,
)
from icedb_log.keys import check_tag_name
from icedb_log.log.codec import encode_log_file
from icedb_log.log.fold import Snapshot, fold
from icedb_log.model import EMPTY, ListedLogFile, LogFile, LogView, Widening
from icedb_log.store.object_store import ObjectStore
from icedb_log.store.store_clock import check_has_come
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import read_table_config
from icedb_log.units import DAY_MS, HOUR_MS, SECOND_MS

PENDING_TTL_MS: Final = HOUR_MS
"""How long a tag may take to become active: one read of the log."""
MIN_TAG_TTL_MS: Final = SECOND_MS
MAX_TAG_TTL_MS: Final = 100 * 366 * DAY_MS
MAX_NOTE_CHARS: Final = 500


def _encode_snapshot(snapshot: Snapshot, *, at_ms: int) -> bytes:
    logged = snapshot.logged_schema
    widened = {c: Widening(wide, at_ms) for c, wide in snapshot.schema.items() if logged[c] != wide}
    # Without statistics: they are values of rows, and an erasure must leave no trace of these (E5).
    files = tuple(replace(marker, stats=EMPTY, extra=EMPTY, landed_ms=None) for marker in snapshot.live)
    return encode_log_file(LogFile(at_ms, logged, files, widened=widened))


# Reading


def list_tags(table: TableStore, *, name: str = "") -> ListedHolds:
    """List the tags of a table, or of one name. Costs one listing and one small ranged GET for each tag.

    Raises:
        InvalidRequest: ``name`` is no name of a tag.
        Unavailable: The store did not answer.
    """
    listed = list_holds(table, owner="tag", name=name and check_tag_name(name))
    # What is no tag of this name shows in a list of all.
    return replace(listed, holds=tuple(tag for tag in listed.holds if name in ("", tag.name)))


def find_lasting(listed: ListedHolds) -> tuple[StoredHold, ...]:
    """Return the tags that have not ended, so that their names are taken."""
    return tuple(tag for tag in listed.holds if is_lasting(tag.status(listed.store_now_ms)))


def is_lasting(status: HoldStatus) -> bool:
    """Whether a tag that stands so has not ended, so that its name is taken."""
    return status in ("pending", "active", "late", "unreadable")


def find_tag(table: TableStore, name: str) -> tuple[StoredHold, HoldStatus]:
    """Return the tag of a name that lasts, else the last one that ended, and how it stands.

    Raises:
        InvalidRequest: ``name`` is no name of a tag.
        NotFound: There is none.
        Unavailable: The store did not answer.
    """
    check_tag_name(name)
    listed = list_tags(table, name=name)
    if not listed.holds:
        raise NotFound(f"table {table.name} has no tag {name!r}; see `icedb tag list {table.name}`")
    tag = (find_lasting(listed) or listed.holds)[-1]
    return tag, tag.status(listed.store_now_ms)


def read_tagged(table: TableStore, name: str, *, is_compact: bool = False) -> tuple[StoredHold, Snapshot]:
    """Read the snapshot that a tag has written down. Its files stay for a grace period after the tag has ended.

    ``is_compact`` keeps the markers' lines instead of what they decode to.

    Raises:
        InvalidRequest: The tag has ended, is not active yet, or is not sure of its files.
        NotFound: There is no such tag.
        CorruptLog: Its object cannot be understood.
        Unavailable: The store did not answer.
    """
    tag, status = find_tag(table, name)
    if status == "unreadable":
        raise CorruptLog(f"{tag.key}: line 0 is not understood; see `icedb tag list {table.name}`")
    if status != "active":
        raise InvalidRequest(f"table {table.name}: {_why_unreadable(table.name, tag, status)}")
    stored = table.store.get(tag.key, if_match=tag.etag)
    log = decode_snapshot(tag, stored.body, is_compact=is_compact)
    file = ListedLogFile(tag.key, tag.etag, tag.modified_ms, stored.info.size_bytes, log)
    snapshot = fold(LogView(table.name, (file,), tag.modified_ms))
    return tag, replace(snapshot, as_of_ms=tag.at_ms, last_commit_ms=tag.last_commit_ms, is_stable=True)


def _why_unreadable(table: str, tag: StoredHold, status: HoldStatus) -> str:
    if status == "pending":
        return f"tag {tag.name} is being made, or its maker died; try again, or `icedb tag delete {table} {tag.name}`"
    if status == "late":
        return (
            f"tag {tag.name} took too long to be made: some of its files may be gone; "
            f"`icedb tag delete {table} {tag.name}` and tag again"
        )
    return f"tag {tag.name} has ended ({status}); see `icedb tag list {table}`"


# Making and ending


def create_tag(
    table: Table, name: str, *, at_ms: int | None = None, ttl_ms: int | None = None, note: str = ""
) -> StoredHold:
    """Tag a table as of a time, so that its data files stay and can be read until the tag ends. Not idempotent.

    Args:
        table: The table. This host's clock decides nothing about times.
        name: Of the tag; free again when the tag has ended.
        at_ms: Which time, unix ms; ``None``: the newest state.
        ttl_ms: How long, from now; ``None``: until it is deleted.
        note: Why, for people.

    Raises:
        InvalidRequest: A bad name, duration or note, a time in the future, or the name is taken.
        BelowHorizon: The time cannot be read any more, or some of its files may be gone.
        NotFound: The table is dropped meanwhile.
        HaltError: The log cannot be read.
        CommitConflict: Somebody ended the tag while it was made.
        CommitOutcomeUnknown: No answer; look with ``icedb tag list``.
        Unavailable: The store did not answer, or it took too long.
    """
    check_tag_name(name)
    if ttl_ms is not None and not MIN_TAG_TTL_MS <= ttl_ms <= MAX_TAG_TTL_MS:
        raise InvalidRequest(
            f"table {table.name}: a tag lasts {MIN_TAG_TTL_MS} to {MAX_TAG_TTL_MS} ms, not {ttl_ms}; "
            "without a duration it lasts until it is deleted"
        )
    if len(note) > MAX_NOTE_CHARS or not (note.isprintable() or not note):
        raise InvalidRequest(f"table {table.name}: a note has at most {MAX_NOTE_CHARS} printable characters")
    config = read_table_config(table)
    _choose(table.read_log(), at_ms)  # what is refused anyway leaves no trace
    _require_free(table, name)
    fields = {"state": "pending", "at": at_ms or 0, "ttl_ms": PENDING_TTL_MS, "note": note}
    pending = put_hold(table.store, table.paths.hold_key("tag", table.clock.new_id(), name=name), encode_hold(fields))
    try:
        # WARN: J4: after the pending tag is there. Before it, two makers of one name look, both see none, both go on.
        _require_free(table, name, mine=pending.key)
        view = table.read_log()
        read_table_config(table)  # T3: in a purged table nothing can be held
        snapshot = _choose(view, at_ms)
        kept = Hold("tag", name, files=frozenset(snapshot.live.paths()))
        require_certain(view, kept, at_ms=at_ms, config=config, written_ms=pending.modified_ms)
    except IceDBError:
        with contextlib.suppress(Unavailable):  # it runs out by itself; nothing under way can make it active any more
            table.store.delete([pending.key])
        raise
    at_ms = view.store_now_ms if at_ms is None else at_ms
    fields |= {
        "state": "active",
        "at": at_ms,
        "ttl_ms": ttl_ms,
        "until": pending.ends_ms,
        "whole": True,
        "files": len(snapshot.live),
        "bytes": snapshot.size_bytes,
        "rows": snapshot.row_count,
        "last_commit": snapshot.last_commit_ms,
    }
    return _activate(table, pending, encode_hold(fields, _encode_snapshot(snapshot, at_ms=at_ms)))


def delete_tag(table: TableStore, name: str) -> bool:
    """End a tag. Idempotent: returns whether that changed anything. Its files stay for one more grace period.

    Raises:
        InvalidRequest: ``name`` is no name of a tag.
        NotFound: There is no such tag.
        CommitConflict: It changed at this very moment; try again.
        CommitOutcomeUnknown: No answer; look with ``icedb tag list``.
        Unavailable: The store did not answer.
    """
    tag, status = find_tag(table, name)
    if not is_lasting(status):
        return False
    body = end_body(table.store.get(tag.key, if_match=tag.etag).body)
    if _replace(table.store, tag, body) is None:
        raise PreconditionFailed(f"table {table.name}: tag {name} changed at this very moment; try again")
    return True


def _choose(view: LogView, at_ms: int | None) -> Snapshot:
    """Fold the state to be tagged. Raises InvalidRequest, BelowHorizon."""
    if at_ms is not None:
        check_has_come(view.table, "time", at_ms, store_now_ms=view.store_now_ms)
    return fold(view, as_of_ms=at_ms)


def _require_free(table: TableStore, name: str, *, mine: str = "") -> None:
    listed = list_tags(table, name=name)
    for tag in find_lasting(listed):
        if tag.key == mine:
            continue
        if tag.status(listed.store_now_ms) == "pending":
            raise InvalidRequest(
                f"table {table.name}: tag {name!r} is being made by another process, or that process died; try again, "
                f"another name, or `icedb tag delete {table.name} {name}`"
            )
        raise InvalidRequest(
            f"table {table.name}: tag {name!r} exists already, of time {tag.at_ms}; take another name, or "
            f"`icedb tag delete {table.name} {name}` first"
        )


def _activate(table: Table, pending: StoredHold, body: bytes) -> StoredHold:
    tag = _replace(table.store, pending, body)
    if tag is None:
        raise CommitConflict(f"table {table.name}: tag {pending.name!r} was ended while it was made; tag again")
    if tag.is_late:
        # WARN: J4: a janitor that found the pending tag run out held nothing. It is ended as far as the store answers:
        # nobody can read it anyway.
        with contextlib.suppress(CommitOutcomeUnknown, Unavailable):
            _replace(table.store, tag, end_body(body))
        raise Unavailable(
            f"table {table.name}: it took longer than {PENDING_TTL_MS} ms to make tag {tag.name!r}, and files may be "
            "gone; tag again"
        )
    return tag


def _replace(store: ObjectStore, tag: StoredHold, body: bytes) -> StoredHold | None:
    """Write the next state of a tag; ``None`` if another one is there. Raises CommitOutcomeUnknown."""
    try:
        return replace_hold(store, tag, body)
    except (CommitOutcomeUnknown, Unavailable) as error:
        raise CommitOutcomeUnknown(f"{tag.key}: no answer whether the tag was written") from error
