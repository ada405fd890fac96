"""What templates are given besides facts: rows of the overview, words, numbers as people read them, charts. Pure.

A number has its exact value in a title. A chart is its numbers: ``static/charts.js`` draws them, and a table beside it
shows them to who has no scripts. Everything is escaped.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

from icedb_log.changes.partition_removal import PartitionInfo
from icedb_log.clock import format_ms
from icedb_log.holds.guards import Guard
from icedb_log.log.history import CommitInfo
from icedb_log.merge.merge_explain import ExplainedPartition, say_when, say_why_not
from icedb_log.table.partitions import decode_partition
from icedb_log.table.table_config import TableConfig
from markupsafe import Markup

from icedb_console.figures import TableFigures
from icedb_console.queries import QueryRows

_THOUSAND: Final = 1000
_KIB: Final = 1024
_EXACT_BELOW: Final = 10_000
_COUNT_UNITS: Final = ("", "k", "M", "G", "T")
_SIZE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SPANS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))
_MAX_TIME_MS: Final = 253_402_300_799_000
_SECOND_MS: Final = 1000


def short_count(count: int) -> str:
    """Return a number in three digits or so, ``1.2 M``; up to 9,999 all of them."""
    return f"{count:,}" if abs(count) < _EXACT_BELOW else _shorten(float(count), _COUNT_UNITS, _THOUSAND)


def short_bytes(size_bytes: int) -> str:
    """Return a size: ``1.5 MiB``."""
    return _shorten(float(size_bytes), _SIZE_UNITS, _KIB)


def short_span(duration_ms: int) -> str:
    """Return a duration in its largest unit, and the next one where that is one digit: ``1 h 5 min``."""
    if duration_ms < _SECOND_MS:
        return f"{max(duration_ms, 0)} ms"
    parts: list[str] = []
    rest = duration_ms
    for unit, size_ms in _SPANS:
        found, rest = divmod(rest, size_ms)
        if found or parts:
            parts.append(f"{found} {unit}")
        if len(parts) == 2 or (parts and found > 9):  # noqa: PLR2004 - two units; one that has two digits is enough
            break
    return " ".join(part for part in parts if not part.startswith("0 "))


def show_count(count: int | None) -> Markup:
    """Return a number for a page; ``unknown`` where nobody knows it."""
    if count is None:
        return Markup('<span class="quiet">unknown</span>')
    return Markup('<span class="n" title="{:,}">{}</span>').format(count, short_count(count))


def show_bytes(size_bytes: int | None) -> Markup:
    """Return a size for a page."""
    if size_bytes is None:
        return Markup('<span class="quiet">unknown</span>')
    return Markup('<span class="n" title="{:,} bytes">{}</span>').format(size_bytes, short_bytes(size_bytes))


def show_span(duration_ms: int | None) -> Markup:
    """Return a duration for a page; a dash for none."""
    if not duration_ms:
        return Markup('<span class="quiet">–</span>')  # noqa: RUF001 - a dash for people
    return Markup('<span class="n" title="{:,} ms">{}</span>').format(duration_ms, short_span(duration_ms))


def show_ago(time_ms: int | None, now_ms: int) -> Markup:
    """Return how long ago, or in how long, a time is, with the time itself; a dash for none."""
    if not time_ms or not 0 < time_ms <= _MAX_TIME_MS:
        return Markup('<span class="quiet">–</span>')  # noqa: RUF001 - a dash for people
    gone_ms = now_ms - time_ms
    if abs(gone_ms) < _SECOND_MS:
        words = "now"
    else:
        words = f"{short_span(gone_ms)} ago" if gone_ms > 0 else f"in {short_span(-gone_ms)}"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(format_ms(time_ms), show_exactly(time_ms), words)


def show_exactly(time_ms: int) -> str:
    """Return a time to the second, UTC."""
    if not 0 <= time_ms <= _MAX_TIME_MS:
        return str(time_ms)
    return f"{datetime.fromtimestamp(time_ms / _SECOND_MS, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _shorten(value: float, units: tuple[str, ...], base: int) -> str:
    for unit in units:
        # 999.7 would round to four digits
        if value < base - 0.5 or unit == units[-1]:
            digits = 1 if unit != units[0] and value < 100 else 0  # noqa: PLR2004 - two digits before the point are enough
            return f"{value:.{digits}f} {unit}".strip()
        value /= base
    raise AssertionError("unreachable")


TABLES_PER_PAGE: Final = 100
PARTITIONS_PER_PAGE: Final = 30
MOST_COLUMNS: Final = 120
"""Bars of a chart: more would be thinner than a line."""
MOST_PLOTS: Final = 4
MOST_KINDS: Final = 6
"""Bars side by side that can be told apart."""
_NUMBERS: Final = ("INT", "DOUBLE", "FLOAT", "DECIMAL", "REAL")

GUARD_WORDS: Final[Mapping[Guard, str]] = {
    "grace": "kept by the grace period: queries that have begun may still read it",
    "lease": "kept by lease",
    "tag": "kept by tag",
    "publication": "kept by a publication: engines may have been shown it",
    "commit": "kept for a commit under way",
    "staged": "kept: it decided a batch that is still staged",
    "view": "kept for a view that has not taken it",
    "live": "kept: it alone names a live file",
    "lost": "kept while a log file that may list it is lost",
}
WHAT_WORDS: Final[Mapping[str, str]] = {
    "append": "append",
    "feed": "append of a view",
    "merge": "merge",
    "fold": "log folded",
    "delete": "rows deleted",
    "rewrite": "rows rewritten",
    "merge_query": "rows merged by query",
    "removal": "partitions removed",
    "refusal": "batches refused",
    "other": "other",
}
_KINDS: Final = {"append": "appended", "feed": "appended", "merge": "merged", "fold": "merged"}


def _severity(figures: TableFigures) -> int:
    return {"bad": 0, "warn": 1, "ok": 2}[figures.health.level]


SORTS: Final[Mapping[str, Callable[[TableFigures], Any]]] = {
    "health": lambda each: (_severity(each), each.name),
    "name": lambda each: each.name,
    "rows": lambda each: (-(each.status.live_rows or 0) if each.status else 1, each.name),
    "bytes": lambda each: (-each.status.live_bytes if each.status else 1, each.name),
    "files": lambda each: (-each.status.live_files if each.status else 1, each.name),
    "lag": lambda each: (-each.status.merge_lag_ms if each.status else 1, each.name),
    "backlog": lambda each: (-each.status.staged_batches if each.status else 1, each.name),
    "commit": lambda each: (-each.status.last_commit_ms if each.status else 1, each.name),
}
"""By what the overview can be sorted; the first is the usual one."""


@dataclass(frozen=True, slots=True)
class Pager:
    """A part of a list.

    Attributes:
        page: Number of this page, from 1.
        pages: How many there are.
        total: Length of the whole list.
        path: Of the page, with its other parameters.
    """

    page: int
    pages: int
    total: int
    path: str
    anchor: str = ""

    def href(self, page: int) -> str:
        """Return where another part is."""
        return f"{self.path}{'&' if '?' in self.path else '?'}page={page}{self.anchor}"


def cut(items: Sequence[Any], page: int, *, size: int, path: str, anchor: str = "") -> tuple[Sequence[Any], Pager]:
    """Return the part of a list that is on a page, the last one beyond it, and where the others are."""
    pages = max(1, -(-len(items) // size))
    page = min(max(page, 1), pages)
    return items[(page - 1) * size : page * size], Pager(page, pages, len(items), path, anchor)


def table_path(name: str, *rest: str, **parameters: str) -> str:
    """Return the address of a table's page, or of one below it. Every part is quoted."""
    path = "/".join(["", "tables", *(quote(part, safe="") for part in (name, *rest))])
    return f"{path}?{urlencode(parameters)}" if parameters else path


def name_partition(path: str) -> str:
    """Return a partition's values as people wrote them."""
    return decode_partition(path) or "(not partitioned)"


def explain_partition(found: ExplainedPartition | None, config: TableConfig) -> str:
    """Return what is merged of a partition, or why nothing is."""
    if found is None:
        return ""
    if not found.groups:
        return f"nothing to merge: {say_why_not(found.reason, fan_in=config.merge_fan_in)}"
    return "; ".join(
        f"{short_count(group.file_count)} files, {short_bytes(group.size_bytes)}, are merged {say_when(group.when)}"
        for group in found.groups
    )


Chart = dict[str, Any]
"""What ``static/charts.js`` draws: words under the bars (``x``), and series of one value, or none, for each of them.

``look`` is ``bars``, ``hatch`` (bars), or ``points``, which have their scale at the right; ``unit`` is ``bytes`` or
``count``. Series stand side by side where the chart is ``grouped``; else a bar has one of them alone.
"""


def _series(name: str, values: Sequence[float | None], *, look: str = "bars", unit: str = "count") -> Chart:
    return {"name": name, "values": values, "look": look, "unit": unit}


def chart_partitions(
    partitions: Sequence[PartitionInfo], explained: Mapping[str, ExplainedPartition] | None, config: TableConfig
) -> Chart:
    """Return the chart of some partitions: their bytes, and their files below the target size."""
    due = [bool(explained and each.path in explained and explained[each.path].groups) for each in partitions]
    sizes = [each.size_bytes for each in partitions]
    # One small file in a partition is as it should be: the newest rows are there.
    small = [each.small_count if each.small_count > 1 else None for each in partitions]
    return {
        "label": f"{len(partitions)} partitions: their size, and their files below the target size",
        "x": [name_partition(each.path) for each in partitions],
        "series": [
            _series("size", _where(sizes, [not each for each in due]), unit="bytes"),
            _series("size, merge due", _where(sizes, due), look="hatch", unit="bytes"),
            _series(f"files below {short_bytes(config.target_file_bytes)}, where several", small, look="points"),
        ],
    }


def chart_commits(commits: Sequence[CommitInfo]) -> Chart:
    """Return the chart of commits, the newest at the right: bytes that came above the line, that went below it."""
    shown = commits[:MOST_COLUMNS][::-1]
    added = [0 if each.added is None else each.added.size_bytes for each in shown]
    kinds = [_KINDS.get(each.what, "other") for each in shown]
    series = [
        _series(kind, _where(added, [each == kind for each in kinds]), look=look, unit="bytes")
        for kind, look in (("appended", "bars"), ("merged", "hatch"), ("other", "bars"))
    ]
    return {
        "label": "commits from old to new: bytes added above the line, removed below it",
        "x": [show_exactly(each.time_ms).split(" ")[1] for each in shown],
        "series": [*series, _series("removed", [-each.removed.size_bytes or None for each in shown], unit="bytes")],
    }


def _where(values: Sequence[float], chosen: Sequence[bool]) -> list[float | None]:
    return [value if is_chosen else None for value, is_chosen in zip(values, chosen, strict=True)]


def chart_result(result: QueryRows) -> list[Chart]:
    """Return a chart of each column of numbers; a second column of words makes bars of several kinds."""
    rows = result.rows[:MOST_COLUMNS]
    is_number = [any(part in kind for part in _NUMBERS) and "[" not in kind for _, kind in result.columns]
    words = [at for at, number in enumerate(is_number) if not number][:2]
    if not words and len(is_number) > 1:
        words, is_number[0] = [0], False
    drawn = [at for at, number in enumerate(is_number) if number][:MOST_PLOTS]
    if len(rows) < 2 or not drawn:  # noqa: PLR2004 - one number is no picture
        return []
    groups = [" · ".join(str(row[at]) for at in words) or f"row {number}" for number, row in enumerate(rows, start=1)]
    kinds: list[str] = []
    if len(words) == 2:  # noqa: PLR2004 - see above
        kinds = list(dict.fromkeys(str(row[words[1]]) for row in rows))
        pairs = {(row[words[0]], row[words[1]]) for row in rows}
        if not 1 < len(kinds) <= MOST_KINDS or len(pairs) < len(rows):
            kinds = []
    if not kinds:
        return [_chart_column(result.columns[at][0], groups, [_series("", _numbers(rows, at))]) for at in drawn]
    first, second = words
    names = list(dict.fromkeys(str(row[first]) for row in rows))
    charts = []
    for at in drawn:
        found = {(str(row[first]), str(row[second])): row[at] for row in rows if isinstance(row[at], int | float)}
        series = [_series(kind, [found.get((name, kind)) for name in names]) for kind in kinds]
        charts.append(_chart_column(result.columns[at][0], names, series))
    return charts


def _chart_column(name: str, words: Sequence[str], series: list[Chart]) -> Chart:
    return {"title": name, "label": f"{name} of {len(words)} bars", "x": words, "series": series, "grouped": True}


def _numbers(rows: Sequence[Sequence[Any]], at: int) -> list[float | None]:
    return [row[at] if isinstance(row[at], int | float) else None for row in rows]


def sum_up(tables: Iterable[TableFigures]) -> dict[str, int]:
    """Return the sums that stand above the overview."""
    known = [each for each in tables if each.status is not None]
    statuses = [each.status for each in known if each.status is not None]
    return {
        "rows": sum(status.live_rows or 0 for status in statuses),
        "bytes": sum(status.live_bytes for status in statuses),
        "files": sum(status.live_files for status in statuses),
        "staged": sum(status.staged_batches for status in statuses),
        "quarantined": sum(status.quarantined_batches for status in statuses),
        "bad": sum(each.health.level == "bad" for each in known),
        "warn": sum(each.health.level == "warn" for each in known),
    }
