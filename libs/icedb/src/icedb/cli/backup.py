"""``icedb backup``: copy tables to another place, and bring them back. See docs/backup.md."""

import os
from dataclasses import asdict

import typer
from icedb_client.settings import load_client_settings
from icedb_log.backup.backup import TableBackup, backup_warehouse
from icedb_log.errors import InvalidRequest
from icedb_log.store.local_store import LocalObjectStore
from icedb_log.store.s3_options import S3Options
from icedb_log.store_settings import open_warehouse
from icedb_log.warehouse import Warehouse
from rich.markup import escape

from icedb.cli.output import (
    Show,
    count_of,
    format_bytes,
    format_count,
    format_time,
    print_error,
    print_line,
    print_note,
    progress,
)
from icedb.cli.runner import FAILED, Run, argument, command, describe_no_tables, option


@command()
def backup(
    run: Run,
    *,
    target: str = argument(
        "Where to copy to: a folder, file:///folder or s3://bucket/prefix, with the same prefix.",
        metavar="TARGET",
    ),
    tables: list[str] | None = argument("Only these tables, with their views and sources.", None, metavar="[TABLE]..."),
    endpoint: str | None = option("--target-endpoint", "S3 server of the target; by default that of the store."),
    region: str | None = option("--target-region", "Region of the target; by default that of the store."),
) -> None:
    """Copy all tables to another bucket or folder, each in one consistent state, while they are in use.

    Run again, it copies what is new, and deletes from the copy what the tables do not have any more. The other way
    round, it brings tables back: icedb --store COPY backup NEW_PLACE. Each copy is checked as `icedb fsck` does.

    ICEDB_BACKUP_KEY_ID and ICEDB_BACKUP_SECRET are the target's access key, if it is not the store's.

    Exit code 1 if a table could not be copied; it keeps the copy that it has.
    """
    settings = run.client.settings
    url = str(load_client_settings(store=target).store)
    own = settings.store_settings
    if url.rstrip("/") == own.url.rstrip("/") and endpoint is None:
        raise InvalidRequest(f"{url} is the store itself: give another place for the copies")
    known = own.s3 or S3Options()
    # No options: whoever runs `ps` would see the secret.
    key_id, secret = (os.environ.get(name) or None for name in ("ICEDB_BACKUP_KEY_ID", "ICEDB_BACKUP_SECRET"))
    options = S3Options(endpoint or known.endpoint_url, region or known.region, key_id, secret)
    source, copies = _agree(run.client.warehouse, open_warehouse(url, options))
    found: list[TableBackup] = []
    with progress("backup", is_quiet=run.as_data) as show:
        for each in backup_warehouse(
            source,
            copies,
            source_url=own.url.rstrip("/"),
            clock=run.clock,
            tables=tables or (),
            progress=lambda name, done, total: _show(show, name, done, total),
        ):
            found.append(each)
            if not run.as_data:
                _print(each)
    run.answer({"source": own.url, "target": url, "tables": [asdict(each) for each in found]}, lambda: None)
    if not found:
        print_note(describe_no_tables(run.client))
    if any(each.problem for each in found):
        raise typer.Exit(FAILED)


def _agree(source: Warehouse, target: Warehouse) -> tuple[Warehouse, Warehouse]:
    """Return both with the same prefix: a folder has none of its own, and holds that of a bucket as a folder.

    Raises:
        InvalidRequest: The folder does not hold that of the bucket.
    """
    if isinstance(target.store, LocalObjectStore):
        return source, Warehouse(target.store, source.root)
    if not isinstance(source.store, LocalObjectStore):
        return source, target
    held = Warehouse(source.store, target.root)
    if not held.list_tables() and source.list_tables():
        raise InvalidRequest(
            f"the keys of a table hold its prefix, and those of this folder have none: the target has {target.root!r}; "
            "give the bucket alone"
        )
    return held, target


def _show(show: Show, name: str, done: int, total: int) -> None:
    show(done, total, name)


def _print(each: TableBackup) -> None:
    if each.problem:
        print_error(each.problem)
        return
    rows = "" if each.row_count is None else f"{count_of(each.row_count, 'row')}, "
    waiting = f", batches in staging: {format_count(each.waiting_batches)}" if each.waiting_batches else ""
    print_line(
        f"[bold]{escape(each.table)}[/] as of {format_time(each.point_ms)}: {rows}"
        f"{count_of(each.file_count, 'data file')} ({format_bytes(each.size_bytes)}){waiting}; copied "
        f"{format_count(each.copied_files)} ({format_bytes(each.copied_bytes)})"
    )
