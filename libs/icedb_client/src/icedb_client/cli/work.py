"""Asking workers for work on tables and printing what they did."""

from typing import Annotated, Any

import typer
from rich.markup import escape

from icedb_client.cli.exits import OK, TimedOut, outcome_exit_code
from icedb_client.cli.output import (
    err,
    format_count,
    out,
    print_error,
    print_json,
    print_pairs,
)
from icedb_client.client import Client

Timeout = Annotated[str, typer.Option("--timeout", help="How long to wait for the worker's result.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the result, or only hand the task over.")]


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
