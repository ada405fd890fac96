"""One walk through all objects of a table, compared with what its log said before (J5's order turned round).

Order, and what it makes certain. The log is read, *then* the objects are listed, *then* the log is read again:

* A data file that is live in both logs was there all the time in between (W1, J2): if the listing does not show it, it
  is dangling. (With one log only: it is merged and vacuumed between log and listing, and nothing is wrong.)
* A data file that neither log names and that is too old to be committed any more (W3) is an orphan. (With the first log
  only: it is committed meanwhile. With the second one only: it is listed, then vacuumed and stripped.)

Costs one LIST for each thousand objects. Memory: a reference for each data file that the first log names, and what does
not fit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker
from icedb_log.object_kinds import ObjectKind, find_kind
from icedb_log.store.object_store import ObjectInfo, ObjectPage, ObjectStore

MAX_UNNAMED: Final = 100_000
"""Unnamed data files that are looked at singly; more are only counted."""
MAX_KEPT: Final = 10_000
"""Objects of each other kind that are looked at singly."""
FUTURE_MS: Final = 60_000
"""An object that is this much younger than the store's own "now" shows that the store's clock cannot be trusted."""

Progress = Callable[[str, int, int | None], None]
"""Called with what is being done, how far it is, and how far it will go (``None``: nobody knows)."""


def no_progress(stage: str, done: int, total: int | None) -> None:
    """Nobody watches."""


@dataclass(slots=True)
class Walk:
    """What is there.

    Attributes:
        prefix: What every key began with that was listed.
        store_now_ms: The store's clock at the first page.
        object_count: All objects.
        missing: Data files of those that were looked for (live, dead, pinned) that the listing did not show.
        resized: Live data files of another size than the log says, with that of the object.
        unnamed: Data files that the first log does not name, at most ``MAX_UNNAMED``.
        unnamed_count: All of these.
        strays: Objects beside ``_log/`` that begin as it does.
        unknown: Objects of no kind that this release knows.
        future: Objects from the store's future, with how far they lie there.
        by_kind: Other objects, by kind, at most ``MAX_KEPT`` of each.
    """

    prefix: str = ""
    store_now_ms: int = 0
    object_count: int = 0
    missing: set[str] = field(default_factory=set)
    resized: dict[str, int] = field(default_factory=dict)
    unnamed: list[ObjectInfo] = field(default_factory=list)
    unnamed_count: int = 0
    strays: list[ObjectInfo] = field(default_factory=list)
    unknown: list[ObjectInfo] = field(default_factory=list)
    future: list[tuple[ObjectInfo, int]] = field(default_factory=list)
    by_kind: dict[ObjectKind, list[ObjectInfo]] = field(default_factory=dict)

    def of_kind(self, kind: ObjectKind) -> list[ObjectInfo]:
        """Return the objects of a kind."""
        return self.by_kind.get(kind, [])


def walk_objects(
    store: ObjectStore,
    paths: TablePaths,
    *,
    live: Mapping[str, FileMarker],
    named: set[str],
    progress: Progress = no_progress,
    page_size: int = 1000,
) -> Walk:
    """List everything below a table's prefix.

    Args:
        store: The object store.
        paths: Keys of the table.
        live: What the log listed as live, before.
        named: All data files that somebody named before: live, dead, pinned. Becomes ``Walk.missing``.
        progress: Told after each page.
        page_size: Keys per page; smaller only in tests.

    Raises:
        Unavailable: The store did not answer.
    """
    walk = Walk(f"{paths.prefix}/", missing=named)
    known = len(named)
    token: str | None = None
    while token is not None or not walk.object_count:
        page = store.list_page(walk.prefix, token=token, limit=page_size)
        walk.store_now_ms = walk.store_now_ms or page.store_now_ms
        for info in page.objects:
            _note(walk, paths, info, live)
            if info.modified_ms > page.store_now_ms + FUTURE_MS:
                walk.future.append((info, info.modified_ms - page.store_now_ms))
        _bound(walk, page)
        token = page.next_token
        progress("objects", walk.object_count, max(known, walk.object_count))
        if token is None:
            break
    return walk


def _note(walk: Walk, paths: TablePaths, info: ObjectInfo, live: Mapping[str, FileMarker]) -> None:
    key = info.key
    marker = live.get(key)
    if marker is not None:
        walk.missing.discard(key)
        if marker.size_bytes != info.size_bytes:
            walk.resized[key] = info.size_bytes
        return
    if key in walk.missing:
        walk.missing.discard(key)
        return
    kind = find_kind(paths, key)
    if kind == "data_file":
        walk.unnamed_count += 1
        if len(walk.unnamed) < MAX_UNNAMED:
            walk.unnamed.append(info)
    elif key.startswith(f"{paths.prefix}/_log"):
        if not key.startswith(paths.log_prefix):
            walk.strays.append(info)
    elif kind is None:
        walk.unknown.append(info)
    else:
        kept = walk.by_kind.setdefault(kind, [])
        if len(kept) < MAX_KEPT:
            kept.append(info)


def _bound(walk: Walk, page: ObjectPage) -> None:
    walk.object_count += len(page.objects)
    for kept in (walk.strays, walk.unknown, walk.future):
        del kept[MAX_KEPT:]
