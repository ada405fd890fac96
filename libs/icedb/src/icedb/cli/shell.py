r"""``icedb query`` without SQL: a shell on tables that stand still, for a person at a terminal or from standard input.

A table is read from one snapshot from the first time that it is named until ``\refresh``: what two queries say fits
together. Queries are those of ``icedb query``; they can open the data files of these snapshots and nothing else.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
from icedb_client.duck import find_snapshots, open_duckdb, partition_columns
from icedb_client.duck import run as run_query
from icedb_client.snapshots import Snapshot
from icedb_log.errors import IceDBError, InvalidRequest
from icedb_log.texts import first_line, quote_name

from icedb.cli.describe import show_description
from icedb.cli.output import count_of, format_time, print_error, print_note
from icedb.cli.read_times import maybe_time
from icedb.cli.rows import answer_rows, print_rows
from icedb.cli.runner import Run, maybe_duration

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

HELP: Final = r"""A statement ends with ; and may have many lines. Ctrl-C interrupts it, Ctrl-D ends the shell.
\d            tables
\d TABLE      columns and types of a table; \d+ TABLE: what is in them, from statistics
\refresh      read tables anew: they stand still until then
\timing       show how long a statement took, or not
\? \q         this help; the end"""
_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_]*")
_WORD: Final = re.compile(r"^[A-Za-z0-9_]+")
"""Backwards from the cursor."""
_UNFINISHED: Final = "unterminated"


def run_shell(run: Run, *, as_of: str | None, tag: str | None, max_staleness: str | None, limit: int | None) -> None:
    """Run statements of a person at a terminal, or of standard input. Raises what the first that fails there does."""
    as_of_ms = maybe_time(as_of, option="--as-of", now_ms=run.clock.now_ms())
    max_staleness_ms = maybe_duration(max_staleness, option="--max-staleness")

    def read(table: str) -> Snapshot:
        return run.client.snapshot(table, as_of=as_of_ms, tag=tag, max_staleness_ms=max_staleness_ms, bounds=True)

    session = _Session(run, read=read, answer=partial(answer_rows, run, most=limit))
    if sys.stdin.isatty() and sys.stdout.isatty():
        _talk(session)
    else:
        for text in _split(sys.stdin):
            session.execute(text)


class _Session:
    """What a shell knows from one statement to the next.

    Args:
        run: The command.
        read: Returns the snapshot of a table.
        answer: Prints rows.
    """

    def __init__(self, run: Run, *, read: Callable[[str], Snapshot], answer: Callable[..., None]) -> None:
        self.run = run
        self.held: dict[str, Snapshot] = {}
        self.is_timed = sys.stdout.isatty()
        self._said: set[str] = set()
        self._read = read
        self._answer = answer
        self._commands: dict[str, Callable[..., None]] = {
            "\\d": self._describe,
            "\\d+": self._describe_all,
            "\\refresh": self._refresh,
            "\\timing": self._switch_timing,
            "\\?": lambda: print_note(HELP),
            "\\help": lambda: print_note(HELP),
        }

    def hold(self, table: str, *, is_said: bool = True) -> Snapshot:
        """Return the snapshot of a table: the same one until it is read anew. Raises as Client.snapshot."""
        if table not in self.held:
            self.held[table] = self._read(table)
        found = self.held[table]
        if is_said and table not in self._said:
            self._said.add(table)
            last = "none yet" if found.last_commit_ms is None else format_time(found.last_commit_ms)
            print_note(f"{table}: snapshot {found.snapshot_id}, last commit {last}; \\refresh reads it anew")
        return found

    @cached_property
    def tables(self) -> tuple[str, ...]:
        """The tables that there are, as of the same time."""
        return self.run.client.tables()

    def execute(self, text: str) -> None:
        """Run a command, or each statement of a text. Raises IceDBError, KeyboardInterrupt."""
        if text.strip().startswith("\\"):
            name, *given = text.split()
            try:
                self._commands[name](*given)
            except (KeyError, TypeError) as error:
                raise InvalidRequest(f"{text.strip()[:80]} is no command; \\? shows them") from error
            return
        for sql in _statements(text):
            begin_ms = self.run.clock.monotonic_ms()
            snapshots = find_snapshots(sql, self.hold)
            with run_query(sql, snapshots) as rows:
                self._answer(rows)
            if self.is_timed:
                print_note(f"{(self.run.clock.monotonic_ms() - begin_ms) / 1000:,.3f} s")

    def _describe(self, table: str | None = None) -> None:
        if table is not None:
            found = self.hold(table)
            columns = (*found.schema.items(), *((name, "VARCHAR (partition)") for name in partition_columns(found)))
            print_rows([("column", "VARCHAR"), ("type", "VARCHAR")], columns)
            return
        ids = ((name, self.held[name].snapshot_id if name in self.held else "-") for name in self.tables)
        print_rows([("table", "VARCHAR"), ("snapshot", "VARCHAR")], ids)

    def _describe_all(self, table: str) -> None:
        show_description(self.hold(table).describe())

    def _refresh(self) -> None:
        print_note(f"{count_of(len(self._said), 'table')} will be read anew when named again")
        self.held.clear()
        self._said.clear()
        self.__dict__.pop("tables", None)

    def _switch_timing(self) -> None:
        self.is_timed = not self.is_timed
        print_note(f"timing is {'on' if self.is_timed else 'off'}")


def _statements(text: str) -> list[str]:
    try:
        return [each.query for each in duckdb.extract_statements(text)]
    except duckdb.Error as error:
        raise InvalidRequest(f"not understood: {first_line(error)}") from error


def is_complete(text: str) -> bool:
    """Whether a text is a command, or ends with the end of a statement."""
    text = text.strip()
    if not text or text.startswith("\\"):
        return True
    if not text.endswith(";"):
        return False
    try:
        duckdb.extract_statements(text)
    except duckdb.Error as error:
        return _UNFINISHED not in str(error)
    return True


def _split(lines: Iterable[str]) -> Iterator[str]:
    """Yield commands and statements; the last one needs no semicolon."""
    text = ""
    for line in lines:
        text += line
        if is_complete(text):
            if text.strip() not in ("", "\\q"):
                yield text
            if text.strip() == "\\q":
                return
            text = ""
    if text.strip():
        yield text


def _talk(session: _Session) -> None:
    """Ask for statements until Ctrl-D."""
    prompt, settings = _open_prompt(session), session.run.client.settings
    print_note(f"SQL of DuckDB on {settings.store or settings.snapshot_address}; \\? shows commands, Ctrl-D ends")
    while True:
        try:
            text = prompt.prompt()
            if text.strip().rstrip(";") in ("\\q", "exit", "quit"):
                return
            session.execute(text)
        except EOFError:
            return
        except KeyboardInterrupt:
            print_note("interrupted")
        except IceDBError as error:
            print_error(str(error))


def history_path() -> Path:
    """Return the file of what was typed, which nobody else may read; made if it is not there. Raises OSError."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    path = Path(state).expanduser() / "icedb" / "shell_history"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.chmod(0o600)
    return path


def _open_prompt(session: _Session) -> "PromptSession[str]":
    # A shell alone needs these, and no other command waits for them.
    from prompt_toolkit import PromptSession  # noqa: PLC0415
    from prompt_toolkit.application import get_app  # noqa: PLC0415
    from prompt_toolkit.completion import Completer, Completion  # noqa: PLC0415
    from prompt_toolkit.document import Document  # noqa: PLC0415
    from prompt_toolkit.filters import Condition  # noqa: PLC0415
    from prompt_toolkit.history import FileHistory, InMemoryHistory  # noqa: PLC0415
    from prompt_toolkit.lexers import PygmentsLexer  # noqa: PLC0415
    from prompt_toolkit.output import ColorDepth  # noqa: PLC0415
    from pygments.lexers.sql import SqlLexer  # noqa: PLC0415

    class Names(Completer):
        """Completes names of tables, columns of tables that are named, and words of the language."""

        def get_completions(self, document: Document, _event: Any) -> Iterator[Completion]:
            typed = document.get_word_before_cursor(pattern=_WORD)
            for name, kind in find_names(session, document.text) if typed else ():
                if name.lower().startswith(typed.lower()):
                    yield Completion(name, start_position=-len(typed), display_meta=kind)

    try:
        history: Any = FileHistory(str(history_path()))
    except OSError as error:
        print_note(f"warning: what you type is not kept: {error}")
        history = InMemoryHistory()
    return PromptSession(
        "icedb> ",
        history=history,
        lexer=PygmentsLexer(SqlLexer),
        completer=Names(),
        complete_in_thread=True,
        multiline=Condition(lambda: not is_complete(get_app().current_buffer.text)),
        prompt_continuation="     > ",
        color_depth=ColorDepth.DEPTH_1_BIT if os.environ.get("NO_COLOR") else None,
    )


def find_names(session: _Session, text: str) -> Iterator[tuple[str, str]]:
    """Yield what may stand in a statement, with what it is; a name that needs it is quoted."""
    with suppress(IceDBError):  # a table that cannot be read: the query will say why
        for table in session.tables:
            if re.search(rf"\b{table}\b", text):
                found = session.hold(table, is_said=False)
                partitions = ((name, "partition") for name in partition_columns(found))
                for name, kind in (*found.schema.items(), *partitions):
                    if name.isprintable():
                        yield (name if _PLAIN.fullmatch(name) else quote_name(name)), f"{table}: {kind}"
        yield from ((table, "table") for table in session.tables)
    yield from _words()


@cache
def _words() -> list[tuple[str, str]]:
    """Return the words of the language."""
    with open_duckdb() as con:
        words = con.execute(
            "SELECT keyword_name, 'keyword' FROM duckdb_keywords() UNION ALL "
            "SELECT DISTINCT function_name, 'function' FROM duckdb_functions() ORDER BY ALL"
        ).fetchall()
    return [(name, kind) for name, kind in words if _PLAIN.fullmatch(name)]
