"""``icedb view``: which views a table has, how far they are behind, and whether they are fed."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from icedb_log.clock import SystemClock
from icedb_log.errors import HaltError
from icedb_log.feed.feed_state import ViewLag, read_view_lag
from icedb_log.feed.views import (
    detach_view,
    is_view_there,
    list_view_names,
    register_view,
    source_of,
)
from icedb_log.store.table_store import TableStore
from icedb_log.table.table import Table
from rich.markup import escape

from icedb_client.cli.output import (
    format_count,
    format_span,
    make_table,
    out,
    print_error,
    print_json,
    print_note,
)
from icedb_client.cli.runner import JsonFlag, answer, open_client

app = typer.Typer(no_args_is_help=True, help="Look at a table's views; stop and start feeding them.")

GONE = "gone"
"""The state of a view whose table was removed."""


@app.command("list")
def list_views(
    *,
    context: typer.Context,
    source: Annotated[str, typer.Argument(help="Name of the table that feeds them.")],
    as_json: JsonFlag = False,
) -> None:
    """List the views of a table: whether they are fed, and what they have still to take.

    Example: icedb view list events
    """
    with open_client(context, table=source) as client:
        client.table_config(source)
        table = client.warehouse.table(source)
        lags = [_read_lag(table, name) for name in list_view_names(table)]
    document = {"table": source, "views": [asdict(lag) for lag in lags]}
    answer(document, as_json=as_json, show=lambda: _show_lags(source, lags))


def _show_lags(source: str, lags: Sequence[ViewLag]) -> None:
    if not lags:
        print_note(f"table {source} has no views; create one with `icedb table create NAME --from {source} --query …`")
        return
    table = make_table("view", "state", "waiting", "lag", "refused", right=("waiting", "lag", "refused"))
    for lag in lags:
        waits = format_span(lag.lag_ms) if lag.waiting_commits else "-"
        table.add_row(
            escape(lag.view), lag.state, format_count(lag.waiting_commits), waits, format_count(lag.refused_commits)
        )
    out.print(table)


@app.command("detach")
def detach(
    *,
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the view.")],
    source: Annotated[
        str | None, typer.Option("--from", metavar="TABLE", help="Its source, if the view's table is gone.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Stop feeding a view, so that its source keeps nothing for it any more. The view keeps its rows.

    Example: icedb view detach hourly
    """
    with open_client(context, table=name) as client:
        view = client.warehouse.table(name)
        of = source_of(view, client.table_config(name)) if source is None else client.warehouse.table(source)
        is_changed = detach_view(of, name, clock=SystemClock())
    if as_json:
        print_json({"view": name, "source": of.name, "changed": is_changed})
    elif is_changed:
        out.print(f"view [bold]{escape(name)}[/] is not fed by {of.name} any more; what is committed now is lost to it")
    else:
        out.print(f"view [bold]{escape(name)}[/] is detached already")


@app.command("attach")
def attach(
    *,
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the view.")],
    as_json: JsonFlag = False,
) -> None:
    """Feed a detached view again, with what is committed from now on; what came in between stays out of it.

    Example: icedb view attach hourly
    """
    with open_client(context, table=name) as client:
        of = source_of(client.warehouse.table(name), client.table_config(name))
        client.table_config(of.name)
        register_view(of, name, clock=SystemClock(), is_new=True)
    if as_json:
        print_json({"view": name, "source": of.name, "state": "active"})
    else:
        out.print(f"view [bold]{escape(name)}[/] is fed by {of.name}")


def _read_lag(source: TableStore, name: str) -> ViewLag:
    if not is_view_there(source, name):
        return ViewLag(name, source.name, GONE, 0, 0, 0)
    view = Table.open(TableStore(source.store, source.paths.sibling(name)), clock=SystemClock())
    of_source = view.other(source.paths)
    try:
        return read_view_lag(view, of_source)
    except HaltError as error:
        print_error(f"view {name} is halted: {error}")
        return ViewLag(name, source.name, "halted", 0, 0, 0)
