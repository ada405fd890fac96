"""How tables look as keys: the names of their files, pages of them, and where the next page begins. Pure.

A key is ``<table ref>/<partition path>/<file>.parquet``. The ref is ``events`` for the newest state,
``events@1767312000000`` for the state at that time (unix milliseconds), ``events@tag-eom`` for what the tag ``eom`` has
tagged. Neither ``:`` nor ``=`` is used: Hadoop takes the one for a scheme, and Hive the other for a partition.

A snapshot's live files are sorted by path, and so by key: a page begins by bisection, and a folder that becomes a
common prefix is skipped by another one, so that a page costs its own length and not the table's. ETag and time of a
file follow from its marker: asking the store would cost 1,000 requests for a page.

A continuation token names the snapshot of the table in whose middle the page ended, so that all pages of a table show
one state, whichever replica answers. Version 1 of the listing has no token, but a marker, which is a key: the next
marker is the last key with ``#`` and the token behind it. That sorts right after the key, and no key of ours has a
``#``, so that it also means the right thing to whoever takes it for a key.
"""

import base64
import binascii
import hashlib
import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from icedb_log.keys import MAX_MS, TABLE_NAME, TAG_NAME, file_time_ms
from icedb_log.model import FileMarker

from icedb_gateway.errors import S3Error, invalid_argument

TAG_MARK: Final = "tag-"
_SEPARATOR: Final = "@"
_TIME: Final = re.compile(r"[0-9]{1,13}")


@dataclass(frozen=True, slots=True)
class TableRef:
    """A table, in its newest state, or as of a time (unix ms), or as a tag has it."""

    table: str
    as_of_ms: int | None = None
    tag: str | None = None

    @property
    def is_newest(self) -> bool:
        """Whether it is the newest state that is asked for."""
        return self.as_of_ms is None and self.tag is None

    def __str__(self) -> str:
        if self.tag is not None:
            return f"{self.table}{_SEPARATOR}{TAG_MARK}{self.tag}"
        return self.table if self.as_of_ms is None else f"{self.table}{_SEPARATOR}{self.as_of_ms}"


def parse_table_ref(text: str) -> TableRef | None:
    """Return what a first component names; ``None`` if no table can have it. Each ref has one spelling."""
    table, separator, when = text.partition(_SEPARATOR)
    if not TABLE_NAME.fullmatch(table):
        return None
    if not separator:
        return TableRef(table)
    if when.startswith(TAG_MARK) and TAG_NAME.fullmatch(when.removeprefix(TAG_MARK)):
        return TableRef(table, tag=when.removeprefix(TAG_MARK))
    if _TIME.fullmatch(when) and str(int(when)) == when and int(when) <= MAX_MS:
        return TableRef(table, as_of_ms=int(when))
    return None


MAX_TOKEN_CHARS: Final = 8192
_MARK: Final = "#"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class SnapshotName:
    """Which state of a table a listing shows.

    Attributes:
        folder: First component of its keys, e.g. ``events`` or ``events@tag-eom``.
        snapshot_id: As of :class:`icedb_log.log.fold.Snapshot`.
        last_commit_ms: Time of its newest commit: how another replica finds it again.
    """

    folder: str
    snapshot_id: str
    last_commit_ms: int


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a listing goes on: after a key or common prefix, in the middle of a snapshot or between two tables."""

    after: str
    snapshot: SnapshotName | None = None


def encode_token(resume: Resume) -> str:
    """Return a token of URL-safe characters."""
    name = resume.snapshot
    fields: list[Any] = [_VERSION, resume.after]
    if name is not None:
        fields += [name.folder, name.snapshot_id, name.last_commit_ms]
    return base64.urlsafe_b64encode(orjson.dumps(fields)).decode().rstrip("=")


def decode_token(token: str) -> Resume:
    """Return what a token says. Raises S3Error: it is none of ours."""
    if not token or len(token) > MAX_TOKEN_CHARS:
        raise _wrong_token()
    try:
        fields = orjson.loads(base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        raise _wrong_token() from None
    match fields:
        case [int(version), str(after)] if version == _VERSION:
            return Resume(after)
        case [int(version), str(after), str(folder), str(snapshot_id), int(commit_ms)] if version == _VERSION:
            return Resume(after, SnapshotName(folder, snapshot_id, commit_ms))
        case _:
            raise _wrong_token()


def encode_marker(resume: Resume) -> str:
    """Return a marker for version 1 of the listing."""
    return f"{resume.after}{_MARK}{encode_token(resume)}"


def decode_marker(marker: str) -> Resume:
    """Return what a marker says; a key alone says no snapshot. Raises S3Error: its token is none of ours."""
    key, mark, token = marker.rpartition(_MARK)
    if not mark:
        return Resume(marker)
    resume = decode_token(token)
    if resume.after != key:
        raise _wrong_token()
    return resume


def _wrong_token() -> S3Error:
    return invalid_argument("The continuation token provided is incorrect. List again from the beginning.")


_ETAG_BYTES: Final = 16


def etag_of(path: str, size_bytes: int) -> str:
    """Return the ETag of a data file, without quotes.

    It has the form of one that was uploaded in parts: clients do not take such a one for the MD5 of the content.
    """
    return f"{hashlib.blake2b(f'{path}:{size_bytes}'.encode(), digest_size=_ETAG_BYTES).hexdigest()}-1"


def modified_ms_of(marker: FileMarker) -> int:
    """Return when a data file was made: as its name says, or else as its log file says."""
    named_ms = file_time_ms(marker.path)
    return marker.created_ms if named_ms is None else named_ms


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
    """The part of a page that one table gives, both ascending; ``last``: of either, where the next page goes on."""

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
        if common_prefix is not None and common_prefix == query.after:  # it ended an earlier page
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


def _path(marker: FileMarker) -> str:
    return marker.path
