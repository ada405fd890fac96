"""``icedb import``: existing Parquet files become data files of a table. The ingest worker does it; this asks."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from icedb_log.errors import InvalidRequest
from icedb_log.ingest.import_sources import parse_pattern
from icedb_log.names import INGEST_IMPORT
from rich.markup import escape

from icedb_client.cli.exits import FAILED, OK, TimedOut, outcome_exit_code
from icedb_client.cli.output import (
    JsonFlag,
    err,
    format_bytes,
    format_count,
    make_table,
    out,
    print_error,
    print_json,
    print_note,
    print_pairs,
)
from icedb_client.cli.parsing import parse_duration
from icedb_client.cli.session import open_client
from icedb_client.client import Client

MAX_SHOWN_PARTITIONS: Final = 20
MAX_SHOWN_REASONS: Final = 20
_SHOWN: Final = 80


def import_files(
    *,
    context: typer.Context,
    table: Annotated[str, typer.Argument(help="Name of the table.")],
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            help="s3://bucket/path/*.parquet, or paths of the worker's machine; ** stands for any folders. "
            "None with --in-place: all files below the table's data folder.",
        ),
    ] = None,
    in_place: Annotated[
        bool,
        typer.Option("--in-place", help="The files lie below this table's _data/<partition>/ already: copy nothing."),
    ] = False,
    partition: Annotated[
        list[str] | None,
        typer.Option(
            "--partition",
            help="NAME=VALUE of all files, for files whose statistics do not tell their partition. Repeat for levels.",
        ),
    ] = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Import files whose content changed since they were imported as new ones.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be imported; touches nothing.")] = False,
    assume_landed: Annotated[
        bool, typer.Option("--assume-landed", help="An import that nobody can tell of any more did land.")
    ] = False,
    assume_lost: Annotated[
        bool, typer.Option("--assume-lost", help="An import that nobody can tell of any more did not land.")
    ] = False,
    timeout: Annotated[str, typer.Option("--timeout", help="How long to wait for the worker's result.")] = "1h",
    as_json: JsonFlag = False,
) -> None:
    """Register existing Parquet files in a table, without rewriting them. Each file once, however often it is asked.

    Only footers are read. Files of this machine that a worker elsewhere does not see are sent with `icedb ingest`.

    Example: icedb import events 's3://lake/events/2026/**/*.parquet'
    """
    if assume_landed and assume_lost:
        raise InvalidRequest("give --assume-landed or --assume-lost, not both")
    if not sources and not in_place:
        raise InvalidRequest("give the files to import, e.g. 's3://bucket/path/*.parquet'")
    arguments: dict[str, Any] = {
        "sources": [to_url(source) for source in sources or ()],
        "mode": "in_place" if in_place else "copy",
        "partition": _parse_partition(partition or ()),
        "dry_run": dry_run,
        "changed": changed,
        "assume": "landed" if assume_landed else "lost" if assume_lost else None,
    }
    timeout_ms = parse_duration(timeout, option="--timeout")
    with open_client(context, table=table) as client:
        client.table_config(table)
        result = _ask(client, table, arguments, timeout_ms=timeout_ms, is_quiet=as_json)
    code = outcome_exit_code(str(result.get("outcome")))
    if as_json:
        print_json(result)
    elif code == OK:
        _print_result(table, result)
    if code != OK:
        problem = result.get("error") or {}
        print_error(f"import into table {table}: {result.get('outcome')}: {problem.get('message', 'see its log')}")
        raise typer.Exit(code)
    if result.get("refused"):
        raise typer.Exit(FAILED)


def to_url(source: str) -> str:
    """Return a source as a URL: a path is one of this machine, relative to the working folder.

    Raises:
        InvalidRequest: It is neither, or has a form that no worker takes.
    """
    if "://" in source:
        url = source
    else:
        is_folder = source.endswith("/") or Path(source).is_dir()
        url = f"file://{os.path.abspath(source)}{'/' if is_folder else ''}"  # noqa: PTH100 - wildcards are no path
    parse_pattern(url)
    return url


def _parse_partition(texts: Iterable[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise InvalidRequest(f"--partition {text[:_SHOWN]!r}: write NAME=VALUE, e.g. d=2026-01-31")
        if name in values:
            raise InvalidRequest(f"--partition {name[:_SHOWN]!r} is given twice: all files get one value")
        values[name] = value
    return values


def _ask(client: Client, table: str, arguments: dict[str, Any], *, timeout_ms: int, is_quiet: bool) -> dict[str, Any]:
    from icedb_client.wakeups import TaskTimeout  # noqa: PLC0415 - redis and celery only where they are used

    def ask() -> dict[str, Any]:
        return client.workers.run(INGEST_IMPORT, table, arguments=arguments, timeout_ms=timeout_ms)

    try:
        if is_quiet or not err.is_terminal:
            return ask()
        what = "reading footers" if arguments["dry_run"] else "importing"
        with err.status(f"{what}: an ingest worker is asked; Ctrl-C stops the waiting, not the import"):
            return ask()
    except TaskTimeout as error:
        raise TimedOut(
            f"{error}. The import may still go on; run it again to see: what is imported is not imported twice"
        ) from error


def _print_result(table: str, result: dict[str, Any]) -> None:
    verb = "would be imported" if result["dry_run"] else "imported"
    if result["files"]:
        print_pairs(
            {
                "table": table,
                f"files {verb}": format_count(result["files"]),
                "rows": format_count(result["rows"]),
                "size": format_bytes(result["bytes"]),
                "partitions": format_count(result["partition_count"]),
                **({} if result["dry_run"] else {"commits": format_count(result["commits"])}),
            }
        )
        shown = result["partitions"][:MAX_SHOWN_PARTITIONS]
        if any(each["partition"] for each in shown):
            view = make_table("partition", "rows", right=("rows",))
            for each in shown:
                view.add_row(escape(each["partition"]), format_count(each["rows"]))
            out.print(view)
        if result["partition_count"] > len(shown):
            print_note(f"and {format_count(result['partition_count'] - len(shown))} partitions more; --json has them")
    elif not result["refused"]:
        out.print(f"nothing to import into table [bold]{escape(table)}[/]")
    for name, words in (
        ("imported_before", "were imported already"),
        ("empty", "have no rows"),
        ("unsorted", "do not say to be sorted as the table is; merges sort their rows"),
    ):
        if result[name]:
            print_note(f"{format_count(result[name])} files {words}")
    for each in result["reasons"][:MAX_SHOWN_REASONS]:
        print_error(f"{each['file']} is refused: {each['reason']}")
    if result["refused"] > MAX_SHOWN_REASONS:
        print_error(f"{format_count(result['refused'])} files are refused; --json names up to 100 of them")
