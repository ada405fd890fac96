"""What templates are given besides facts: rows of the overview, pictures, and words for kinds of things. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

from icedb_log.clean.guards import Guard
from icedb_log.log.history import CommitInfo
from icedb_log.merge.merge_explain import ExplainedPartition, say_when, say_why_not
from icedb_log.table.partition_removal import PartitionInfo
from icedb_log.table.partitions import decode_partition
from icedb_log.table.table_config import TableConfig
from markupsafe import Markup

from icedb_console.figures import TableFigures
from icedb_console.formats import short_bytes, short_count, show_exactly
from icedb_console.pictures import Column, draw_columns
from icedb_console.queries import QueryRows

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
    "refusal": "kept: it refused a batch that is still staged",
    "view": "kept for a view that has not taken it",
    "live": "kept: it alone names a live file",
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
