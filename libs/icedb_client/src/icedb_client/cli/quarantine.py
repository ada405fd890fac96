"""``icedb quarantine``: what cannot be committed, and what becomes of it."""

from typing import Annotated, Any

import typer
from icedb_log.errors import NotFound
from icedb_log.quarantine import QuarantinedBatch, find_reason, list_quarantined
from rich.markup import escape

from icedb_client.cli.output import (
    JsonFlag,
    format_bytes,
    format_count,
    out,
    print_json,
    print_note,
    print_pairs,
)
from icedb_client.cli.parsing import format_time
from icedb_client.cli.session import open_client
from icedb_client.client import Client
from icedb_client.payloads import format_of_key, preview_lines

DEFAULT_SHOWN_LINES = 5

app = typer.Typer(no_args_is_help=True, help="Look at what cannot be committed; put it right or let it go.")

TableName = Annotated[str, typer.Argument(help="Name of the table.")]


@app.command("list")
def list_quarantine(*, context: typer.Context, table: TableName, as_json: JsonFlag = False) -> None:
    """List what is in quarantine, oldest first, with the reason.

    Example: icedb quarantine list events
    """
    with open_client(context, table=table) as client:
        client.table_config(table)
        found = list_quarantined(client.warehouse.store, client.warehouse.table(table))
    if as_json:
        print_json({"table": table, "batches": [_to_json(entry) for entry in found]})
        return
    if not found:
        print_note("nothing is in quarantine")
        return
    for entry in found:
        out.print(
            f"[bold]{escape(entry.batch_id)}[/]  {format_time(entry.quarantined_ms)}  {_describe(entry)}  "
            f"{format_bytes(entry.size_bytes)}",
            soft_wrap=True,
        )
        out.print(f"  {escape(entry.reason)}", soft_wrap=True)


@app.command("show")
def show(
    *,
    context: typer.Context,
    table: TableName,
    batch_id: Annotated[str, typer.Argument(help="Id of the batch, as `icedb quarantine list` shows it.")],
    lines: Annotated[int, typer.Option("--lines", min=0, help="Most lines of the payload.")] = DEFAULT_SHOWN_LINES,
    as_json: JsonFlag = False,
) -> None:
    """Show why a batch is in quarantine, and the first lines of what is kept of it.

    Example: icedb quarantine show events 019b7d3c-0000-7000-8000-000000000001
    """
    with open_client(context, table=table) as client:
        client.table_config(table)
        entry = _find(client, table, batch_id)
        try:
            body = client.warehouse.store.get(entry.payload_key).body
        except NotFound:
            body = b""
    staging_format = format_of_key(entry.payload_key)
    preview = preview_lines(body, staging_format, limit=lines) if body else ("(the payload is gone)",)
    if as_json:
        print_json({"table": table, **_to_json(entry), "format": staging_format, "lines": list(preview)})
        return
    print_pairs(
        {
            "batch": entry.batch_id,
            "what": _describe(entry),
            "since": format_time(entry.quarantined_ms),
            "reason": entry.reason,
            "payload": entry.payload_key,
            "size": f"{format_bytes(entry.size_bytes)} of {staging_format}",
            **({} if entry.retry_id is None else {"retried as": entry.retry_id}),
        }
    )
    if preview:
        out.print()
    for line in preview:
        out.print(escape(line), soft_wrap=True)


def _find(client: Client, table: str, batch_id: str) -> QuarantinedBatch:
    found = find_reason(client.warehouse.store, client.warehouse.table(table), batch_id)
    if found is None:
        raise NotFound(
            f"table {table}: batch {batch_id[:80]!r} is not in quarantine; see `icedb quarantine list {table}`"
        )
    return found.entry


def _describe(entry: QuarantinedBatch) -> str:
    return "whole batch" if entry.kind == "batch" else f"{format_count(entry.row_count)} rows of a committed batch"


def _to_json(entry: QuarantinedBatch) -> dict[str, Any]:
    return {
        "batch_id": entry.batch_id,
        "kind": entry.kind,
        "rows": entry.row_count,
        "reason": entry.reason,
        "payload_key": entry.payload_key,
        "size_bytes": entry.size_bytes,
        "quarantined_ms": entry.quarantined_ms,
        "retry_id": entry.retry_id,
    }
