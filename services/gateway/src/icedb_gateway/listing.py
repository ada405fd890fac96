"""Which keys a page of a listing has, of one table. Pure.

Keys are those that clients see: ``<table ref>/<partition path>/<file>.parquet``. A snapshot's live files are sorted by
path, and so by key: a page begins by bisection, and a folder that becomes a common prefix is skipped by another one, so
that a page costs its own length and not the table's.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from icedb_log.model import FileMarker

BEYOND: Final = chr(0x10FFFF)
"""Sorts after every character that a key can have."""


@dataclass(frozen=True, slots=True)
class ListQuery:
    """What a listing asks for.

    Attributes:
        prefix: What keys begin with.
        delimiter: Where keys are cut into common prefixes; empty: nowhere.
        after: Keys up to and including this one are left out; empty: none.
        limit: Most entries of the page.
    """

    prefix: str
    delimiter: str
    after: str
    limit: int

    def skips_prefix(self, common_prefix: str) -> bool:
        """Whether a common prefix ended an earlier page."""
        return common_prefix == self.after

    def roll_up(self, key: str) -> str | None:
        """Return the common prefix that a key, or the beginning of one, is part of; ``None`` if it has none."""
        if not self.delimiter:
            return None
        cut = key.find(self.delimiter, len(self.prefix))
        return key[: cut + len(self.delimiter)] if cut >= 0 else None


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A key on a page, and the file that it is."""

    key: str
    marker: FileMarker


@dataclass(frozen=True, slots=True)
class TablePage:
    """The part of a page that one table gives.

    Attributes:
        files: Ascending by key.
        common_prefixes: Ascending.
        last: The last key or common prefix, after which the next page begins; empty if there is none.
        is_truncated: Whether the table has more.
    """

    files: tuple[ListedFile, ...]
    common_prefixes: tuple[str, ...]
    last: str
    is_truncated: bool


def list_table(live: Sequence[FileMarker], query: ListQuery, *, folder: str, data_prefix: str) -> TablePage:
    """Return the entries of one table.

    Args:
        live: The live files of the snapshot, ascending by path.
        query: What is asked for; its prefix begins with ``folder``, or is a beginning of it.
        folder: What keys of the table begin with, e.g. ``events/``.
        data_prefix: What paths of its files begin with.
    """

    def path_of(key: str) -> str:
        return data_prefix + key[len(folder) :]

    bounds = _Bounds(live, path_of(query.prefix) if query.prefix.startswith(folder) else data_prefix)
    if query.after.startswith(folder):
        bounds.skip_through(path_of(query.after))
    files: list[ListedFile] = []
    prefixes: list[str] = []
    last = ""
    while (marker := bounds.next_marker()) is not None:
        key = folder + marker.path[len(data_prefix) :]
        common_prefix = query.roll_up(key)
        if common_prefix is not None and query.skips_prefix(common_prefix):
            bounds.skip_through(path_of(common_prefix) + BEYOND)
            continue
        if len(files) + len(prefixes) >= query.limit:
            return TablePage(tuple(files), tuple(prefixes), last, is_truncated=True)
        if common_prefix is None:
            files.append(ListedFile(key, marker))
            bounds.position += 1
            last = key
        else:
            prefixes.append(common_prefix)
            bounds.skip_through(path_of(common_prefix) + BEYOND)
            last = common_prefix
    return TablePage(tuple(files), tuple(prefixes), last, is_truncated=False)


class _Bounds:
    """Where in the live files a listing stands; it ends where paths do not begin with ``path_prefix`` any more."""

    def __init__(self, live: Sequence[FileMarker], path_prefix: str) -> None:
        self._live = live
        self._path_prefix = path_prefix
        self.position = bisect_left(live, path_prefix, key=_path)

    def next_marker(self) -> FileMarker | None:
        if self.position >= len(self._live):
            return None
        marker = self._live[self.position]
        return marker if marker.path.startswith(self._path_prefix) else None

    def skip_through(self, path: str) -> None:
        self.position = max(self.position, bisect_right(self._live, path, lo=self.position, key=_path))


def find_file(live: Sequence[FileMarker], path: str) -> FileMarker | None:
    """Return the live file with a path; ``None`` if there is none."""
    position = bisect_left(live, path, key=_path)
    if position < len(live) and (marker := live[position]).path == path:
        return marker
    return None


def _path(marker: FileMarker) -> str:
    return marker.path
