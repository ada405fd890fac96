"""What every command runs in: its options, an open client, its question, a worker's result, and an exit code.

Exit codes are what scripts rely on: never renumber. A result is one JSON document on standard output with ``--json``,
else what a person reads; never both.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from icedb_log.errors import (
    HaltError,
    IceDBError,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from rich.markup import escape

from icedb_client.cli.output import err, out, print_error, print_json, print_note, print_pairs
from icedb_client.cli.parsing import parse_duration

if TYPE_CHECKING:
    from icedb_log.clock import Clock
    from icedb_log.store.table_store import TableStore
    from icedb_log.table.table import Table

    from icedb_client.client import Client

OK: Final = 0
FAILED: Final = 1
INVALID: Final = 2
NOT_FOUND: Final = 3
UNAVAILABLE: Final = 4
HALTED: Final = 5
TIMED_OUT: Final = 6
DENIED: Final = 7
INTERRUPTED: Final = 130


class TimedOut(IceDBError):
    """What was waited for did not come in time. What the caller does: look, and wait again."""


_CODES: Final[tuple[tuple[type[IceDBError], int], ...]] = (
    (TimedOut, TIMED_OUT),
    (InvalidRequest, INVALID),
    (NotFound, NOT_FOUND),
    (Unavailable, UNAVAILABLE),
    (HaltError, HALTED),
    (Unauthenticated, DENIED),
    (PermissionDenied, DENIED),
)
_BY_OUTCOME: Final[Mapping[str, int]] = {
    "done": OK,
    "idle": OK,
    "halted": HALTED,
    "not_found": NOT_FOUND,
    "refused": INVALID,
    "unavailable": UNAVAILABLE,
}
_TABLE_IN_MESSAGE: Final = re.compile(r"\btable '(?P<table>[a-z][a-z0-9_]{0,62})' does not exist")


def exit_code(error: IceDBError) -> int:
    """Return the exit code of an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


def outcome_exit_code(outcome: str) -> int:
    """Return the exit code of what a worker says became of a task."""
    return _BY_OUTCOME.get(outcome, FAILED)


def option(name: str, words: str, default: Any = None, **more: Any) -> Any:
    """Return an option of a command: its name, its help, what it is if it is not given (``...``: it has to be)."""
    return typer.Option(default, name, help=words, **more)


def flag(name: str, words: str) -> Any:
    """Return an option that is given or not."""
    return typer.Option(False, name, help=words)


def argument(words: str, default: Any = ..., **more: Any) -> Any:
    """Return an argument of a command."""
    return typer.Argument(default, help=words, **more)


TableName = Annotated[str, typer.Argument(help="Name of the table.")]
YesFlag = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output and nothing else.")]
_WAIT: Final = ("--wait/--no-wait", "Wait for the result, or only hand the task over.")
_TIMEOUT: Final = ("--timeout", "How long to wait for the worker's result.")


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a command.

    Attributes:
        client: Open as long as the command runs.
        as_json: Whether its result is printed as JSON.
        wait_ms: How long a worker's result is waited for; ``None``: not at all.
    """

    client: "Client"
    as_json: bool
    wait_ms: int | None = None

    @property
    def timeout_ms(self) -> int:
        """How long a worker's result is waited for, by a command that always waits."""
        return self.wait_ms or 0

    @property
    def clock(self) -> "Clock":
        """Time, to wait by."""
        return self.client.clock

    def place(self, table: str) -> "TableStore":
        """Return where a table lies; it need not exist."""
        return self.client.warehouse.table(table)

    def open(self, table: str, *, owner: str = "") -> "Table":
        """Open a table to work on it. Raises as :meth:`icedb_log.table.table.Table.open`."""
        from icedb_log.table.table import Table  # noqa: PLC0415 - not for `icedb --help`

        return Table.open(self.place(table), clock=self.clock, owner=owner)

    def answer(self, document: Any, show: Callable[[], None]) -> None:
        """Print what the command found: the document with ``--json``, else what ``show`` prints for people."""
        if self.as_json:
            print_json(document)
        else:
            show()

    def task(self, name: str, table: str, arguments: Mapping[str, Any] | None = None, **words: str) -> "Task":
        """Return a task for workers; ``words`` are those of :class:`Task`."""
        return Task(name, table, arguments or {}, self, **words)


def command(
    *, about: str = "table", waits: str = "", timeout: str = ""
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function that takes a :class:`Run` first, which has an open client.

    Options that many commands have come last: ``--wait``, ``--timeout``, ``--json``.

    Args:
        about: The parameter that names the table that it is about: if it is unknown, names that are close are told.
        waits: Default of ``--timeout``, for a command that may wait for a worker or not (``--wait``).
        timeout: The same, for one that always waits.
    """
    lasting: dict[str, tuple[type, Any]] = {}
    if waits:
        lasting["wait"] = (bool, option(*_WAIT, default=True))
    if waits or timeout:
        lasting["timeout"] = (str, option(*_TIMEOUT, default=waits or timeout))

    def decorate(work: Callable[..., None]) -> Callable[..., None]:
        @wraps(work)
        def run(*, context: typer.Context, as_json: bool = False, **given: Any) -> None:
            typed = {name: given.pop(name) for name in lasting}
            wait_ms = parse_duration(typed["timeout"], option="--timeout") if typed.get("wait", bool(typed)) else None
            with open_client(context, table=given.get(about)) as client:
                work(Run(client, as_json, wait_ms), **given)

        def keyword(name: str, kind: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
            return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)

        own = list(inspect.signature(work).parameters.values())[1:]
        last = [keyword(name, *what) for name, what in lasting.items()]
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # what typer goes by
            [keyword("context", typer.Context), *own, *last, keyword("as_json", JsonFlag, False)]
        )
        return run

    return decorate


@contextmanager
def open_client(context: typer.Context, *, table: str | None) -> "Iterator[Client]":
    """Open a client by the options that stand before the command; ``table`` is what the command is about."""
    from icedb_client.client import Client  # noqa: PLC0415 - half a second that `icedb --help` does not need
    from icedb_client.settings import load_client_settings  # noqa: PLC0415 - as above

    settings = load_client_settings(**(context.find_root().obj or {}))
    with Client(settings=settings) as client:
        try:
            yield client
        except NotFound as error:
            named = _TABLE_IN_MESSAGE.search(str(error))
            if named is None:
                raise
            raise NotFound(_describe_unknown_table(client, table or named["table"], error)) from error


def is_served(client: "Client") -> bool:
    """Return whether tables are known through a snapshot service alone."""
    return client.settings.store is None and client.settings.snapshot_address is not None


def _describe_unknown_table(client: "Client", table: str, error: NotFound) -> str:
    """Return what to tell a person who named an unknown table, with names that are close."""
    from difflib import get_close_matches  # noqa: PLC0415 - only on this path

    try:
        names = client.tables() if is_served(client) else client.warehouse.list_tables()
    except IceDBError:
        return str(error)
    close = get_close_matches(table, names, n=3, cutoff=0.5)
    return f"table {table!r} does not exist; did you mean {' or '.join(close)}?" if close else str(error)


def confirm(question: str, *, unasked: str, declined: str, can_ask: bool = True) -> None:
    """Ask a person whether to go on, and end the command if not.

    Args:
        question: What is about to happen.
        unasked: What to do where nobody can be asked.
        declined: What a person reads who said no.
        can_ask: Whether the command may ask at all.

    Raises:
        InvalidRequest: Nobody can be asked: no terminal.
        typer.Exit: The answer is no.
    """
    require_terminal(unasked, can_ask=can_ask)
    if not typer.confirm(question, err=True):
        print_note(declined)
        raise typer.Exit(FAILED)


def require_terminal(unasked: str, *, can_ask: bool = True) -> None:
    """Return if somebody can be asked. Raises InvalidRequest that says what to do instead."""
    if not can_ask or not sys.stdin.isatty():
        raise InvalidRequest(f"nobody can be asked here: {unasked}")


def waiting(what: str, *, is_quiet: bool) -> AbstractContextManager[Any]:
    """Show on a terminal what is waited for; elsewhere nothing."""
    return nullcontext() if is_quiet or not err.is_terminal else err.status(what)


@dataclass(frozen=True, slots=True)
class Task:
    """A task that a command asks workers for.

    Attributes:
        name: One of :data:`icedb_log.names.TASKS`.
        table: Its table.
        arguments: Its other arguments.
        run: The command.
        title: What it is called in errors; the task and the table by default.
        note: What a person reads while it is waited for.
        late: What else a person is told when no result came in time.
    """

    name: str
    table: str
    arguments: Mapping[str, Any]
    run: Run = field(compare=False)
    title: str = ""
    note: str = ""
    late: str = ""

    def carry_out(self, show: Callable[[dict[str, Any]], None] | None = None) -> None:
        """Hand the task over, or wait for its result and print it: by ``show`` for people, or figure by figure.

        Raises:
            TimedOut: No result in time.
            Unavailable: Redis does not answer.
            typer.Exit: The task ended badly; the error is printed.
        """
        if self.run.wait_ms is not None:
            self.finish(self.ask(self.run.wait_ms), show=show)
            return
        task_id = self.run.client.workers.send(self.name, self.table, arguments=dict(self.arguments))
        self.run.answer(
            {"table": self.table, "task": self.name, "task_id": task_id, "outcome": "sent"},
            lambda: out.print(f"{self.name} sent for table [bold]{escape(self.table)}[/]"),
        )

    def ask(self, wait_ms: int, *, is_quiet: bool = False) -> dict[str, Any]:
        """Wait for the result and return it, however the task ended. Raises TimedOut, Unavailable."""
        from icedb_client.wakeups import TaskTimeout  # noqa: PLC0415 - redis and celery only where they are used

        workers = self.run.client.workers
        try:
            with waiting(self.note or f"waiting for {self.name}", is_quiet=is_quiet or self.run.as_json):
                return workers.run(self.name, self.table, arguments=dict(self.arguments), timeout_ms=wait_ms)
        except TaskTimeout as error:
            raise TimedOut(f"{error}{self.late}") from error

    def ask_first(self, wait_ms: int, *, late: str, away: str, refused: str, failed: str) -> dict[str, Any]:
        """Return the result of what a worker has to do before the command goes on.

        Args:
            wait_ms: How long to wait for it.
            late: What is said if no worker gave a result in time.
            away: Before the words of Redis that does not answer.
            refused: Before the worker's words, if what was asked for is wrong.
            failed: Before them, if anything else is.

        Raises:
            InvalidRequest: It is wrong.
            TimedOut: No result in time.
            Unavailable: Redis does not answer.
            IceDBError: The worker failed.
        """
        try:
            result = self.ask(wait_ms, is_quiet=True)
        except TimedOut as error:
            raise TimedOut(late) from error
        except Unavailable as error:
            raise Unavailable(f"{away}{error}") from error
        outcome = str(result.get("outcome"))
        code = outcome_exit_code(outcome)
        message = (result.get("error") or {}).get("message", outcome)
        if code == INVALID:
            raise InvalidRequest(f"{refused}: {message}")
        if code != OK:
            raise IceDBError(f"{failed}: {message}")
        return result

    def finish(self, result: dict[str, Any], *, show: Callable[[dict[str, Any]], None] | None = None) -> None:
        """Print a result. Raises typer.Exit if the task ended badly; the error is printed."""
        outcome = str(result.get("outcome"))
        code = outcome_exit_code(outcome)
        if self.run.as_json:
            print_json(result)
        elif code == OK:
            (show or self._show_figures)(result)
        if code != OK:
            problem = result.get("error") or {}
            title = self.title or f"{self.name} for table {self.table}"
            print_error(f"{title}: {outcome}: {problem.get('message', 'see the worker log')}")
            raise typer.Exit(code)

    def _show_figures(self, result: dict[str, Any]) -> None:
        if result["outcome"] == "idle":
            out.print(f"{self.name}: nothing to do for table [bold]{escape(self.table)}[/]")
            return
        hidden = ("task", "task_id", "table", "outcome", "error")
        figures = {
            name.replace("_", " "): value if type(value) is int else str(value)
            for name, value in result.items()
            if name not in hidden
        }
        print_pairs({"table": self.table, **figures})
