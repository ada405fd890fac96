"""Asking workers for work on tables and printing what they did; ``icedb vacuum``."""

from typing import Annotated, Any

import typer
from icedb_log.cleaning.vacuum import VacuumResult, vacuum_table
from icedb_log.clock import SystemClock
from rich.markup import escape

from icedb_client.cli.exits import OK, TimedOut, outcome_exit_code
from icedb_client.cli.output import (
    JsonFlag,
    err,
    format_count,
    make_table,
    out,
    print_error,
    print_json,
    print_pairs,
)
from icedb_client.cli.parsing import format_time, parse_duration
from icedb_client.cli.session import open_client
from icedb_client.client import Client

Timeout = Annotated[str, typer.Option("--timeout", help="How long to wait for the worker's result.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the result, or only hand the task over.")]


def vacuum(
    *,
    context: typer.Context,
    table: Annotated[str, typer.Argument(help="Name of the table.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be deleted now; touches nothing, needs no worker.")
    ] = False,
    wait: Wait = True,
    timeout: Timeout = "10m",
    as_json: JsonFlag = False,
) -> None:
    """Delete what is dead and past its grace period. Only the janitor deletes: this asks it.

    Example: icedb vacuum events --dry-run
    """
    with open_client(context, table=table) as client:
        if dry_run:
            result = vacuum_table(
                client.warehouse.store, client.warehouse.table(table), clock=SystemClock(), dry_run=True
            )
            _print_dry_run(table, result, as_json=as_json)
            return
        client.table_config(table)
        run_task(
            client,
            "icedb.janitor.vacuum",
            table,
            arguments={},
            wait_ms=parse_duration(timeout, option="--timeout") if wait else None,
            as_json=as_json,
        )


def run_task(
    client: Client, task: str, table: str, *, arguments: dict[str, Any], wait_ms: int | None, as_json: bool
) -> None:
    """Send a task, wait for its result and print it.

    Args:
        client: An open client.
        task: Its name.
        table: Its table.
        arguments: Its other arguments.
        wait_ms: How long to wait; ``None``: only send it.
        as_json: Print JSON.

    Raises:
        TimedOut: No result in time.
        Unavailable: Redis does not answer.
        typer.Exit: The task ended badly; the error is printed.
    """
    if wait_ms is None:
        task_id = client.workers.send(task, table, arguments=arguments)
        if as_json:
            print_json({"table": table, "task": task, "task_id": task_id, "outcome": "sent"})
        else:
            out.print(f"{task} sent for table [bold]{escape(table)}[/]")
        return
    result = wait_for_task(client, task, table, arguments=arguments, wait_ms=wait_ms, as_json=as_json)
    print_task_result(table, task, result, as_json=as_json)


def print_task_result(table: str, task: str, result: dict[str, Any], *, as_json: bool) -> None:
    """Print what a task did.

    Raises:
        typer.Exit: It ended badly; the error is printed.
    """
    outcome = str(result.get("outcome"))
    code = outcome_exit_code(outcome)
    if as_json:
        print_json(result)
    elif code == OK:
        _print_figures(table, task, result)
    if code != OK:
        problem = result.get("error") or {}
        print_error(f"{task} for table {table}: {outcome}: {problem.get('message', 'see the worker log')}")
        raise typer.Exit(code)


def wait_for_task(
    client: Client, task: str, table: str, *, arguments: dict[str, Any], wait_ms: int, as_json: bool
) -> dict[str, Any]:
    """Send a task and return its result, however it ended; arguments and errors as :func:`run_task`."""
    from icedb_client.wakeups import TaskTimeout  # noqa: PLC0415 - redis and celery only where they are used

    try:
        if as_json or not err.is_terminal:
            result = client.workers.run(task, table, arguments=arguments, timeout_ms=wait_ms)
        else:
            with err.status(f"waiting for {task}"):
                result = client.workers.run(task, table, arguments=arguments, timeout_ms=wait_ms)
    except TaskTimeout as error:
        raise TimedOut(str(error)) from error
    return result


def _print_figures(table: str, task: str, result: dict[str, Any]) -> None:
    if result["outcome"] == "idle":
        out.print(f"{task}: nothing to do for table [bold]{escape(table)}[/]")
        return
    hidden = ("task", "task_id", "table", "outcome", "error")
    print_pairs(
        {
            "table": table,
            **{
                name.replace("_", " "): format_count(value) if type(value) is int else str(value)
                for name, value in result.items()
                if name not in hidden
            },
        }
    )


def _print_dry_run(table: str, result: VacuumResult, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "table": table,
                "dry_run": True,
                "log_files": list(result.deleted_logs),
                "data_files": list(result.deleted_data),
                "waiting": [
                    {"path": item.path, "guard": item.guard, "until_ms": item.until_ms} for item in result.waiting
                ],
            }
        )
        return
    out.print(
        f"would delete {format_count(len(result.deleted_logs))} log files and "
        f"{format_count(len(result.deleted_data))} data files; {format_count(len(result.waiting))} dead objects wait"
    )
    if result.waiting:
        table_view = make_table("guard", "objects", "next ends", right=("objects",))
        for guard in sorted({item.guard for item in result.waiting}):
            items = [item for item in result.waiting if item.guard == guard]
            ends_ms = [item.until_ms for item in items if item.until_ms is not None]
            table_view.add_row(guard, format_count(len(items)), format_time(min(ends_ms)) if ends_ms else "-")
        out.print(table_view)
