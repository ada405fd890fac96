"""Reading all log files of a table as of one moment (rules R1 and R2), whole or only their heads.

Owns the cache of parsed log files by key and ETag. Must never skip a log file, and never return a listing
whose pages contradict each other: whatever changes under the reader makes it start again.
"""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any, Generic, TypeVar

from icedb_log.clock import Clock
from icedb_log.errors import CorruptLog, NotFound, PreconditionFailed, Unavailable
from icedb_log.keys import TablePaths, parse_log_key
from icedb_log.log.codec import HEAD_LINES, decode_log_file, decode_log_head
from icedb_log.log.markers import paused_gc
from icedb_log.model import ListedLogFile, ListedLogHead, LogFile, LogHead, LogHeads, LogView
from icedb_log.store.object_store import (
    Listing,
    ObjectInfo,
    largest_page,
    limit_reads,
    list_all,
)
from icedb_log.store.table_store import TableStore

MAX_READ_ATTEMPTS = 10
FIRST_BACKOFF_MS = 10
FETCH_THREADS = 64
"""Log files fetched at once by one reader, or by all that share threads: a cold start waits for answers no longer than
it takes to ask, and a store that is slow holds so many threads and no more."""
DEFAULT_MAX_REFRESH_MS = 5 * 60 * 1000

HEAD_BYTES = 128 * 1024
"""How much of a log file is fetched at first for its head; doubled until the head is complete. A commit of 1,000
batches, the most that one takes, has a head of 75 KB: ids, and what tells their contents (I8)."""

_Listed = TypeVar("_Listed", ListedLogFile, ListedLogHead)


class ConsistentReader(ABC, Generic[_Listed]):
    """What both readers share: a consistent listing, and a cache. Thread-safe.

    Args:
        table: Its store and keys.
        clock: For back-off and for the time a refresh takes.
        max_refresh_ms: A refresh that takes longer is thrown away (R2): half the log files' grace period,
            ``config.log_grace_ms // 2``.
        page_size: Keys per page; ``None``: as many as the store lists at once. Smaller only in tests.
        fetch: How many log files are fetched at once, in threads of this reader's own, or threads that many readers
            share; 1 fetches one after another in the caller's thread, and so does a store that wants it
            (:func:`~icedb_log.store.object_store.limit_reads`).
        is_compact: Keep the markers' lines instead of what they decode to: for those who keep many, and look at few.
    """

    def __init__(
        self,
        table: TableStore,
        *,
        clock: Clock,
        max_refresh_ms: int = DEFAULT_MAX_REFRESH_MS,
        page_size: int | None = None,
        fetch: int | Executor = FETCH_THREADS,
        is_compact: bool = False,
    ) -> None:
        self._store = table.store
        self._paths = table.paths
        self._clock = clock
        self._max_refresh_ms = max_refresh_ms
        self._page_size = page_size or largest_page(table.store)
        self._fetch = fetch
        self._threads = limit_reads(table.store, fetch if isinstance(fetch, int) else FETCH_THREADS)
        self._is_compact = is_compact
        self._settings: dict[str, Any] = {
            "clock": clock,
            "max_refresh_ms": max_refresh_ms,
            "page_size": page_size,
            "fetch": fetch,
        }
        self._cache: dict[str, _Listed] = {}
        self._written: _Listed | None = None
        self._lock = threading.Lock()

    @property
    def kept_bytes(self) -> int:
        """Bytes of the log files that are kept parsed, as they are stored."""
        with self._lock:
            return sum(file.size_bytes for file in self._cache.values())

    def _read_all(self) -> tuple[tuple[_Listed, ...], int]:
        """Return every log file and the store's clock before the first was listed."""
        # What an attempt fetched serves the next one, as a cache by key and ETag does: beside a vacuum that strips one
        # log file after another (J3), a reader that began from nothing each time would never come to an end.
        fetched: dict[str, _Listed] = {}
        for attempt in range(MAX_READ_ATTEMPTS):
            if attempt:
                self._clock.sleep_ms(FIRST_BACKOFF_MS << attempt)
            found = self._read_once(fetched)
            if found is not None:
                return found
        raise Unavailable(
            f"table {self._paths.name}: the log below {self._paths.log_prefix} changed during each of "
            f"{MAX_READ_ATTEMPTS} reads, or a read took longer than {self._max_refresh_ms} ms; try again, "
            "or raise the table's log grace period"
        )

    def _read_once(self, fetched: dict[str, _Listed]) -> tuple[tuple[_Listed, ...], int] | None:
        started_ms = self._clock.monotonic_ms()
        listing = self._list()
        with self._lock:
            if self._written is not None:
                self._cache[self._written.key], self._written = self._written, None
            # A replaced or deleted log file is freed before its successor is fetched: both may be large.
            cached = self._cache = {
                info.key: file
                for info in listing.objects
                if (file := self._cache.get(info.key)) is not None and _is_current(file, info)
            }
        if len(cached) < len(listing.objects):
            rest = (info for info in listing.objects if info.key not in cached)
            stale = [info for info in rest if not _is_current(fetched.get(info.key), info)]
            found = self._fetch_all(stale)
            fetched.update(found)
            if len(found) < len(stale):
                return None  # R1: a log file was deleted or replaced since the listing
        second = self._look_again(listing)
        if second is not listing and not _still_holds(listing, second):
            return None
        if self._takes_too_long(started_ms):
            fetched.clear()
            return None
        current: dict[str, _Listed] = {}
        for info in listing.objects:
            file = cached.get(info.key) or fetched[info.key]
            if file.modified_ms != info.modified_ms:
                # The same bytes written again: LastModified moved on, and rule J1 wants the newer one.
                file = replace(file, modified_ms=info.modified_ms)
            current[info.key] = file
        if self._misses_a_dead_log_file(current, second):
            return None
        with self._lock:
            self._cache = current
        return tuple(current.values()), listing.store_now_ms

    def _list(self) -> Listing:
        return list_all(self._store, self._paths.log_prefix, page_size=self._page_size)

    def _look_again(self, listing: Listing) -> Listing:
        """Return a second listing; the same one if it has one page, which is of one moment (R1).

        WARN: pages of a listing are taken at different times. Without this second look: page 1 shows an input log file,
        the janitor deletes it and strips the merge, page 2 shows the stripped merge, and rows count twice.
        """
        return self._list() if listing.page_count > 1 else listing

    def _takes_too_long(self, started_ms: int) -> bool:
        """Whether what was listed when a read began may be deleted by now (R2)."""
        return self._clock.monotonic_ms() - started_ms > self._max_refresh_ms

    def _fetch_all(self, infos: list[ObjectInfo]) -> dict[str, _Listed]:
        """Fetch log files and parse them; those that are not what was listed any more are left out."""
        fetched = self._fetch_bodies(infos)
        found: dict[str, _Listed] = {}
        # By one thread, when all are there: of threads that parse, one at a time works and the others take turns.
        with paused_gc(), naming_remedy(self._paths):
            while fetched:  # each body is freed when it is parsed
                info, body = fetched.pop()
                found[info.key] = self._parse(info, body)
        return found

    def _fetch_bodies(self, infos: list[ObjectInfo]) -> list[tuple[ObjectInfo, bytes]]:
        threads = min(self._threads, len(infos))
        rest = deque(infos)
        if threads <= 1:  # one needs no pool
            return self._fetch_some(rest)
        shared = self._fetch if isinstance(self._fetch, Executor) else None
        # Each thread takes one log file after the other: to hand each one over costs as much as to fetch it.
        with nullcontext(shared) if shared else ThreadPoolExecutor(threads, "icedb-log-reader") as pool:
            parts = [pool.submit(self._fetch_some, rest) for _ in range(threads)]
            return [pair for part in parts for pair in part.result()]

    def _fetch_some(self, rest: deque[ObjectInfo]) -> list[tuple[ObjectInfo, bytes]]:
        """Fetch log files until none is left; after an error all threads stop."""
        found: list[tuple[ObjectInfo, bytes]] = []
        while True:
            try:
                info = rest.popleft()
            except IndexError:  # nothing is left; of a fetch it would be an error as any other
                return found
            try:
                found.append((info, self._fetch_body(info)))
            except (NotFound, PreconditionFailed):
                continue
            except BaseException:
                rest.clear()
                raise

    @abstractmethod
    def _fetch_body(self, info: ObjectInfo) -> bytes:
        """Fetch one log file, or what is needed of it, if it is still what was listed (R1)."""

    @abstractmethod
    def _parse(self, info: ObjectInfo, body: bytes) -> _Listed:
        """Return what was fetched as it is kept. Raises CorruptLog (S3)."""

    @abstractmethod
    def _misses_a_dead_log_file(self, current: Mapping[str, _Listed], second: Listing) -> bool:
        """Return whether a log file landed behind the listing that another one, in it, has killed already (R1)."""


class LogHeadReader(ConsistentReader[ListedLogHead]):
    """Reads the heads of one table's log files: ids and schema, without data files. Thread-safe.

    The log file of a merge of 100,000 data files has 20 MB; its head is in the first 128 KiB. What stands behind a
    head is not checked: that the log is sound is found by whoever reads it whole (S3).
    """

    def read(self) -> LogHeads:
        """Read the heads of the whole log.

        Costs one listing (two when the log has more than one page) and mostly one ranged GET for each new log file.

        Raises:
            CorruptLog: The head of a log file is malformed, or the log file misnamed (S3).
            Unavailable: The store did not answer, or the log kept changing under every attempt.
        """
        files, store_now_ms = self._read_all()
        return LogHeads(self._paths.name, files, store_now_ms)

    def remember(self, key: str, *, etag: str, body: bytes) -> None:
        """Keep the head of a log file that this process has just written: the next read need not fetch it.

        Nothing else is taken from it: whether it is there, and still is this one, the listing of that read tells (R1).

        Args:
            key: Its key.
            etag: What the store answered to the PUT that created it.
            body: What was written.
        """
        written = self._parse(ObjectInfo(key, etag, len(body), modified_ms=0), body)
        with self._lock:
            self._written = written  # one: who writes the next one has read the log before that

    def _fetch_body(self, info: ObjectInfo) -> bytes:
        body = b""
        while body.count(b"\n") < HEAD_LINES:
            # As much again as there is already: the first part, and then each time the double.
            length = len(body) or HEAD_BYTES
            part = self._store.get_range(info.key, start=len(body), length=length, if_match=info.etag)  # R1
            body += part.body
            if len(part.body) < length or len(body) == info.size_bytes:
                break
        return body

    def _parse(self, info: ObjectInfo, body: bytes) -> ListedLogHead:
        head = self._decode(info.key, body)
        require_own_time(info.key, head)
        return ListedLogHead(info.key, info.etag, info.modified_ms, info.size_bytes, head)

    def _decode(self, key: str, body: bytes) -> LogHead:
        return decode_log_head(key, body)

    def _misses_a_dead_log_file(self, current: Mapping[str, ListedLogHead], second: Listing) -> bool:
        # No horizon and no live file is concluded from heads; and what landed behind the listing landed after the read
        # began: no append does that to whoever holds the ingest fence (F1), and only appends have ids or new columns.
        del current, second
        return False


class LogReader(ConsistentReader[ListedLogFile]):
    """Reads one table's log, fetching only log files that changed since the last read. Thread-safe."""

    @cached_property
    def heads(self) -> LogHeadReader:
        """Reads the heads of the same log, with a cache of its own that lives as long as this reader."""
        return LogHeadReader(TableStore(self._store, self._paths), **self._settings)

    def of_table(self, paths: TablePaths) -> "LogReader":
        """Return a fresh reader of another table's log, set up as this one."""
        return LogReader(TableStore(self._store, paths), **self._settings, is_compact=self._is_compact)

    def read(self) -> LogView:
        """Read the whole log.

        Costs one listing (two when the log has more than one page) and one GET for each new log file.

        Raises:
            CorruptLog: A log file is malformed or misnamed (S3).
            Unavailable: The store did not answer, or the log kept changing under every attempt.
        """
        files, store_now_ms = self._read_all()
        return LogView(self._paths.name, files, store_now_ms)

    def _fetch_body(self, info: ObjectInfo) -> bytes:
        """Fetch a log file as it was listed, and no other version of it (R1)."""
        return self._store.get(info.key, if_match=info.etag).body

    def _parse(self, info: ObjectInfo, body: bytes) -> ListedLogFile:
        log = self._decode(info.key, body)
        require_own_time(info.key, log)
        return ListedLogFile(info.key, info.etag, info.modified_ms, info.size_bytes, log)

    def _decode(self, key: str, body: bytes) -> LogFile:
        return decode_log_file(key, body, is_compact=self._is_compact)

    def _misses_a_dead_log_file(self, current: Mapping[str, ListedLogFile], second: Listing) -> bool:
        # WARN: R1: a log file landed behind the listing, and the merge that killed it before the listing came there.
        # To the fold it looks deleted (R3), and the janitor would record a horizon that never comes down again.
        late = {info.key for info in second.objects} - current.keys()
        return bool(late) and any(t.path in late for file in current.values() for t in file.log.log_tombstones)


@contextmanager
def naming_remedy(paths: TablePaths) -> Iterator[None]:
    """Add to the error about a damaged log file (S3) what a person does about it."""
    try:
        yield
    except CorruptLog as error:
        raise CorruptLog(
            f"{error}. `icedb fsck {paths.name}` lists all damage; bring the log file back from a backup, or make a "
            f"new log: `icedb rebuild {paths.name} --dry-run` (docs/repair.md)"
        ) from error


def require_own_time(key: str, log: LogHead) -> None:
    """Refuse a log file of ours whose time is not that of its name. Raises CorruptLog."""
    name = parse_log_key(key)
    if log.commit_id is not None and name.time_ms != log.time_ms:
        raise CorruptLog(f"{key}: line 0: t is {log.time_ms}, its name says {name.time_ms}")


def _is_current(file: ListedLogHead | None, info: ObjectInfo) -> bool:
    return file is not None and file.etag == info.etag


def _still_holds(first: Listing, second: Listing) -> bool:
    etags = {info.key: info.etag for info in second.objects}
    return all(etags.get(info.key) == info.etag for info in first.objects)
