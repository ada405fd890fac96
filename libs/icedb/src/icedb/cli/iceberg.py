"""``icedb iceberg``: publish tables for engines that speak Iceberg, and say how they are read."""

from typing import Any, Final

import typer
from icedb_log.errors import InvalidRequest, NotFound
from icedb_log.publish.head import read_publication
from icedb_log.publish.model import Publication
from icedb_log.table.table import Table
from icedb_log.texts import quote_text
from rich.markup import escape

from icedb.cli.output import format_bytes, format_count, format_time, print_line, print_note, print_pairs
from icedb.cli.runner import Run, TableName, argument, command

MISSING: Final = "Iceberg needs the package icedb-iceberg: pip install 'icedb[iceberg]'"

try:
    from icedb_iceberg import publish_table, read_location, read_metadata, set_location
except ImportError as error:  # the extra is not installed
    raise InvalidRequest(MISSING) from error

app: Final = typer.Typer(
    name="iceberg",
    no_args_is_help=True,
    help="Publish tables for engines that speak Iceberg, without a copy, and say how they are read.",
)


@app.command("publish")
@command()
def publish(run: Run, *, table: TableName) -> None:
    """Publish a table as it is now, for engines without a catalog. Nothing is written if nothing has changed.

    Example: icedb iceberg publish events
    """
    opened = run.open(table)
    _show(run, opened, publish_table(opened))


@app.command("show")
@command()
def show(run: Run, *, table: TableName) -> None:
    """Show what is published of a table, and how it is read. Publishes nothing.

    Example: icedb iceberg show events
    """
    opened = run.open(table)
    publication = read_publication(opened)
    if publication is None:
        raise NotFound(f"table {table} is not published: `icedb iceberg publish {table}`")
    _show(run, opened, publication)


@app.command("relocate")
@command()
def relocate(
    run: Run,
    *,
    location: str | None = argument("s3://bucket/prefix or file:///folder; by default where the store is now.", None),
) -> None:
    """Set under which location engines find this warehouse, and publish anew what was published. Copies nothing.

    Manifests hold absolute locations: call it after a directory was moved, or if engines see a bucket by another name.

    Example: icedb iceberg relocate
    """
    warehouse = run.client.warehouse
    now = set_location(warehouse.store, warehouse.root, location)
    published = [name for name in warehouse.list_tables() if read_publication(warehouse.table(name)) is not None]
    for name in published:
        publish_table(run.open(name))
    document = {"location": now, "published": published}
    run.answer(document, lambda: print_line(f"{now}: {format_count(len(published))} tables published anew"))


def _show(run: Run, table: Table, publication: Publication) -> None:
    metadata = read_metadata(table, publication)
    read_location(table.store, run.client.warehouse.root)  # a directory that was moved says so
    uri = metadata["location"] + publication.metadata_key.removeprefix(table.paths.prefix)
    current = metadata.get("current-snapshot-id")
    snapshot = next((each for each in metadata["snapshots"] if each["snapshot-id"] == current), None)
    summary: dict[str, str] = {} if snapshot is None else snapshot["summary"]
    left_out = metadata["properties"].get("icedb.left-out-columns")
    document: dict[str, Any] = {
        "table": table.name,
        "metadata": uri,
        "publication": publication.publication_id,
        "as_of_ms": publication.as_of_ms,
        "snapshot_id": current,
        "snapshots": len(metadata["snapshots"]),
        "files": int(summary.get("total-data-files", 0)),
        "rows": int(summary.get("total-records", 0)),
        "bytes": int(summary.get("total-files-size", 0)),
        "left_out_columns": left_out.split(", ") if left_out else [],
    }

    def print_all() -> None:
        print_pairs(
            {
                "table": table.name,
                "as of": format_time(publication.as_of_ms),
                "snapshot": None if current is None else str(current),  # an id: no separators
                "snapshots": document["snapshots"],
                "data files": format_count(document["files"]),
                "rows": format_count(document["rows"]),
                "size": format_bytes(document["bytes"]),
                "tags": ", ".join(name for name in metadata["refs"] if name != "main") or None,
                "left out": left_out,
            }
        )
        ways = {
            "metadata": uri,
            "DuckDB": f"SELECT * FROM iceberg_scan({quote_text(uri)})",  # noqa: S608 - shown, not run; quoted
            "PyIceberg": f"StaticTable.from_metadata({uri!r}).scan().to_arrow()",
        }
        for name, text in ways.items():  # to be copied: broken by nothing, however narrow the terminal is
            print_line(f"[bold]{name:<10}[/]  {escape(text)}")
        if left_out:
            print_note("columns that are left out have types that Iceberg does not know")

    run.answer(document, print_all)
