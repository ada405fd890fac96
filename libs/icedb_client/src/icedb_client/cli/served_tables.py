"""What `icedb table list` and `icedb table show` print where there is a snapshot service and no store."""

from typing import Any

from icedb_log.errors import HaltError, NotFound
from rich.markup import escape

from icedb_client.cli.output import format_span, make_table, out, print_error, print_json, print_note, print_pairs
from icedb_client.cli.parsing import format_time
from icedb_client.client import Client
from icedb_client.read_requests import TableInfo


def is_served(client: Client) -> bool:
    """Whether tables are known through a snapshot service alone."""
    return client.settings.store is None and client.settings.snapshot_address is not None


def list_served(client: Client, *, as_json: bool) -> bool:
    """Print the tables that the service shows; return whether all of them can be read."""
    found: list[TableInfo] = []
    problems: dict[str, str] = {}
    for name in client.tables():
        try:
            found.append(client.table(name))
        except HaltError as error:
            problems[name] = str(error)
        except NotFound:
            continue  # dropped since the names were listed
    if as_json:
        print_json({"tables": [_to_json(table) for table in found], "unreadable": problems})
    elif found:
        shown = make_table("table", "partitions", "sorted by")
        for table in found:
            shown.add_row(escape(table.name), escape(_partitions(table)), escape(_sort(table)))
        out.print(shown)
    elif not problems:
        print_note("no tables that these credentials may read")
    for problem in problems.values():
        print_error(problem)
    return not problems


def show_served(client: Client, name: str, *, as_json: bool) -> None:
    """Print what the service says of a table."""
    table = client.table(name)
    if as_json:
        print_json(_to_json(table))
        return
    print_pairs(
        {
            "table": table.name,
            "partitions": _partitions(table),
            "sorted by": _sort(table),
            "data grace": format_span(table.data_grace_ms),
            "log grace": format_span(table.log_grace_ms),
            "retention": "for ever" if table.retention_ms is None else format_span(table.retention_ms),
            **({} if table.horizon_ms is None else {"oldest time": format_time(table.horizon_ms)}),
        }
    )
    out.print()
    shown = make_table("column", "type")
    for column, sql_type in table.schema.items():
        shown.add_row(escape(column), sql_type)
    if table.schema:
        out.print(shown)
    else:
        print_note("no columns yet: they come with the first events")


def _partitions(table: TableInfo) -> str:
    return ", ".join(str(field) for field in table.partition_fields) or "-"


def _sort(table: TableInfo) -> str:
    return ", ".join(table.sort_columns) or "-"


def _to_json(table: TableInfo) -> dict[str, Any]:
    return {
        "table": table.name,
        "partition": [str(field) for field in table.partition_fields],
        "sort": list(table.sort_columns),
        "schema": dict(table.schema),
        "data_grace_ms": table.data_grace_ms,
        "log_grace_ms": table.log_grace_ms,
        "retention_ms": table.retention_ms,
        "retention_field": table.retention_field,
        "horizon_ms": table.horizon_ms,
    }
