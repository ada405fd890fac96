"""The application: all commands together, and the one place where errors become an exit code."""

import logging
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version as package_version
from typing import Annotated, Any, Final

import typer
from icedb_log.errors import IceDBError
from icedb_log.texts import is_text
from typer.exceptions import TyperException

from icedb_client.cli import (
    change,
    clean,
    erasure,
    ingest,
    merge,
    partitions,
    pin,
    quarantine,
    read,
    repair,
    status,
    table,
    trash,
    view,
)
from icedb_client.cli.output import WarningPrinter, out, print_error
from icedb_client.cli.runner import FAILED, INTERRUPTED, INVALID, GlobalOptions, JsonFlag, answer, exit_code

EPILOG: Final = (
    "Exit codes: 0 done, 1 failed, 2 wrong use, 3 not found, 4 a server does not answer, "
    "5 a table is halted, 6 timed out, 7 not allowed."
)

app: Final = typer.Typer(
    name="icedb",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog=EPILOG,
    help="An event warehouse on object storage: enqueue events, read consistent snapshots, query them.",
)
table.app.command("drop")(trash.drop)
table.app.command("undrop")(trash.undrop)
table.app.command("trash")(trash.trash)
app.add_typer(table.app, name="table")
app.add_typer(view.app, name="view")
app.command("ingest")(ingest.ingest)
app.command("import")(ingest.import_files)
app.command("snapshot")(read.snapshot)
app.command("changes")(read.changes)
app.command("watch")(read.watch)
app.command("query")(read.query)
app.command("pin")(pin.pin)
app.command("pins")(pin.pins)
app.command("unpin")(pin.unpin)
app.command("merge")(merge.merge)
app.command("audit")(clean.audit)
app.command("vacuum")(clean.vacuum)
app.command("orphans")(clean.orphans)
app.command("delete")(change.delete)
app.command("rewrite")(change.rewrite)
app.add_typer(partitions.app, name="partitions")
app.command("erase")(erasure.erase)
app.add_typer(erasure.app, name="erasure")
app.add_typer(quarantine.app, name="quarantine")
app.command("fsck")(repair.fsck)
app.command("rebuild")(repair.rebuild)
app.command("status")(status.status)


@app.command("version")
def version(*, as_json: JsonFlag = False) -> None:
    """Print the release.

    Example: icedb version
    """
    release = package_version("icedb-client")
    document = {"version": release, "python": sys.version.split()[0]}
    answer(document, as_json=as_json, show=lambda: out.print(f"icedb {release}"))


@app.callback()
def set_options(
    *,
    context: typer.Context,
    store: Annotated[
        str | None,
        typer.Option("--store", help="Warehouse: file:///abs/folder or s3://bucket/prefix. [ICEDB_STORE]"),
    ] = None,
    snapshot_address: Annotated[
        str | None,
        typer.Option(
            "--snapshot-address",
            help="Snapshot service, host:port; without it the store is read. [ICEDB_SNAPSHOT_ADDRESS]",
        ),
    ] = None,
    redis_url: Annotated[
        str | None, typer.Option("--redis-url", help="Redis that wakes the workers. [ICEDB_REDIS_URL]")
    ] = None,
) -> None:
    """Take the options that all commands share."""
    context.obj = GlobalOptions(store, snapshot_address, redis_url)


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
    if odd := next((argument for argument in arguments if not is_text(argument)), None):
        print_error(f"argument {odd[:200]!r} has bytes that are no UTF-8: give it as text")
        return INVALID
    print_error(f"unexpected {type(error).__name__}: {error}; ICEDB_DEBUG=1 shows where, please report it")
    return FAILED


def _print_usage_error(error: TyperException) -> int:
    context: Any = getattr(error, "ctx", None)
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    if not message:  # a group without a command: typer has printed the help
        return INVALID
    path = context.command_path if context is not None else "icedb"
    print_error(f"{message} (see `{path} --help`)")
    return INVALID
