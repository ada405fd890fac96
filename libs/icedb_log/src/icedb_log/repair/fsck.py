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
from icedb_log.repair.fsck_data import Inspection, Progress, Walk, check_config, check_data, no_progress, walk_objects
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
from icedb_log.units import MINUTE_MS

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
    found = Findings(options.max_listed)
    is_deep = options.footers is not None
    config, etag = _read_config(table, found)
    if config is not None and config.dropped is not None and config.dropped.state != "trash":
        # It is being deleted: nothing else about it is true for long.
        return found.report(table.name, is_deep=is_deep, figures=_count(None, Walk(), DeepLook()))
    checker = LogChecker(
        table,
        clock=clock,
        max_refresh_ms=DEFAULT_MAX_REFRESH_MS if config is None else config.log_grace_ms // 2,
        page_size=options.page_size,
        fetch=options.fetch_threads,
    )
    _check_clock(table, found, clock)
    progress("log", 0, None)
    before = checker.check()
    fences, pins = read_fences(table), read_pins(table)
    walk = walk_objects(
        table,
        live=before.live,
        named={*before.live, *before.dead, *(path for files in pins.files.values() for path in files)},
        progress=progress,
        page_size=options.page_size,
    )
    if config is None and not walk.object_count:
        raise NotFound(f"table {table.name!r} does not exist; see `icedb table list` ({table.paths.prefix}/ is empty)")
    look = DeepLook()
    if options.footers is not None:
        live = [path for path in sorted(before.live) if path not in walk.missing]
        chosen = live if options.sample is None else choose_sample(live, options.sample, clock.now_ms())
        infos = [ObjectInfo(path, "", walk.resized.get(path, before.live[path].size_bytes), 0) for path in chosen]
        read_deep(look, options.footers, table.paths, before, infos=infos, config=config, progress=progress)
        if options.pages is not None:
            read_all_pages(options.pages, look, infos, progress=progress)
    progress("log again", 0, None)
    after = checker.check()
    seen = Inspection(table, found, config, before, walk, after, options.fetch_threads)
    check_log(found, table.paths, after, config)
    check_data(seen)
    report_deep(found, look, after)
    if config is not None:
        check_config(seen, config)
    same = config if config is not None and _find_config_etag(table) == etag else None
    check_fences(seen, fences, config=same)
    if not before.files and not after.files:
        check_lost(seen, fences, has_pins=any(pins.files.values()))
    elif config is None or same is not None:  # T4: a purge empties the log
        check_lost_commits(seen, fences)
    check_pins(seen, pins)
    check_state(seen)
    return found.report(table.name, is_deep=is_deep, figures=_count(after, walk, look))


def _read_config(table: TableStore, found: Findings) -> tuple[TableConfig | None, str]:
    """Return the configuration, if it can be read, with its ETag."""
    key = table.paths.config_key
    try:
        stored = table.store.get(key)
    except NotFound:
        found.add("config-unreadable:missing", key)
        return None, ""
    try:
        config = decode_table_config(table.paths, stored.body)
    except UnsupportedFormat as error:
        found.add("config-unreadable", key, problem=str(error).removeprefix(f"{key}: "))
        return None, stored.info.etag
    if config.dropped is not None:
        state = config.dropped.state
        found.add("dropped" if state == "trash" else f"dropped:{state}", key)
    return config, stored.info.etag


def _find_config_etag(table: TableStore) -> str:
    try:
        return table.store.head(table.paths.config_key).etag
    except NotFound:
        return ""


def _check_clock(table: TableStore, found: Findings, clock: Clock) -> None:
    key, asked_ms = table.paths.config_key, clock.now_ms()
    gap_ms = table.read_store_clock() - asked_ms
    if abs(gap_ms) > MAX_HOST_GAP_MS:
        found.add("store-clock", key, minutes=gap_ms / MINUTE_MS)


def _count(log: CheckedLog | None, walk: Walk, look: DeepLook) -> dict[str, int]:
    figures = {"objects": walk.object_count, "footers": look.footer_count, "pages": look.page_count}
    if log is not None:
        figures |= {
            "log_files": len(log.files),
            "live_files": len(log.live),
            "live_rows": sum(marker.row_count or 0 for marker in log.live.values()),
            "live_bytes": sum(marker.size_bytes for marker in log.live.values()),
        }
    return figures
