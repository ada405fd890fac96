"""``icedb pin``, ``icedb pins``, ``icedb unpin``: named snapshots that stay readable."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer
from icedb_log.clean.drop import read_kept_config
from icedb_log.clean.pins import Pin, PinStatus, create_pin, is_lasting, list_pins
from icedb_log.clean.pins import unpin as end_pin
from icedb_log.clock import SystemClock
from icedb_log.keys import pin_name_of
from icedb_log.store.table_store import TableStore
from icedb_log.table.table import Table
from icedb_log.table.table_config import TableConfig
from rich.markup import escape

from icedb_client.cli.output import (
    format_bytes,
    format_count,
    format_span,
    make_table,
    out,
    pick,
    print_json,
    print_note,
    print_pairs,
)
from icedb_client.cli.parsing import format_time, parse_duration, parse_time
from icedb_client.cli.runner import JsonFlag, TableName, answer, open_client

PinName = Annotated[str, typer.Argument(help="Name of the pin: a to z, 0 to 9, _ and -.")]

_HELP: Final = {
    "pending": "is being made, or its maker died; holds every dead data file meanwhile",
    "late": "took too long to be made: some of its files may be gone; unpin it and pin again",
    "unreadable": "cannot be understood and holds every dead data file; unpin it",
    "no pin": "is no pin by its name and holds every dead data file; move the object out of _icedb/pins/",
}


def pin(
    *,
    context: typer.Context,
    table: TableName,
    name: PinName,
    at: Annotated[
        str | None,
        typer.Option("--at", help="A past time: 2026-01-02T03:04:05Z, a date, or unix milliseconds. Now by default."),
    ] = None,
    ttl: Annotated[
        str | None, typer.Option("--ttl", help="How long it lasts, e.g. 30d; until `icedb unpin` by default.")
    ] = None,
    note: Annotated[str, typer.Option("--note", help="Why, for people.")] = "",
    as_json: JsonFlag = False,
) -> None:
    """Pin a table's state under a name: its data files stay, and it can be read, until the pin ends.

    Example: icedb pin events q3 --ttl 30d --note "figures of the third quarter"
    """
    at_ms = None if at is None else parse_time(at, option="--at")
    ttl_ms = None if ttl is None else parse_duration(ttl, option="--ttl")
    with open_client(context, table=table) as client:
        paths = client.warehouse.table(table).paths
        made = create_pin(
            Table.open(TableStore(client.warehouse.store, paths), clock=SystemClock()),
            name,
            at_ms=at_ms,
            ttl_ms=ttl_ms,
            note=note,
        )
        config = client.table_config(table)
    answer({"table": table, **_to_json(made, "active", config)}, as_json=as_json, show=lambda: _show_pin(table, made))


def _show_pin(table: str, made: Pin) -> None:
    print_pairs(
        {
            "table": table,
            "pin": made.name,
            "time": format_time(made.at_ms),
            "data files": format_count(made.file_count),
            "rows": format_count(made.row_count),
            "size": format_bytes(made.size_bytes),
            "lasts until": _until(made),
        }
    )
    print_note(f"read it: icedb query --pin {made.name} ..., or icedb snapshot {table} --pin {made.name}")


def pins(*, context: typer.Context, table: TableName, as_json: JsonFlag = False) -> None:
    """List the pins of a table, what they hold and until when. Ended ones stay as long as they hold files.

    Example: icedb pins events
    """
    with open_client(context, table=table) as client:
        config = read_kept_config(client.warehouse.table(table))
        listed = list_pins(client.warehouse.table(table))
    found = [(each, each.status(listed.store_now_ms)) for each in listed.pins]
    document = {"table": table, "pins": [_to_json(each, status, config) for each, status in found]}
    answer(document, as_json=as_json, show=lambda: _show_pins(table, found))


def _show_pins(table: str, found: Sequence[tuple[Pin, PinStatus]]) -> None:
    if not found:
        print_note(f"table {table} has no pins")
        return
    view = make_table(
        "name", "state", "time", "files", "rows", "size", "lasts until", "note", right=("files", "rows", "size")
    )
    for each, status in found:
        view.add_row(
            escape(each.name),
            status,
            format_time(each.at_ms) if each.file_count or status == "active" else "-",
            format_count(each.file_count),
            format_count(each.row_count),
            format_bytes(each.size_bytes),
            _until(each),
            escape(each.note),
        )
    out.print(view)
    for each, status in found:
        if status in _HELP:
            print_note(f"{each.name}: {_HELP[status if pin_name_of(each.key) else 'no pin']}")


def unpin(*, context: typer.Context, table: TableName, name: PinName, as_json: JsonFlag = False) -> None:
    """End a pin. Its data files stay for one more grace period, for queries that have begun.

    Example: icedb unpin events q3
    """
    with open_client(context, table=table) as client:
        config = read_kept_config(client.warehouse.table(table))
        has_ended = end_pin(client.warehouse.table(table), name)
    if as_json:
        print_json({"table": table, "name": name, "unpinned": has_ended, "data_grace_ms": config.data_grace_ms})
    elif has_ended:
        out.print(
            f"pin [bold]{escape(name)}[/] of table [bold]{escape(table)}[/] has ended; what only it held may be "
            f"deleted in {format_span(config.data_grace_ms)}"
        )
    else:
        print_note(f"pin {name} of table {table} had ended before")


def _until(made: Pin) -> str:
    return "unpinned" if made.ends_ms is None else format_time(made.ends_ms)


def _to_json(made: Pin, status: PinStatus, config: TableConfig) -> dict[str, Any]:
    fields = ("name", "at_ms", "ttl_ms", "ends_ms", "file_count", "row_count", "size_bytes", "note", "key")
    return {
        **pick(made, *fields),
        "status": status,
        "is_lasting": is_lasting(status),
        "held_until_ms": made.held_until_ms(config.data_grace_ms),
        "last_commit_ms": made.last_commit_ms or None,
    }
