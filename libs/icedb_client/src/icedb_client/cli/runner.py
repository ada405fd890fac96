"""What every command runs in: an open client, its dry run, its question, a worker's result, and an exit code.

Exit codes are what scripts rely on: never renumber. A result is one JSON document on standard output with ``--json``,
else what a person reads; never both.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
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

from icedb_client.cli.output import err, format_count, out, print_error, print_json, print_note, print_pairs

if TYPE_CHECKING:
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

TableName = Annotated[str, typer.Argument(help="Name of the table.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output and nothing else.")]
YesFlag = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Timeout = Annotated[str, typer.Option("--timeout", help="How long to wait for the worker's result.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the result, or only hand the task over.")]


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


@dataclass(frozen=True, slots=True)
class GlobalOptions:
    """Options that stand before the command; ``None``: the environment decides."""

    store: str | None = None
    snapshot_address: str | None = None
    redis_url: str | None = None


@contextmanager
def open_client(context: typer.Context, *, table: str | None = None) -> "Iterator[Client]":
    """Open a client for the length of a command.

    Args:
        context: The command's context.
        table: The table that the command is about: if it is unknown, names that are close are suggested.
    """
    from icedb_client.client import Client  # noqa: PLC0415 - half a second that `icedb --help` does not need
    from icedb_client.settings import load_client_settings  # noqa: PLC0415 - as above

    options = context.find_root().obj or GlobalOptions()
    settings = load_client_settings(
        store=options.store, snapshot_address=options.snapshot_address, redis_url=options.redis_url
    )
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


def answer(document: Any, *, as_json: bool, show: Callable[[], None]) -> None:
    """Print what a command found: the document with ``--json``, else what ``show`` prints for people."""
    if as_json:
        print_json(document)
    else:
        show()


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
        as_json: Whether its result is printed as JSON.
        title: What it is called in errors; the task and the table by default.
        note: What a person reads while it is waited for.
        late: What else a person is told when no result came in time.
    """

    name: str
    table: str
    arguments: Mapping[str, Any]
    as_json: bool = False
    title: str | None = None
    note: str | None = None
    late: str = ""

    def run(
        self, client: "Client", *, wait_ms: int | None, show: Callable[[dict[str, Any]], None] | None = None
    ) -> None:
        """Hand the task over, or wait for its result and print it.

        Args:
            client: An open client.
            wait_ms: How long to wait; ``None``: only hand it over.
            show: Prints the result for people; figure by figure by default.

        Raises:
            TimedOut: No result in time.
            Unavailable: Redis does not answer.
            typer.Exit: The task ended badly; the error is printed.
        """
        if wait_ms is not None:
            self.finish(self.ask(client, wait_ms=wait_ms), show=show)
            return
        task_id = client.workers.send(self.name, self.table, arguments=dict(self.arguments))
        answer(
            {"table": self.table, "task": self.name, "task_id": task_id, "outcome": "sent"},
            as_json=self.as_json,
            show=lambda: out.print(f"{self.name} sent for table [bold]{escape(self.table)}[/]"),
        )

    def ask(self, client: "Client", *, wait_ms: int) -> dict[str, Any]:
        """Wait for the result and return it, however the task ended. Raises TimedOut, Unavailable."""
        from icedb_client.wakeups import TaskTimeout  # noqa: PLC0415 - redis and celery only where they are used

        try:
            with waiting(self.note or f"waiting for {self.name}", is_quiet=self.as_json):
                return client.workers.run(self.name, self.table, arguments=dict(self.arguments), timeout_ms=wait_ms)
        except TaskTimeout as error:
            raise TimedOut(f"{error}{self.late}") from error

    def finish(self, result: dict[str, Any], *, show: Callable[[dict[str, Any]], None] | None = None) -> None:
        """Print a result. Raises typer.Exit if the task ended badly; the error is printed."""
        outcome = str(result.get("outcome"))
        code = outcome_exit_code(outcome)
        if self.as_json:
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
            name.replace("_", " "): format_count(value) if type(value) is int else str(value)
            for name, value in result.items()
            if name not in hidden
        }
        print_pairs({"table": self.table, **figures})


def require_done(result: Mapping[str, Any], *, refused: str, failed: str) -> None:
    """Return if a worker did what it was asked, for a command that goes on then.

    Args:
        result: Of the task.
        refused: Before the worker's words, if what was asked for is wrong.
        failed: Before them, if anything else is.

    Raises:
        InvalidRequest: It is wrong.
        IceDBError: The worker failed.
    """
    outcome = str(result.get("outcome"))
    code = outcome_exit_code(outcome)
    if code == OK:
        return
    message = (result.get("error") or {}).get("message", outcome)
    if code == INVALID:
        raise InvalidRequest(f"{refused}: {message}")
    raise IceDBError(f"{failed}: {message}")
