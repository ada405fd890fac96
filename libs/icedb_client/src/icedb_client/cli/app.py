"""The application: all commands together, and the one place where errors become an exit code."""

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version as package_version
from typing import Any, Final

import typer
from icedb_log.errors import IceDBError
from typer.core import TyperGroup
from typer.exceptions import TyperException

from icedb_client.cli.output import WarningPrinter, out, print_error, print_json
from icedb_client.cli.runner import FAILED, INTERRUPTED, INVALID, JsonFlag, exit_code, option

EPILOG: Final = (
    "Exit codes: 0 done, 1 failed, 2 wrong use, 3 not found, 4 a server does not answer, "
    "5 a table is halted, 6 timed out, 7 not allowed."
)

_COMMANDS: Final[Mapping[str, str]] = {
    "table": "table:app",
    "view": "table:view_app",
    "ingest": "ingest:ingest",
    "import": "ingest:import_files",
    "snapshot": "read:snapshot",
    "changes": "read:changes",
    "watch": "read:watch",
    "query": "read:query",
    "pin": "read:pin",
    "pins": "read:pins",
    "unpin": "read:unpin",
    "merge": "merge:merge",
    "audit": "clean:audit",
    "vacuum": "clean:vacuum",
    "orphans": "clean:orphans",
    "delete": "change:delete",
    "rewrite": "change:rewrite",
    "partitions": "partitions:app",
    "erase": "erasure:erase",
    "erasure": "erasure:app",
    "quarantine": "quarantine:app",
    "fsck": "repair:fsck",
    "rebuild": "repair:rebuild",
    "status": "status:status",
}
"""Every command, in the order of the help, with its module and what there it is."""


class _Commands(TyperGroup):
    """Imports the module of a command when the command is asked for: all of them together take a second."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return [*_COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; for a name that is none, load all, so that near ones can be suggested."""
        known = super().get_command(ctx, cmd_name)
        if known is not None:
            return known
        for name in (cmd_name,) if cmd_name in _COMMANDS else _COMMANDS:
            self.add_command(_load(name), name)
        return super().get_command(ctx, cmd_name)


def _load(name: str) -> Any:
    module, _, attribute = _COMMANDS[name].partition(":")
    found = getattr(import_module(f"icedb_client.cli.{module}"), attribute)
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
    release = package_version("icedb-client")
    if as_json:
        print_json({"version": release, "python": sys.version.split()[0]})
    else:
        out.print(f"icedb {release}")


@app.callback()
def set_options(
    *,
    context: typer.Context,
    store: str | None = option("--store", "Warehouse: file:///abs/folder or s3://bucket/prefix. [ICEDB_STORE]"),
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
    sys.exit(run(sys.argv[1:]))


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
