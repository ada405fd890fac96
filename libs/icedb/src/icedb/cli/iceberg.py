"""``icedb iceberg``: publish tables for engines that speak Iceberg, and say how they are read."""

from typing import Any, Final

import typer
from icedb_log.commit.table import Table
from icedb_log.errors import IceDBError, InvalidRequest, NotFound, crashes_told
from icedb_log.publish.head import read_publication
from icedb_log.publish.model import Publication
from icedb_log.texts import quote_text
from rich.markup import escape

from icedb.cli.output import (
    count_of,
    format_bytes,
    format_count,
    format_time,
    print_error,
    print_line,
    print_note,
    print_pairs,
)
from icedb.cli.runner import FAILED, Commands, Run, TableName, argument, command, option

MISSING: Final = "Iceberg needs the package icedb-iceberg: pip install 'icedb[iceberg]'"

try:
    from icedb_iceberg import publish_table, read_location, read_metadata, set_location
except ImportError as error:  # the extra is not installed
    raise InvalidRequest(MISSING) from error

app: Final = Commands(
    name="iceberg",
    help="Publish tables for engines that speak Iceberg, without a copy, and say how they are read.",
)


@app.command("publish")
@command()
def publish(
    run: Run,
    *,
    table: str | None = argument("Name of the table; with --location every published one.", None, metavar="[TABLE]"),
    location: str | None = option(
        "--location",
        "The warehouse's URL for engines: s3://bucket/prefix, file:///folder, or `store` for that of the store.",
        metavar="URL",
    ),
) -> None:
    """Publish the current state of a table, for engines without a catalog. Writes nothing if nothing has changed.

    Manifests hold absolute locations: give --location after a directory was moved, or if engines see a bucket by
    another name. It publishes anew what was published, and copies nothing.
    """
    if (table is None) == (location is None):
        raise InvalidRequest("give a table, or --location for all that are published")
    if table is not None:
        opened = run.open(table)
        _show(run, opened, publish_table(opened))
        return
    _relocate(run, None if location == "store" else location)


def _relocate(run: Run, location: str | None) -> None:
    """Publish all anew at a location. A table that cannot be published is named, and the others go on."""
    warehouse = run.client.warehouse
    now = set_location(warehouse.store, warehouse.root, location)
    published: list[str] = []
    problems: dict[str, str] = {}
    for name in warehouse.list_tables():
        try:
            with crashes_told(f"table {name}: its publication"):
                if read_publication(warehouse.table(name)) is not None:
                    publish_table(run.open(name))
                    published.append(name)
        except NotFound:
            continue  # dropped since the names were listed
        except IceDBError as error:  # the other tables are at the new place, too
            problems[name] = str(error)
    document = {"location": now, "published": published, "problems": problems}
    run.answer(document, lambda: print_line(f"{now}: {count_of(len(published), 'table')} published anew"))
    for name, problem in problems.items():
        print_error(f"table {name} is not published anew: {problem}; mend that, then `icedb iceberg publish {name}`")
    if problems:
        raise typer.Exit(FAILED)


@app.command("show")
@command()
def show(run: Run, *, table: TableName) -> None:
    """Show the publication of a table, and how to read it. Publishes nothing."""
    opened = run.open(table)
    publication = read_publication(opened)
    if publication is None:
        raise NotFound(f"table {table} is not published: `icedb iceberg publish {table}`")
    _show(run, opened, publication)


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
