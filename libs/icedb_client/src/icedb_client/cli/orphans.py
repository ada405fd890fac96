"""``icedb orphans``: shows data files that no log file names, and asks the janitor to delete them."""

from collections import Counter
from typing import Annotated, Any, Final

import typer
from icedb_log.clean.orphan_plan import DEFAULT_MAX_SHARE, OrphanGuard, OrphanPolicy, WaitingOrphan
from icedb_log.clean.orphans import OrphanResult, sweep_orphans
from icedb_log.clock import SystemClock
from icedb_log.errors import InvalidRequest
from icedb_log.names import JANITOR_ORPHANS
from rich.markup import escape

from icedb_client.cli.exits import FAILED
from icedb_client.cli.output import JsonFlag, format_bytes, format_count, make_table, out, print_error, print_json
from icedb_client.cli.parsing import format_time, parse_duration
from icedb_client.cli.session import open_client
from icedb_client.cli.work import Timeout, Wait, print_task_result, run_task, wait_for_task

MAX_SHOWN: Final = 20
_GUARDS: Final[dict[OrphanGuard, str]] = {
    "age": "too young: may be about to be committed",
    "sighting": "seen by a sweep for less than a grace period",
    "share": "too much of the table: look first, then --force",
    "lost": "a commit is lost, and may have made it live: icedb rebuild, or --force",
}


def orphans(
    *,
    context: typer.Context,
    table: Annotated[str, typer.Argument(help="Name of the table.")],
    delete: Annotated[
        bool, typer.Option("--delete", help="Ask the janitor to delete them; without it they are only shown.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="With --delete: however large a part of the table they are, and if a commit is lost."
        ),
    ] = False,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="TIME", help="Only those that are older, e.g. 3d; not below the table's."),
    ] = None,
    max_share: Annotated[
        float | None,
        typer.Option(
            "--max-share",
            metavar="PART",
            help=f"Delete none if they are more than this part of all bytes, 0 to 1. [{DEFAULT_MAX_SHARE:g}]",
        ),
    ] = None,
    wait: Wait = True,
    timeout: Timeout = "10m",
    as_json: JsonFlag = False,
) -> None:
    """Show the data files that no log file names, and what keeps each; delete them if asked to.

    Example: icedb orphans events
    """
    if force and not delete:
        raise InvalidRequest("--force goes with --delete; without it nothing is deleted anyway")
    older_than_ms = None if older_than is None else parse_duration(older_than, option="--older-than")
    with open_client(context, table=table) as client:
        policy = OrphanPolicy(older_than_ms, DEFAULT_MAX_SHARE if max_share is None else max_share, force)
        policy.age_ms(client.table_config(table))  # a wrong bound is said here, not by a worker
        if not delete:
            store, paths = client.warehouse.store, client.warehouse.table(table)
            result = sweep_orphans(store, paths, clock=SystemClock(), dry_run=True, policy=policy)
            _print_json(table, result) if as_json else _print_dry_run(table, result)
            return
        arguments = {"older_than_ms": older_than_ms, "max_share": max_share, "force": force}
        if not wait:
            run_task(client, JANITOR_ORPHANS, table, arguments=arguments, wait_ms=None, as_json=as_json)
            return
        wait_ms = parse_duration(timeout, option="--timeout")
        done = wait_for_task(client, JANITOR_ORPHANS, table, arguments=arguments, wait_ms=wait_ms, as_json=as_json)
        print_task_result(table, JANITOR_ORPHANS, done, as_json=as_json)
        if done.get("lost_commits"):
            print_error(_explain_lost(table, done["lost_commits"]))
            raise typer.Exit(FAILED)
        if done.get("held_orphans"):
            print_error(_explain_held(table, count=done["held_orphans"], share=done["orphan_share"]))
            raise typer.Exit(FAILED)


def _explain_lost(table: str, count: int) -> str:
    return (
        f"table {table}: {format_count(count)} commits landed, and their log files are gone: orphans are kept, they "
        f"may be theirs. Run `icedb fsck {table}`, then `icedb rebuild {table} --dry-run`; if their rows are not "
        f"wanted, `icedb orphans {table} --delete --force` deletes the files"
    )


def _explain_held(table: str, *, count: int, share: float) -> str:
    return (
        f"table {table}: {format_count(count)} orphans are, or were, too much of the table (now {share:.0%} of its "
        f"bytes) and are kept: its log may be what is missing. Run `icedb fsck {table}` first; if the log is whole, "
        f"`icedb orphans {table} --delete --force` deletes them"
    )


def _print_json(table: str, result: OrphanResult) -> None:
    found: dict[str, Any] = {
        "table": table,
        "dry_run": True,
        "would_delete": list(result.deleted),
        "waiting": [
            {"path": item.key, "guard": item.guard, "until_ms": item.until_ms, "bytes": item.size_bytes}
            for item in result.waiting
        ],
        "orphans": {"files": result.orphan_count, "bytes": result.orphan_bytes},
        "young": {"files": result.young_count, "bytes": result.young_bytes},
        "held": {"files": result.held_count, "bytes": result.held_bytes},
        "data_bytes": result.data_bytes,
        "share": result.share,
        "max_share": result.max_share,
        "from_the_future": list(result.future),
        "unknown": list(result.unknown),
        "unknown_count": result.unknown_count,
        "staged_for_over_a_day": result.leftovers.late_staged_count,
        "has_more": result.has_more,
        "record_problem": result.record_problem,
        "lost_commits": list(result.lost),
    }
    print_json(found)


def _print_dry_run(table: str, result: OrphanResult) -> None:
    out.print(
        f"would delete {format_count(len(result.deleted))} orphans now; {format_count(result.orphan_count)} data files "
        f"({format_bytes(result.orphan_bytes)}, {result.share:.1%} of the table) are old and named by no log file, "
        f"{format_count(result.young_count)} are young"
    )
    if result.waiting:
        _print_waiting(result.waiting)
    for what, keys, count in (
        ("would go", result.deleted, len(result.deleted)),
        ("kept, of no kind that this release knows", result.unknown, result.unknown_count),
        ("kept, from the store's future: somebody's clock is wrong", result.future, len(result.future)),
    ):
        if keys:
            out.print(f"{what}: {format_count(count)}")
            for key in keys[:MAX_SHOWN]:
                out.print(f"  {escape(key)}")
            if count > MAX_SHOWN:
                out.print("  … (--json lists more)")
    if result.leftovers.late_staged_count:
        out.print(
            f"{format_count(result.leftovers.late_staged_count)} batches have been staged for over a day: does an "
            f"ingest worker run? (`icedb status {escape(table)}`)"
        )
    if result.record_problem:
        out.print(escape(result.record_problem))
    if result.lost:
        out.print(_explain_lost(escape(table), len(result.lost)))
    if result.held_count:
        out.print(_explain_held(escape(table), count=result.held_count, share=result.share))


def _print_waiting(waiting: tuple[WaitingOrphan, ...]) -> None:
    counts = Counter(item.guard for item in waiting)
    shown = make_table("guard", "files", "bytes", "next ends", "meaning", right=("files", "bytes"))
    for guard, meaning in _GUARDS.items():
        if counts[guard]:
            ends_ms = [item.until_ms for item in waiting if item.guard == guard and item.until_ms is not None]
            size_bytes = sum(item.size_bytes for item in waiting if item.guard == guard)
            ends = format_time(min(ends_ms)) if ends_ms else "-"
            shown.add_row(guard, format_count(counts[guard]), format_bytes(size_bytes), ends, meaning)
    out.print(shown)
