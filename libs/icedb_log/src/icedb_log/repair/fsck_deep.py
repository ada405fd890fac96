"""What the footers of live data files say, against what the log says of them (``--deep``).

A data file never changes, so each contradiction is certain as soon as both are read; whether the file is still live is
asked of the log that is read last. Nothing here reads a row; with ``--pages`` all bytes are held against checksums.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from icedb_log.keys import TablePaths
from icedb_log.log.widening import is_widening
from icedb_log.model import ColumnStats, FileMarker
from icedb_log.repair.footers import ColumnBounds, Footer, FooterReader, UnreadableFooter
from icedb_log.repair.fsck_log import CheckedLog
from icedb_log.repair.fsck_objects import Progress, no_progress
from icedb_log.repair.fsck_report import Findings
from icedb_log.repair.pages import PageReader
from icedb_log.store.object_store import ObjectInfo
from icedb_log.table.table_config import TableConfig

PROGRESS_FILES: Final = 100
"""After so many files it is told how far it is."""
MAX_SUSPECTS: Final = 100_000
"""Files that contradict the log and are remembered until the log has been read again."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """One contradiction between a footer and the log.

    Attributes:
        code: Of the finding that it becomes if the file is still live.
        path: The data file.
        message: What is wrong.
        also_live: Another data file that has to be live, too; empty: none.
    """

    code: str
    path: str
    message: str
    also_live: str = ""


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


def read_deep(
    reader: FooterReader,
    paths: TablePaths,
    log: CheckedLog,
    *,
    infos: Sequence[ObjectInfo],
    config: TableConfig | None,
    progress: Progress = no_progress,
) -> DeepLook:
    """Read the footers of live data files and compare them with their markers.

    Args:
        reader: Reads footers.
        paths: Keys of the table.
        log: Its log.
        infos: The files, with their real sizes.
        config: Configuration of the table, if it can be read.
        progress: Told now and then.
    """
    look = DeepLook()
    schema = _effective_schema(log)
    columns = _columns_of_stats(log, config)
    for number, footer in enumerate(reader.read_footers(infos, bounds_of=columns), 1):
        if isinstance(footer, UnreadableFooter):
            _note_unreadable(look, footer)
        else:
            look.footer_count += 1
            if len(look.suspicions) < MAX_SUSPECTS:
                look.suspicions.extend(compare(paths, footer, log.live[footer.info.key], schema=schema, log=log))
        if number % PROGRESS_FILES == 0 or number == len(infos):
            progress("footers", number, len(infos))
    return look


def read_all_pages(
    reader: PageReader, look: DeepLook, infos: Sequence[ObjectInfo], *, progress: Progress = no_progress
) -> None:
    """Read all bytes of live data files whose footers could be read, and note what is not as it was written.

    Args:
        reader: Reads pages.
        look: What the footers said; takes in what pages say.
        infos: The files, with their real sizes.
        progress: Told now and then.
    """
    known = {each.path for each in look.suspicions if each.code == "footer-unreadable"} | look.gone
    whole = [info for info in infos if info.key not in known]
    for number, found in enumerate(reader.read_pages(whole), 1):
        path = found.info.key
        look.page_count += found.page_count
        if found.unsummed_count:
            look.unsummed.append(path)
        if found.cause == "gone":
            look.gone.add(path)
        elif found.cause == "damaged":
            look.suspicions.append(Suspicion("page-damaged", path, found.reason))
        elif found.cause is not None:
            look.unanswered.append((path, found.reason))
        progress("pages", number, len(whole))


def report_deep(found: Findings, look: DeepLook, log: CheckedLog) -> None:
    """Report what still holds in a log that was read afterwards."""
    for suspicion in look.suspicions:
        if suspicion.path in log.live and (not suspicion.also_live or suspicion.also_live in log.live):
            found.add(suspicion.code, suspicion.path, suspicion.message)
    for path in sorted(look.gone):
        if path in log.live:  # W1: it was there at the listing, and is live after it was looked for
            found.add("dangling", path, "is live, and went while it was looked at: its rows are lost")
    if look.unsummed:
        found.add(
            "pages-unsummed",
            look.unsummed[0],
            f"{len(look.unsummed):,} files have pages without a checksum: a change in these may go unseen",
        )
    if look.unanswered:
        path, reason = look.unanswered[0]
        found.add(
            "not-checked",
            path,
            f"{len(look.unanswered)} files: the store did not answer ({reason[:200]})",
            severity="warning",
        )


def choose_sample(paths: list[str], count: int, seed: int) -> list[str]:
    """Return at most ``count`` of the paths, evenly spread, beginning somewhere else with each seed."""
    if count >= len(paths):
        return paths
    start = seed % len(paths)
    return sorted(paths[(start + number * len(paths) // count) % len(paths)] for number in range(count))


def compare(
    paths: TablePaths, footer: Footer, marker: FileMarker, *, schema: Mapping[str, str], log: CheckedLog
) -> Iterator[Suspicion]:
    """Yield what a footer and its marker contradict each other in."""
    path = marker.path
    if marker.row_count is not None and marker.row_count != footer.row_count:
        yield Suspicion("row-count-mismatch", path, f"{footer.row_count:,} rows; the log says {marker.row_count:,}")
    yield from _compare_origin(paths, footer, path, log)
    yield from _compare_types(paths, footer, path, schema)
    for column, stats in marker.stats.items():
        bounds = footer.bounds.get(column)
        problem = find_stats_problem(stats, bounds) if bounds is not None else None
        if problem:
            yield Suspicion("statistics-mismatch", path, f"column {column!r}: {problem}")


def _compare_origin(paths: TablePaths, footer: Footer, path: str, log: CheckedLog) -> Iterator[Suspicion]:
    origin = footer.origin
    if origin.kind == "foreign" or origin.table != paths.name:
        return  # imported: its name and its partition were chosen here
    partition = path.removeprefix(paths.data_prefix).rpartition("/")[0]
    if origin.partition != partition:
        yield Suspicion(
            "partition-mismatch",
            path,
            f"it was written for partition {origin.partition or '(none)'} and lies in {partition or '(none)'}",
        )
    for replaced in origin.inputs:
        if replaced in log.live:
            yield Suspicion(
                "input-still-live",
                path,
                f"a {origin.kind} made it from {replaced}, which is live, too",
                also_live=replaced,
            )


def _compare_types(paths: TablePaths, footer: Footer, path: str, schema: Mapping[str, str]) -> Iterator[Suspicion]:
    fields = {component.partition("=")[0].lower() for component in paths.partition_of(path).split("/")}
    for column, sql_type in footer.columns.items():
        known = schema.get(column)
        if known is None and column.lower() in fields:
            yield Suspicion("path-column", path, f"column {column!r} ({sql_type}) repeats what its path says")
        elif known is None:
            yield Suspicion("type-mismatch", path, f"column {column!r} ({sql_type}) is not in the schema")
        elif sql_type != known and not is_widening(sql_type, known):
            yield Suspicion("type-mismatch", path, f"column {column!r} is {sql_type}; the schema says {known}")
    for column, words in footer.odd_columns.items():
        if column not in schema and column.lower() in fields:
            yield Suspicion("path-column", path, f"column {column!r} ({words}) repeats what its path says")
            continue
        yield Suspicion(
            "type-mismatch",
            path,
            f"column {column!r} is {words}, which no column of a table is; the schema says {schema.get(column)}",
        )


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


def _effective_schema(log: CheckedLog) -> dict[str, str]:
    schema: dict[str, str] = {}
    widened: dict[str, str] = {}
    for file in log.readable:
        for column, sql_type in file.log.schema.items():
            schema.setdefault(column, sql_type)
        widened.update(file.log.widened)
    return {**schema, **widened}


def _columns_of_stats(log: CheckedLog, config: TableConfig | None) -> frozenset[str]:
    """Return the columns of which markers have statistics: by rule those of partitions and of the sort order."""
    if config is not None:
        return frozenset((*config.sort, *(field.column for field in config.partition)))
    return frozenset(column for marker in log.live.values() for column in marker.stats)


def _note_unreadable(look: DeepLook, footer: UnreadableFooter) -> None:
    path = footer.info.key
    if footer.cause == "gone":
        look.gone.add(path)
    elif footer.cause == "unanswered":
        look.unanswered.append((path, footer.reason))
    else:
        look.suspicions.append(Suspicion("footer-unreadable", path, footer.reason))


def _show(value: object) -> str:
    return repr(value)[:80]
