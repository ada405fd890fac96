"""The figures of tables: read one by one, as a document, and as people see them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from icedb_log.commit.fence import FenceLook
from icedb_log.errors import HaltError, IceDBError, NotFound, crashes_told
from icedb_log.feed.views import ViewLag
from icedb_log.serving.status import TableStatus, status_to_json

from icedb.cli.output import (
    Markup,
    count_of,
    format_bytes,
    format_count,
    format_span,
    format_time,
    print_note,
    print_pairs,
    print_table,
)
from icedb.cli.runner import Run, describe_no_tables, is_served

MAX_LEASES_SHOWN: Final = 5

Found = dict[str, TableStatus | IceDBError]


def read_figures(name: str, read: Callable[[str], TableStatus], *, is_only: bool) -> TableStatus | IceDBError | None:
    """Return a table's figures, or why they cannot be read; ``None``: it was dropped since it was listed.

    What is wrong with one of many hides none of the others; of the only one it is raised, unless the table is halted.
    """
    try:
        with crashes_told(f"table {name}: its figures"):
            return read(name)
    except IceDBError as error:
        if is_only and not isinstance(error, HaltError):
            raise
        return None if isinstance(error, NotFound) else error


def to_document(found: Found) -> dict[str, Any]:
    """Return the figures of tables as a document."""
    return {"tables": [status_to_json(name, state) for name, state in found.items()]}


def show_found(run: Run, table: str | None, found: Found, *, cost: str | None = None) -> None:
    """Print the figures of the one table that was asked for, with what it costs, or of all."""
    if table is not None and isinstance(only := found[table], TableStatus):
        _print_one(only, cost)
    else:
        show_all(run, to_document(found)["tables"])


def show_all(run: Run, documents: Sequence[Mapping[str, Any]]) -> None:
    """Print the figures of all tables, which are documents."""
    if documents:
        print_all(documents)
    else:
        served = "no tables that these credentials may read"
        print_note(served if is_served(run.client) else describe_no_tables(run.client))


def print_all(documents: Sequence[Mapping[str, Any]]) -> None:
    """Print the figures of some tables, a line for each."""
    print_table(
        ("table", ">files", ">rows", ">size", ">logs", ">lost", ">staged", ">quarant.", ">lag", ">pressure"),
        ((each["table"], *_figures(each)) for each in documents),
    )
    for each in documents:
        if lost := each.get("lost_commits"):
            print_note(f"table {each['table']}: lost commits: {_format_lost(each['table'], lost)}")


def _figures(table: Mapping[str, Any]) -> tuple[object, ...]:
    if "live_files" not in table:
        return (Markup(f"[bold red]{'halted' if table['halted'] else 'unread'}[/]"),)
    lost = len(table["lost_commits"])
    return (
        table["live_files"],
        format_count(table["live_rows"]),
        format_bytes(table["live_bytes"]),
        table["log_files"],
        Markup(f"[bold red]{format_count(lost)}[/]") if lost else None,
        table["staged_batches"],
        table["quarantined_batches"],
        format_span(table["merge_lag_ms"]) if table["merge_lag_files"] else None,
        _format_level(table),
    )


def _print_one(state: TableStatus, cost: str | None) -> None:
    lag = "none"
    if state.merge_lag_files:
        files, size = format_count(state.merge_lag_files), format_bytes(state.merge_lag_bytes)
        lag = f"{format_span(state.merge_lag_ms)}: {files} files, {size}"
    print_pairs(
        {
            "table": state.config.name,
            "halted": state.halted or None,
            "flushes fail": state.failing or None,
            "data files": f"{format_count(state.live_files)} in {count_of(state.partition_count, 'partition')}",
            "rows": format_count(state.live_rows),
            "size": format_bytes(state.live_bytes),
            "cost a day": cost,
            "log files": state.log_files,
            "lost commits": _format_lost(state.config.name, state.lost_commits) if state.lost_commits else None,
            "dead files": f"{format_count(state.tombstoned_files)} data, {format_count(state.tombstoned_logs)} log",
            "pressure": format_pressure(state),
            "staged batches": format_staged(state),
            "quarantined batches": _format_quarantined(state),
            "open erasures": _format_erasures(state),
            "leases": _format_leases(state),
            "Iceberg": _format_published(state),
            "filling": format_filling(state),
            "merge lag": lag,
            "at work": "; ".join(map(format_worker, state.workers)) or "nobody",
            "view": None if state.view is None else _format_view(state.view),
            "last commit": format_time(state.last_commit_ms) if state.last_commit_ms else "none yet",
            "oldest time": format_time(state.horizon_ms) if state.horizon_ms else "the beginning",
        }
    )


def _format_published(state: TableStatus) -> str | None:
    if not state.published_ms and not state.held_back:
        return None
    shown = f"as of {format_time(state.published_ms)}" if state.published_ms else "not shown"
    return f"{shown}, may be held back: {state.held_back}" if state.held_back else shown


def format_filling(state: TableStatus) -> str | None:
    """Return which promoted columns readers do not see yet, and what lacks them; ``None``: there is no such column."""
    if not state.filling:
        return None
    files, size = count_of(state.filling_files, "data file"), format_bytes(state.filling_bytes)
    return f"{', '.join(state.filling)}: {files} to be written anew, {size}"


def _format_lost(table: str, lost: Sequence[str]) -> str:
    return f"{format_count(len(lost))}, the first is {lost[0]}: `icedb fsck {table}`"


def _format_view(view: ViewLag) -> str:
    text = f"of {view.source}: {view.state}"
    if view.backfill_files:
        text += f", {format_backfill(view)}"
    if view.waiting_commits:
        text += f", {count_of(view.waiting_commits, 'commit')} behind, the oldest for {format_span(view.lag_ms)}"
    return f"{text}, {count_of(view.refused_commits, 'commit')} refused" if view.refused_commits else text


def format_backfill(view: ViewLag) -> str:
    """Return how far a view is that begins with the rows of its source, and has not all of them yet."""
    done, total = format_count(view.backfilled_files), count_of(view.backfill_files, "data file")
    return f"backfill {done} of {total}"


def format_staged(state: TableStatus) -> str:
    """Return what waits for a flush."""
    if not state.staged_batches:
        return "0"
    size, age = format_bytes(state.staged_bytes), format_span(state.staged_lag_ms)
    return f"{format_count(state.staged_batches)}, {size}; the oldest for {age}"


def _format_quarantined(state: TableStatus) -> str:
    text = format_count(state.quarantined_batches)
    return (
        f"{text}, {format_count(state.bad_row_batches)} of them only some bad rows" if state.bad_row_batches else text
    )


def _format_erasures(state: TableStatus) -> str:
    if not state.open_erasures:
        return "none"
    return f"{format_count(state.open_erasures)}; the oldest for {format_span(state.oldest_erasure_ms)}"


def _format_leases(state: TableStatus) -> str:
    if not state.leases:
        return "none"
    shown = [f"{lease} until {format_time(lease.expires_ms)}" for lease in state.leases[:MAX_LEASES_SHOWN]]
    more = len(state.leases) - len(shown)
    text = "; ".join([*shown, *([f"{more} more"] if more else [])])
    return f"{format_count(len(state.leases))}, the oldest time {format_span(state.oldest_lease_ms)} ago: {text}"


def format_worker(worker: FenceLook) -> str:
    """Return who is at work on a table, and at what."""
    what = {"ingest": "adds rows", "merge": "replaces data files"}[worker.role]
    return f"{worker.owner or '?'} {what}{', commits now' if worker.commit else ''}"


def _format_level(table: Mapping[str, Any]) -> str | None:
    if table["halted"]:
        return Markup("[bold red]halted[/]")
    if table["failing"]:
        return Markup("[bold red]failing[/]")
    level = str(table["pressure"]["level"])
    return None if level == "none" else level


def format_pressure(state: TableStatus) -> str:
    """Return how much the table slows its producers down, and by what."""
    pressure = state.pressure
    if pressure.level == "none":
        return "none"
    effect = f"flush interval × {pressure.stretch:.1f}"  # noqa: RUF001 - a sign for people
    if pressure.level == "stop":
        effect += ", front ends refuse batches"
    return f"{pressure.level}: {pressure.reason} ({effect})"
