"""``icedb vacuum``: asks the janitor to delete what is dead, or shows what it would do and what waits for what."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Final

import orjson
import typer
from icedb_log.clean.guards import Waiting
from icedb_log.clean.vacuum import VacuumResult, vacuum_table
from icedb_log.clock import SystemClock
from icedb_log.names import JANITOR_VACUUM
from rich.markup import escape

from icedb_client.cli.exits import OK, outcome_exit_code
from icedb_client.cli.output import JsonFlag, format_count, make_table, out, print_note
from icedb_client.cli.parsing import format_time, parse_duration
from icedb_client.cli.session import open_client
from icedb_client.cli.work import Timeout, Wait, print_task_result, run_task, wait_for_task

MAX_HOLDERS: Final = 20
"""Lines of the table of guards: one for each guard and whoever holds; the rest is in ``--json`` and ``--list``."""
JSON_CHUNK: Final = 10_000


def vacuum(
    *,
    context: typer.Context,
    table: Annotated[str, typer.Argument(help="Name of the table.")],
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Show what would be deleted now and what waits; touches nothing, needs no worker.",
        ),
    ] = False,
    list_objects: Annotated[
        bool,
        typer.Option(
            "--list",
            help="With --dry-run: a line for each dead object: what happens to it, the guard that keeps it, until when "
            "and who holds it, with tabs between.",
        ),
    ] = False,
    wait: Wait = True,
    timeout: Timeout = "10m",
    as_json: JsonFlag = False,
) -> None:
    """Delete what is dead and past its grace period. Only the janitor deletes: this asks it.

    Example: icedb vacuum events --dry-run
    """
    if list_objects and not dry_run:
        raise typer.BadParameter("only with --dry-run: `icedb audit` shows what was deleted", param_hint="--list")
    with open_client(context, table=table) as client:
        if dry_run:
            result = vacuum_table(
                client.warehouse.store, client.warehouse.table(table), clock=SystemClock(), dry_run=True
            )
            if as_json:
                _print_json(table, result)
            elif list_objects:
                _print_objects(result)
            else:
                _print_plan(result)
            return
        client.table_config(table)
        if not wait:
            run_task(client, JANITOR_VACUUM, table, arguments={}, wait_ms=None, as_json=as_json)
            return
        wait_ms = parse_duration(timeout, option="--timeout")
        done = wait_for_task(client, JANITOR_VACUUM, table, arguments={}, wait_ms=wait_ms, as_json=as_json)
        if as_json or outcome_exit_code(str(done.get("outcome"))) != OK:
            print_task_result(table, JANITOR_VACUUM, done, as_json=as_json)
        else:
            _print_done(table, done)


@dataclass(slots=True)
class _Held:
    """What one holder of one guard keeps."""

    count: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    is_open: bool = False

    def add(self, item: Waiting) -> None:
        """Count one object."""
        self.count += 1
        if item.until_ms is None:
            self.is_open = True
            return
        self.first_ms = item.until_ms if self.first_ms is None else min(self.first_ms, item.until_ms)
        self.last_ms = item.until_ms if self.last_ms is None else max(self.last_ms, item.until_ms)


def _group(waiting: Iterable[Waiting]) -> dict[tuple[str, str], _Held]:
    """Return what waits by guard and holder, those that hold most of each guard first."""
    held: dict[tuple[str, str], _Held] = {}
    for item in waiting:
        held.setdefault((item.guard, item.held_by), _Held()).add(item)
    return dict(sorted(held.items(), key=lambda entry: (entry[0][0], -entry[1].count, entry[0][1])))


def _print_plan(result: VacuumResult) -> None:
    out.print(
        f"would delete {format_count(len(result.deleted_logs))} log files and "
        f"{format_count(len(result.deleted_data))} data files; {format_count(len(result.waiting))} dead objects wait"
    )
    if not result.waiting:
        return
    shown = make_table("guard", "held by", "objects", "next ends", "last ends", right=("objects",))
    groups = _group(result.waiting)
    for (guard, held_by), held in islice(groups.items(), MAX_HOLDERS):
        first = "-" if held.first_ms is None else format_time(held.first_ms)
        last = "when somebody acts" if held.is_open or held.last_ms is None else format_time(held.last_ms)
        shown.add_row(guard, escape(held_by) or "-", format_count(held.count), first, last)
    out.print(shown)
    if len(groups) > MAX_HOLDERS:
        print_note(f"{len(groups) - MAX_HOLDERS} more holders: --list shows every object, --json everything")


def _print_objects(result: VacuumResult) -> None:
    """Print a line for each dead object, however many there are."""
    write = sys.stdout.write
    for path in (*result.deleted_logs, *result.deleted_data):
        write(f"delete\t{path}\t-\t-\t-\n")
    for item in result.waiting:
        until = "-" if item.until_ms is None else format_time(item.until_ms)
        write(f"wait\t{item.path}\t{item.guard}\t{until}\t{item.held_by or '-'}\n")
    sys.stdout.flush()


def _print_json(table: str, result: VacuumResult) -> None:
    """Print one JSON document; its lists piece by piece: there may be a million entries in each."""
    groups = [
        {
            "guard": guard,
            "held_by": held_by,
            "objects": held.count,
            "first_until_ms": held.first_ms,
            "last_until_ms": None if held.is_open else held.last_ms,
        }
        for (guard, held_by), held in _group(result.waiting).items()
    ]
    head = {"table": table, "dry_run": True, "store_now_ms": result.store_now_ms, "guards": groups}
    write = sys.stdout.buffer.write
    write(orjson.dumps(head)[:-1])
    _write_list("log_files", result.deleted_logs)
    _write_list("data_files", result.deleted_data)
    _write_list(
        "waiting",
        (
            {"path": item.path, "guard": item.guard, "until_ms": item.until_ms, "held_by": item.held_by}
            for item in result.waiting
        ),
    )
    write(b"}\n")
    sys.stdout.flush()


def _write_list(name: str, values: Iterable[Any]) -> None:
    write = sys.stdout.buffer.write
    write(b',"' + name.encode() + b'":[')
    pending = iter(values)
    separator = b""
    while chunk := list(islice(pending, JSON_CHUNK)):
        write(separator + orjson.dumps(chunk)[1:-1])
        separator = b","
    write(b"]")


def _print_done(table: str, result: dict[str, Any]) -> None:
    deleted = {"log files": result.get("deleted_log_files", 0), "data files": result.get("deleted_data_files", 0)}
    deleted |= {
        name.removeprefix("deleted_").replace("_", " "): count
        for name, count in result.items()
        if name.startswith("deleted_") and count and name not in ("deleted_log_files", "deleted_data_files")
    }
    if result["outcome"] == "idle":
        out.print(f"nothing to do for table [bold]{escape(table)}[/]")
    else:
        what = ", ".join(f"{format_count(count)} {name}" for name, count in deleted.items())
        out.print(f"deleted from table [bold]{escape(table)}[/]: {what}")
    for failure in result.get("failures", []):
        out.print(
            f"[bold red]failed:[/] {format_count(failure['count'])} objects ({escape(failure['kind'])}), e.g. "
            f"{escape(failure['key'])}: {escape(failure['reason'])}; the next run tries again",
            soft_wrap=True,
        )
    waiting = result.get("waiting_by_guard") or {}
    if waiting:
        held = ", ".join(f"{format_count(count)} for {guard}" for guard, count in sorted(waiting.items()))
        out.print(f"wait: {held} (`icedb vacuum {escape(table)} --dry-run` says until when)")
    if result.get("has_more"):
        out.print("there is more to delete: the janitor goes on by itself")
