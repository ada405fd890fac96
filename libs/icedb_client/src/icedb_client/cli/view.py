"""``icedb view``: which views a table has, how far they are behind, and whether they are fed."""

from dataclasses import asdict
from typing import Annotated, Any

import typer
from icedb_log.clock import SystemClock
from icedb_log.errors import HaltError
from icedb_log.feed.feed_state import ViewLag, open_readers, read_view_lag
from icedb_log.feed.views import (
    create_view,
    detach_view,
    is_view_there,
    list_view_names,
    register_view,
    source_of,
)
from icedb_log.keys import TablePaths
from icedb_log.repair.adoption import require_fit
from icedb_log.store.object_store import ObjectStore
from icedb_log.table.stored_config import create_table, read_table_config
from icedb_log.table.table_config import TableConfig
from rich.markup import escape

from icedb_client.cli.output import (
    JsonFlag,
    format_count,
    format_span,
    make_table,
    out,
    print_error,
    print_json,
    print_note,
)
from icedb_client.cli.session import open_client
from icedb_client.footers import ParquetFooterReader

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
        store, paths = client.warehouse.store, client.warehouse.table(source)
        lags = [_read_lag(store, paths, name) for name in list_view_names(store, paths)]
    if as_json:
        print_json({"table": source, "views": [asdict(lag) for lag in lags]})
        return
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
        store = client.warehouse.store
        paths = client.warehouse.table(name)
        of = source_of(paths, client.table_config(name)) if source is None else client.warehouse.table(source)
        is_changed = detach_view(store, of, name, clock=SystemClock())
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
        register_view(client.warehouse.store, of, name, clock=SystemClock(), is_new=True)
    if as_json:
        print_json({"view": name, "source": of.name, "state": "active"})
    else:
        out.print(f"view [bold]{escape(name)}[/] is fed by {of.name}")


def create_any_table(store: ObjectStore, paths: TablePaths, config: TableConfig) -> None:
    """Create a table or a view; over a log that is there already, only if the configuration fits it.

    A log that cannot be read is no obstacle: what repairs it needs the configuration.

    Raises:
        InvalidRequest: The table exists, or its configuration does not fit the log.
        NotFound: A view's source is not there.
        Unavailable: The store did not answer.
        CommitOutcomeUnknown: No answer; look with ``icedb table show``.
    """
    if not store.list_page(paths.config_key, limit=1).objects:
        try:
            require_fit(store, paths, config, clock=SystemClock(), footers=ParquetFooterReader(store))
        except HaltError as error:
            print_error(f"the log of table {config.name} cannot be read, see `icedb fsck {config.name}`: {error}")
    if config.view_of is None:
        create_table(store, paths, config)
    else:
        create_view(store, paths, config, clock=SystemClock())


def finish_creation(store: ObjectStore, paths: TablePaths, config: TableConfig) -> None:
    """Register a view whose creation stopped halfway; nothing for a table, or a view that is known or detached."""
    if config.view_of is not None:
        register_view(store, source_of(paths, config), paths.name, clock=SystemClock())


def _read_lag(store: ObjectStore, source: TablePaths, name: str) -> ViewLag:
    if not is_view_there(store, source, name):
        return ViewLag(name, source.name, GONE, 0, 0, 0)
    paths = source.sibling(name)
    clock = SystemClock()
    configs = (read_table_config(store, paths), read_table_config(store, source))
    try:
        readers = open_readers(store, paths, source, configs=configs, clock=clock)
        return read_view_lag(store, paths, config=configs[0], readers=readers)
    except HaltError as error:
        print_error(f"view {name} is halted: {error}")
        return ViewLag(name, source.name, "halted", 0, 0, 0)


def describe_view(config: TableConfig) -> dict[str, Any]:
    """Return what ``icedb table show`` says first of a view; nothing for a table."""
    return {} if config.view_of is None else {"view of": config.view_of}
