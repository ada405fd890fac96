"""What templates are given besides facts: rows of the overview, words, numbers as people read them, pictures. Pure.

A number has its exact value in a title. A picture is SVG: columns that rise from a line and hang below it. A partition
rises by its bytes and hangs by its small files, a commit rises by what it added and hangs by what it removed, a row of
a result by its number. Words stand outside in HTML, so that they stay readable on a phone; colour is never alone: kinds
differ in their pattern, too. Everything is escaped.
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

WIDTH: Final = 1000
HEIGHT: Final = 120
"""Of the part above the line; below it there is half of it."""
_LEAST: Final = 1.5
"""What is not nothing is seen."""
_GAP_SHARE: Final = 0.2
_MAX_COLUMN: Final = 60


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        up: What it rises by.
        down: What it hangs by.
        kind: Class of its upper part: ``solid``, ``hatch``, ``dots``, ``hollow``.
        title: What is said of it.
    """

    up: float
    down: float
    title: str
    kind: str = "solid"


def draw_columns(
    columns: Sequence[Column], *, label: str, is_one_scale: bool = False, least_depth: float = 0
) -> Markup:
    """Return a picture of columns.

    Args:
        columns: From the left to the right.
        label: What it shows, for who does not see it.
        is_one_scale: Whether up and down are the same thing, to one scale.
        least_depth: What fills the part below the line at least: less than that hangs less deep.
    """
    if not columns:
        return Markup("")
    highest = max((each.up for each in columns), default=0) or 1
    lowest = max((each.down for each in columns), default=0)
    lowest = max(lowest, least_depth) if lowest else 0
    depth = HEIGHT / 2 if lowest else 0.0
    up_scale, down_scale = HEIGHT / highest, depth / (lowest or 1)
    if is_one_scale and lowest:
        total = HEIGHT + depth
        scale = total / (highest + lowest)
        up_scale = down_scale = scale
        base = highest * scale
    else:
        base = float(HEIGHT)
    step = WIDTH / max(len(columns), WIDTH / _MAX_COLUMN)
    width = step * (1 - _GAP_SHARE)
    bars = Markup("").join(
        _draw(each, x=at * step + step * _GAP_SHARE / 2, width=width, base=base, scales=(up_scale, down_scale))
        for at, each in enumerate(columns)
    )
    total = HEIGHT + depth
    return Markup(
        '<svg class="columns" viewBox="0 0 {w} {h}" preserveAspectRatio="none" role="img" aria-label="{label}">'
        '{bars}<line class="base" x1="0" x2="{w}" y1="{b:.1f}" y2="{b:.1f}"/></svg>'
    ).format(w=WIDTH, h=round(total + 2), label=label, bars=bars, b=base + 0.5)


def draw_share(value: float, most: float) -> Markup:
    """Return a bar as long as a share of the most: in a cell of a table, beside its number."""
    width = max(2.0 if value else 0.0, 100 * value / most) if most else 0.0
    return Markup(
        '<svg class="share" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="solid" width="{:.1f}" height="8"/></svg>'
    ).format(width)


def _draw(column: Column, *, x: float, width: float, base: float, scales: tuple[float, float]) -> Markup:
    up, down = (
        max(_LEAST, part * scale) if part else 0.0 for part, scale in zip((column.up, column.down), scales, strict=True)
    )
    parts = [
        Markup("<title>{}</title>").format(column.title),
        _rect("hit", x, 0, width, HEIGHT),  # the whole height answers to the mouse
    ]
    if up:
        parts.append(_rect(column.kind, x, base - up, width, up))
    if down:
        parts.append(_rect("down", x, base + 1, width, down))
    return Markup("<g>{}</g>").format(Markup("").join(parts))


def _rect(kind: str, x: float, y: float, width: float, height: float) -> Markup:
    return Markup('<rect class="{}" x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}"/>').format(
        kind, x, y, width, height
    )


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
"""Of a picture: more would be thinner than a line."""
MOST_PLOTS: Final = 4
_NUMBERS: Final = ("INT", "DOUBLE", "FLOAT", "DECIMAL", "REAL")

GUARD_WORDS: Final[Mapping[Guard, str]] = {
    "grace": "kept by the grace period: queries that have begun may still read it",
    "lease": "kept by lease",
    "pin": "kept by pin",
    "publication": "kept by a publication: engines may have been shown it",
    "versions": "kept as one of the newest versions",
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
_KINDS: Final = {"append": "solid", "feed": "solid", "merge": "hatch", "fold": "hatch"}


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


def draw_partitions(
    partitions: Sequence[PartitionInfo],
    explained: Mapping[str, ExplainedPartition] | None,
    config: TableConfig,
) -> Markup:
    """Return the picture of some partitions: bytes above the line, small files below it."""
    return draw_columns(
        [
            Column(
                each.size_bytes,
                # One small file in a partition is as it should be: the newest rows are there.
                each.small_count if each.small_count > 1 else 0,
                f"{name_partition(each.path)}: {short_bytes(each.size_bytes)}, {short_count(each.file_count)} files, "
                f"{short_count(each.small_count)} below the target size",
                kind="hatch" if explained and each.path in explained and explained[each.path].groups else "solid",
            )
            for each in partitions
        ],
        label=f"{len(partitions)} partitions: bytes above the line, files below the target size under it",
        least_depth=2 * config.merge_fan_in,
    )


def draw_commits(commits: Sequence[CommitInfo]) -> Markup:
    """Return the picture of commits, the newest at the right: bytes that came above the line, that went below it."""
    return draw_columns(
        [
            Column(
                0 if each.added is None else each.added.size_bytes,
                each.removed.size_bytes,
                f"{show_exactly(each.time_ms)}: {WHAT_WORDS.get(each.what, each.what)}, "
                f"+{short_bytes(0 if each.added is None else each.added.size_bytes)} "
                f"−{short_bytes(each.removed.size_bytes)}",  # noqa: RUF001 - a sign for people
                kind=_KINDS.get(each.what, "dots"),
            )
            for each in reversed(commits[:MOST_COLUMNS])
        ],
        label="commits from old to new: bytes added above the line, removed below it",
        is_one_scale=True,
    )


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture of one column of numbers, and what stands beside it."""

    name: str
    picture: Markup
    least: Any
    greatest: Any
    first: Any
    last: Any


def draw_result(result: QueryRows) -> list[Plot]:
    """Return a picture of each column of numbers: one column of it for each row, in their order."""
    rows = result.rows[:MOST_COLUMNS]
    is_number = [any(part in kind for part in _NUMBERS) and "[" not in kind for _, kind in result.columns]
    label_at = next((at for at, number in enumerate(is_number) if not number), None)
    if label_at is None and len(is_number) > 1:
        label_at, is_number[0] = 0, False
    drawn = [at for at, number in enumerate(is_number) if number][:MOST_PLOTS]
    if len(rows) < 2 or not drawn:  # noqa: PLR2004 - one number is no picture
        return []
    return [_plot(result.columns[at][0], rows, at, label_at) for at in drawn]


def _plot(name: str, rows: Sequence[Sequence[Any]], at: int, label_at: int | None) -> Plot:
    numbers = [row[at] for row in rows if isinstance(row[at], int | float)]
    first, last = ("", "") if label_at is None else (rows[0][label_at], rows[-1][label_at])
    picture = draw_columns(list(_bars(rows, at, label_at)), label=f"{name} of {len(rows)} rows", is_one_scale=True)
    return Plot(name, picture, min(numbers, default=None), max(numbers, default=None), first, last)


def _bars(rows: Sequence[Sequence[Any]], at: int, label_at: int | None) -> Iterable[Column]:
    for number, row in enumerate(rows):
        value = float(row[at]) if isinstance(row[at], int | float) else 0.0
        name = f"row {number + 1}" if label_at is None else row[label_at]
        yield Column(max(value, 0.0), max(-value, 0.0), f"{name}: {row[at]}")


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
