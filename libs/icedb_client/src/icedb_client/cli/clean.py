"""``icedb vacuum``, ``icedb orphans``, ``icedb audit``: what the janitor would delete, deletes, and has deleted.

Only the janitor deletes: without a dry run these commands ask it.
"""

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Final

import orjson
import typer
from icedb_log.clean.audit import AuditEntry, AuditPart, DamagedPart, find_deletions, read_audit
from icedb_log.clean.guards import Waiting
from icedb_log.clean.orphans import (
    DEFAULT_MAX_SHARE,
    OrphanGuard,
    OrphanPolicy,
    OrphanResult,
    WaitingOrphan,
    sweep_orphans,
)
from icedb_log.clean.vacuum import VacuumResult, vacuum_table
from icedb_log.clock import SystemClock
from icedb_log.errors import InvalidRequest, NotFound
from icedb_log.keys import TablePaths
from icedb_log.names import JANITOR_ORPHANS, JANITOR_VACUUM
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import load_any_config
from icedb_log.table.table import Table
from rich.markup import escape

from icedb_client.cli.output import (
    count_of,
    format_bytes,
    format_count,
    make_table,
    out,
    pick,
    print_error,
    print_json,
    print_note,
    print_pairs,
)
from icedb_client.cli.parsing import format_time, parse_duration
from icedb_client.cli.runner import FAILED, JsonFlag, TableName, Task, Timeout, Wait, answer, open_client

MAX_HOLDERS: Final = 20
"""Lines of the table of guards: one for each guard and whoever holds; the rest is in ``--json`` and ``--list``."""
JSON_CHUNK: Final = 10_000
SHOWN_ORPHANS: Final = 20
DEFAULT_SINCE: Final = "7d"

_ORPHAN_GUARDS: Final[dict[OrphanGuard, str]] = {
    "age": "too young: may be about to be committed",
    "sighting": "seen by a sweep for less than a grace period",
    "share": "too much of the table: look first, then --force",
    "lost": "a commit is lost, and may have made it live: icedb rebuild, or --force",
}


_DELETION: Final = ("outcome", "reason", "why", "passed", "died_ms", "size_bytes")
_FATES: Final = {
    "deleted": "deleted",
    "failed": "could not be deleted; tried again by later runs",
    "announced": "was about to be deleted; the run was cut off: it may have gone or not",
}


def vacuum(
    *,
    context: typer.Context,
    table: TableName,
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
            result = vacuum_table(Table.open(client.warehouse.table(table), clock=SystemClock()), dry_run=True)
            if as_json:
                _write_plan(table, result)
            elif list_objects:
                _list_dead_objects(result)
            else:
                _show_plan(result)
            return
        client.table_config(table)
        wait_ms = parse_duration(timeout, option="--timeout") if wait else None
        task = Task(JANITOR_VACUUM, table, {}, as_json)
        task.run(client, wait_ms=wait_ms, show=lambda done: _show_vacuumed(table, done))


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


def _show_plan(result: VacuumResult) -> None:
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


def _list_dead_objects(result: VacuumResult) -> None:
    """Print a line for each dead object, however many there are."""
    write = sys.stdout.write
    for path in (*result.deleted_logs, *result.deleted_data):
        write(f"delete\t{path}\t-\t-\t-\n")
    for item in result.waiting:
        until = "-" if item.until_ms is None else format_time(item.until_ms)
        write(f"wait\t{item.path}\t{item.guard}\t{until}\t{item.held_by or '-'}\n")
    sys.stdout.flush()


def _write_plan(table: str, result: VacuumResult) -> None:
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
        (pick(item, "path", "guard", "until_ms", "held_by") for item in result.waiting),
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


def _show_vacuumed(table: str, result: dict[str, Any]) -> None:
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


def orphans(
    *,
    context: typer.Context,
    table: TableName,
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
            store, paths = client.warehouse.store, client.warehouse.table(table).paths
            result = sweep_orphans(
                Table.open(TableStore(store, paths), clock=SystemClock()), dry_run=True, policy=policy
            )
            answer(_orphans_to_json(table, result), as_json=as_json, show=lambda: _show_orphans(table, result))
            return
        arguments = {"older_than_ms": older_than_ms, "max_share": max_share, "force": force}
        task = Task(JANITOR_ORPHANS, table, arguments, as_json)
        if not wait:
            task.run(client, wait_ms=None)
            return
        done = task.ask(client, wait_ms=parse_duration(timeout, option="--timeout"))
        task.finish(done)
        if done.get("lost_commits"):
            print_error(_explain_lost(table, done["lost_commits"]))
            raise typer.Exit(FAILED)
        if done.get("held_orphans"):
            print_error(_explain_held(table, count=done["held_orphans"], share=done["orphan_share"]))
            raise typer.Exit(FAILED)


def _explain_lost(table: str, count: int) -> str:
    return (
        f"table {table}: {count_of(count, 'commit')} landed, and the log files are gone: orphans are kept, they "
        f"may be theirs. Run `icedb fsck {table}`, then `icedb rebuild {table} --dry-run`; if their rows are not "
        f"wanted, `icedb orphans {table} --delete --force` deletes the files"
    )


def _explain_held(table: str, *, count: int, share: float) -> str:
    return (
        f"table {table}: {format_count(count)} orphans are, or were, too much of the table (now {share:.0%} of its "
        f"bytes) and are kept: its log may be what is missing. Run `icedb fsck {table}` first; if the log is whole, "
        f"`icedb orphans {table} --delete --force` deletes them"
    )


def _orphans_to_json(table: str, result: OrphanResult) -> dict[str, Any]:
    walk = result.walk
    waiting = [pick(item, "guard", "until_ms", path="key", bytes="size_bytes") for item in result.waiting]
    return {
        "table": table,
        "dry_run": True,
        "waiting": waiting,
        "orphans": pick(walk.old_tally, files="count", bytes="size_bytes"),
        "young": pick(walk.young_tally, files="count", bytes="size_bytes"),
        "held": pick(result.held, files="count", bytes="size_bytes"),
        "staged_for_over_a_day": walk.late_staged_count,
        "data_bytes": walk.data.size_bytes,
        **pick(walk, "unknown", "unknown_count", "has_more", from_the_future="future"),
        **pick(result, "share", "max_share", "record_problem", would_delete="deleted", lost_commits="lost"),
    }


def _show_orphans(table: str, result: OrphanResult) -> None:
    walk, old = result.walk, result.walk.old_tally
    out.print(
        f"would delete {format_count(len(result.deleted))} orphans now; {format_count(old.count)} data files "
        f"({format_bytes(old.size_bytes)}, {result.share:.1%} of the table) are old and named by no log file, "
        f"{format_count(walk.young_tally.count)} are young"
    )
    if result.waiting:
        _show_waiting_orphans(result.waiting)
    for what, keys, count in (
        ("would go", result.deleted, len(result.deleted)),
        ("kept, of no kind that this release knows", walk.unknown, walk.unknown_count),
        ("kept, from the store's future: somebody's clock is wrong", walk.future, len(walk.future)),
    ):
        if keys:
            out.print(f"{what}: {format_count(count)}")
            for key in keys[:SHOWN_ORPHANS]:
                out.print(f"  {escape(key)}")
            if count > SHOWN_ORPHANS:
                out.print("  … (--json lists more)")
    if walk.late_staged_count:
        out.print(
            f"{format_count(walk.late_staged_count)} batches have been staged for over a day: does an "
            f"ingest worker run? (`icedb status {escape(table)}`)"
        )
    if result.record_problem:
        out.print(escape(result.record_problem))
    if result.lost:
        out.print(_explain_lost(escape(table), len(result.lost)))
    if result.held.count:
        out.print(_explain_held(escape(table), count=result.held.count, share=result.share))


def _show_waiting_orphans(waiting: tuple[WaitingOrphan, ...]) -> None:
    counts = Counter(item.guard for item in waiting)
    shown = make_table("guard", "files", "bytes", "next ends", "meaning", right=("files", "bytes"))
    for guard, meaning in _ORPHAN_GUARDS.items():
        if counts[guard]:
            ends_ms = [item.until_ms for item in waiting if item.guard == guard and item.until_ms is not None]
            size_bytes = sum(item.size_bytes for item in waiting if item.guard == guard)
            ends = format_time(min(ends_ms)) if ends_ms else "-"
            shown.add_row(guard, format_count(counts[guard]), format_bytes(size_bytes), ends, meaning)
    out.print(shown)


def audit(
    *,
    context: typer.Context,
    table: TableName,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="How far to look back: 7d by default, with --key everything."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="KEY", help="Only this object: when, why and by which run. Exit code 3 if not found."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show which runs of the janitor deleted something, or what became of one object.

    Example: icedb audit events --since 7d
    """
    span = since or (None if key else DEFAULT_SINCE)
    span_ms = None if span is None else parse_duration(span, option="--since")
    with open_client(context, table=table) as client:
        store, paths = client.warehouse.store, client.warehouse.table(table).paths
        # By the store's clock, as the audit itself. A table that was dropped may still have one.
        now_ms = store.list_page(paths.audit_prefix, limit=1).store_now_ms
        since_ms = 0 if span_ms is None else max(0, now_ms - span_ms)
        if key is None:
            _show_runs(TableStore(store, paths), since_ms=since_ms, as_json=as_json)
        else:
            _show_object(TableStore(store, paths), key=_full_key(paths, key), since_ms=since_ms, as_json=as_json)


def _full_key(paths: TablePaths, key: str) -> str:
    return key if key.startswith(f"{paths.prefix}/") else f"{paths.prefix}/{key}"


def _show_runs(table: TableStore, *, since_ms: int, as_json: bool) -> None:
    runs: dict[str, dict[str, Any]] = {}
    damaged: list[DamagedPart] = []
    for part in read_audit(table, since_ms=since_ms):
        if isinstance(part, DamagedPart):
            damaged.append(part)
        else:
            _add(runs.setdefault(part.run_id, _describe_run(part)), part)
    if not runs and not damaged:
        load_any_config(table)  # a name that is mistyped
    if as_json:
        print_json(
            {
                "table": table.name,
                "runs": list(runs.values()),
                "damaged": [pick(each, "problem", key="audit_key") for each in damaged],
            }
        )
        return
    _note_damaged(damaged)
    if not runs:
        out.print("no run deleted anything in this time")
        return
    shown = make_table(
        "time", "kind", "deleted", "failed", "unknown", "size", right=("deleted", "failed", "unknown", "size")
    )
    for run in runs.values():
        shown.add_row(
            run["time"],
            run["kind"],
            *(format_count(run["objects"][outcome]) for outcome in ("deleted", "failed", "announced")),
            format_bytes(run["deleted_bytes"]),
        )
    out.print(shown)


def _show_object(table: TableStore, *, key: str, since_ms: int, as_json: bool) -> None:
    found: list[tuple[AuditPart, AuditEntry]] = []
    damaged: list[DamagedPart] = []
    for each in find_deletions(table, key, since_ms=since_ms):
        if isinstance(each, DamagedPart):
            damaged.append(each)
        else:
            found.append(each)
    if not found:
        _note_damaged(damaged)
        raise NotFound(
            f"the audit of table {table.name} does not know {key}: the janitor has not deleted it in the time that the "
            "audit is kept (audit_retention_ms), or nobody asked for this key; give it as `icedb snapshot --format "
            "paths` and `icedb vacuum --dry-run --json` print it"
        )
    if as_json:
        print_json(
            {
                "table": table.name,
                "key": key,
                "deletions": [
                    {**_describe_run(part), **pick(entry, *_DELETION, object_kind="kind")} for part, entry in found
                ],
                "damaged": [pick(each, "problem", key="audit_key") for each in damaged],
            }
        )
        return
    _note_damaged(damaged)
    for part, entry in found:
        print_pairs(
            {
                "object": entry.key,
                "kind": entry.kind,
                "outcome": _FATES.get(entry.outcome, entry.outcome),
                **({} if entry.reason is None else {"reason": entry.reason}),
                "why": entry.why,
                **({} if entry.died_ms is None else {"died": format_time(entry.died_ms)}),
                "guards passed": ", ".join(entry.passed) or "-",
                "run": f"{part.run_id} ({part.kind}, {format_time(part.store_now_ms)}, {part.owner}, {part.release})",
                "policy": ", ".join(f"{name} {value}" for name, value in part.policy.items()) or "-",
                "found": ", ".join(f"{held['count']} {kind}" for kind, held in part.found.items()) or "-",
            }
        )


def _describe_run(part: AuditPart) -> dict[str, Any]:
    run = pick(part, "kind", "store_now_ms", "owner", "release", "policy", "found", run="run_id")
    return {**run, "time": format_time(part.store_now_ms)}


def _add(run: dict[str, Any], part: AuditPart) -> None:
    objects = run.setdefault("objects", Counter({"deleted": 0, "failed": 0, "announced": 0}))
    objects.update(entry.outcome for entry in part.entries)
    run.setdefault("by_kind", Counter()).update(entry.kind for entry in part.entries if entry.outcome == "deleted")
    size_bytes = sum(entry.size_bytes or 0 for entry in part.entries if entry.outcome == "deleted")
    run["deleted_bytes"] = run.get("deleted_bytes", 0) + size_bytes


def _note_damaged(damaged: list[DamagedPart]) -> None:
    if damaged:
        first = damaged[0]
        print_note(f"{len(damaged)} objects of the audit cannot be understood, e.g. {first.audit_key}: {first.problem}")
