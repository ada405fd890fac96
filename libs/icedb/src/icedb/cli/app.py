"""The application: all commands together, and the one place where errors become an exit code."""

import gc
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import Any, Final

import typer
from icedb_log.errors import IceDBError
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from icedb.cli.output import WarningPrinter, print_error, print_json, print_lines
from icedb.cli.runner import FAILED, INTERRUPTED, INVALID, JsonFlag, exit_code, option

EPILOG: Final = (
    "Exit codes: 0 done, 1 failed, 2 wrong use, 3 not found, 4 a server does not answer, "
    "5 a table is halted, 6 timed out, 7 not allowed."
)

_COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "table": ("table:app", "Create, change and look at tables."),
    "view": ("table:view_app", "Look at a table's views; stop and start feeding them."),
    "ingest": (
        "ingest:ingest",
        "Enqueue events: NDJSON, a JSON array, CSV (plain, gzip or zstd), Parquet or Arrow IPC.",
    ),
    "import": (
        "ingest:import_files",
        (
            "Register existing Parquet files in a table, without rewriting them. Each file once, however often it is "
            "asked."
        ),
    ),
    "snapshot": (
        "read:snapshot",
        "Name the live data files of a table: now, at an earlier time, or as they were pinned.",
    ),
    "changes": (
        "read:changes",
        "Show which data files came and went between two times. A merge changes files, and no row.",
    ),
    "watch": (
        "read:watch",
        "Print a line for each table at once, then one after each change that is seen. Ctrl-C ends it.",
    ),
    "query": ("read:query", "Run a query with DuckDB over consistent snapshots of the tables it names."),
    "shell": (
        "shell:shell",
        r"Query tables with SQL, statement by statement, on snapshots that stand still until \refresh.",
    ),
    "describe": (
        "describe:describe",
        "Show a table's columns: types, nulls, distinct values, least and greatest; from statistics, if these tell it.",
    ),
    "head": (
        "describe:head",
        "Show some of the newest rows, by the first time column that the table is partitioned or sorted by.",
    ),
    "pin": (
        "read:pin",
        "Pin a table's state under a name: its data files stay, and it can be read, until the pin ends.",
    ),
    "pins": (
        "read:pins",
        "List the pins of a table, what they hold and until when. Ended ones stay as long as they hold files.",
    ),
    "unpin": ("read:unpin", "End a pin. Its data files stay for one more grace period, for queries that have begun."),
    "work": ("work:work", "Do what is due on all tables, in this process: commit, feed views, merge, clean."),
    "merge": ("merge:merge", "Ask a merge worker to merge a table now."),
    "audit": ("clean:audit", "Show which runs of the janitor deleted something, or what became of one object."),
    "vacuum": (
        "clean:vacuum",
        "Delete what is dead and past its grace period. Only the janitor deletes: this asks it.",
    ),
    "orphans": (
        "clean:orphans",
        "Show the data files that no log file names, and what keeps each; delete them if asked to.",
    ),
    "delete": (
        "change:delete",
        "Delete rows by a condition, in all partitions, in one commit. Rows for which it is NULL stay.",
    ),
    "rewrite": ("change:rewrite", "Replace the rows of partitions by what a query makes of them, in one commit."),
    "partitions": (
        "partitions:app",
        "Look at the partitions of a table, and remove them. `icedb partitions TABLE` lists them.",
    ),
    "erase": (
        "erasure:erase",
        "Erase rows for good, and prove it: rewrite, wait for every object that held them to be deleted, certify.",
    ),
    "erasure": ("erasure:app", "Look at erasures and their certificates."),
    "quarantine": ("quarantine:app", "Look at what cannot be committed; put it right or let it go."),
    "iceberg": (
        "iceberg:app",
        "Publish tables for engines that speak Iceberg, without a copy, and say how they are read.",
    ),
    "fsck": (
        "repair:fsck",
        "Check whether a table is sound: its log, its data files, everything beside them. Changes nothing.",
    ),
    "rebuild": (
        "repair:rebuild",
        (
            "Make a new log from the footers of the data files, after the log was lost or damaged. A sound log is "
            "left alone."
        ),
    ),
    "backup": (
        "backup:backup",
        "Copy all tables to another bucket or folder, each as it was at one moment, while everything goes on.",
    ),
    "doctor": (
        "doctor:doctor",
        (
            "Look at store, Redis, Java, Spark, versions and settings here, and say what to do. Exit code 1 if "
            "anything fails."
        ),
    ),
    "top": (
        "top:top",
        "Show all tables live: size, what waits, how far merges lag, what is wrong. Keys open one, sort, quit.",
    ),
    "status": ("status:status", "Show how tables are: files, rows, what waits, how far merges lag. Needs no service."),
}
"""Every command, in the order of the help: its module and what there it is, and the first sentence of its own help."""


class _Commands(TyperGroup):
    """Imports the module of a command when it is called: all of them together take a second, and help needs none."""

    def __init__(self, *, commands: Mapping[str, Any], **given: Any) -> None:
        named = {name: TyperCommand(name, help=words) for name, (_, words) in _COMMANDS.items()}
        super().__init__(commands={**named, **commands}, **given)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the arguments call, as :class:`TyperGroup` does."""
        if args[0] in _COMMANDS:
            self.add_command(_load(args[0]), args[0])
        return super().resolve_command(ctx, args)


def _load(name: str) -> Any:
    module, _, attribute = _COMMANDS[name][0].partition(":")
    found = getattr(import_module(f"icedb.cli.{module}"), attribute)
    if isinstance(found, typer.Typer):
        group = typer.main.get_group(found)
        group.name = name
        return group
    alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
    alone.command(name)(found)
    return typer.main.get_command(alone)


app: Final = typer.Typer(
    name="icedb",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog=EPILOG,
    help="An event warehouse on object storage: enqueue events, read consistent snapshots, query them.",
)


@app.command("version")
def version(*, as_json: JsonFlag = False) -> None:
    """Print the release.

    Example: icedb version
    """
    if as_json:
        print_json({"version": _release(), "python": sys.version.split()[0]})
    else:
        print_lines([f"icedb {_release()}"])


def _release() -> str:
    from importlib.metadata import version as package_version  # noqa: PLC0415 - only here

    return package_version("icedb")


@app.callback()
def set_options(
    *,
    context: typer.Context,
    store: str | None = option("--store", "Warehouse: a folder or s3://bucket/prefix. [ICEDB_STORE]"),
    snapshot_address: str | None = option(
        "--snapshot-address", "Snapshot service, host:port; without it the store is read. [ICEDB_SNAPSHOT_ADDRESS]"
    ),
    redis_url: str | None = option("--redis-url", "Redis that wakes the workers. [ICEDB_REDIS_URL]"),
) -> None:
    """Take the options that all commands share."""
    context.obj = {"store": store, "snapshot_address": snapshot_address, "redis_url": redis_url}


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; prints at most one error line, never a traceback."""
    logging.basicConfig(level=logging.WARNING, handlers=[WarningPrinter()], force=True)
    # pydantic would look for plugins in every installed package: 5 % of `icedb status`, for models of ours alone.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if "--help" in arguments or not arguments:
        _import_help_pages()
    try:
        code: Any = app(list(arguments), prog_name="icedb", standalone_mode=False)
    except IceDBError as error:
        print_error(str(error))
        return exit_code(error)
    except TyperException as error:
        return _print_usage_error(error)
    except (KeyboardInterrupt, typer.Abort):
        print_error("interrupted")
        return INTERRUPTED
    except (BrokenPipeError, SystemExit):
        # Whoever read our output has enough, e.g. `| head` (typer ends with SystemExit then): no more output, also
        # not while Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except Exception as error:
        if os.environ.get("ICEDB_DEBUG"):
            raise
        return _print_unexpected(error, arguments)
    return code if isinstance(code, int) else 0


def main() -> None:
    """Run the command line and exit."""
    arguments = sys.argv[1:]
    if arguments in (
        ["version"],
        ["--version"],
    ):  # typer loads pydantic to see that no option was given: half of the time
        version()
    else:
        gc.set_threshold(100_000)  # what is imported stays: looking for garbage in it takes a tenth of `icedb status`
        sys.exit(run(arguments))


def _import_help_pages() -> None:
    """Import what draws help without what it takes to draw Markdown and tracebacks, which no page of ours has.

    That is two fifths of the processor time of ``icedb --help``. Where typer needs more of it than two names, it
    loads all of it itself, as if nothing had been done here.
    """
    unused = {"rich.markdown": "Markdown", "rich.traceback": "Traceback"}
    placed = [name for name in unused if name not in sys.modules]
    for name in placed:
        sys.modules[name] = ModuleType(name)
        setattr(sys.modules[name], unused[name], type)
    with suppress(ImportError):
        import_module("typer.rich_utils")
    for name in placed:
        del sys.modules[name]


def _print_unexpected(error: Exception, arguments: Sequence[str]) -> int:
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
