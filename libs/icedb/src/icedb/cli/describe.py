"""``icedb describe``: a first look at a table."""

from dataclasses import asdict
from typing import Final

from icedb_client.describe import ColumnDescription, Known, TableDescription
from icedb_log.table.promoted_paths import spell_path

from icedb.cli.output import (
    count_of,
    format_bytes,
    format_count,
    format_time,
    out,
    print_note,
    print_pairs,
    print_table,
)
from icedb.cli.read_times import AsOf, TagOption, maybe_time
from icedb.cli.rows import print_rows, to_text
from icedb.cli.runner import Run, TableName, command

_SIGNS: Final[dict[Known, str]] = {"exact": "", "bound": "≥ ", "estimate": "~ ", "unknown": ""}
_LEGEND: Final[dict[Known, str]] = {
    "bound": "≥ at least, ≤ at most",
    "estimate": "~ estimated",
    "unknown": "? unknown",
}
_PER_CENT: Final = 100
MAX_SHOWN_CHARS: Final = 40
MAX_SHOWN_PATHS: Final = 30


@command(records="columns")
def describe(
    run: Run,
    *,
    table: TableName,
    as_of: AsOf = None,
    tag: TagOption = None,
) -> None:
    """Show a table's columns: types, nulls, distinct values, minimum and maximum; from statistics if possible."""
    found = run.client.snapshot(
        table,
        as_of=maybe_time(as_of, option="--as-of", now_ms=run.clock.now_ms()),
        tag=tag,
        bounds=True,
    ).describe()
    run.answer(asdict(found), lambda: show_description(found))


def show_description(found: TableDescription) -> None:
    """Print what is known of a table, and how well."""
    print_pairs(
        {
            "table": found.table,
            "snapshot": found.snapshot_id,
            "rows": format_count(found.row_count),
            "size": format_bytes(found.size_bytes),
            "data files": found.file_count,
            **{
                f"partition {span.name}": f"{span.min} … {span.max} ({count_of(span.count, 'value')})"
                for span in found.partitions
            },
            "last commit": "none yet" if found.last_commit_ms is None else format_time(found.last_commit_ms),
        }
    )
    if not found.columns:
        return
    out.print()
    shown = {"column": "VARCHAR", "type": "VARCHAR", "nulls": "DOUBLE", "distinct": "DOUBLE", "min": "VARCHAR"}
    shown |= {"max": "VARCHAR"}
    lines = [_line(column) for column in found.columns]
    if any(column.promoted_from for column in found.columns):
        shown["promoted from"] = "VARCHAR"
        lines = [
            (*line, spell_path(column.promoted_from or ())) for line, column in zip(lines, found.columns, strict=True)
        ]
    print_rows(list(shown.items()), lines)
    if found.paths:
        out.print()
        print_table(
            ("path", "rows", "type", "column"),
            (
                (spell_path(each.path), f"~ {_per_cent(each.share)}", each.type or "-", each.column or "-")
                for each in found.paths[:MAX_SHOWN_PATHS]
            ),
        )
    known = {word for each in found.columns for word in (each.nulls_known, each.distinct_known, each.range_known)}
    marks = "; ".join(words for word, words in _LEGEND.items() if word in known)
    opened = f"{format_count(found.opened_count)} of {count_of(found.file_count, 'data file')}"
    read = {"log": "the log alone", "footers": f"the log and the footers of {opened}", "rows": f"the rows of {opened}"}
    print_note(f"from {read[found.source]}")
    more = f" (`icedb query 'summarize {found.table}'` reads all rows)" if "unknown" in known else ""
    print_note(f"exact, but: {marks}{more}" if marks else "all is exact")


def _line(column: ColumnDescription) -> tuple[str, ...]:
    share = "?" if column.null_share is None else _per_cent(column.null_share)
    distinct = "?" if column.distinct_count is None else f"{column.distinct_count:,}"
    low, high = ("?" if column.range_known == "unknown" else _shorten(each) for each in (column.min, column.max))
    wide = {"bound": ("≥ ", "≤ "), "estimate": ("~ ", "~ ")}.get(column.range_known, ("", ""))
    return (
        column.name,
        column.type,
        _SIGNS[column.nulls_known] + share,
        _SIGNS[column.distinct_known] + distinct,
        wide[0] + low,
        wide[1] + high,
    )


def _shorten(value: object) -> str:
    text = "-" if value is None else to_text(value)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[: MAX_SHOWN_CHARS - 1]}…"


def _per_cent(share: float) -> str:
    """Return a share with two digits behind the point where it has some; never 0 or 100 for what is not."""
    if share in (0, 1):
        return f"{share * _PER_CENT:.0f} %"
    return f"{min(max(share * _PER_CENT, 0.01), 99.99):.2f} %"
