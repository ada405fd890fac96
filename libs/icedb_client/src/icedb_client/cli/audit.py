"""``icedb audit``: what the janitor deleted, when and why."""

from collections import Counter
from typing import Annotated, Any, Final

import typer
from icedb_log.clean.audit_reader import AuditEntry, AuditPart, DamagedPart, find_deletions, read_audit
from icedb_log.errors import NotFound
from icedb_log.keys import TablePaths
from icedb_log.store.object_store import ObjectStore
from icedb_log.table.stored_config import load_any_config

from icedb_client.cli.output import (
    JsonFlag,
    format_bytes,
    format_count,
    make_table,
    out,
    print_json,
    print_note,
    print_pairs,
)
from icedb_client.cli.parsing import format_time, parse_duration
from icedb_client.cli.session import open_client

DEFAULT_SINCE: Final = "7d"

_FATES: Final = {
    "deleted": "deleted",
    "failed": "could not be deleted; tried again by later runs",
    "announced": "was about to be deleted; the run was cut off: it may have gone or not",
}


def audit(
    *,
    context: typer.Context,
    table: Annotated[str, typer.Argument(help="Name of the table.")],
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
        store, paths = client.warehouse.store, client.warehouse.table(table)
        # By the store's clock, as the audit itself. A table that was dropped may still have one.
        now_ms = store.list_page(paths.audit_prefix, limit=1).store_now_ms
        since_ms = 0 if span_ms is None else max(0, now_ms - span_ms)
        if key is None:
            _show_runs(store, paths, since_ms=since_ms, as_json=as_json)
        else:
            _show_object(store, paths, key=_full_key(paths, key), since_ms=since_ms, as_json=as_json)


def _full_key(paths: TablePaths, key: str) -> str:
    return key if key.startswith(f"{paths.prefix}/") else f"{paths.prefix}/{key}"


def _show_runs(store: ObjectStore, paths: TablePaths, *, since_ms: int, as_json: bool) -> None:
    runs: dict[str, dict[str, Any]] = {}
    damaged: list[DamagedPart] = []
    for part in read_audit(store, paths, since_ms=since_ms):
        if isinstance(part, DamagedPart):
            damaged.append(part)
        else:
            _add(runs.setdefault(part.run_id, _describe(part)), part)
    if not runs and not damaged:
        load_any_config(store, paths)  # a name that is mistyped
    if as_json:
        print_json({"table": paths.name, "runs": list(runs.values()), "damaged": _describe_damaged(damaged)})
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


def _show_object(store: ObjectStore, paths: TablePaths, *, key: str, since_ms: int, as_json: bool) -> None:
    found: list[tuple[AuditPart, AuditEntry]] = []
    damaged: list[DamagedPart] = []
    for each in find_deletions(store, paths, key, since_ms=since_ms):
        if isinstance(each, DamagedPart):
            damaged.append(each)
        else:
            found.append(each)
    if not found:
        _note_damaged(damaged)
        raise NotFound(
            f"the audit of table {paths.name} does not know {key}: the janitor has not deleted it in the time that the "
            "audit is kept (audit_retention_ms), or nobody asked for this key; give it as `icedb snapshot --format "
            "paths` and `icedb vacuum --dry-run --json` print it"
        )
    if as_json:
        print_json(
            {
                "table": paths.name,
                "key": key,
                "deletions": [{**_describe(part), **_describe_entry(entry)} for part, entry in found],
                "damaged": _describe_damaged(damaged),
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


def _describe(part: AuditPart) -> dict[str, Any]:
    return {
        "run": part.run_id,
        "kind": part.kind,
        "time": format_time(part.store_now_ms),
        "store_now_ms": part.store_now_ms,
        "owner": part.owner,
        "release": part.release,
        "policy": part.policy,
        "found": part.found,
    }


def _describe_entry(entry: AuditEntry) -> dict[str, Any]:
    return {
        "object_kind": entry.kind,
        "outcome": entry.outcome,
        "reason": entry.reason,
        "why": entry.why,
        "passed": entry.passed,
        "died_ms": entry.died_ms,
        "size_bytes": entry.size_bytes,
    }


def _add(run: dict[str, Any], part: AuditPart) -> None:
    objects = run.setdefault("objects", Counter({"deleted": 0, "failed": 0, "announced": 0}))
    objects.update(entry.outcome for entry in part.entries)
    run.setdefault("by_kind", Counter()).update(entry.kind for entry in part.entries if entry.outcome == "deleted")
    size_bytes = sum(entry.size_bytes or 0 for entry in part.entries if entry.outcome == "deleted")
    run["deleted_bytes"] = run.get("deleted_bytes", 0) + size_bytes


def _describe_damaged(damaged: list[DamagedPart]) -> list[dict[str, str]]:
    return [{"key": each.audit_key, "problem": each.problem} for each in damaged]


def _note_damaged(damaged: list[DamagedPart]) -> None:
    if damaged:
        first = damaged[0]
        print_note(f"{len(damaged)} objects of the audit cannot be understood, e.g. {first.audit_key}: {first.problem}")
