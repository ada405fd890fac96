"""``icedb status``: every table in figures, read from its log; ``--watch`` is :mod:`icedb.cli.status_watch`."""

from typing import Any

import typer
from icedb_log.errors import HaltError, IceDBError
from icedb_log.ingest.pressure import describe_failure
from icedb_log.serving.status import TableStatus, read_status

from icedb.cli.output import print_error
from icedb.cli.runner import FAILED, HALTED, Run, argument, command, flag
from icedb.cli.status_figures import Found, read_figures, show_found, to_document


@command(records="tables")
def status(
    run: Run,
    *,
    table: str | None = argument("Name of a table; all tables by default.", None, metavar="[TABLE]"),
    watch: bool = flag("--watch", "Show it live, until Ctrl-C; with -o json or -o ndjson a document per line."),
) -> None:
    """Show files, rows, staged batches, merge lag and health of tables. Needs no service."""
    if watch:
        from icedb.cli.status_watch import watch_status  # noqa: PLC0415 - for those who watch

        watch_status(run, table)
        return
    names = (table,) if table is not None else run.client.warehouse.list_tables()
    found: Found = {}
    for name in names:
        state = read_figures(name, lambda name: read_status(run.open(name)), is_only=table is not None)
        if state is not None:
            found[name] = state
    document = to_document(found)
    cost = None if table is None else _add_cost(run, table, document)
    run.answer(document, lambda: show_found(run, table, found, cost=cost))
    for name, state in found.items():
        if problem := _find_problem(name, state):
            print_error(problem)
    if any(_find_halt(state) for state in found.values()):
        raise typer.Exit(HALTED)
    if any(isinstance(state, IceDBError) for state in found.values()):
        raise typer.Exit(FAILED)


def _add_cost(run: Run, table: str, document: dict[str, Any]) -> str | None:
    """Add what a table costs a day to its document, and return it in words; ``None``: nobody is asked."""
    url = run.client.settings.prometheus_url
    if not url:
        return None
    from icedb.cli.table_cost import describe_cost, read_cost  # noqa: PLC0415 - for those who have a Prometheus

    try:
        costs = read_cost(url, table)
    except IceDBError as error:  # the other figures are the store's, and are there
        return f"not known: {error}"
    document["tables"][0]["cost_dollars_per_day"] = dict(costs)
    return describe_cost(costs)


def _find_problem(name: str, state: TableStatus | IceDBError) -> str:
    if halt := _find_halt(state):
        return f"table {name} is halted: {halt}"
    if isinstance(state, IceDBError):
        return f"table {name} cannot be read: {state}"
    return describe_failure(name, state.failing) if state.failing else ""


def _find_halt(state: TableStatus | IceDBError) -> str:
    if isinstance(state, TableStatus):
        return state.halted
    return str(state) if isinstance(state, HaltError) else ""
