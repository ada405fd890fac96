"""How ``icedb top`` looks: pictures of all tables, and of one, for a terminal of any size. Pure: reads nothing.

A picture is made of lines by rich, and is as wide as it may be and no wider; 80 columns show what matters. Colour only
stresses what words say: without it nothing is lost. What others wrote cannot steer the terminal.
"""

import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from icedb_log.clean.guards import Kept
from icedb_log.log.history import CommitInfo, Volume
from icedb_log.table.status import HealthLevel
from icedb_log.units import SECOND_MS
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from icedb.cli.merge import describe_partition
from icedb.cli.output import VisibleConsole, count_of, format_bytes, format_count, format_span, format_time
from icedb.cli.status import format_pressure, format_staged, format_worker
from icedb.cli.top_reads import Overview, Page, Row

SHOWN_WORKERS: Final = 3
"""Lines of who is at work, below the tables."""
SHOWN_COMMITS: Final = 8
SHOWN_PARTITIONS: Final = 8
SHOWN_KEPT: Final = 8
_LEVELS: Final = {"bad": 0, "warn": 1, "ok": 2, None: 3}
_STYLES: Final = {"bad": "bold red", "warn": "yellow", "ok": "green", None: "dim"}
_UNITS: Final = (("k", 10**3), ("M", 10**6), ("G", 10**9), ("T", 10**12))


@dataclass(frozen=True, slots=True)
class Column:
    """A column of all tables.

    Attributes:
        key: What sorts by it.
        title: Its head.
        width: Of its cells.
        value: What it is sorted by; ``None`` comes last.
        show: What is shown.
        rank: Columns of a low rank are left out first where there is no room.
        ascends: Whether the least comes first.
    """

    key: str
    title: str
    width: int
    value: Callable[[Row], Any]
    show: Callable[[Row, int], str]
    rank: int = 9
    ascends: bool = False


def _short(number: int | None) -> str:
    """Return a number in at most five characters."""
    if number is None:
        return "-"
    unit, size = next(((unit, size) for unit, size in reversed(_UNITS) if number >= size), ("", 1))
    scaled = number / size
    return f"{scaled:.1f}{unit}" if unit and scaled < 99.9 else f"{int(scaled)}{unit}"  # noqa: PLR2004 - five characters


def _span(duration_ms: int | None) -> str:
    """Return a duration in one unit, seconds or longer."""
    if duration_ms is None:
        return "-"
    return (
        " ".join(format_span(duration_ms // SECOND_MS * SECOND_MS).split()[:2]) if duration_ms >= SECOND_MS else "0 s"
    )


COLUMNS: Final = (
    Column("t", "table", 10, lambda row: row.table, lambda row, _: row.table, ascends=True),
    Column(
        "h",
        "health",
        8,
        lambda row: _LEVELS[None if row.health is None else row.health.level],
        lambda row, _: "…" if row.health is None else row.health.word,
        ascends=True,
    ),
    Column("r", "rows", 6, lambda row: row.row_count, lambda row, _: _short(row.row_count)),
    Column(
        "b",
        "size",
        9,
        lambda row: row.size_bytes,
        lambda row, _: "-" if row.size_bytes is None else format_bytes(row.size_bytes),
    ),
    Column("f", "files", 5, lambda row: row.file_count, lambda row, _: _short(row.file_count)),
    Column("l", "lag", 6, lambda row: row.lag_ms, lambda row, _: _span(row.lag_ms)),
    Column("w", "backlog", 7, lambda row: row.backlog_files, lambda row, _: _short(row.backlog_files)),
    Column("p", "press.", 6, lambda row: {"stop": 2, "slow": 1}.get(row.pressure or ""), lambda row, _: _level(row)),
    Column(
        "c",
        "commit",
        6,
        lambda row: row.last_commit_ms,
        lambda row, now_ms: _span(None if row.last_commit_ms is None else now_ms - row.last_commit_ms),
    ),
    Column("s", "staged", 6, lambda row: row.staged_batches, lambda row, _: _short(row.staged_batches), rank=3),
    Column("x", "quarant.", 8, lambda row: row.quarantined, lambda row, _: _short(row.quarantined), rank=2),
    Column("g", "logs", 5, lambda row: row.log_files, lambda row, _: _short(row.log_files), rank=1),
)
"""All that there are, in their order from left to right."""


def _level(row: Row) -> str:
    return "-" if row.pressure in (None, "none") else str(row.pressure)


@dataclass(frozen=True, slots=True)
class Screen:
    """What a person has chosen to see.

    Attributes:
        sort: Key of the column that tables are sorted by.
        is_reversed: Whether the other way round.
        chosen: Name of the table that is marked; empty: the first.
        first: Number of the first line that is seen.
        page: The table whose page is open; empty: all of them.
        scroll: Lines of the page above the screen.
    """

    sort: str = "h"
    is_reversed: bool = False
    chosen: str = ""
    first: int = 0
    page: str = ""
    scroll: int = 0

    def sorted(self, rows: Iterable[Row]) -> list[Row]:
        """Return tables in the order that was chosen; those of one value by name, those without last."""
        column = next(each for each in COLUMNS if each.key == self.sort)
        told: list[Row] = []
        silent: list[Row] = []
        for row in sorted(rows, key=lambda row: row.table):
            (silent if column.value(row) is None else told).append(row)
        told.sort(key=column.value, reverse=column.ascends == self.is_reversed)
        return [*told, *silent]

    def sort_by(self, key: str) -> "Screen":
        """Return it sorted by a column; by the same one again: the other way round."""
        return replace(self, sort=key, is_reversed=self.sort == key and not self.is_reversed, first=0)

    def move(self, rows: Sequence[Row], step: int) -> "Screen":
        """Return it with another table marked."""
        names = [row.table for row in self.sorted(rows)]
        if not names:
            return self
        at = names.index(self.chosen) if self.chosen in names else 0
        return replace(self, chosen=names[min(max(at + step, 0), len(names) - 1)])

    def seen(self, rows: Sequence[Row], line_count: int) -> "Screen":
        """Return it with the marked table on the screen."""
        names = [row.table for row in self.sorted(rows)]
        at = names.index(self.chosen) if self.chosen in names else 0
        first = min(max(self.first, at - line_count + 1), at)
        return replace(self, first=max(0, min(first, len(names) - line_count)), chosen=names[at] if names else "")


@dataclass(frozen=True, slots=True)
class Size:
    """What is drawn on: columns and lines, whether it is a terminal, and whether that has colour."""

    columns: int
    lines: int
    has_color: bool = True
    is_terminal: bool = True


def count_table_lines(size: Size) -> int:
    """Return how many tables are seen at once: the rest of the lines are title, heads, reasons, workers, keys."""
    return max(1, size.lines - 5 - SHOWN_WORKERS)


def draw_all(overview: Overview, screen: Screen, size: Size, *, title: str) -> str:
    """Draw all tables, as many as there is room for."""
    shown = count_table_lines(size)
    screen = screen.seen(overview.rows, shown)
    rows = screen.sorted(overview.rows)
    grid = _grid(rows[screen.first : screen.first + shown], screen, overview.now_ms, size, name_width=_widest(rows))
    lines = [
        *_render(_title(title, overview, size), size),
        *_render(grid, size),
    ]
    lines += [""] * (2 + shown - len(lines))
    chosen = next((row for row in rows if row.table == screen.chosen), None)
    lines += _render(_reason_of(overview, chosen), size)[:1]
    workers = [(worker, row.table) for row in rows for worker in row.workers]
    lines += [_render(Text(f"{format_worker(worker)} of {name}", style="cyan"), size)[0] for worker, name in workers][
        :SHOWN_WORKERS
    ]
    lines += [""] * (size.lines - 1 - len(lines))
    keys = "↑↓ choose  Enter open  t h r b f l w p c sort  u read now  q quit"
    return "\n".join([*lines[: size.lines - 1], *_render(Text(keys, style="dim"), size)[:1]])


def draw_plain(overview: Overview, screen: Screen, size: Size) -> str:
    """Draw all tables once, below each other, for a pipe, and what there is to say of each."""
    rows = screen.sorted(overview.rows)
    lines = _render(_grid(rows, replace(screen, chosen=""), overview.now_ms, size, name_width=_widest(rows)), size)
    for row in rows:
        if row.health is not None:
            lines += [f"{row.table}: {reason}" for reason in row.health.reasons]
        lines += [f"{format_worker(worker)} of {row.table}" for worker in row.workers]
    return "\n".join(line.rstrip() for line in lines)


def draw_page(page: Page, screen: Screen, size: Size, *, title: str) -> str:
    """Draw the page of one table, as much of it as there is room for."""
    body = draw_page_lines(page, size)
    shown = max(1, size.lines - 2)
    first = max(0, min(screen.scroll, len(body) - shown))
    head = Text.assemble((title, "bold"), "  ", (screen.page, "bold reverse"), "  ", _health_text(page.row))
    seen = body[first : first + shown]
    more = f"  lines {first + 1} to {first + len(seen)} of {len(body)}" if len(body) > shown else ""
    keys = Text(f"↑↓ scroll  Esc back  u read now  q quit{more}", style="dim")
    return "\n".join([_render(head, size)[0], *seen, *[""] * (shown - len(seen)), _render(keys, size)[0]])


def count_page_lines(page: Page, size: Size) -> int:
    """Return how many lines of a page are below the first screen."""
    return max(0, len(draw_page_lines(page, size)) - max(1, size.lines - 2))


def draw_page_lines(page: Page, size: Size) -> list[str]:
    """Draw all of a page."""
    parts: list[Any] = [_figures(page)]
    if page.problem:
        parts.append(Text(page.problem, style="yellow"))
    if page.state is not None:
        parts += [*_commits(page), *_merges(page), *_deletions(page), *_holders(page)]
    lines: list[str] = []
    for part in parts:
        lines += _render(part, size, wraps=True)
    return lines


def _render(what: Any, size: Size, *, wraps: bool = False) -> list[str]:
    console = VisibleConsole(
        file=io.StringIO(),
        force_terminal=size.is_terminal,
        color_system="standard" if size.is_terminal else None,
        no_color=not size.has_color,
        width=size.columns,
        height=max(1, size.lines),
        highlight=False,
        emoji=False,
        legacy_windows=False,
        _environ={"COLUMNS": str(size.columns)},
    )
    with console.capture() as captured:
        console.print(what, no_wrap=not wraps, overflow="fold" if wraps else "ellipsis", crop=True)
    return captured.get().rstrip("\n").split("\n")


def _title(title: str, overview: Overview, size: Size) -> Text:
    rows = overview.rows
    levels = Counter(row.health.level for row in rows if row.health is not None)
    words = [count_of(len(rows), "table") if overview.now_ms else "is being read …"]
    told: Mapping[HealthLevel, str] = {"bad": "bad", "warn": "to look at"}
    words += [f"{levels[level]} {word}" for level, word in told.items() if levels[level]]
    if overview.unread_count:
        words.append(f"{format_count(overview.unread_count)} still to be read")
    at = format_time(overview.now_ms)[11:19] + "Z" if overview.now_ms else ""
    text = ", ".join(words)
    room = size.columns - len(text) - len(at) - 4
    place = title if len(title) <= room else f"{title[: max(0, room - 1)]}…"
    return Text.assemble((place, "bold"), "  ", text, "  ", (at, "dim"))


def _reason_of(overview: Overview, chosen: Row | None) -> Text:
    if overview.problem:
        return Text(f"not read: {overview.problem}", style="bold red")
    if chosen is None or chosen.health is None or not chosen.health.reasons:
        return Text("")
    return Text(f"{chosen.table}: {'; '.join(chosen.health.reasons)}", style=_STYLES[chosen.health.level])


def _health_text(row: Row) -> Text:
    level = None if row.health is None else row.health.level
    return Text("…" if row.health is None else row.health.word, style=_STYLES[level])


def _grid(rows: Sequence[Row], screen: Screen, now_ms: int, size: Size, *, name_width: int) -> Table:
    columns = _choose_columns(size.columns)
    room = size.columns - sum(each.width + 1 for each in columns[1:])
    name_width = max(columns[0].width, min(name_width, room))
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        mark = ("▲" if column.ascends != screen.is_reversed else "▼") if column.key == screen.sort else ""
        width = name_width if number == 0 else column.width
        head = f"{column.title}{mark}" if len(column.title) < width else f"{column.title[: width - len(mark)]}{mark}"
        table.add_column(
            head,
            justify="left" if column.key in "th" else "right",
            width=width,
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in rows:
        level = None if row.health is None else row.health.level
        cells = [
            Text(column.show(row, now_ms), style=_STYLES[level] if column.key == "h" else "") for column in columns
        ]
        table.add_row(*cells, style="reverse" if row.table == screen.chosen else "")
    return table


def _widest(rows: Iterable[Row]) -> int:
    return max((len(row.table) for row in rows), default=0)


def _choose_columns(width: int) -> list[Column]:
    """Return the columns that there is room for, beside 20 characters of a name."""
    chosen = list(COLUMNS)
    for column in sorted(COLUMNS, key=lambda each: each.rank):
        if column.rank == COLUMNS[0].rank or 20 + sum(each.width + 1 for each in chosen[1:]) <= width:
            break
        chosen.remove(column)
    return chosen


def _pairs(pairs: Mapping[str, object]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs.items():
        if value not in (None, ""):
            table.add_row(name, value if isinstance(value, Text) else escape(str(value)))
    return table


def _figures(page: Page) -> Table:
    row, state = page.row, page.state
    reasons = "" if row.health is None else "\n".join(row.health.reasons)
    commit = None if row.last_commit_ms is None else f"{_span(page.now_ms - row.last_commit_ms)} ago"
    pairs: dict[str, object] = {
        "to look at": Text(reasons, style=_STYLES[row.health.level]) if row.health and reasons else None,
        "rows, size": f"{format_count(row.row_count)}, {format_bytes(row.size_bytes or 0)}",
        "data files": format_count(row.file_count),
        "last commit": commit or "none yet",
    }
    if state is not None:
        pairs |= {
            "data files": f"{format_count(row.file_count)} in {count_of(state.partition_count, 'partition')}; "
            f"{format_count(state.tombstoned_files)} dead",
            "log files": f"{format_count(state.log_files)}, {format_count(state.tombstoned_logs)} of them dead",
            "staged": format_staged(state),
            "pressure": format_pressure(state),
            "at work": "\n".join(map(format_worker, row.workers)) or "nobody",
        }
    return _pairs(pairs)


def _section(title: str, table: Table | Text) -> list[Any]:
    return [Text(""), Text(title, style="bold underline"), table]


def _list(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return rows below heads; ``>`` before the name of a column aligns it right, neither it nor ``<`` is broken."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(
            name.lstrip(">"),
            justify="right" if name.startswith(">") else "left",
            overflow="fold",
            no_wrap=name[:1] == ">",
        )
    for row in rows:
        table.add_row(*("-" if cell is None else escape(str(cell)) for cell in row))
    return table


def _commits(page: Page) -> list[Any]:
    if not page.commits:
        return _section("Last commits", Text("none yet", style="dim"))
    columns = (">ago", "what", ">batches", ">files", ">rows", ">size", ">dead files", ">log files")
    return _section(
        "Last commits", _list(columns, (_commit(each, page.now_ms) for each in page.commits[:SHOWN_COMMITS]))
    )


def _commit(commit: CommitInfo, now_ms: int) -> tuple[object, ...]:
    added = commit.added or Volume(0, None, 0)
    return (
        _span(now_ms - commit.time_ms),
        commit.what,
        format_count(commit.batch_count) if commit.batch_count else None,
        "?" if commit.added is None else f"+{format_count(added.file_count)}",
        "?" if commit.added is None else f"+{_short(added.row_count)}",
        "?" if commit.added is None else format_bytes(added.size_bytes),
        f"-{format_count(commit.removed.file_count)}" if commit.removed.file_count else None,
        f"-{format_count(commit.log_file_count)}" if commit.log_file_count else None,
    )


def _merges(page: Page) -> list[Any]:
    title = "What is merged, and why not more"
    merge = page.details.merge
    if merge is None or page.state is None:
        count = format_count(page.row.backlog_files)
        return _section(title, Text(f"{count} files wait: too many to plan here", style="dim"))
    partitions, fan_in = merge.partitions, page.state.config.merge_fan_in
    told = [each for each in partitions if each.groups][:SHOWN_PARTITIONS]
    rest = Counter(describe_partition(each, fan_in=fan_in) for each in partitions if not each.groups)
    rows: list[tuple[object, ...]] = [
        (each.partition or "(none)", each.file_count, describe_partition(each, fan_in=fan_in)) for each in told
    ]
    if left := sum(bool(each.groups) for each in partitions) - len(told):
        rows.append((f"{left} more", None, "`icedb merge --explain` tells all"))
    rows += [(count_of(count, "partition"), None, why) for why, count in rest.most_common()]
    if merge.is_crowded:
        rows.append(("the log", merge.log_file_count, f"is long: waits until {merge.log_fan_in} go at once"))
    if not rows:
        return _section(title, Text("there are no data files", style="dim"))
    return _section(title, _list(("partition", ">files", "what"), rows))


def _deletions(page: Page) -> list[Any]:
    details = page.details
    due, held = details.due_logs + details.due_files, details.kept or ()
    rows: list[tuple[object, ...]] = [
        (kept.guard, kept.held_by or None, format_count(kept.count), _until(kept, page.now_ms))
        for kept in held[:SHOWN_KEPT]
    ]
    if len(held) > SHOWN_KEPT:
        rows.append((f"{len(held) - SHOWN_KEPT} more", "`icedb vacuum --dry-run` tells all", None, None))
    if due:
        rows.insert(0, ("nothing", "the next vacuum deletes them", format_count(due), "now"))
    if not rows:
        return _section("What keeps dead objects", Text("there are none", style="dim"))
    return _section("What keeps dead objects", _list(("kept by", "who", ">objects", "let go"), rows))


def _until(kept: Kept, now_ms: int) -> str:
    if kept.is_open or kept.last_ms is None:
        return "when somebody acts"
    return f"in {_span(kept.last_ms - now_ms)}"


def _holders(page: Page) -> list[Any]:
    parts: list[Any] = []
    state, now_ms = page.state, page.now_ms
    rows: list[tuple[object, ...]]
    if state is not None and state.quarantined_batches:
        rows = [
            (entry.batch_id, _span(now_ms - entry.quarantined_ms), " ".join(entry.reason.split())[:200])
            for entry in page.details.quarantined
        ]
        title = f"Quarantine: {format_count(state.quarantined_batches)} waiting for a person"
        parts += _section(title, _list(("<batch", ">for", "reason"), rows))
    if state is not None and state.leases:
        rows = [
            (lease.lease_id, lease.holder or None, _span(now_ms - lease.at_ms), _span(lease.expires_ms - now_ms))
            for lease in state.leases[:SHOWN_KEPT]
        ]
        if len(state.leases) > SHOWN_KEPT:
            rows.append((f"{len(state.leases) - SHOWN_KEPT} more", None, None, None))
        parts += _section("Leases", _list(("<lease", "who", ">holds since", ">ends in"), rows))
    if page.details.pins:
        rows = [
            (pin.name, status, format_time(pin.at_ms), "unpinned" if pin.ends_ms is None else format_time(pin.ends_ms))
            for pin, status in page.details.pins
        ]
        parts += _section("Pins", _list(("name", "state", "time", "until"), rows))
    if page.details.views:
        rows = [
            (view.view, view.state, view.waiting_commits, _span(view.lag_ms), view.refused_commits)
            for view in page.details.views
        ]
        parts += _section("Views", _list(("view", "state", ">behind", ">lag", ">refused"), rows))
    return parts
