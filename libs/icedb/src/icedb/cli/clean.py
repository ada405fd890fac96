"""``icedb vacuum``, ``icedb orphans``, ``icedb audit``: what the janitor would delete, deletes, and has deleted.

Only the janitor deletes: without a dry run these commands ask it.
"""

import sys
from collections import Counter
from collections.abc import Iterable
from itertools import chain, islice
from typing import Any, Final

import orjson
import typer
from icedb_log.clean.deletion import AuditEntry, AuditPart, DamagedPart, find_deletions, read_audit
from icedb_log.clean.orphans import (
    DEFAULT_MAX_SHARE,
    OrphanGuard,
    OrphanPolicy,
    OrphanResult,
    WaitingOrphan,
    sweep_orphans,
)
from icedb_log.clean.vacuum import VacuumResult, vacuum_table
from icedb_log.errors import InvalidRequest, NotFound
from icedb_log.holds.guards import group_waiting
from icedb_log.names import JANITOR_ORPHANS, JANITOR_VACUUM
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import load_any_config
from icedb_log.units import parse_duration
from rich.markup import escape

from icedb.cli.output import (
    dump_records,
    format_bytes,
    format_count,
    format_time,
    out,
    pick,
    print_error,
    print_line,
    print_note,
    print_pairs,
    print_table,
    write_text,
)
from icedb.cli.read_times import parse_time
from icedb.cli.runner import FAILED, LIST, Run, TableName, command, flag, option

MAX_HOLDERS: Final = 20
"""Lines of the table of guards: one for each guard and holder; the rest is in ``-o json`` and ``-o csv``."""
JSON_CHUNK: Final = 10_000
SHOWN_ORPHANS: Final = 20
DEFAULT_SINCE: Final = "7d"

_ORPHAN_GUARDS: Final[dict[OrphanGuard, str]] = {
    "age": "too young: may be about to be committed",
    "share": "too much of the table: look first, then --force",
}
_DELETION: Final = ("outcome", "reason", "why", "passed", "died_ms", "size_bytes")
_FATES: Final = {
    "deleted": "deleted",
    "failed": "could not be deleted; tried again by later runs",
    "announced": "was about to be deleted; the run was cut off: it may have gone or not",
}


@command(waits="10m", gives=LIST)
def vacuum(
    run: Run,
    *,
    table: TableName,
    dry_run: bool = flag(
        "--dry-run",
        "Show what would be deleted now and what waits; writes nothing, needs no worker. With -o csv or -o ndjson: "
        "each dead object, the guard that keeps it, until when, and who holds it.",
    ),
) -> None:
    """Ask the janitor to delete dead objects that are past their grace period."""
    if not dry_run:
        if run.as_records:
            raise InvalidRequest(f"-o {run.output} goes with --dry-run: `icedb audit` lists what was deleted")
        run.client.table_config(table)
        run.task(JANITOR_VACUUM, table).carry_out(lambda done: _show_vacuumed(table, done))
        return
    result = vacuum_table(run.open(table), dry_run=True)
    if run.as_records:
        _list_dead_objects(result, run.output)
    elif run.as_data:
        _write_plan(table, result)
    else:
        _show_plan(result)


def _show_plan(result: VacuumResult) -> None:
    out.print(
        f"would delete {format_count(len(result.deleted_logs))} log files and "
        f"{format_count(len(result.deleted_data))} data files; {format_count(len(result.waiting))} dead objects wait"
    )
    if not result.waiting:
        return
    groups = group_waiting(result.waiting)
    print_table(
        ("guard", "held by", ">objects", "next ends", "last ends"),
        (
            (
                kept.guard,
                kept.held_by or None,
                kept.count,
                None if kept.first_ms is None else format_time(kept.first_ms),
                "until a person acts" if kept.is_open or kept.last_ms is None else format_time(kept.last_ms),
            )
            for kept in groups[:MAX_HOLDERS]
        ),
    )
    if len(groups) > MAX_HOLDERS:
        print_note(f"{len(groups) - MAX_HOLDERS} more holders: -o csv lists every object")


def _list_dead_objects(result: VacuumResult, output: str | None) -> None:
    """Print a line for each dead object, however many there are."""
    fields = ("path", "guard", "until_ms", "held_by")
    records = chain(
        (dict.fromkeys(fields) | {"path": path} for path in (*result.deleted_logs, *result.deleted_data)),
        (pick(item, *fields) for item in result.waiting),
    )
    is_first = True
    while chunk := list(islice(records, JSON_CHUNK)):
        write_text(dump_records(chunk, output, has_head=is_first))
        is_first = False


def _write_plan(table: str, result: VacuumResult) -> None:
    """Print one JSON document; its lists piece by piece: there may be a million entries in each."""
    groups = [
        {
            "guard": kept.guard,
            "held_by": kept.held_by,
            "objects": kept.count,
            "first_until_ms": kept.first_ms,
            "last_until_ms": None if kept.is_open else kept.last_ms,
        }
        for kept in group_waiting(result.waiting)
    ]
    head = {"table": table, "dry_run": True, "store_now_ms": result.store_now_ms, "guards": groups}
    write = sys.stdout.buffer.write
    write(orjson.dumps(head)[:-1])
    lists: dict[str, Iterable[Any]] = {
        "log_files": result.deleted_logs,
        "data_files": result.deleted_data,
        "waiting": (pick(item, "path", "guard", "until_ms", "held_by") for item in result.waiting),
    }
    for name, values in lists.items():
        write(b',"' + name.encode() + b'":[')
        pending, separator = iter(values), b""
        while chunk := list(islice(pending, JSON_CHUNK)):
            write(separator + orjson.dumps(chunk)[1:-1])
            separator = b","
        write(b"]")
    write(b"}\n")
    sys.stdout.flush()


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
        print_line(
            f"[bold red]failed:[/] {format_count(failure['count'])} objects ({escape(failure['kind'])}), e.g. "
            f"{escape(failure['key'])}: {escape(failure['reason'])}; the next run tries again"
        )
    waiting = result.get("waiting_by_guard") or {}
    if waiting:
        held = ", ".join(f"{format_count(count)} for {guard}" for guard, count in sorted(waiting.items()))
        out.print(f"wait: {held} (`icedb vacuum {escape(table)} --dry-run` says until when)")
    if result.get("has_more"):
        out.print("there is more to delete: the janitor goes on by itself")


@command(waits="10m", records="waiting")
def orphans(
    run: Run,
    *,
    table: TableName,
    delete: bool = flag("--delete", "Ask the janitor to delete them; without it they are only shown."),
    force: bool = flag("--force", f"With --delete: also if they are more than {DEFAULT_MAX_SHARE:.0%} of all bytes."),
    older_than: str | None = option(
        "--older-than", "Only orphans older than this, e.g. 3d; at least the table's orphan_age.", metavar="TIME"
    ),
) -> None:
    """Show the data files that no log file names, and the guard that keeps each; delete them with --delete."""
    if force and not delete:
        raise InvalidRequest("--force goes with --delete; without it nothing is deleted anyway")
    older_than_ms = None if older_than is None else parse_duration(older_than, option="--older-than")
    policy = OrphanPolicy(older_than_ms, DEFAULT_MAX_SHARE, force)
    opened = run.open(table)
    policy.age_ms(opened.config)  # a wrong bound is said here, not by a worker
    if not delete:
        result = sweep_orphans(opened, dry_run=True, policy=policy)
        run.answer(_orphans_to_json(table, result), lambda: _show_orphans(table, result))
        return
    task = run.task(JANITOR_ORPHANS, table, {"older_than_ms": older_than_ms, "force": force})
    if run.wait_ms is None:
        task.carry_out()
        return
    done = task.ask(run.wait_ms)
    task.finish(done)
    if done.get("held_orphans"):
        print_error(_explain_held(table, count=done["held_orphans"], share=done["orphan_share"]))
        raise typer.Exit(FAILED)


def _explain_held(table: str, *, count: int, share: float) -> str:
    return (
        f"table {table}: {format_count(count)} orphans are too much of the table ({share:.0%} of its bytes) and are "
        f"kept: its log may be what is missing. Run `icedb fsck {table}` first; if the log is whole, "
        f"`icedb orphans {table} --delete --force` deletes them"
    )


def _orphans_to_json(table: str, result: OrphanResult) -> dict[str, Any]:
    walk = result.walk
    return {
        "table": table,
        "dry_run": True,
        "waiting": [pick(item, "guard", "until_ms", path="key", bytes="size_bytes") for item in result.waiting],
        "orphans": pick(walk.old_tally, files="count", bytes="size_bytes"),
        "young": pick(walk.young_tally, files="count", bytes="size_bytes"),
        "held": pick(result.held, files="count", bytes="size_bytes"),
        "staged_for_over_a_day": walk.late_staged_count,
        "data_bytes": walk.data.size_bytes,
        **pick(walk, "unknown", "unknown_count", "has_more", from_the_future="future"),
        **pick(result, "share", "max_share", would_delete="deleted"),
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
        ("kept, from the store's future: a clock is wrong", walk.future, len(walk.future)),
    ):
        if keys:
            out.print(f"{what}: {format_count(count)}")
            for key in keys[:SHOWN_ORPHANS]:
                out.print(f"  {escape(key)}")
            if count > SHOWN_ORPHANS:
                out.print("  … (-o json lists more)")
    if walk.late_staged_count:
        out.print(
            f"{format_count(walk.late_staged_count)} batches have been staged for over a day: does an "
            f"ingest worker run? (`icedb status {escape(table)}`)"
        )
    if result.held.count:
        out.print(_explain_held(escape(table), count=result.held.count, share=result.share))


def _show_waiting_orphans(waiting: tuple[WaitingOrphan, ...]) -> None:
    rows = []
    for guard, meaning in _ORPHAN_GUARDS.items():
        if items := [item for item in waiting if item.guard == guard]:
            ends_ms = min((item.until_ms for item in items if item.until_ms is not None), default=None)
            size_bytes = sum(item.size_bytes for item in items)
            ends = None if ends_ms is None else format_time(ends_ms)
            rows.append((guard, len(items), format_bytes(size_bytes), ends, meaning))
    print_table(("guard", ">files", ">bytes", "next ends", "meaning"), rows)


@command(gives=LIST)
def audit(
    run: Run,
    *,
    table: TableName,
    since: str | None = option(
        "--since", "A time, or a duration before now; 7d by default, everything with --key.", metavar="TIME"
    ),
    key: str | None = option(
        "--key", "Only this object: when, why and by which run. Exit code 3 if not found.", metavar="KEY"
    ),
) -> None:
    """Show the runs of the janitor that deleted something, or when and why one object was deleted."""
    span = since or (None if key else DEFAULT_SINCE)
    place = run.place(table)
    # By the store's clock, as the audit itself. A table that was dropped may still have one.
    now_ms = place.read_store_clock()
    since_ms = 0 if span is None else parse_time(span, option="--since", now_ms=now_ms)
    if key is None:
        _answer_runs(run, place, since_ms=since_ms)
    else:
        prefix = f"{place.paths.prefix}/"
        _answer_object(run, place, key=prefix + key.removeprefix(prefix), since_ms=since_ms)


def _answer_runs(run: Run, place: TableStore, *, since_ms: int) -> None:
    runs: dict[str, dict[str, Any]] = {}
    damaged: list[DamagedPart] = []
    for part in read_audit(place, since_ms=since_ms):
        if isinstance(part, DamagedPart):
            damaged.append(part)
        else:
            _add(runs.setdefault(part.run_id, _describe_run(part)), part)
    if not runs and not damaged:
        load_any_config(place)  # a name that is mistyped
    document = {"table": place.name, "runs": list(runs.values()), "damaged": _damaged_to_json(damaged)}
    run.answer(document, lambda: _show_runs(runs, damaged), records="runs")


def _show_runs(runs: dict[str, dict[str, Any]], damaged: list[DamagedPart]) -> None:
    _note_damaged(damaged)
    if not runs:
        out.print("no run deleted anything in this time")
        return
    print_table(
        ("time", "kind", ">deleted", ">failed", ">unknown", ">size"),
        (
            (
                run["time"],
                run["kind"],
                *(run["objects"][outcome] for outcome in ("deleted", "failed", "announced")),
                format_bytes(run["deleted_bytes"]),
            )
            for run in runs.values()
        ),
    )


def _answer_object(run: Run, place: TableStore, *, key: str, since_ms: int) -> None:
    found: list[tuple[AuditPart, AuditEntry]] = []
    damaged: list[DamagedPart] = []
    for each in find_deletions(place, key, since_ms=since_ms):
        if isinstance(each, DamagedPart):
            damaged.append(each)
        else:
            found.append(each)
    if not found:
        _note_damaged(damaged)
        raise NotFound(
            f"the audit of table {place.name} does not know {key}: the janitor has not deleted it in the time that the "
            "audit is kept (audit_retention_ms), or nobody asked for this key; give it as `icedb snapshot -o "
            "paths` and `icedb vacuum --dry-run -o json` print it"
        )
    deletions = [{**_describe_run(part), **pick(entry, *_DELETION, object_kind="kind")} for part, entry in found]
    document = {"table": place.name, "key": key, "deletions": deletions, "damaged": _damaged_to_json(damaged)}
    run.answer(document, lambda: _show_object(found, damaged), records="deletions")


def _show_object(found: list[tuple[AuditPart, AuditEntry]], damaged: list[DamagedPart]) -> None:
    _note_damaged(damaged)
    for part, entry in found:
        print_pairs(
            {
                "object": entry.key,
                "kind": entry.kind,
                "outcome": _FATES.get(entry.outcome, entry.outcome),
                "reason": entry.reason,
                "why": entry.why,
                "died": None if entry.died_ms is None else format_time(entry.died_ms),
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
    deleted = [entry for entry in part.entries if entry.outcome == "deleted"]
    run.setdefault("by_kind", Counter()).update(entry.kind for entry in deleted)
    run["deleted_bytes"] = run.get("deleted_bytes", 0) + sum(entry.size_bytes or 0 for entry in deleted)


def _damaged_to_json(damaged: list[DamagedPart]) -> list[dict[str, Any]]:
    return [pick(each, "problem", key="audit_key") for each in damaged]


def _note_damaged(damaged: list[DamagedPart]) -> None:
    if damaged:
        first = damaged[0]
        print_note(f"{len(damaged)} objects of the audit cannot be understood, e.g. {first.audit_key}: {first.problem}")
