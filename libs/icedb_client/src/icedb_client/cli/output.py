"""What the command prints: results on standard output, everything else on standard error.

With ``--json`` standard output holds one JSON document and nothing else.
"""

import logging
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

import orjson
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_KIB: Final = 1024
_SPANS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))

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


def count_of(number: int, what: str) -> str:
    """Return a number with what is counted, e.g. ``1 row`` or ``2,000 rows``."""
    return f"{format_count(number)} {what}{'' if number == 1 else 's'}"


def make_table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return a table in the command's style; columns named in ``right`` are aligned right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def print_pairs(pairs: dict[str, str]) -> None:
    """Print names and values, one pair a line."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs.items():
        table.add_row(name, escape(value))
    out.print(table)


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


class WarningPrinter(logging.Handler):
    """Prints warnings of libraries as one line on standard error."""

    def __init__(self, print_line: Callable[[str], None] = print_note) -> None:
        super().__init__(logging.WARNING)
        self._print_line = print_line

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        self._print_line(f"warning: {record.getMessage()}")
