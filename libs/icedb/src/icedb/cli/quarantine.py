"""``icedb quarantine``: what cannot be committed, and what becomes of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated, Any, Final

import typer
from icedb_client.files import format_of_key, preview_lines
from icedb_log.errors import IceDBError, InvalidRequest, NotFound, Unavailable
from icedb_log.ingest.quarantine import QuarantinedBatch, find_reason, list_quarantined
from icedb_log.ingest.quarantine_ops import drop_quarantined, retry_quarantined
from icedb_log.names import INGEST_FLUSH
from icedb_log.store.store_clock import AlignedClock
from rich.markup import escape

from icedb.cli.output import (
    format_bytes,
    format_count,
    format_time,
    out,
    pick,
    print_error,
    print_line,
    print_note,
    print_pairs,
)
from icedb.cli.runner import Commands, Run, TableName, YesFlag, argument, command, confirm, exit_code, flag, option

DEFAULT_SHOWN_LINES: Final = 5

app = Commands(help="List what cannot be committed; retry or drop it.")

BatchIds = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="Ids, as `icedb quarantine list` shows them.")
]
TakeAll = Annotated[bool, typer.Option("--all", help="All entries in quarantine now, instead of ids.")]


@dataclass(frozen=True, slots=True)
class _Result:
    """What became of one id."""

    batch_id: str
    retry_id: str | None = None
    error: IceDBError | None = None


@app.command("list")
@command(records="batches")
def list_quarantine(
    run: Run,
    *,
    table: TableName,
    batch_id: str | None = argument(
        "Show this batch: its first lines, bad rows with their reasons.", None, metavar="[ID]"
    ),
    limit: int = option("--limit", "With a batch: most lines of it.", DEFAULT_SHOWN_LINES, min=0),
) -> None:
    """List the entries in quarantine, or show one batch.

    Oldest first, with the reason. Of one batch the first lines are shown, bad rows each with its reason.
    """
    run.client.table_config(table)
    if batch_id is not None:
        _show_entry(run, table, batch_id, limit=limit)
        return
    found = list_quarantined(run.place(table))
    run.answer({"table": table, "batches": [quarantined_to_json(entry) for entry in found]}, lambda: _show_list(found))


def _show_list(found: Sequence[QuarantinedBatch]) -> None:
    if not found:
        print_note("nothing is in quarantine")
    for entry in found:
        print_line(
            f"[bold]{escape(entry.batch_id)}[/]  {format_time(entry.quarantined_ms)}  {_describe(entry)}  "
            f"{format_bytes(entry.size_bytes)}"
        )
        for line in entry.reason.splitlines():
            print_line(f"  {escape(line)}")


def _show_entry(run: Run, table: str, batch_id: str, *, limit: int) -> None:
    found = find_reason(run.place(table), batch_id)
    if found is None:
        raise NotFound(
            f"table {table}: batch {batch_id[:80]!r} is not in quarantine; see `icedb quarantine list {table}`"
        )
    entry = found.entry
    try:
        body = run.client.warehouse.store.get(entry.payload_key).body
    except NotFound:
        body = b""
    staging_format = format_of_key(entry.payload_key)
    preview = preview_lines(body, staging_format, limit=limit) if body else ("(the payload is gone)",)
    header_count = int(staging_format is not None and staging_format.startswith("csv"))
    reasons = entry.row_reasons[: max(0, len(preview) - header_count)]
    document = {
        "table": table,
        **quarantined_to_json(entry),
        "format": staging_format,
        "lines": preview,
        "row_reasons": [{"row": number, "reason": what} for number, what in reasons],
    }

    def show() -> None:
        print_pairs(
            {
                "batch": entry.batch_id,
                "what": _describe(entry),
                "since": format_time(entry.quarantined_ms),
                "reason": entry.reason,
                "payload": entry.payload_key,
                "size": f"{format_bytes(entry.size_bytes)} of {staging_format}",
                "retried as": entry.retry_id,
            }
        )
        if preview:
            out.print()
        for line, reason in zip_longest(preview, (*[None] * (header_count if reasons else 0), *reasons)):
            print_line(escape(line))
            if reason is not None:
                print_line(f"  [dim]row {reason[0]}:[/] {escape(reason[1])}")

    run.answer(document, show)


@app.command("retry")
@command(asks=True)
def retry(
    run: Run,
    *,
    table: TableName,
    batch_ids: BatchIds = None,
    take_all: TakeAll = False,
    force: bool = flag("--force", "Also if the rows may be committed already: they may then be in the table twice."),
) -> None:
    """Stage batches again, under new ids, after the table was changed so that they fit.

    Of a committed batch only the rows that are in quarantine are staged again. May be repeated.
    """
    place = run.place(table)
    clock = AlignedClock(run.clock, place.store, may_ask=True)
    chosen = _choose(run, table, batch_ids, take_all=take_all)
    results = _for_each(chosen, lambda batch_id: retry_quarantined(place, batch_id, clock=clock, force=force))
    is_woken = any(result.error is None for result in results) and run.wake(INGEST_FLUSH, table)
    _answer(run, table, results, what="retried", woken=is_woken)


@app.command("drop")
@command()
def drop(
    run: Run, *, table: TableName, batch_ids: BatchIds = None, take_all: TakeAll = False, yes: YesFlag = False
) -> None:
    """Delete batches from quarantine; their rows are lost."""
    chosen = _choose(run, table, batch_ids, take_all=take_all)
    if chosen and not yes:
        question = f"Delete {len(chosen)} batches of table {table} from quarantine for good?"
        confirm(question, unasked="give --yes to delete for good", declined="nothing was deleted")
    results = _for_each(chosen, lambda batch_id: drop_quarantined(run.place(table), batch_id))
    _answer(run, table, results, what="dropped")


def _choose(run: Run, table: str, batch_ids: list[str] | None, *, take_all: bool) -> tuple[str, ...]:
    """Return the ids that a command is about."""
    run.client.table_config(table)
    if take_all == bool(batch_ids):
        raise InvalidRequest("give ids of batches, or --all; see `icedb quarantine list`")
    if not take_all:
        return tuple(dict.fromkeys(batch_ids or ()))
    return tuple(entry.batch_id for entry in list_quarantined(run.place(table)))


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


def _answer(run: Run, table: str, results: Sequence[_Result], *, what: str, **fields: object) -> None:
    done = [result for result in results if result.error is None]
    failed = [(result.batch_id, result.error) for result in results if result.error is not None]

    def show() -> None:
        if not results:
            print_note("nothing is in quarantine")
        for result in done:
            again = "" if result.retry_id is None else f" as {result.retry_id}"
            print_line(f"{what} [bold]{escape(result.batch_id)}[/]{again}")

    rows = [
        {"batch_id": result.batch_id, **({} if result.retry_id is None else {"retry_id": result.retry_id})}
        for result in done
    ]
    errors = [{"batch_id": batch_id, "error": str(error)} for batch_id, error in failed]
    run.answer({"table": table, what: rows, "failed": errors, **fields}, show)
    for _, error in failed:
        print_error(str(error))
    if failed:
        raise typer.Exit(exit_code(failed[0][1]))


def _describe(entry: QuarantinedBatch) -> str:
    if entry.kind == "conflict":
        return "other content under the id of a batch"
    what = "whole batch" if entry.kind == "batch" else f"{format_count(entry.row_count)} rows of a committed batch"
    return f"{what}, perhaps live already" if entry.is_doubtful else what


def quarantined_to_json(entry: QuarantinedBatch) -> dict[str, Any]:
    """Return an entry in quarantine for a document."""
    fields = ("batch_id", "kind", "reason", "payload_key", "size_bytes", "quarantined_ms", "retry_id", "is_doubtful")
    return pick(entry, *fields, rows="row_count")
