"""What the demo shows: steps, progress bars, tables. Plain lines where the terminal can do no more."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from icedb_log.clock import Clock, SystemClock
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from icedb_local.checks import Check

MAX_WIDTH: Final = 120
PLAIN_WIDTH: Final = 100


@dataclass(frozen=True, slots=True)
class StepTime:
    """How long a step took.

    Attributes:
        name: Of the step.
        seconds: Wall clock.
        row_count: Rows that it handled, if a rate makes sense.
    """

    name: str
    seconds: float
    row_count: int | None = None


class Screen:
    """Writes to one console.

    Args:
        console: Where to; by default standard output.
        clock: For the time that steps take.
    """

    def __init__(self, console: Console | None = None, *, clock: Clock | None = None) -> None:
        self.console = console or make_console()
        self.step_times: list[StepTime] = []
        self._clock = clock or SystemClock()
        self._step_count = 0

    @property
    def is_ascii(self) -> bool:
        """Whether the terminal takes nothing beyond ASCII."""
        return not (self.console.encoding or "").lower().startswith("utf")

    @property
    def is_live(self) -> bool:
        """Whether lines can be drawn over."""
        return self.console.is_terminal and not self.console.is_dumb_terminal

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Print a heading, and note how long the block takes."""
        self._step_count += 1
        begin_ms = self._clock.monotonic_ms()
        self.console.print()
        self.console.print(Text.assemble((f"{self._step_count}  ", "bold cyan"), (title, "bold")))
        yield
        self.step_times.append(StepTime(title, (self._clock.monotonic_ms() - begin_ms) / 1000))

    def rate_last_step(self, row_count: int) -> None:
        """Say how many rows the last step handled."""
        last = self.step_times[-1]
        self.step_times[-1] = StepTime(last.name, last.seconds, row_count)

    def say(self, text: str | Text) -> None:
        """Print a line of a step; in a pipe or a file it stays one line, however long."""
        self.console.print(
            Text("   ").append_text(Text(text) if isinstance(text, str) else text), soft_wrap=not self.is_live
        )

    def show_check(self, check: Check) -> None:
        """Print a check's outcome; a long one goes on below its own words."""
        line = Table.grid(padding=(0, 1, 0, 0))
        detail = Text(check.detail, "dim" if check.holds else "red")
        line.add_row(self.mark(holds=check.holds), Text.assemble(check.name, "  ", detail))
        self.show_table(line)

    def mark(self, *, holds: bool) -> Text:
        """Return the sign for yes or no."""
        yes, no = ("ok", "FAILED") if self.is_ascii else ("✓", "✗")
        return Text(yes, "bold green") if holds else Text(no, "bold red")

    def show_lines(self, lines: Sequence[str], *, style: str = "") -> None:
        """Print lines as they are, cut at the edge."""
        for line in lines:
            self.console.print(Text("   " + line, style), no_wrap=True, overflow="crop", highlight=False)

    def show_table(self, table: Table) -> None:
        """Print a table, indented."""
        self.console.print(Padding(table, (0, 0, 0, 3), expand=False))

    def make_progress(self) -> Progress:
        """Return a progress display with bars; on a plain terminal it prints nothing."""
        return Progress(
            TextColumn("  "),
            SpinnerColumn(finished_text=self.mark(holds=True)),
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}", style="green"),
            TextColumn("{task.fields[note]}", style="dim"),
            TimeElapsedColumn(),
            console=self.console,
            disable=not self.is_live,
            refresh_per_second=5,
            expand=True,
        )


def make_table(*columns: str, left: int = 1) -> Table:
    """Return an empty table; the first ``left`` columns hold words, the others figures."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position < left else "right")
    return table


def make_console(*, is_error_stream: bool = False) -> Console:
    """Return a console that is never wider than people read."""
    console = Console(stderr=is_error_stream, highlight=False)
    if not console.is_terminal:
        console = Console(stderr=is_error_stream, highlight=False, width=PLAIN_WIDTH)
    if console.width > MAX_WIDTH:
        console = Console(stderr=is_error_stream, highlight=False, width=MAX_WIDTH)
    return console
