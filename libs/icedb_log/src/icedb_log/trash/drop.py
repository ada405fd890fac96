"""Dropping a table and taking that back: two writes of ``table.json``, each by compare-and-set (rules T1 to T3).

Nothing of the table's data is touched here. Who began to work on it before may go on, and commit: the data stay, and
``undrop`` shows what has landed. Whoever begins later reads ``table.json`` first, and finds no table.
"""

import contextlib
from dataclasses import dataclass
from typing import Final

from icedb_log.clean.holds import find_claims
from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest, NotFound
from icedb_log.feed.views import detach_view, source_of
from icedb_log.holds.tags import find_lasting, list_tags
from icedb_log.ingest.staging import list_staged
from icedb_log.keys import TablePaths
from icedb_log.store.object_store import ObjectInfo
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import change_config, load_any_config
from icedb_log.table.table_config import CONFIG_CACHE_TTL_MS, MAX_NOTE_CHARS, Dropped, TableConfig, describe_drop
from icedb_log.texts import is_text
from icedb_log.units import DAY_MS

DEFAULT_KEEP_MS: Final = 7 * DAY_MS
MAX_KEEP_MS: Final = 100 * 366 * DAY_MS
"""A hundred years: the end of it is a time that every calendar has."""


@dataclass(frozen=True, slots=True)
class DropRequest:
    """How a table is to be dropped.

    Attributes:
        keep_ms: How long it stays in the trash; not less than its ``data_grace_ms``: queries may be running; at most
            :data:`MAX_KEEP_MS`.
        is_forced: Past the trash: it is purged at once, and nothing brings it back.
        dropped_by: Who asks, in words.
        note: Why, in words.
    """

    keep_ms: int = DEFAULT_KEEP_MS
    is_forced: bool = False
    dropped_by: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class DropResult:
    """What a drop did.

    Attributes:
        mark: What stands in ``table.json`` now.
        modified_ms: When that was written, unix ms by the store's clock.
        is_new: Whether this call dropped the table, or had it purged.
        staged_count: Batches that were staged then and not committed, at most 1,000: an undrop has them flushed.
        detached_from: Of a view: its source, which it was detached from.
    """

    mark: Dropped
    modified_ms: int
    is_new: bool
    staged_count: int
    detached_from: str | None


@dataclass(frozen=True, slots=True)
class UndropResult:
    """Whether this call brought a table back, and, of a view, its source, which does not feed it any more."""

    is_new: bool
    detached_from: str | None


def drop_table(table: TableStore, *, clock: Clock, request: DropRequest | None = None) -> DropResult:
    """Drop a table. Idempotent: one that is in the trash stays as it is, or is purged if that is asked for.

    A view is detached from its source, in any case before it is marked.

    Raises:
        NotFound: No such table.
        InvalidRequest: It feeds views, an erasure has not ended, tags keep it from being purged, or ``keep_ms`` is
            shorter than its grace period; the message says what to do first.
        HaltError: Its configuration, or a registration of a view, cannot be read.
        Unavailable: The store did not answer, or others kept changing the configuration.
    """
    request = request or DropRequest()
    _require_sensible(table.paths, request)
    drop_id = clock.new_id()
    detached_from: str | None = None

    def mark(config: TableConfig, info: ObjectInfo) -> TableConfig:
        nonlocal detached_from
        found = config.dropped
        if found is not None and found.state == "purged":
            raise NotFound(describe_drop(table.name, found, modified_ms=info.modified_ms))
        if found is not None and (found.state == "purging" or not request.is_forced):
            return config
        if _was_taken_back(config, drop_id):
            # WARN: T1: not once more, with the same id: taken back again, table.json would be what it was before, and
            # a request that was meant for that state and is under way since would find it.
            raise InvalidRequest(f"table {table.name}: was dropped, and restored since; drop it again if it has to go")
        try:
            _require_free(table, config, request)
        except InvalidRequest as error:
            if found is None:
                raise
            raise InvalidRequest(f"{error}. It is in the trash by now: `icedb table undrop {table.name}`") from error
        if config.view_of is not None and found is None:
            # WARN: T2: before the mark. After it, a crash in between leaves a view that its source waits for (V4), and
            # an undrop much later would feed it from a log that has been vacuumed meanwhile: rows missing, unnoticed.
            detached_from = _detach(table, config, clock=clock)
        return _mark(config, _next_mark(config, found, info=info, drop_id=drop_id, request=request))

    done = change_config(table, mark, in_steps=True)
    config, info = done.state
    if config.dropped is None:
        raise AssertionError  # marked above
    return DropResult(config.dropped, info.modified_ms, done.is_new, len(list_staged(table).batches), detached_from)


def undrop_table(table: TableStore, *, clock: Clock) -> UndropResult:
    """Bring a table back from the trash, as it was. Idempotent.

    A view comes back detached: what its source committed meanwhile is not in it, and may be gone.

    Raises:
        NotFound: No such table, or it is purged.
        InvalidRequest: Its purge has begun.
        HaltError: Its configuration cannot be read.
        Unavailable: The store did not answer, or others kept changing the configuration.
    """
    detached_from: str | None = None

    def restore(config: TableConfig, info: ObjectInfo) -> TableConfig:
        nonlocal detached_from
        mark = config.dropped
        if mark is None:
            return config
        if mark.state == "purged":
            raise NotFound(describe_drop(table.name, mark, modified_ms=info.modified_ms))
        if mark.state == "purging":
            raise InvalidRequest(describe_drop(table.name, mark, modified_ms=info.modified_ms))
        if config.view_of is not None:
            # T2: once more: somebody may have attached it while it was being dropped.
            detached_from = _detach(table, config, clock=clock)
        return _taken_back(config, mark.drop_id)

    return UndropResult(change_config(table, restore).is_new, detached_from)


def read_kept_config(table: TableStore) -> TableConfig:
    """Read the configuration of a table that is there, or in the trash: for what ends a claim on it.

    Raises:
        NotFound: No such table, or its purge has begun.
        UnsupportedFormat: Not a configuration that this release understands.
        Unavailable: The store did not answer.
    """
    config, info = load_any_config(table)
    if config.dropped is not None and config.dropped.state != "trash":
        raise NotFound(describe_drop(table.name, config.dropped, modified_ms=info.modified_ms))
    return config


def _require_sensible(paths: TablePaths, request: DropRequest) -> None:
    """Raise InvalidRequest if texts are too long, or none, or the table would stay too long."""
    for what, text in (("note", request.note), ("name of who asks", request.dropped_by)):
        if len(text) > MAX_NOTE_CHARS:
            raise InvalidRequest(f"table {paths.name}: the {what} may have {MAX_NOTE_CHARS} characters")
        if not is_text(text):
            raise InvalidRequest(f"table {paths.name}: the {what} has bytes that are no UTF-8; give it as text")
    if request.keep_ms > MAX_KEEP_MS:
        raise InvalidRequest(
            f"table {paths.name}: a table stays in the trash for {MAX_KEEP_MS // DAY_MS} days at most, not "
            f"{request.keep_ms // DAY_MS}"
        )


def _require_free(table: TableStore, config: TableConfig, request: DropRequest) -> None:
    """Refuse what would take something away from somebody (T2)."""
    name = table.name
    claims = find_claims(table)
    views = [claim.name for claim in claims if claim.kind == "view"]
    if views:
        raise InvalidRequest(
            f"table {name!r} feeds {'views' if len(views) > 1 else 'view'} {', '.join(views)}: drop first what it "
            f"feeds, or end that with `icedb views {name} --detach {views[0]}`"
        )
    erasures = [claim.name for claim in claims if claim.kind == "erasure"]
    if erasures:
        raise InvalidRequest(
            f"table {name!r}: erasure {erasures[0]} has not ended, and its proof would be lost; wait for it "
            f"(`icedb erasure list {name} {erasures[0]}`), then drop the table"
        )
    if request.is_forced:
        tags = find_lasting(list_tags(table))
        if tags:
            raise InvalidRequest(
                f"table {name!r} is tagged ({', '.join(tag.name for tag in tags)}): `icedb tag delete {name} "
                f"{tags[0].name}` first, or drop it without --purge: in the trash it waits for its tags"
            )
    elif request.keep_ms < config.data_grace_ms:
        raise InvalidRequest(
            f"table {name!r}: {request.keep_ms} ms in the trash are less than its grace period of data files, "
            f"{config.data_grace_ms} ms, for which queries may run that have begun; give at least that, or --purge"
        )


def _mark(config: TableConfig, mark: Dropped) -> TableConfig:
    return config.model_copy(update={"dropped": mark})


def _taken_back(config: TableConfig, drop_id: str) -> TableConfig:
    """Return the configuration of a table that comes back from the trash.

    T1: with the id of the drop, so that no content of table.json, hence no ETag, ever comes back: a drop whose request
    was under way for an hour would otherwise find the very state that it was meant for.
    """
    return config.model_copy(update={"dropped": None, "undropped": drop_id})


def _was_taken_back(config: TableConfig, drop_id: str) -> bool:
    """Whether a table is there because somebody undid this very drop (T1)."""
    return config.dropped is None and config.undropped == drop_id


def _next_mark(
    config: TableConfig, found: Dropped | None, *, info: ObjectInfo, drop_id: str, request: DropRequest
) -> Dropped:
    if found is not None:  # in the trash, and to be purged now
        change = {"state": "purging", "is_forced": True, "dropped_ms": info.modified_ms, "keep_ms": 0}
        return found.model_copy(update=change)
    # WARN: T3: into the trash first, also by force; then tags are looked for once more. In one step: a tag is made and
    # told to hold between that look and the mark, and what it tagged is purged.
    return Dropped(
        state="trash",
        drop_id=drop_id,
        # T1: who remembers the table answers readers for a while yet, who count on the grace period from then on.
        keep_ms=max(request.keep_ms, config.data_grace_ms + CONFIG_CACHE_TTL_MS),
        dropped_by=request.dropped_by,
        note=request.note,
    )


def _detach(table: TableStore, config: TableConfig, *, clock: Clock) -> str:
    source = source_of(table, config)
    with contextlib.suppress(NotFound):  # its creation stopped halfway
        detach_view(source, table.name, clock=clock)
    return source.name
