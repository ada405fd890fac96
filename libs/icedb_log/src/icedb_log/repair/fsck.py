"""Is a table sound? Reads only, at any time, while everything else goes on (rules W1, S1 to S3, M1, J5 and the wire).

Order, which is what makes findings certain: the configuration; the log; fences and tags; all objects, by one listing;
with ``--deep`` the footers; the log again; a second look at whatever is still suspect. What is reported as an error
holds in the second log, and held when the first was read: a merge, a vacuum or a drop in between makes no finding
(:mod:`icedb_log.repair.fsck_data` says why for data files). It never stops at damage: each log file is read by
itself.

Cost: a LIST for each thousand objects, two of the log, a GET for each log file and small record, and with ``--deep``
one ranged GET for each live data file; with ``--pages`` a GET of each as a whole. Memory: the log, and a reference for
each data file.

A data file never changes, so each contradiction between its footer and the log is certain as soon as both are read;
whether the file is still live is asked of the log that is read last. Nothing here reads a row; with ``--pages`` all
bytes are held against checksums.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from icedb_log.clock import Clock
from icedb_log.errors import NotFound, TableNotFound, UnsupportedFormat
from icedb_log.keys import TablePaths
from icedb_log.log.reader import DEFAULT_MAX_REFRESH_MS
from icedb_log.log.widening import fixed_columns, is_widening
from icedb_log.model import ColumnStats, FileMarker
from icedb_log.parquet.footer import ColumnBounds, Footer, FooterReader, UnreadableCause
from icedb_log.parquet.pages import PageReader
from icedb_log.repair.fsck_data import Inspection, Progress, Walk, check_config, check_data, no_progress, walk_objects
from icedb_log.repair.fsck_findings import MAX_LISTED, Findings, FsckReport
from icedb_log.repair.fsck_log import CheckedLog, LogChecker, check_log
from icedb_log.repair.fsck_state import (
    check_fences,
    check_lost,
    check_lost_commits,
    check_state,
    check_tags,
    read_fences,
    read_tags,
)
from icedb_log.store.object_store import MAX_KEYS_PER_PAGE, ObjectInfo
from icedb_log.store.store_clock import MAX_HOST_GAP_MS
from icedb_log.store.table_store import TableStore
from icedb_log.table.decimals import find_decimal
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

    @property
    def is_deep(self) -> bool:
        """Whether footers are read."""
        return self.footers is not None


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
    is_deep = options.is_deep
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
    fences, tags = read_fences(table), read_tags(table)
    walk = walk_objects(
        table,
        live=before.live,
        named={*before.live, *before.dead, *(path for files in tags.files.values() for path in files)},
        progress=progress,
        page_size=options.page_size,
    )
    if config is None and not walk.object_count:
        raise TableNotFound(
            f"table {table.name!r} does not exist; see `icedb table list` ({table.paths.prefix}/ is empty)",
            table=table.name,
        )
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
    check_fences(seen, fences)
    if not before.files and not after.files:
        check_lost(seen, fences, has_tags=any(tags.files.values()))
    elif config is None or same is not None:  # T5: a purge empties the log
        check_lost_commits(seen, fences)
    check_tags(seen, tags)
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


PROGRESS_FILES: Final = 100
"""After so many files it is told how far it is."""
MAX_SUSPECTS: Final = 100_000
"""Files that contradict the log and are remembered until the log has been read again."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """One contradiction between a footer and the log: the finding that it becomes if the file is still live.

    ``replaced`` among its values is another data file that has to be live, too.
    """

    kind: str
    path: str
    values: Mapping[str, Any]


@dataclass(slots=True)
class DeepLook:
    """What footers said.

    Attributes:
        footer_count: Footers that could be read.
        suspicions: Contradictions, at most ``MAX_SUSPECTS``.
        page_count: Pages that were read.
        unsummed: Files that have pages without a checksum.
        gone: Files that are not there (any more).
        unanswered: Files of which the store said nothing, and its words about the first of them.
    """

    footer_count: int = 0
    page_count: int = 0
    suspicions: list[Suspicion] = field(default_factory=list)
    unsummed: list[str] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    unanswered: list[tuple[str, str]] = field(default_factory=list)

    def note_unread(self, path: str, cause: UnreadableCause, reason: str, *, kind: str) -> None:
        """Take a file in that could not be read; ``kind``: of the finding if it is damaged."""
        if cause == "gone":
            self.gone.add(path)
        elif cause == "unanswered":
            self.unanswered.append((path, reason))
        else:
            self.suspicions.append(Suspicion(kind, path, {"problem": reason}))


def read_deep(
    look: DeepLook,
    reader: FooterReader,
    paths: TablePaths,
    log: CheckedLog,
    *,
    infos: Sequence[ObjectInfo],
    config: TableConfig | None,
    progress: Progress = no_progress,
) -> None:
    """Read the footers of live data files, given with their real sizes, and compare them with their markers."""
    # By rule those of partitions and of the sort order have statistics.
    columns = frozenset(column for marker in log.live.values() for column in marker.stats)
    columns = columns if config is None else fixed_columns(config)
    for number, footer in enumerate(reader.read_footers(infos, bounds_of=columns), 1):
        path = footer.info.key
        if isinstance(footer, Footer):
            look.footer_count += 1
            if len(look.suspicions) < MAX_SUSPECTS:
                look.suspicions.extend(compare(paths, footer, log.live[path], log))
        else:
            look.note_unread(path, footer.cause, footer.reason, kind="footer-unreadable")
        if number % PROGRESS_FILES == 0 or number == len(infos):
            progress("footers", number, len(infos))


def read_all_pages(
    reader: PageReader, look: DeepLook, infos: Sequence[ObjectInfo], *, progress: Progress = no_progress
) -> None:
    """Read all bytes of live data files whose footers could be read, and note what is not as it was written."""
    known = {each.path for each in look.suspicions if each.kind == "footer-unreadable"} | look.gone
    whole = [info for info in infos if info.key not in known]
    for number, found in enumerate(reader.read_pages(whole), 1):
        look.page_count += found.page_count
        if found.unsummed_count:
            look.unsummed.append(found.info.key)
        if found.cause is not None:
            look.note_unread(found.info.key, found.cause, found.reason, kind="page-damaged")
        progress("pages", number, len(whole))


def report_deep(found: Findings, look: DeepLook, log: CheckedLog) -> None:
    """Report what still holds in a log that was read afterwards."""
    for each in look.suspicions:
        if each.path in log.live and each.values.get("replaced", each.path) in log.live:
            found.add(each.kind, each.path, **each.values)
    for path in sorted(look.gone):
        if path in log.live:  # W1: it was there at the listing, and is live after it was looked for
            found.add("dangling:just-now", path)
    if look.unsummed:
        found.add("pages-unsummed", look.unsummed[0], count=len(look.unsummed))
    if look.unanswered:
        path, reason = look.unanswered[0]
        found.add("not-checked:unanswered", path, count=len(look.unanswered), problem=reason[:200])


def choose_sample(paths: list[str], count: int, seed: int) -> list[str]:
    """Return at most ``count`` of the paths, evenly spread, beginning somewhere else with each seed."""
    if count >= len(paths):
        return paths
    start = seed % len(paths)
    return sorted(paths[(start + number * len(paths) // count) % len(paths)] for number in range(count))


def compare(paths: TablePaths, footer: Footer, marker: FileMarker, log: CheckedLog) -> Iterator[Suspicion]:
    """Yield what a footer and its marker contradict each other in."""
    path = marker.path
    if marker.row_count is not None and marker.row_count != footer.row_count:
        yield Suspicion("row-count-mismatch", path, {"found": footer.row_count, "logged": marker.row_count})
    origin = footer.origin
    if origin.kind != "foreign" and origin.table == paths.name:  # imported: its name and partition were chosen here
        partition = path.removeprefix(paths.data_prefix).rpartition("/")[0]
        if origin.partition != partition:
            values = {"written": origin.partition or "(none)", "found": partition or "(none)"}
            yield Suspicion("partition-mismatch", path, values)
        for replaced in origin.inputs:
            if replaced in log.live:
                yield Suspicion("input-still-live", path, {"kind": origin.kind, "replaced": replaced})
    yield from _compare_types(paths, footer, path, log.schema)
    for column, stats in marker.stats.items():
        bounds = footer.bounds.get(column)
        problem = find_stats_problem(stats, bounds, footer.columns[column]) if bounds is not None else None
        if problem:
            yield Suspicion("statistics-mismatch", path, {"column": column, "problem": problem})


def _compare_types(paths: TablePaths, footer: Footer, path: str, schema: Mapping[str, str]) -> Iterator[Suspicion]:
    fields = {component.partition("=")[0].lower() for component in paths.partition_of(path).split("/")}
    for column, found in (*footer.columns.items(), *footer.odd_columns.items()):
        known, is_odd = schema.get(column), column in footer.odd_columns
        values = {"column": column, "found": found, "known": known}
        if known is None and column.lower() in fields:
            yield Suspicion("path-column", path, values)
        elif is_odd:
            yield Suspicion("type-mismatch:odd", path, values)
        elif known is None:
            yield Suspicion("type-mismatch:unknown", path, values)
        elif found != known and not is_widening(found, known):
            yield Suspicion("type-mismatch", path, values)


def find_stats_problem(stats: ColumnStats, bounds: ColumnBounds, sql_type: str) -> str | None:
    """Return why a marker's statistics would lose rows that the footer proves; ``None`` if they would not.

    Certain only: a text of a footer may be cut, its maximum then being rounded up.
    """
    null_count = stats[2]
    digits = find_decimal(sql_type)  # its text does not sort as its values do
    said: list[Any] = [*stats[:2], bounds.low, bounds.high]
    if digits is not None:
        said = [digits.read(each) if isinstance(each, str) else each for each in said]
    low, high, least, most = said
    if bounds.null_count is not None and bounds.null_count != null_count:
        return f"{bounds.null_count:,} nulls; the log says {null_count:,}"
    if low is None or high is None or least is None or most is None:
        return None
    try:
        if low > least and (bounds.is_exact or not str(low).startswith(str(least))):
            return f"its minimum is {_show(bounds.low)}; the log says {_show(stats[0])}"
        if high < most and (bounds.is_exact or high < str(most)[:-1]):
            return f"its maximum is {_show(bounds.high)}; the log says {_show(stats[1])}"
    except TypeError:
        return f"its values are like {_show(bounds.low)}; the log says {_show(stats[0])}, which is of another kind"
    return None


def _show(value: object) -> str:
    return repr(value)[:80]


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
