"""Is a table sound? Reads only, at any time, while everything else goes on (rules W1, S1 to S3, M1, J5 and the wire).

Order, which is what makes findings certain: the configuration; the log; fences and pins; all objects, by one listing;
with ``--deep`` the footers; the log again; a second look at whatever is still suspect. What is reported as an error
holds in the second log, and held when the first was read: a merge, a vacuum or a drop in between makes no finding
(:mod:`icedb_log.repair.fsck_data` says why for data files). It never stops at damage: each log file is read by
itself.

Cost: a LIST for each thousand objects, two of the log, a GET for each log file and small record, and with ``--deep``
one ranged GET for each live data file; with ``--pages`` a GET of each as a whole. Memory: the log, and a reference for
each data file.
"""

from dataclasses import dataclass
from typing import Final

from icedb_log.clock import Clock
from icedb_log.errors import NotFound, UnsupportedFormat
from icedb_log.log.reader import DEFAULT_MAX_REFRESH_MS
from icedb_log.parquet.footer import FooterReader
from icedb_log.parquet.pages import PageReader
from icedb_log.repair.fsck_data import (
    Inspection,
    Progress,
    Walk,
    check_config,
    check_data,
    no_progress,
    walk_objects,
)
from icedb_log.repair.fsck_deep import DeepLook, choose_sample, read_all_pages, read_deep, report_deep
from icedb_log.repair.fsck_findings import MAX_LISTED, Findings, FsckReport
from icedb_log.repair.fsck_log import CheckedLog, LogChecker, check_log
from icedb_log.repair.fsck_state import (
    check_fences,
    check_lost,
    check_lost_commits,
    check_pins,
    check_state,
    read_fences,
    read_pins,
)
from icedb_log.store.object_store import MAX_KEYS_PER_PAGE, ObjectInfo
from icedb_log.store.store_clock import MAX_HOST_GAP_MS
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import decode_table_config
from icedb_log.table.table_config import TableConfig

FETCH_THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class FsckOptions:
    """How thorough a check is.

    Attributes:
        footers: Reads the footers of live data files; ``None``: no ``--deep``.
        pages: Reads all of their bytes, too; ``None``: no ``--pages``. Only together with ``footers``.
        sample: How many of them; ``None``: all.
        max_listed: Findings of one code and severity that the report lists.
        fetch_threads: Objects asked for at once.
        page_size: Keys per page of a listing; smaller only in tests.
    """

    footers: FooterReader | None = None
    pages: PageReader | None = None
    sample: int | None = None
    max_listed: int = MAX_LISTED
    fetch_threads: int = FETCH_THREADS
    page_size: int = MAX_KEYS_PER_PAGE


_DEFAULTS: Final = FsckOptions()


def fsck_table(
    table: TableStore,
    *,
    clock: Clock,
    options: FsckOptions = _DEFAULTS,
    progress: Progress = no_progress,
) -> FsckReport:
    """Check one table. Changes nothing; may be repeated, and run at any time.

    Args:
        table: Its store and keys.
        clock: This host's clock; compared with the store's, and decides nothing about ages.
        options: How thorough.
        progress: Told now and then what is being done.

    Raises:
        NotFound: There is nothing of this name.
        Unavailable: The store did not answer, or the log never held still.
    """
    return _Fsck(table, clock, options, progress).run()


class _Fsck:
    """One run."""

    def __init__(self, table: TableStore, clock: Clock, options: FsckOptions, progress: Progress) -> None:
        self._store = table.store
        self._paths = table.paths
        self._clock = clock
        self._options = options
        self._progress = progress
        self._found = Findings(options.max_listed)

    def run(self) -> FsckReport:
        config = self._read_config()
        if config is not None and config.dropped is not None and config.dropped.state != "trash":
            return self._report(None, Walk(), DeepLook())  # it is being deleted: nothing else about it is true for long
        checker = LogChecker(
            TableStore(self._store, self._paths),
            clock=self._clock,
            max_refresh_ms=DEFAULT_MAX_REFRESH_MS if config is None else config.log_grace_ms // 2,
            page_size=self._options.page_size,
            fetch=self._options.fetch_threads,
        )
        self._check_clock()
        self._progress("log", 0, None)
        before = checker.check()
        fences = read_fences(TableStore(self._store, self._paths))
        pins = read_pins(TableStore(self._store, self._paths))
        walk = walk_objects(
            TableStore(self._store, self._paths),
            live=before.live,
            named={*before.live, *before.dead, *(path for files in pins.files.values() for path in files)},
            progress=self._progress,
            page_size=self._options.page_size,
        )
        if config is None and not walk.object_count:
            raise NotFound(f"table {self._paths.name!r} does not exist ({self._paths.prefix}/ is empty)")
        look = self._look_deep(before, walk, config)
        self._progress("log again", 0, None)
        after = checker.check()
        check_log(self._found, self._paths, after, config)
        threads = self._options.fetch_threads
        seen = Inspection(self._store, self._paths, self._found, config, before, walk, after, threads)
        check_data(seen)
        report_deep(self._found, look, after)
        if config is not None:
            check_config(seen, config)
        same = config if config is not None and self._config_etag() == self._etag else None
        check_fences(seen, fences, config=same)
        if not before.files and not after.files:
            check_lost(seen, fences, has_pins=any(pins.files.values()))
        elif config is None or same is not None:  # T4: a purge empties the log
            check_lost_commits(seen, fences)
        check_pins(seen, pins)
        check_state(seen)
        self._check_objects(walk)
        return self._report(after, walk, look)

    _etag = ""

    def _read_config(self) -> TableConfig | None:
        key = self._paths.config_key
        try:
            stored = self._store.get(key)
        except NotFound:
            self._found.add("config-unreadable:missing", key)
            return None
        self._etag = stored.info.etag
        try:
            config = decode_table_config(self._paths, stored.body)
        except UnsupportedFormat as error:
            self._found.add("config-unreadable", key, problem=str(error).removeprefix(f"{key}: "))
            return None
        if config.dropped is not None:
            state = config.dropped.state
            self._found.add("dropped" if state == "trash" else f"dropped:{state}", key)
        return config

    def _config_etag(self) -> str:
        try:
            return self._store.head(self._paths.config_key).etag
        except NotFound:
            return ""

    def _check_clock(self) -> None:
        asked_ms = self._clock.now_ms()
        store_ms = self._store.list_page(self._paths.config_key, limit=1).store_now_ms
        gap_ms = store_ms - asked_ms
        if abs(gap_ms) > MAX_HOST_GAP_MS:
            self._found.add("store-clock", self._paths.config_key, minutes=gap_ms / 60_000)

    def _look_deep(self, log: CheckedLog, walk: Walk, config: TableConfig | None) -> DeepLook:
        if self._options.footers is None:
            return DeepLook()
        live = [path for path in sorted(log.live) if path not in walk.missing]
        sample = self._options.sample
        chosen = live if sample is None else choose_sample(live, sample, self._clock.now_ms())
        infos = [ObjectInfo(path, "", walk.resized.get(path, log.live[path].size_bytes), 0) for path in chosen]
        look = read_deep(self._options.footers, self._paths, log, infos=infos, config=config, progress=self._progress)
        if self._options.pages is not None:
            read_all_pages(self._options.pages, look, infos, progress=self._progress)
        return look

    def _check_objects(self, walk: Walk) -> None:
        paths, found = self._paths, self._found
        for info in walk.strays:
            found.add("stray-below-log", info.key)
        for info in walk.unknown:
            if not info.key.startswith(paths.staging_prefix):
                found.add("unknown-object", info.key, size_bytes=info.size_bytes)
        if walk.future:
            info, ahead_ms = walk.future[0]
            found.add("store-clock:objects", info.key, count=len(walk.future), minutes=ahead_ms / 60_000)

    def _report(self, log: CheckedLog | None, walk: Walk, look: DeepLook) -> FsckReport:
        figures = {"objects": walk.object_count, "footers": look.footer_count, "pages": look.page_count}
        if log is not None:
            figures |= {
                "log_files": len(log.files),
                "live_files": len(log.live),
                "live_rows": sum(marker.row_count or 0 for marker in log.live.values()),
                "live_bytes": sum(marker.size_bytes for marker in log.live.values()),
            }
        return self._found.report(self._paths.name, is_deep=self._options.footers is not None, figures=figures)
