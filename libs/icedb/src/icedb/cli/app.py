"""The application: all commands together, and the one place where errors become an exit code."""

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from icedb_log.errors import IceDBError
from typer.core import TyperGroup
from typer.exceptions import TyperException

from icedb.cli.output import WarningPrinter, print_error, print_lines
from icedb.cli.runner import (
    FAILED,
    INTERRUPTED,
    INVALID,
    Commands,
    SharedOptionsCommand,
    complete_format,
    exit_code,
    option,
    set_shared,
)

EPILOG: Final = "Exit codes: 0 done, 1 failed, 2 wrong use, 3 not found, 4 no answer, 5 halted, 6 too late, 7 denied."

_COMMANDS: Final[Mapping[str, tuple[str, str, str]]] = {
    "table": ("tables", "table:app", "create, alter, list, show, drop and undrop tables"),
    "views": ("tables", "views:views", "list the views of a table; stop and start feeding them"),
    "partitions": ("tables", "partitions:partitions", "list the partitions of a table; drop them"),
    "iceberg": ("tables", "iceberg:app", "publish tables for engines that speak Iceberg, without a copy"),
    "ingest": ("write", "ingest:ingest", "enqueue events from NDJSON, JSON, CSV, Parquet or Arrow"),
    "import": ("write", "ingest:import_files", "register existing Parquet files without rewriting them"),
    "delete": ("write", "change:delete", "delete rows by a condition"),
    "rewrite": ("write", "change:rewrite", "replace the rows of partitions by the result of a query"),
    "quarantine": ("write", "quarantine:app", "list batches that cannot be committed; retry or drop them"),
    "query": ("read", "read:query", "run SQL over consistent snapshots; without SQL, a shell"),
    "describe": ("read", "describe:describe", "show columns: types, nulls, distinct values, minimum, maximum"),
    "snapshot": ("read", "read:snapshot", "list the live data files, for people, scripts and other engines"),
    "changes": ("read", "read:changes", "show data files added and removed between two times"),
    "watch": ("read", "read:watch", "print a line for each change of a table"),
    "tag": ("read", "tag:app", "keep a state readable under a name"),
    "work": ("maintain", "work:work", "run all background work here: commit, feed views, merge, clean"),
    "merge": ("maintain", "merge:merge", "merge small data files, or explain what would be merged"),
    "vacuum": ("maintain", "clean:vacuum", "delete dead files past their grace period"),
    "orphans": ("maintain", "clean:orphans", "list the data files that no log file names; delete them"),
    "erasure": ("maintain", "erasure:app", "erase rows, with a certificate as proof"),
    "audit": ("maintain", "clean:audit", "show what the janitor deleted, and why"),
    "status": ("maintain", "status:status", "show files, rows, staged batches, merge lag and health"),
    "doctor": ("repair", "doctor:doctor", "check store, Redis, Java, Spark and settings on this machine"),
    "fsck": ("repair", "repair:fsck", "check tables for damage"),
    "rebuild": ("repair", "repair:rebuild", "write a new log after log files were lost or damaged"),
    "backup": ("repair", "backup:backup", "copy tables to another bucket or folder; restore them"),
}
"""Every command in the order of the help: its group, its module and name there, and a few words for a line."""

GROUPS: Final = {
    group: [name for name, (own, _, _) in _COMMANDS.items() if own == group] for group, _, _ in _COMMANDS.values()
}
"""The commands of each group of the help."""


class _Commands(TyperGroup):
    """Imports the module of a command when it is called: all of them together take a second, and help needs none."""

    def __init__(self, *, commands: Mapping[str, Any], **given: Any) -> None:
        named = {name: SharedOptionsCommand(name, help=words) for name, (_, _, words) in _COMMANDS.items()}
        super().__init__(commands={**named, **commands}, **given)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the arguments call, as :class:`TyperGroup` does."""
        if args[0] in _COMMANDS:
            self.add_command(_load(args[0]), args[0])
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - as TyperGroup
        """Print the page of all commands: it fits on one screen, and needs nothing that draws boxes."""
        print_lines(_help_page(self, [each for each in self.get_params(ctx) if each.param_type_name == "option"]))


def _help_page(root: TyperGroup, options: Iterable[Any]) -> Iterator[str]:
    yield "Usage: icedb [OPTIONS] COMMAND [ARGS]..."
    yield f"\n{root.help}"
    group = ""
    for name, (its_group, _, words) in _COMMANDS.items():
        if its_group != group:
            group = its_group
            yield f"{'' if group != 'tables' else chr(10)}{group}"
        yield f"  {name:12}{words}"
    yield "\noptions; the first five may stand behind the command, too, whose --help shows an example"
    for each in options:
        yield f"  {', '.join(each.opts):22}{each.help.partition(', to ')[0]}"
    yield f"\n{EPILOG}"


def load_all() -> Any:
    """Return the whole command line, with the modules of all its commands loaded."""
    root: Any = typer.main.get_command(app)
    for name in _COMMANDS:
        root.add_command(_load(name), name)
    return root


def _load(name: str) -> Any:
    module, _, attribute = _COMMANDS[name][1].partition(":")
    found = getattr(import_module(f"icedb.cli.{module}"), attribute)
    if isinstance(found, typer.Typer):
        group = typer.main.get_group(found)
        group.name = name
        return group
    alone = Commands()
    alone.command(name)(found)
    return typer.main.get_command(alone)


app: Final = typer.Typer(
    name="icedb",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 100},
    help="An event warehouse on object storage: enqueue events, read consistent snapshots, query them.",
)


def _print_release(wanted: bool) -> None:  # noqa: FBT001 - as typer calls it
    """Print the release, and end."""
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 - only here

        print_lines([f"icedb {version('icedb')}"])
        raise typer.Exit


@app.callback()
def set_options(
    *,
    context: typer.Context,
    store: str | None = option("--store", "Warehouse: a folder or s3://bucket/prefix. [ICEDB_STORE]"),
    address: str | None = option("--address", "Front end, https://host:port, that ingest sends to. [ICEDB_ADDRESS]"),
    snapshot_address: str | None = option(
        "--snapshot-address", "Snapshot service, host:port, instead of the store. [ICEDB_SNAPSHOT_ADDRESS]"
    ),
    redis_url: str | None = option("--redis-url", "Redis that wakes the workers. [ICEDB_REDIS_URL]"),
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FORMAT",
            autocompletion=complete_format,
            help="How the result is printed: table, json, csv, ndjson, …",
        ),
    ] = None,
    version: Annotated[  # noqa: ARG001 - its callback ends the command
        bool, typer.Option("--version", callback=_print_release, is_eager=True, help="Print the release.")
    ] = False,
) -> None:
    """Take the options of every command where they stand before it."""
    typed = {"store": store, "address": address, "snapshot_address": snapshot_address, "redis_url": redis_url}
    set_shared(context, {**typed, "output": output})


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; prints at most one error line, never a traceback."""
    logging.basicConfig(level=logging.WARNING, handlers=[WarningPrinter()], force=True)
    # pydantic would look for plugins in every installed package: 5 % of `icedb status`, for models of ours alone.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        code: Any = app(list(arguments), prog_name="icedb", standalone_mode=False)
    except (BrokenPipeError, SystemExit):
        # Whoever read our output has enough, e.g. `| head` (typer ends with SystemExit then): no more output, also
        # not while Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except (Exception, KeyboardInterrupt) as error:
        if _is_interrupted(error):
            print_error("interrupted")
            return INTERRUPTED
        if isinstance(error, IceDBError):
            print_error(str(error))
            return exit_code(error)
        if isinstance(error, TyperException):
            return _print_usage_error(error)
        if os.environ.get("ICEDB_DEBUG"):
            raise
        return _print_unexpected(error, arguments)
    return code if isinstance(code, int) else 0


def main() -> None:
    """Run the command line and exit."""
    sys.exit(run(sys.argv[1:]))


def _is_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is what an error began with.

    One that comes while a lock is being waited for may leave the lock's block without it, as another error: "cannot
    release un-acquired lock".
    """
    while error is not None and not isinstance(error, (KeyboardInterrupt, typer.Abort)):
        error = error.__cause__ if error.__suppress_context__ else error.__context__
    return error is not None


def _print_unexpected(error: BaseException, arguments: Sequence[str]) -> int:
    from icedb_log.texts import is_text  # noqa: PLC0415 - only on this path

    if odd := next((argument for argument in arguments if not is_text(argument)), None):
        print_error(f"argument {odd[:200]!r} has bytes that are no UTF-8: give it as text")
        return INVALID
    print_error(f"unexpected {type(error).__name__}: {error}; ICEDB_DEBUG=1 shows where, please report it")
    return FAILED


def _print_usage_error(error: TyperException) -> int:
    context: Any = getattr(error, "ctx", None)
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    message = message.replace(": Value error, ", ": ")  # what pydantic says before a word that is none of the choices
    if not message:  # a group without a command: typer has printed the help
        return INVALID
    path = context.command_path if context is not None else "icedb"
    print_error(f"{message} (see `{path} --help`)")
    return INVALID
