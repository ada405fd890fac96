"""``icedb top``: all tables live in the terminal, the page of one, keys; without a terminal one picture, or JSON lines.

One thread reads, the terminal's own draws what was read last: a store that hangs holds up no key. prompt_toolkit, which
``icedb shell`` has already, knows terminals (keys, sizes, what has changed since the last picture, so that little goes
over ssh); rich draws the pictures.
"""

import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer
from icedb_log.errors import IceDBError, InvalidRequest
from icedb_log.units import SECOND_MS, parse_duration

from icedb.cli.output import out, print_lines, to_json
from icedb.cli.runner import argument, flag, open_client, option
from icedb.cli.top_reads import Overview, Page, Source, open_source
from icedb.cli.top_screen import (
    COLUMNS,
    Screen,
    Size,
    count_page_lines,
    count_table_lines,
    draw_all,
    draw_page,
    draw_page_lines,
    draw_plain,
)

if TYPE_CHECKING:
    from icedb_client.client import Client
    from prompt_toolkit import Application
    from prompt_toolkit.key_binding import KeyBindings

DEFAULT_EVERY: Final = "2s"
LEAST_EVERY_MS: Final = 200
_SORTS: Final[Mapping[str, str]] = {column.title.rstrip("."): column.key for column in COLUMNS}


def top(
    *,
    context: typer.Context,
    table: str | None = argument("Name of a table, to begin with its page.", None),
    every: str = option("--every", "Pause between two looks.", DEFAULT_EVERY),
    sort: str = option("--sort", f"What tables are sorted by: {', '.join(_SORTS)}.", "health"),
    once: bool = flag("--once", "Print one picture and end, as without a terminal."),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON document a line for each table, again after each pause.")
    ] = False,
) -> None:
    """Show all tables live: size, what waits, how far merges lag, what is wrong. Keys open one, sort, quit.

    Example: icedb top --every 5s
    """
    if sort not in _SORTS:
        raise InvalidRequest(f"--sort {sort[:40]!r} is none of: {', '.join(_SORTS)}")
    every_ms = parse_duration(every, option="--every", floor_ms=LEAST_EVERY_MS)
    screen = Screen(sort=_SORTS[sort], page=table or "")
    with open_client(context) as client:
        source = open_source(client)
        if as_json:
            _print_documents(source, client, screen, every_ms=None if once else every_ms)
        elif once or not _is_terminal():
            _print_picture(source, screen)
        else:
            _Terminal(source, screen, every_ms=every_ms).run()


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _print_picture(source: Source, screen: Screen) -> None:
    size = Size(out.width, out.height, has_color=not out.no_color, is_terminal=out.is_terminal)
    if screen.page:
        lines = draw_page_lines(source.read_page(screen.page), size)
        print_lines(line.rstrip() for line in lines)
    else:
        print_lines([draw_plain(source.read_all(limit=None), screen, size)])


def _print_documents(source: Source, client: "Client", screen: Screen, *, every_ms: int | None) -> None:
    while True:
        if screen.page:
            found = [source.read_page(screen.page).to_json()]
        else:
            found = [dict(row.document) for row in screen.sorted(source.read_all(limit=None).rows)]
        at_ms = client.clock.now_ms()
        print_lines(to_json({"at_ms": at_ms, **document}) for document in found)
        if every_ms is None:
            return
        client.clock.sleep_ms(every_ms)


class _Reading:
    """Reads what is asked for, in a thread of its own, again and again; keeps what came last."""

    def __init__(self, source: Source, *, every_ms: int, on_change: Callable[[], None]) -> None:
        self._source = source
        self._every_ms = every_ms
        self._on_change = on_change
        self._wanted = threading.Event()
        self._has_ended = False
        self._page = ""
        self._first: tuple[str, ...] = ()
        self.overview = Overview()
        self.page: Page | None = None
        self.page_problem = ""
        self._thread = threading.Thread(target=self._run, name="icedb-top", daemon=True)

    def start(self, page: str) -> None:
        """Begin."""
        self._page = page
        self._thread.start()

    def stop(self) -> None:
        """End after what is being read; nobody waits for that."""
        self._has_ended = True
        self._wanted.set()

    def want(self, *, page: str, first: tuple[str, ...] = (), is_new: bool = False) -> None:
        """Say what is looked at now: a page, or these tables among all; ``is_new``: read it at once."""
        if page != self._page:
            self.page, self.page_problem, is_new = None, "", True
        self._page, self._first = page, first
        if is_new:
            self._wanted.set()

    def _run(self) -> None:
        while not self._has_ended:
            self._wanted.clear()
            page = self._page
            try:
                if page:
                    found = self._source.read_page(page)
                    if page == self._page:
                        self.page, self.page_problem = found, ""
                else:
                    self.overview = self._source.read_all(first=self._first)
            except IceDBError as error:
                if page:
                    self.page_problem = str(error)
                else:
                    self.overview = replace(self.overview, problem=str(error))
            self._on_change()
            if page or not self.overview.unread_count or self.overview.problem:
                self._wanted.wait(self._every_ms / SECOND_MS)


class _Terminal:
    """A person's terminal: pictures, keys."""

    def __init__(self, source: Source, screen: Screen, *, every_ms: int) -> None:
        self._title = f"icedb top  {source.place}"
        self._screen = screen
        self._app = self._make_app()
        self._reading = _Reading(source, every_ms=every_ms, on_change=self._app.invalidate)

    def run(self) -> None:
        """Show it until a person quits."""
        self._reading.start(self._screen.page)
        try:
            self._app.run()
        finally:
            self._reading.stop()

    def _make_app(self) -> "Application[None]":
        from prompt_toolkit import Application  # noqa: PLC0415 - for people at a terminal alone
        from prompt_toolkit.formatted_text import ANSI  # noqa: PLC0415 - as above
        from prompt_toolkit.layout import FormattedTextControl, Layout, Window  # noqa: PLC0415 - as above

        control = FormattedTextControl(lambda: ANSI(self._draw()), focusable=True, show_cursor=False)
        app: Application[None] = Application(
            layout=Layout(Window(control, always_hide_cursor=True)),
            key_bindings=self._bind_keys(),
            full_screen=True,
            refresh_interval=1.0,  # ages grow
        )
        app.ttimeoutlen = app.timeoutlen = 0.1  # Esc is a key of its own
        return app

    def _size(self) -> Size:
        size = self._app.output.get_size()
        return Size(size.columns, size.rows, has_color=not os.environ.get("NO_COLOR"))

    def _draw(self) -> str:
        size, screen, reading = self._size(), self._screen, self._reading
        if not screen.page:
            overview = reading.overview
            self._screen = screen = screen.seen(overview.rows, count_table_lines(size))
            first = screen.sorted(overview.rows)[screen.first : screen.first + count_table_lines(size)]
            reading.want(page="", first=tuple(row.table for row in first))
            return draw_all(overview, screen, size, title=self._title)
        page = reading.page
        if page is None:
            return f"{screen.page}: {reading.page_problem or 'is being read …'}\n\nEsc back  q quit"
        if reading.page_problem:
            page = replace(page, problem=reading.page_problem)
        return draw_page(page, screen, size, title=self._title.partition("  ")[0])

    def _bind_keys(self) -> "KeyBindings":
        from prompt_toolkit.key_binding import KeyBindings  # noqa: PLC0415 - as above

        bindings = KeyBindings()

        def on(*keys: str) -> Callable[[Callable[[], None]], None]:
            def bind(act: Callable[[], None]) -> None:
                for key in keys:
                    bindings.add(key)(lambda _event: act())

            return bind

        for keys, step in ((("up", "k"), -1), (("down", "j"), 1), (("home",), -(10**9)), (("end", "G"), 10**9)):
            on(*keys)(partial(self._move, step))
        on("pageup", "c-b")(lambda: self._move(-count_table_lines(self._size())))
        on("pagedown", "c-f", "space")(lambda: self._move(count_table_lines(self._size())))
        on("enter", "right")(self._open)
        on("escape", "left", "backspace")(self._close)
        on("u")(lambda: self._reading.want(page=self._screen.page, first=(self._screen.chosen,), is_new=True))
        on("q", "Q", "c-c", "c-d")(lambda: self._app.exit())  # noqa: PLW0108 - it is made later
        on("c-z")(lambda: self._app.suspend_to_background())  # noqa: PLW0108 - as above
        for column in COLUMNS:
            on(column.key)(partial(self._sort, column.key))
        return bindings

    def _move(self, step: int) -> None:
        screen = self._screen
        if not screen.page:
            self._screen = screen.move(self._reading.overview.rows, step)
        elif self._reading.page is not None:
            last = count_page_lines(self._reading.page, self._size())
            self._screen = replace(screen, scroll=min(max(screen.scroll + step, 0), last))

    def _sort(self, key: str) -> None:
        if not self._screen.page:
            self._screen = self._screen.sort_by(key)

    def _open(self) -> None:
        if not self._screen.page and self._screen.chosen:
            self._screen = replace(self._screen, page=self._screen.chosen, scroll=0)
            self._reading.want(page=self._screen.page)

    def _close(self) -> None:
        if self._screen.page:
            self._screen = replace(self._screen, page="", chosen=self._screen.page, scroll=0)
            self._reading.want(page="")
