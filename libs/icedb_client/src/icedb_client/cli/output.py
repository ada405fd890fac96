"""What the command prints: results on standard output, everything else on standard error.

With ``--json`` standard output holds one JSON document and nothing else. What others wrote is shown as it stands: only
:class:`Markup` has rich's marks.
"""

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_KIB: Final = 1024
_SPANS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))
_MAX_TIME_MS: Final = 250_000_000_000_000
"""In the year 9892; Python's calendar ends soon after."""
_LAYOUT: Final = "\n\t"


class VisibleConsole(Console):
    """A console on which text is text: what names and reasons of others hold cannot steer the terminal."""

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


class Markup(str):
    """Text of ours with rich's marks; what others wrote is escaped in it."""

    __slots__ = ()


def print_line(text: str) -> None:
    """Print one line of a result, with rich's marks: not broken, however narrow the terminal is."""
    out.print(text, soft_wrap=True)


def print_lines(lines: Iterable[str]) -> None:
    """Print plain lines in one go: there may be a hundred thousand."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def print_json(value: Any) -> None:
    """Print one JSON document."""
    sys.stdout.buffer.write(
        orjson.dumps(value, default=str, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS) + b"\n"
    )
    sys.stdout.flush()


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
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        name = column[1:] if column[:1] in ("<", ">") else column
        table.add_column(escape(name), justify="right" if column.startswith(">") else "left", overflow="fold")
    for row in rows:
        table.add_row(*("-" if cell is None else _text(cell) for cell in row))
    out.print(table)


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


def count_of(number: int, what: str) -> str:
    """Return a number with what is counted, e.g. ``1 row`` or ``2,000 rows``."""
    return f"{format_count(number)} {what}{'' if number == 1 else 's'}"


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
    if not 0 <= time_ms <= _MAX_TIME_MS:  # a damaged log file, a host without a clock
        return str(time_ms)
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class WarningPrinter(logging.Handler):
    """Prints warnings of libraries as one line on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        print_note(f"warning: {record.getMessage()}")
