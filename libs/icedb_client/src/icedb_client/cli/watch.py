"""``icedb watch``: a line for each table, then one after each change, until it is stopped."""

import sys
from typing import Annotated, Any, Final

import orjson
import typer

from icedb_client.cli.output import format_bytes, format_count
from icedb_client.cli.parsing import format_time
from icedb_client.cli.session import open_client
from icedb_client.read_requests import SnapshotEvent

LineJsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document a line and nothing else.")]
_NAME_WIDTH: Final = 20


def watch(
    *,
    context: typer.Context,
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="[TABLE]...", help="Names of tables; none: all, also new ones.")
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", min=1, help="End after this many lines; without it Ctrl-C ends.")
    ] = None,
    as_json: LineJsonFlag = False,
) -> None:
    """Print a line for each table at once, then one after each change that is seen. Ctrl-C ends it.

    Example: icedb watch events --json
    """
    names = tuple(dict.fromkeys(tables or ()))
    shown = 0
    with open_client(context, table=names[0] if len(names) == 1 else None) as client:
        for event in client.watch(names):
            _print(_to_json(event) if as_json else _to_line(event))
            shown += 1
            if shown == count:
                break


def _print(line: str) -> None:
    """Print one line now: whoever reads a pipe waits for it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _to_line(event: SnapshotEvent) -> str:
    name = f"{event.table:{_NAME_WIDTH}}"
    if event.problem is not None:
        return f"{'-':24}  {name}  cannot be read: {' '.join(event.problem.split())}"
    if event.snapshot_id is None:
        return f"{'-':24}  {name}  gone"
    time = "-" if event.last_commit_ms is None else format_time(event.last_commit_ms)
    return (
        f"{time:24}  {name}  {format_count(event.file_count)} files  {format_count(event.row_count)} rows  "
        f"{format_bytes(event.size_bytes)}  snapshot {event.snapshot_id}"
    )


def _to_json(event: SnapshotEvent) -> str:
    fields: dict[str, Any] = {
        "table": event.table,
        "snapshot_id": event.snapshot_id,
        "file_count": event.file_count,
        "row_count": event.row_count,
        "size_bytes": event.size_bytes,
        "last_commit_ms": event.last_commit_ms,
        "problem": event.problem,
    }
    return orjson.dumps(fields).decode()
