"""``icedb quarantine``: what cannot be committed, and what becomes of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated, Any, Final

import typer
from icedb_log.clock import SystemClock
from icedb_log.errors import IceDBError, InvalidRequest, NotFound, Unavailable
from icedb_log.ingest.quarantine import QuarantinedBatch, find_reason, list_quarantined
from icedb_log.ingest.quarantine_ops import drop_quarantined, retry_quarantined
from icedb_log.names import INGEST_FLUSH
from icedb_log.store.store_clock import AlignedClock
from icedb_log.store.table_store import TableStore
from rich.markup import escape

from icedb_client.cli.output import (
    format_bytes,
    format_count,
    out,
    pick,
    print_error,
    print_json,
    print_note,
    print_pairs,
)
from icedb_client.cli.parsing import format_time
from icedb_client.cli.runner import JsonFlag, TableName, YesFlag, answer, confirm, exit_code, open_client
from icedb_client.client import Client
from icedb_client.files import format_of_key, preview_lines

DEFAULT_SHOWN_LINES: Final = 5

app = typer.Typer(no_args_is_help=True, help="Look at what cannot be committed; put it right or let it go.")

BatchIds = Annotated[list[str] | None, typer.Argument(help="Ids, as `icedb quarantine list` shows them.")]
TakeAll = Annotated[bool, typer.Option("--all", help="Everything that is in quarantine now.")]


@dataclass(frozen=True, slots=True)
class _Result:
    """What became of one id."""

    batch_id: str
    retry_id: str | None = None
    error: IceDBError | None = None


@app.command("list")
def list_quarantine(*, context: typer.Context, table: TableName, as_json: JsonFlag = False) -> None:
    """List what is in quarantine, oldest first, with the reason.

    Example: icedb quarantine list events
    """
    with open_client(context, table=table) as client:
        client.table_config(table)
        found = list_quarantined(client.warehouse.table(table))
    document = {"table": table, "batches": [_to_json(entry) for entry in found]}
    answer(document, as_json=as_json, show=lambda: _show_list(found))


def _show_list(found: Sequence[QuarantinedBatch]) -> None:
    if not found:
        print_note("nothing is in quarantine")
    for entry in found:
        out.print(
            f"[bold]{escape(entry.batch_id)}[/]  {format_time(entry.quarantined_ms)}  {_describe(entry)}  "
            f"{format_bytes(entry.size_bytes)}",
            soft_wrap=True,
        )
        for line in entry.reason.splitlines():
            out.print(f"  {escape(line)}", soft_wrap=True)


@app.command("show")
def show(
    *,
    context: typer.Context,
    table: TableName,
    batch_id: Annotated[str, typer.Argument(help="Id of the batch, as `icedb quarantine list` shows it.")],
    lines: Annotated[int, typer.Option("--lines", min=0, help="Most lines of the payload.")] = DEFAULT_SHOWN_LINES,
    as_json: JsonFlag = False,
) -> None:
    """Show why a batch is in quarantine, and the first lines of what is kept of it, bad rows each with its reason.

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
    reasons = entry.row_reasons[: len(preview)]
    row_reasons = [{"row": number, "reason": what} for number, what in reasons]
    document = {
        "table": table,
        **_to_json(entry),
        "format": staging_format,
        "lines": preview,
        "row_reasons": row_reasons,
    }
    if as_json:
        print_json(document)
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
    for line, reason in zip_longest(preview, reasons):
        out.print(escape(line), soft_wrap=True)
        if reason is not None:
            out.print(f"  [dim]row {reason[0]}:[/] {escape(reason[1])}", soft_wrap=True)


@app.command("retry")
def retry(
    *,
    context: typer.Context,
    table: TableName,
    batch_ids: BatchIds = None,
    take_all: TakeAll = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also where nobody can tell whether the rows are live: they may come twice."),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Stage batches again, under fresh ids: after the table or its policies were changed so that they fit.

    Of a committed batch only the rows that are in quarantine are staged again. May be repeated.

    Example: icedb quarantine retry events --all
    """
    with open_client(context, table=table) as client:
        store, paths = client.warehouse.store, client.warehouse.table(table).paths

        clock = AlignedClock(SystemClock(), store, may_ask=True)

        def work(batch_id: str) -> str:
            return retry_quarantined(TableStore(store, paths), batch_id, clock=clock, force=force)

        results = _for_each(_choose(client, table, batch_ids, take_all=take_all), work)
        is_woken = any(result.error is None for result in results) and client.workers.wake(INGEST_FLUSH, table)
    _print_results(table, results, what="retried", as_json=as_json, fields={"woken": is_woken})


@app.command("drop")
def drop(
    *,
    context: typer.Context,
    table: TableName,
    batch_ids: BatchIds = None,
    take_all: TakeAll = False,
    yes: YesFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Delete batches from quarantine for good; their rows are lost.

    Example: icedb quarantine drop events 019b7d3c-0000-7000-8000-000000000001 --yes
    """
    with open_client(context, table=table) as client:
        store, paths = client.warehouse.store, client.warehouse.table(table).paths
        chosen = _choose(client, table, batch_ids, take_all=take_all)
        if chosen and not yes:
            question = f"Delete {len(chosen)} batches of table {table} from quarantine for good?"
            confirm(question, unasked="give --yes to delete for good", declined="nothing was deleted")
        results = _for_each(chosen, lambda batch_id: drop_quarantined(TableStore(store, paths), batch_id))
    _print_results(table, results, what="dropped", as_json=as_json, fields={})


def _choose(client: Client, table: str, batch_ids: list[str] | None, *, take_all: bool) -> tuple[str, ...]:
    """Return the ids that a command is about."""
    client.table_config(table)
    if take_all == bool(batch_ids):
        raise InvalidRequest("give ids of batches, or --all; see `icedb quarantine list`")
    if not take_all:
        return tuple(dict.fromkeys(batch_ids or ()))
    return tuple(entry.batch_id for entry in list_quarantined(client.warehouse.table(table)))


def _for_each(batch_ids: Sequence[str], work: Callable[[str], str | None]) -> list[_Result]:
    """Do the work for each id; one that fails does not keep the others, unless a server does not answer."""
    results: list[_Result] = []
    for batch_id in batch_ids:
        try:
            results.append(_Result(batch_id, retry_id=work(batch_id)))
        except IceDBError as error:
            results.append(_Result(batch_id, error=error))
            if isinstance(error, Unavailable):
                break
    return results


def _print_results(table: str, results: Sequence[_Result], *, what: str, as_json: bool, fields: dict[str, Any]) -> None:
    done = [result for result in results if result.error is None]
    failed = [(result.batch_id, result.error) for result in results if result.error is not None]
    if as_json:
        rows = [
            {"batch_id": result.batch_id, **({} if result.retry_id is None else {"retry_id": result.retry_id})}
            for result in done
        ]
        errors = [{"batch_id": batch_id, "error": str(error)} for batch_id, error in failed]
        print_json({"table": table, what: rows, "failed": errors, **fields})
    elif not results:
        print_note("nothing is in quarantine")
    else:
        for result in done:
            again = "" if result.retry_id is None else f" as {result.retry_id}"
            out.print(f"{what} [bold]{escape(result.batch_id)}[/]{again}", soft_wrap=True)
    for _, error in failed:
        print_error(str(error))
    if failed:
        raise typer.Exit(exit_code(failed[0][1]))


def _find(client: Client, table: str, batch_id: str) -> QuarantinedBatch:
    found = find_reason(client.warehouse.table(table), batch_id)
    if found is None:
        raise NotFound(
            f"table {table}: batch {batch_id[:80]!r} is not in quarantine; see `icedb quarantine list {table}`"
        )
    return found.entry


def _describe(entry: QuarantinedBatch) -> str:
    if entry.kind == "conflict":
        return "other content under the id of a batch"
    what = "whole batch" if entry.kind == "batch" else f"{format_count(entry.row_count)} rows of a committed batch"
    return f"{what}, perhaps live already" if entry.is_doubtful else what


def _to_json(entry: QuarantinedBatch) -> dict[str, Any]:
    fields = ("batch_id", "kind", "reason", "payload_key", "size_bytes", "quarantined_ms", "retry_id", "is_doubtful")
    return pick(entry, *fields, rows="row_count")
