"""Reading all log files of a table as of one moment (rules R1 and R2).

Owns the cache of parsed log files by key and ETag. Must never skip a log file, and never return a listing
whose pages contradict each other: whatever changes under the reader makes it start again.
"""

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from icedb_log.clock import Clock
from icedb_log.codec import decode_log_file
from icedb_log.errors import CorruptLog, NotFound, PreconditionFailed, Unavailable
from icedb_log.keys import TablePaths, parse_log_key
from icedb_log.model import ListedLogFile, LogView
from icedb_log.object_store import MAX_KEYS_PER_PAGE, Listing, ObjectInfo, ObjectStore, list_all

MAX_READ_ATTEMPTS = 10
FIRST_BACKOFF_MS = 10
FETCH_THREADS = 16
DEFAULT_MAX_REFRESH_MS = 5 * 60 * 1000


class LogReader:
    """Reads one table's log, fetching only log files that changed since the last read. Thread-safe.

    Args:
        store: The object store.
        paths: Keys of the table.
        clock: For back-off and for the time a refresh takes.
        max_refresh_ms: A refresh that takes longer is thrown away (R2): half the log files' grace period,
            ``config.log_grace_ms // 2``.
        page_size: Keys per page; smaller only in tests.
        fetch_threads: Log files fetched at once; 1 fetches one after another in the caller's thread.
    """

    def __init__(
        self,
        store: ObjectStore,
        paths: TablePaths,
        *,
        clock: Clock,
        max_refresh_ms: int = DEFAULT_MAX_REFRESH_MS,
        page_size: int = MAX_KEYS_PER_PAGE,
        fetch_threads: int = FETCH_THREADS,
    ) -> None:
        self._store = store
        self._paths = paths
        self._clock = clock
        self._max_refresh_ms = max_refresh_ms
        self._page_size = page_size
        self._fetch_threads = fetch_threads
        self._cache: dict[str, ListedLogFile] = {}
        self._lock = threading.Lock()

    def read(self) -> LogView:
        """Read the whole log.

        Costs one listing (two when the log has more than one page) and one GET for each new log file.

        Raises:
            CorruptLog: A log file is malformed or misnamed (S3).
            Unavailable: The store did not answer, or the log kept changing under every attempt.
        """
        for attempt in range(MAX_READ_ATTEMPTS):
            if attempt:
                self._clock.sleep_ms(FIRST_BACKOFF_MS << attempt)
            view = self._read_once()
            if view is not None:
                return view
        raise Unavailable(
            f"table {self._paths.name}: the log below {self._paths.log_prefix} changed during each of "
            f"{MAX_READ_ATTEMPTS} reads, or a read took longer than {self._max_refresh_ms} ms; try again, "
            "or raise the table's log grace period"
        )

    def _read_once(self) -> LogView | None:
        started_ms = self._clock.monotonic_ms()
        listing = self._list()
        with self._lock:
            cached = self._cache
        try:
            fetched = self._fetch([info for info in listing.objects if not _is_current(cached.get(info.key), info)])
        except (NotFound, PreconditionFailed):
            return None  # R1: a log file was deleted or replaced since the listing
        # WARN: pages of a listing are taken at different times. Without this second look: page 1 shows an input
        # log file, the janitor deletes it and strips the merge, page 2 shows the stripped merge, and rows count twice.
        second = self._list() if listing.page_count > 1 else listing
        if not _still_holds(listing, second):
            return None
        if self._clock.monotonic_ms() - started_ms > self._max_refresh_ms:
            return None  # R2: what was listed first may be deleted by now
        current = {
            info.key: file if file is not None and file.modified_ms == info.modified_ms else _with_info(file, info)
            for info in listing.objects
            for file in [fetched.get(info.key) or cached[info.key]]
        }
        if _misses_a_dead_log_file(current, second):
            return None
        with self._lock:
            self._cache = current
        return LogView(self._paths.name, tuple(current.values()), listing.store_now_ms)

    def _list(self) -> Listing:
        return list_all(self._store, self._paths.log_prefix, page_size=self._page_size)

    def _fetch(self, infos: list[ObjectInfo]) -> dict[str, ListedLogFile]:
        if self._fetch_threads == 1 or len(infos) < 2:  # noqa: PLR2004 - one needs no pool
            return {info.key: self._fetch_one(info) for info in infos}
        with ThreadPoolExecutor(min(self._fetch_threads, len(infos)), "icedb-log-reader") as pool:
            return {file.key: file for file in pool.map(self._fetch_one, infos)}

    def _fetch_one(self, info: ObjectInfo) -> ListedLogFile:
        stored = self._store.get(info.key, if_match=info.etag)  # R1
        name = parse_log_key(info.key)
        log = decode_log_file(info.key, stored.body)
        if log.commit_id is not None and name.time_ms != log.time_ms:
            raise CorruptLog(f"{info.key}: line 0: t is {log.time_ms}, its name says {name.time_ms}")
        return ListedLogFile(info.key, info.etag, info.modified_ms, info.size_bytes, log)


def _is_current(file: ListedLogFile | None, info: ObjectInfo) -> bool:
    return file is not None and file.etag == info.etag


def _with_info(file: ListedLogFile, info: ObjectInfo) -> ListedLogFile:
    # The same bytes written again: LastModified moved on, and rule J1 wants the newer one.
    return ListedLogFile(file.key, file.etag, info.modified_ms, info.size_bytes, file.log)


def _still_holds(first: Listing, second: Listing) -> bool:
    etags = {info.key: info.etag for info in second.objects}
    return all(etags.get(info.key) == info.etag for info in first.objects)


def _misses_a_dead_log_file(current: Mapping[str, ListedLogFile], second: Listing) -> bool:
    # WARN: R1: a log file landed behind the listing, and the merge that killed it before the listing came there. To the
    # fold it looks deleted (R3), and the janitor would record a horizon that never comes down again.
    late = {info.key for info in second.objects} - current.keys()
    return bool(late) and any(t.path in late for file in current.values() for t in file.log.log_tombstones)
