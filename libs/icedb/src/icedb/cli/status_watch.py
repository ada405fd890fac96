"""``icedb status --watch``: the figures of tables read and drawn again and again; of each log only what is new.

What cannot be read for a while hides nothing that was read before. Must never write.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Final

from icedb_log.errors import IceDBError, InvalidRequest
from icedb_log.serving.status import TableStatus
from icedb_log.serving.statuses import StatusReader
from icedb_log.serving.table_cache import TableCache
from icedb_log.units import MINUTE_MS
from rich.live import Live
from rich.text import Text

from icedb.cli.output import VisibleConsole, err, out, print_error, print_lines, to_json
from icedb.cli.runner import Run
from icedb.cli.status_figures import Found, read_figures, show_found, to_document

MAX_WATCHED: Final = 2000
"""Tables of which it is kept in memory what their logs say; of more, the others are read whole in each round."""
READ_THREADS: Final = 8
PAUSE_MS: Final = 2000
"""Between two rounds."""


class _Watched:
    """Reads the figures of tables again and again: of each log what is new."""

    def __init__(self, run: Run, table: str | None) -> None:
        self._warehouse = run.client.warehouse
        self._table = table
        tables = TableCache(
            self._warehouse, clock=run.clock, max_tables=MAX_WATCHED, wait_ms=MINUTE_MS, on_refresh=lambda _: None
        )
        self._statuses = StatusReader(self._warehouse, tables, clock=run.clock)

    def read(self) -> Found:
        """Read them. Raises what the read of the one that was asked for does, and Unavailable."""
        names = (self._table,) if self._table is not None else self._warehouse.list_tables()
        with ThreadPoolExecutor(READ_THREADS, "icedb-status") as pool:
            states = zip(names, pool.map(self._read_one, names), strict=True)
            return {name: state for name, state in states if state is not None}

    def _read_one(self, name: str) -> TableStatus | IceDBError | None:
        state = read_figures(name, self._statuses.read, is_only=self._table is not None)
        if state is None:
            self._statuses.drop(name)
        return state


def watch_status(run: Run, table: str | None) -> None:
    """Show the figures until somebody interrupts; what was shown stays where the store does not answer for a while."""
    watched = _Watched(run, table)
    found = watched.read()
    if run.output == "csv":
        raise InvalidRequest("status --watch prints no csv: give -o ndjson, a document after each look")
    if run.as_data or not out.is_terminal:
        while True:
            if run.as_data:
                print_lines([to_json({"at_ms": run.clock.now_ms(), **to_document(found)})])
            else:
                show_found(run, table, found)
            run.clock.sleep_ms(PAUSE_MS)
            found = watched.read()
    # A console of its own: what is drawn into the other one is caught, and would be drawn twice.
    problem = ""
    with Live(console=VisibleConsole(highlight=False, emoji=False), screen=True, auto_refresh=False) as live:
        while True:
            with out.capture() as shown, err.capture() as noted:
                show_found(run, table, found)
                if problem:
                    print_error(problem)
            live.update(Text.from_ansi(shown.get() + noted.get()), refresh=True)
            run.clock.sleep_ms(PAUSE_MS)
            try:
                found, problem = watched.read(), ""
            except IceDBError as error:
                problem = str(error)
