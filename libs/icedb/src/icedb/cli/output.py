"""What the command prints: results on standard output, everything else on standard error.

With ``-o json`` standard output holds one JSON document and nothing else. What others wrote is shown as it stands: only
:class:`Markup` has rich's marks.
"""

import csv
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from io import StringIO
from typing import Any, Final

import orjson
from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_KIB: Final = 1024
_SPANS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))
_MAX_TIME_MS: Final = 250_000_000_000_000
"""In the year 9892; Python's calendar ends soon after."""
_PIPE_COLUMNS: Final = 100_000
_LAYOUT: Final = "\n\t"


class VisibleConsole(Console):
    """A console on which text is text: what names and reasons of others hold cannot steer the terminal.

    A pipe is as wide as a table needs, unless ``COLUMNS`` says something else: no name is broken there.
    """

    @property
    def size(self) -> ConsoleDimensions:
        """Columns and lines."""
        found = super().size
        return found if self.is_terminal else ConsoleDimensions(_PIPE_COLUMNS, found.height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        super(VisibleConsole, type(self)).size.fset(self, new_size)  # type: ignore[attr-defined]

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render, with a replacement character for each one that would not be seen."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(make_visible(segment.text), segment.style)


def make_visible(text: str) -> str:
    """Return text with a replacement character for escapes, controls and marks of direction; lines stay lines."""
    return "".join(each if each.isprintable() or each in _LAYOUT else "\N{REPLACEMENT CHARACTER}" for each in text)


out: Final = VisibleConsole(highlight=False, emoji=False)
err: Final = VisibleConsole(stderr=True, highlight=False, emoji=False)


Show = Callable[..., None]
"""Takes how far something is: see :func:`progress`."""


MANY_ROWS: Final = 100
"""So many rows are laid out here where that is simple."""


class Markup(str):
    """Text of ours with rich's marks; what others wrote is escaped in it."""

    __slots__ = ()


def print_line(text: str) -> None:
    """Print one line of a result, with rich's marks: not broken, however narrow the terminal is."""
    out.print(text, soft_wrap=True)


def print_lines(lines: Iterable[str]) -> None:
    """Print plain lines in one go: there may be a hundred thousand."""
    write_text("".join(f"{line}\n" for line in lines))


def write_text(text: str) -> None:
    """Write text as it is, but to a terminal nothing that steers it."""
    sys.stdout.write(make_visible(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def print_json(value: Any) -> None:
    """Print one JSON document."""
    write_text(dump_json(value))


def dump_json(value: Any) -> str:
    """Return one JSON document, for people too."""
    return to_json(value, option=orjson.OPT_INDENT_2) + "\n"


def dump_records(records: Sequence[Mapping[str, Any]], output: str | None, *, has_head: bool = True) -> str:
    """Return records as lines: ``ndjson``, or ``csv``, with a first line of the names of all their fields.

    What JSON writes as an object or a list is JSON in a cell of CSV, too; null is an empty cell.
    """
    if output == "ndjson":
        return "".join(f"{to_json(each)}\n" for each in records)
    names = list(dict.fromkeys(name for each in records for name in each))
    text = StringIO()
    if names:
        rows = [[_to_cell(each.get(name)) for name in names] for each in records]
        csv.writer(text, lineterminator="\n").writerows([names, *rows] if has_head else rows)
    return text.getvalue()


def _to_cell(value: Any) -> str:
    if value is None:
        return ""
    return to_json(value) if isinstance(value, bool | dict | list | tuple) else to_plain_text(value)


_PLAIN_BYTES: Final = frozenset(range(0x20, 0x7F)) - frozenset(b"\\'\"")
"""Bytes that SQL shows as they are."""


def to_json(value: Any, *, option: int = 0) -> str:
    """Return a value as JSON. An integer beyond 64 bits, which orjson does not write, is a text of its digits."""
    option |= orjson.OPT_NON_STR_KEYS
    try:
        return orjson.dumps(value, default=to_plain_text, option=option).decode()
    except TypeError:
        return orjson.dumps(_wide_as_text(value), default=to_plain_text, option=option).decode()


def to_plain_text(value: object) -> str:
    """Return the text of a value: of bytes and of times between two as SQL casts them, so that it can be read back."""
    if isinstance(value, bytes):
        return "".join(chr(byte) if byte in _PLAIN_BYTES else f"\\x{byte:02X}" for byte in value)
    if isinstance(value, timedelta):
        seconds, micros = divmod(abs(value) // timedelta(microseconds=1), 1_000_000)
        days, seconds = divmod(seconds, 86_400)
        sign = "-" if value < timedelta() else ""
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        part = f".{micros:06}".rstrip("0") if micros else ""
        words = [f"{sign}{days} day{'' if days == 1 else 's'}"] if days else []
        return " ".join([*words, f"{sign}{clock}{part}"] if seconds or micros or not days else words)
    return str(value)


def _wide_as_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _wide_as_text(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_wide_as_text(each) for each in value]
    return str(value) if type(value) is int and not -(2**63) <= value < 2**64 else value


def pick(model: object, *names: str, **renamed: str) -> dict[str, Any]:
    """Return attributes of a model for a document: under their own names, then those that are called otherwise there.

    ``pick(info, "path", bytes="size_bytes")`` is ``{"path": info.path, "bytes": info.size_bytes}``.
    """
    return {name: getattr(model, source) for name, source in ({each: each for each in names} | renamed).items()}


def print_error(message: str) -> None:
    """Print an error: one line, unless the terminal is narrower."""
    line = " ".join(message.split())
    err.print(f"[bold red]error:[/] {escape(line)}", soft_wrap=True)


def print_note(message: str) -> None:
    """Print a remark on standard error."""
    err.print(f"[dim]{escape(message)}[/]", soft_wrap=True)


def print_table(columns: Iterable[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table. ``>`` before the name of a column aligns it right, ``<`` left, as it is without.

    Of a cell a number gets separators, and ``None`` is a hyphen.
    """
    named = [(column[1:] if column[:1] in ("<", ">") else column, column.startswith(">")) for column in columns]
    cells = [["-" if cell is None else cell for cell in row] for row in rows]
    if len(cells) >= MANY_ROWS and (lines := _lay_out(named, cells)) is not None:
        out.print(Text.assemble((lines[0], "bold"), "\n", "\n".join(lines[1:])), soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, is_right in named:
        table.add_column(escape(name), justify="right" if is_right else "left", overflow="fold")
    for row in cells:
        table.add_row(*map(_text, row))
    out.print(table)


def _lay_out(columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[object]]) -> list[str] | None:
    """Return the lines of a table as rich would draw them, in a tenth of its time; ``None``: it has to draw them."""
    texts = [[name for name, _ in columns]]
    for row in rows:
        texts.append([format_count(cell) if type(cell) is int else str(cell) for cell in row])
        is_plain = all(text.isascii() and text.isprintable() for text in texts[-1])
        if len(row) != len(columns) or not is_plain or any(isinstance(cell, Markup) for cell in row):
            return None
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    if sum(widths) + 2 * (len(widths) - 1) > out.width:
        return None
    laid = [(width, is_right) for width, (_, is_right) in zip(widths, columns, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if is_right else text.ljust(width)
            for text, (width, is_right) in zip(line, laid, strict=True)
        )
        for line in texts
    ]


def print_pairs(pairs: Mapping[str, object]) -> None:
    """Print names and values, one pair a line. A number gets separators; what is ``None`` is left out."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs.items():
        if value is not None:
            table.add_row(name, _text(value))
    out.print(table)


def _text(value: object) -> str:
    if isinstance(value, Markup):
        return value
    return format_count(value) if type(value) is int else escape(str(value))


def count_of(number: int | None, what: str) -> str:
    """Return a number with what is counted, e.g. ``1 row`` or ``2,000 batches``."""
    ending = "" if number == 1 else "es" if what.endswith("ch") else "s"
    return f"{format_count(number)} {what}{ending}"


def format_bytes(size_bytes: int) -> str:
    """Return a size as people read it, e.g. ``1.5 MiB``."""
    value = float(size_bytes)
    for unit in _UNITS:
        if value < _KIB or unit == _UNITS[-1]:
            return f"{int(value)} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= _KIB
    raise AssertionError("unreachable")


def format_span(duration_ms: int) -> str:
    """Return a duration as people read it, e.g. ``1 h 5 min``; at most two units."""
    parts: list[str] = []
    rest = duration_ms
    for unit, size_ms in _SPANS:
        count, rest = divmod(rest, size_ms)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or f"{duration_ms} ms"


def format_count(count: int | None) -> str:
    """Return a number with separators; ``?`` when it is not known."""
    return "?" if count is None else f"{count:,}"


def format_time(time_ms: int) -> str:
    """Return ISO 8601 in UTC to the millisecond, as options take it; what no calendar has as a number."""
    from icedb_log.clock import format_ms  # noqa: PLC0415 - not for `icedb --help`

    if not 0 <= time_ms <= _MAX_TIME_MS:  # a damaged log file, a host without a clock
        return str(time_ms)
    return format_ms(time_ms)


def is_watched(*, is_quiet: bool) -> bool:
    """Whether somebody sees how far long work is: at a terminal, not in CI."""
    return not is_quiet and err.is_terminal and not os.environ.get("CI")


@contextmanager
def progress(what: str, *, is_quiet: bool = False, in_bytes: bool = False) -> "Iterator[Show]":
    """Show at a terminal how far long work is, how fast, and how long it will take; nothing in a pipe or in CI.

    Args:
        what: What is being done.
        is_quiet: Show nothing.
        in_bytes: Whether bytes are counted.

    Yields:
        A function that takes how much is done, of how much (``None``: nobody knows) and what is being done now.
    """
    if not is_watched(is_quiet=is_quiet):
        yield lambda *_done, **_now: None
        return
    # Only for those who look.
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    amount = format_bytes if in_bytes else format_count

    class Figures(ProgressColumn):
        def render(self, task: Any) -> Text:
            if not task.completed and task.total is None:
                return Text()
            whole = "" if task.total is None else f" of {amount(int(task.total))}"
            rate = f", {amount(int(task.speed))}/s" if task.speed else ""
            rest = f", {format_span(1000 * int(task.time_remaining))} left" if task.time_remaining else ""
            return Text(f"{amount(int(task.completed))}{whole}{rate}{rest}")

    columns = (TextColumn("{task.description}"), BarColumn(20), Figures(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(escape(make_visible(what)), total=None)

        def show(done: int | None = None, total: int | None = None, now: str | None = None) -> None:
            bar.update(
                task, completed=done, total=total, description=None if now is None else escape(make_visible(now))
            )

        yield show


@contextmanager
def followed(what: str, *, is_quiet: bool = False) -> Iterator[None]:
    """Show at a terminal what the work of a block says of how far it is (:mod:`icedb_log.phases`)."""
    if not is_watched(is_quiet=is_quiet):
        yield
        return
    from icedb_log.phases import following  # noqa: PLC0415 - `icedb --help` needs nothing of the log

    with (
        progress(what) as show,
        following(lambda doing, done, total: show(done, total, f"{what}: {doing}")),
    ):
        yield


class WarningPrinter(logging.Handler):
    """Prints warnings of libraries as one line on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        print_note(f"warning: {record.getMessage()}")
