"""``icedb tag``: names for states of a table that stay readable."""

from typing import Annotated, Any, Final

import typer
from icedb_log.holds.stored_holds import HoldStatus, StoredHold
from icedb_log.holds.tags import create_tag, delete_tag, is_lasting, list_tags
from icedb_log.table.table_config import TableConfig
from icedb_log.trash.drop import read_kept_config
from rich.markup import escape

from icedb.cli.output import (
    format_bytes,
    format_count,
    format_span,
    format_time,
    out,
    pick,
    print_note,
    print_pairs,
    print_table,
)
from icedb.cli.read_times import maybe_time
from icedb.cli.runner import Commands, Run, TableName, command, maybe_duration, option

app: Final = Commands(name="tag", help="Keep a state of a table readable under a name.")

TagName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the tag: a to z, 0 to 9, _ and -.")]

_TAG_HELP: Final = {
    "pending": "is being made, or its maker died; holds every dead data file meanwhile",
    "late": "took too long to be made: some of its files may be gone; delete the tag and create it again",
    "unreadable": "cannot be understood and holds every dead data file; delete it",
    "no tag": "is no tag by its name and holds every dead data file; move the object out of _icedb/holds/",
}


@app.command("create")
@command()
def create(
    run: Run,
    *,
    table: TableName,
    name: TagName,
    as_of: str | None = option(
        "--as-of", "A past time: 2026-01-02T03:04:05Z, a date, unix ms, or 5m ago: 5m. Now by default."
    ),
    ttl: str | None = option("--ttl", "How long it lasts, e.g. 30d; until it is deleted by default.", metavar="TIME"),
    note: str = option("--note", "Why, for people.", ""),
) -> None:
    """Keep a table's state under a name: its data files stay, and it can be read, until the tag is deleted or ends.

    Queries read it with `--tag NAME`.
    """
    at_ms, ttl_ms = maybe_time(as_of, option="--as-of", now_ms=run.clock.now_ms()), maybe_duration(ttl, option="--ttl")
    opened = run.open(table)
    made = create_tag(opened, name, at_ms=at_ms, ttl_ms=ttl_ms, note=note)
    document = {"table": table, **tag_to_json(made, "active", opened.config)}
    run.answer(document, lambda: _show_tag(table, made))


def _show_tag(table: str, made: StoredHold) -> None:
    print_pairs(
        {
            "table": table,
            "tag": made.name,
            "time": format_time(made.at_ms),
            "data files": made.file_count,
            "rows": format_count(made.row_count),
            "size": format_bytes(made.size_bytes),
            "lasts until": _until(made),
        }
    )
    print_note(f"read it: icedb query --tag {made.name} ..., or icedb snapshot {table} --tag {made.name}")


@app.command("list")
@command(records="tags")
def list_of_table(run: Run, *, table: TableName) -> None:
    """List the tags of a table, what they hold and until when. Ended ones stay as long as they hold files."""
    config = read_kept_config(run.place(table))
    listed = list_tags(run.place(table))
    found = [(each, each.status(listed.store_now_ms)) for each in listed.holds]
    document = {"table": table, "tags": [tag_to_json(each, status, config) for each, status in found]}
    run.answer(document, lambda: _show_tags(table, found))


def _show_tags(table: str, found: list[tuple[StoredHold, HoldStatus]]) -> None:
    if not found:
        print_note(f"table {table} has no tags")
        return
    print_table(
        ("name", "state", "time", ">files", ">rows", ">size", "lasts until", "note"),
        (
            (
                each.name,
                status,
                format_time(each.at_ms) if each.file_count or status == "active" else None,
                each.file_count,
                format_count(each.row_count),
                format_bytes(each.size_bytes),
                _until(each),
                each.note,
            )
            for each, status in found
        ),
    )
    for each, status in found:
        if status in _TAG_HELP:
            print_note(f"{each.name}: {_TAG_HELP[status if each.owner else 'no tag']}")


@app.command("delete")
@command()
def delete(run: Run, *, table: TableName, name: TagName) -> None:
    """End a tag. Its data files stay for one more grace period, for queries that have begun."""
    config = read_kept_config(run.place(table))
    has_ended = delete_tag(run.place(table), name)

    def show() -> None:
        if not has_ended:
            print_note(f"tag {name} of table {table} had ended before")
            return
        out.print(
            f"tag [bold]{escape(name)}[/] of table [bold]{escape(table)}[/] has ended; what only it held may be "
            f"deleted in {format_span(config.data_grace_ms)}"
        )

    run.answer({"table": table, "name": name, "ended": has_ended, "data_grace_ms": config.data_grace_ms}, show)


def _until(made: StoredHold) -> str:
    return "deleted" if made.ends_ms is None else format_time(made.ends_ms)


def tag_to_json(made: StoredHold, status: HoldStatus, config: TableConfig) -> dict[str, Any]:
    """Return a tag for a document."""
    fields = ("name", "at_ms", "ttl_ms", "ends_ms", "file_count", "row_count", "size_bytes", "note", "key")
    return {
        **pick(made, *fields),
        "status": status,
        "is_lasting": is_lasting(status),
        "held_until_ms": made.held_until_ms(config.data_grace_ms),
        "last_commit_ms": made.last_commit_ms or None,
    }
