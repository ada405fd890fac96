"""What the footers of live data files say, against what the log says of them (``--deep``).

A data file never changes, so each contradiction is certain as soon as both are read; whether the file is still live is
asked of the log that is read last. Nothing here reads a row; with ``--pages`` all bytes are held against checksums.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from icedb_log.keys import TablePaths
from icedb_log.log.widening import fixed_columns, is_widening
from icedb_log.model import ColumnStats, FileMarker
from icedb_log.parquet.footer import ColumnBounds, Footer, FooterReader, UnreadableCause
from icedb_log.parquet.pages import PageReader
from icedb_log.repair.fsck_data import Progress, no_progress
from icedb_log.repair.fsck_findings import Findings
from icedb_log.repair.fsck_log import CheckedLog
from icedb_log.store.object_store import ObjectInfo
from icedb_log.table.table_config import TableConfig

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
        problem = find_stats_problem(stats, bounds) if bounds is not None else None
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


def find_stats_problem(stats: ColumnStats, bounds: ColumnBounds) -> str | None:
    """Return why a marker's statistics would lose rows that the footer proves; ``None`` if they would not.

    Certain only: a text of a footer may be cut, its maximum then being rounded up.
    """
    low, high, null_count = stats
    if bounds.null_count is not None and bounds.null_count != null_count:
        return f"{bounds.null_count:,} nulls; the log says {null_count:,}"
    if low is None or high is None or bounds.low is None or bounds.high is None:
        return None
    try:
        if low > bounds.low and (bounds.is_exact or not str(low).startswith(str(bounds.low))):
            return f"its minimum is {_show(bounds.low)}; the log says {_show(low)}"
        if high < bounds.high and (bounds.is_exact or high < str(bounds.high)[:-1]):
            return f"its maximum is {_show(bounds.high)}; the log says {_show(high)}"
    except TypeError:
        return f"its values are like {_show(bounds.low)}; the log says {_show(low)}, which is of another kind"
    return None


def _show(value: object) -> str:
    return repr(value)[:80]
