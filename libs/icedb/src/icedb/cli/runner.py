"""What every command runs in: its options, an open client, its question, a worker's result, and an exit code.

Exit codes are what scripts rely on: never renumber. A result is printed once, on standard output, in the format of
``-o``. The options of the connection and ``-o`` are declared once, by the root, and may stand behind any command.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

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
from icedb_log.units import parse_duration
from rich.markup import escape
from typer.core import TyperCommand

from icedb.cli.examples import examples_of
from icedb.cli.output import (
    dump_records,
    followed,
    format_bytes,
    format_span,
    out,
    print_error,
    print_json,
    print_note,
    print_pairs,
    write_text,
)

if TYPE_CHECKING:
    from icedb_client.client import Client
    from icedb_log.clock import Clock
    from icedb_log.commit.table import Table
    from icedb_log.store.table_store import TableStore

    from icedb.lake import Lake

OK: Final = 0
FAILED: Final = 1
INVALID: Final = 2
NOT_FOUND: Final = 3
UNAVAILABLE: Final = 4
HALTED: Final = 5
TIMED_OUT: Final = 6
DENIED: Final = 7
INTERRUPTED: Final = 130

MAX_QUERY_BYTES: Final = 1024 * 1024


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


TableName = Annotated[str, typer.Argument(metavar="TABLE", help="Name of the table.")]
YesFlag = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Format = Literal["table", "json", "csv", "ndjson", "parquet", "arrow", "paths", "duckdb", "clickhouse"]
"""Every word of ``-o``; which of them a command takes, its decorator says."""
DOCUMENT: Final[tuple[Format, ...]] = ("table", "json")
LIST: Final[tuple[Format, ...]] = ("table", "json", "csv", "ndjson")
_WAIT: Final = ("--wait/--no-wait", "Wait for the worker's result, or only hand the task over.")
_TIMEOUT: Final = ("--timeout", "How long to wait for the worker's result.")
_LOCAL: Final = ("--local", "Do it in this process, with the store alone, instead of asking a worker.")
NO_WORKER: Final = "`--local` does it in this process, without Redis and worker"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a command.

    Attributes:
        client: Open as long as the command runs.
        output: How its result is printed, one word of ``-o``; ``None``: not given.
        wait_ms: How long a worker's result is waited for; ``None``: not at all.
        local: Whether this process does what workers are asked for otherwise.
        records: Name of the list in its document of which ``-o csv`` and ``-o ndjson`` print a record a line.
    """

    client: "Client"
    output: str | None = None
    wait_ms: int | None = None
    local: bool = False
    records: str = ""

    @property
    def as_data(self) -> bool:
        """Whether the result is printed for a program: one document or records, and nothing else."""
        return self.output not in (None, "table")

    @property
    def as_records(self) -> bool:
        """Whether the result is printed as a record a line."""
        return self.output in ("csv", "ndjson")

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
        """Open a table to work on it. Raises as :meth:`icedb_log.commit.table.Table.open`."""
        from icedb_log.commit.table import Table  # noqa: PLC0415 - not for `icedb --help`

        return Table.open(self.place(table), clock=self.clock, owner=owner)

    def open_lake(self) -> "Lake":
        """Open the warehouse to work on it in this process."""
        from icedb.lake import Lake  # noqa: PLC0415 - for those who work here

        return Lake(self.client.settings, clock=self.clock, warehouse=self.client.warehouse)

    def do(self, task: str, table: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Do in this process what workers are asked for otherwise, and return their result. Raises IceDBError."""
        from icedb.work import Worker  # noqa: PLC0415 - as above

        lake = self.open_lake()
        return Worker(lake, lake.table).run(task, table, arguments or {})

    def wake(self, task: str, table: str) -> bool:
        """Wake the worker of a task, or do it here; return whether that worked."""
        if not self.local:
            return self.client.workers.wake(task, table)
        from icedb_log.names import INGEST_FLUSH, JANITOR_VACUUM, MERGE_ERASE  # noqa: PLC0415 - not for `icedb --help`

        for each in dict.fromkeys((INGEST_FLUSH, task, JANITOR_VACUUM, task) if task == MERGE_ERASE else (task,)):
            self.do(each, table)
        return True

    def answer(self, document: Any, show: Callable[[], None], *, records: str = "") -> None:
        """Print what the command found: as ``-o`` says, or what ``show`` prints for people.

        Args:
            document: What a program gets.
            show: Prints it for people.
            records: Name of its list, if the command has several. A document without it is the one record.
        """
        if self.as_records:
            write_text(dump_records(document.get(records or self.records, [document]), self.output))
        elif self.as_data:
            print_json(document)
        else:
            show()

    def task(self, name: str, table: str, arguments: Mapping[str, Any] | None = None, **words: str) -> "Task":
        """Return a task for workers; ``words`` are those of :class:`Task`."""
        return Task(name, table, arguments or {}, self, **words)


def command(
    *, waits: str = "", timeout: str = "", asks: bool = False, gives: Sequence[Format] = DOCUMENT, records: str = ""
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function that takes a :class:`Run` first, which has an open client.

    Options that workers' commands share come last: ``--wait``, ``--timeout``, ``--local``.

    Args:
        waits: Default of ``--timeout``, for a command that may wait for a worker or not (``--wait``).
        timeout: The same, for one that always waits.
        asks: Whether it asks workers in some other way.
        gives: How its result can be printed: the words of ``-o``.
        records: Name of a list in its document: ``-o csv`` and ``-o ndjson`` print that.
    """
    lasting: dict[str, tuple[type, Any]] = {}
    if waits:
        lasting["wait"] = (bool, option(*_WAIT, default=True))
    if waits or timeout:
        lasting["timeout"] = (str, option(*_TIMEOUT, default=waits or timeout, metavar="TIME"))
    if waits or timeout or asks:
        lasting["local"] = (bool, flag(*_LOCAL))
    formats = LIST if records else gives

    def decorate(work: Callable[..., None]) -> Callable[..., None]:
        @wraps(work)
        def run(*, context: typer.Context, **given: Any) -> None:
            typed = {name: given.pop(name) for name in lasting}
            does_wait = typed.get("wait", "timeout" in typed)
            wait_ms = parse_duration(typed["timeout"], option="--timeout") if does_wait else None
            output = chosen_output(context)
            with open_client(context) as client:
                work(Run(client, output, wait_ms, typed.get("local", False), records), **given)

        def keyword(name: str, kind: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
            return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)

        own = list(inspect.signature(work).parameters.values())[1:]
        last = [keyword(name, *what) for name, what in lasting.items()]
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # what typer goes by
            [keyword("context", typer.Context), *own, *last]
        )
        run.gives = formats  # type: ignore[attr-defined]
        return run

    return decorate


_WORDS: Final[Mapping[str, str]] = {"str": "TEXT", "list[str]": "TEXT", "int": "N", "int range": "N", "path": "FILE"}
_TYPES: Final = re.compile(f"<({'|'.join(map(re.escape, _WORDS))})>")
"""What typer writes for a type, and what stands for it in the help."""
_BOUND: Final = re.compile(r"; x>=\d+(?=\])|  \[x>=\d+\]")
"""That a number is none below zero goes without saying."""


class SharedOptionsCommand(TyperCommand):
    """A command that also takes the options of the root, as ``--help`` is taken; its help begins with an example."""

    @property
    def gives(self) -> Sequence[Format]:
        """The formats of its result."""
        formats: Sequence[Format] = getattr(self.callback, "gives", DOCUMENT)
        return formats

    def get_params(self, ctx: Any) -> list[Any]:
        """Return its own options, then those of the root."""
        return [*super().get_params(ctx), *_shared_options(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as usual; what the options of the root were given goes to the root."""
        rest = super().parse_args(ctx, args)
        typed = {each.name: ctx.params.pop(each.name, None) for each in _shared_options(ctx)}
        set_shared(ctx, {name: value for name, value in typed.items() if value is not None})
        return rest

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write usage, examples with what they print, text, options; those of every command last."""
        arguments: list[Any] = [each for each in self.params if each.param_type_name == "argument"]
        formatter.write_usage(ctx.command_path, " ".join(["[OPTIONS]", *(each.display_name_raw for each in arguments)]))
        for example in examples_of(ctx.command_path):
            formatter.write("\n" + "".join(f"  {line}\n" for line in example.splitlines()))
        self.format_help_text(ctx, formatter)
        sections: dict[str, list[tuple[str, str]]] = {
            "Arguments": [(each.display_name_raw, each.help or "") for each in arguments],
            "Options": self._describe([*self.params, self.get_help_option(ctx)], ctx),
            "Keys of --set": getattr(self.callback, "keys", []),
            "Options of every command": self._describe(_shared_options(ctx), ctx),
        }
        for title, lines in sections.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)

    def _describe(self, options: Sequence[Any], ctx: Any) -> list[tuple[str, str]]:
        lines = []
        for each in options:
            if each.name == "output":
                lines.append(("-o, --output FORMAT", f"How the result is printed: {_or(self.gives)}."))
            elif each.param_type_name == "option" and not each.hidden:
                name, words = each.get_help_record(ctx)
                lines.append((_TYPES.sub(lambda kind: _WORDS[kind[1]], name), _BOUND.sub("", words)))
        return lines


def _or(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def complete_format(ctx: typer.Context) -> list[str]:
    """Return the words of ``-o`` for a shell that completes them: those of the command."""
    return list(getattr(ctx.command, "gives", DOCUMENT))


class Commands(typer.Typer):
    """A group of commands of which each takes the options of the root."""

    def __init__(self, **given: Any) -> None:
        super().__init__(add_completion=False, rich_markup_mode=None, **{"no_args_is_help": True, **given})

    def command(  # type: ignore[override]  # none of ours is given more
        self, name: str
    ) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Register a command."""
        return super().command(name, cls=SharedOptionsCommand)


def _shared_options(ctx: Any) -> list[Any]:
    return [each for each in ctx.find_root().command.params if each.name in (*CONNECTION, "output")]


CONNECTION: Final = ("store", "address", "snapshot_address", "redis_url")
"""Options of the root that stand for settings."""


def set_shared(context: Any, typed: Mapping[str, Any]) -> None:
    """Remember what options of the root were given, before the command or behind it. Raises InvalidRequest."""
    url = typed.get("redis_url")
    if url is not None:
        from icedb_log.hosts import redact_url  # noqa: PLC0415 - only here

        if redact_url(url) != url:
            raise InvalidRequest("a password on a command line shows in `ps`: set ICEDB_REDIS_URL")
    root = context.find_root()
    root.obj = {**(root.obj or {}), **typed}


def connection_of(context: typer.Context) -> dict[str, Any]:
    """Return settings that options were given for."""
    return {name: value for name, value in (context.find_root().obj or {}).items() if name in CONNECTION}


def chosen_output(context: typer.Context) -> str | None:
    """Return the word of ``-o``. Raises InvalidRequest if the command has no such format."""
    output: str | None = (context.find_root().obj or {}).get("output")
    formats: Sequence[str] = getattr(context.command, "gives", DOCUMENT)
    if output is not None and output not in formats:
        raise InvalidRequest(f"`{context.command_path}` prints no {output[:80]}: give -o {_or(formats)}")
    return output


@contextmanager
def open_client(context: typer.Context) -> "Iterator[Client]":
    """Open a client by the options of the connection; an unknown table's error suggests tables."""
    from icedb_client.client import Client, naming_tables  # noqa: PLC0415 - half a second that `icedb --help` does not need
    from icedb_client.settings import load_client_settings  # noqa: PLC0415 - as above

    settings = load_client_settings(**connection_of(context))
    with Client(settings=settings) as client, naming_tables(client):
        yield client


def describe_no_tables(client: "Client") -> str:
    """Return what is said of a store without tables: it may be another one than is meant."""
    store = client.settings.store or "the store"
    folder = store.removeprefix("file://")
    if folder != store and not Path(folder).is_dir():
        return f"there is no folder {folder}: `icedb table create` makes it, or correct ICEDB_STORE"
    return f"no tables yet in {store}; create one with `icedb table create`, or correct ICEDB_STORE"


def is_served(client: "Client") -> bool:
    """Return whether tables are known through a snapshot service alone."""
    return client.settings.store is None and client.settings.snapshot_address is not None


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

    @property
    def words(self) -> str:
        """What it does, in a word or two for a person."""
        return self.name.rpartition(".")[2].replace("_", " ")

    def carry_out(self, show: Callable[[dict[str, Any]], None] | None = None) -> None:
        """Hand the task over, or wait for its result and print it: by ``show`` for people, or figure by figure.

        Raises:
            TimedOut: No result in time.
            Unavailable: Redis does not answer.
            typer.Exit: The task ended badly; the error is printed.
        """
        if self.run.wait_ms is not None or self.run.local:
            self.finish(self.ask(self.run.wait_ms or 0), show=show)
            return
        try:
            task_id = self.run.client.workers.send(self.name, self.table, arguments=dict(self.arguments))
        except Unavailable as error:
            raise Unavailable(f"{error}; {NO_WORKER}") from error
        self.run.answer(
            {"table": self.table, "task": self.name, "task_id": task_id, "outcome": "sent"},
            lambda: out.print(f"{self.name} sent for table [bold]{escape(self.table)}[/]"),
        )

    def ask(self, wait_ms: int, *, is_quiet: bool = False) -> dict[str, Any]:
        """Wait for the result and return it, however the task ended. Raises TimedOut, Unavailable."""
        if self.run.local:
            with followed(f"table {self.table}: {self.words}", is_quiet=is_quiet or self.run.as_data):
                return self.run.do(self.name, self.table, self.arguments)
        from icedb_client.wakeups import TaskTimeout  # noqa: PLC0415 - not for `icedb --help`

        workers = self.run.client.workers
        try:
            with followed(self.note or f"waiting for a worker: {self.words}", is_quiet=is_quiet or self.run.as_data):
                return workers.run(self.name, self.table, arguments=dict(self.arguments), timeout_ms=wait_ms)
        except TaskTimeout as error:
            raise TimedOut(f"{error}{self.late}. {NO_WORKER}") from error
        except Unavailable as error:
            raise Unavailable(f"{error}; {NO_WORKER}") from error

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
            raise TimedOut(f"{late}. {NO_WORKER}") from error
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
        if self.run.as_data:
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
            out.print(f"nothing to do for table [bold]{escape(self.table)}[/]")
            return
        hidden = ("task", "task_id", "table", "outcome", "error")
        figures = {
            name.removesuffix("_ms").replace("_", " "): _describe_figure(name, value)
            for name, value in result.items()
            if name not in hidden
        }
        print_pairs({"table": self.table, **figures})


def _describe_figure(name: str, value: object) -> object:
    """Return a figure of a task's result with its unit; ``None``, which is not shown, for what is not so."""
    if type(value) is int:
        return format_bytes(value) if "bytes" in name else format_span(value) if name.endswith("_ms") else value
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or None
    if isinstance(value, bool):
        return "yes" if value else None
    return None if value is None else str(value)


def maybe_duration(text: str | None, *, option: str, floor_ms: int = 0) -> int | None:
    """Return as :func:`parse_duration`; ``None`` for an option that was not given."""
    return None if text is None else parse_duration(text, option=option, floor_ms=floor_ms)


def read_query(text: str, *, option: str) -> str:
    """Return the SQL of an option, or of the file that it names (``@FILE``). Raises InvalidRequest."""
    query = text
    if text.startswith("@"):
        path = Path(text.removeprefix("@"))
        try:
            query = path.read_bytes().decode()
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"{option} {str(path)[:200]!r} cannot be read: {error}") from error
    if not query.strip() or len(query.encode()) > MAX_QUERY_BYTES:
        raise InvalidRequest(f"{option}: 1 to {MAX_QUERY_BYTES} bytes of SQL, not {len(query.encode())}")
    return query.strip()
