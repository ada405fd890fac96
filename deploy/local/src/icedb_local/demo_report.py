"""What a run of the demo found, as a value and as tables on the screen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from icedb_log.units import MIB
from rich.table import Table
from rich.text import Text

from icedb_local.charts import render_chart
from icedb_local.checks import CheckBook
from icedb_local.demo_plan import TARGET_FILE_BYTES
from icedb_local.screen import Screen, StepTime, make_table
from icedb_local.table_health import PartitionFiles
from icedb_local.watcher import Sampler

CHART_HEIGHT: Final = 5
MAX_PARTITION_LINES: Final = 8


@dataclass(frozen=True, slots=True)
class Count:
    """One exact count.

    Attributes:
        moment: When, in words.
        table: Of which table.
        acknowledged_rows: Rows of the batches that were acknowledged by then.
        counted_rows: Rows that DuckDB found in the snapshot's files.
        file_count: Files of the snapshot.
        is_exact: Whether both agree, in total and for each day.
    """

    moment: str
    table: str
    acknowledged_rows: int
    counted_rows: int
    file_count: int
    is_exact: bool


def make_counts_table(counts: Sequence[Count], screen: Screen) -> Table:
    """Return the exact counts as a table."""
    table = make_table("moment", "table", "acknowledged", "DuckDB counts", "files", "", left=2)
    for count in counts:
        table.add_row(
            count.moment,
            count.table,
            f"{count.acknowledged_rows:,}",
            f"{count.counted_rows:,}",
            f"{count.file_count:,}",
            screen.mark(holds=count.is_exact),
        )
    return table


def make_files_table(
    before: Mapping[str, Sequence[PartitionFiles]], after: Mapping[str, Sequence[PartitionFiles]]
) -> Table:
    """Return files per partition before and after a merge; small partitions of a table share a line."""
    table = make_table("table", "partition", "before", "after", "least", "MiB", "rows", left=2)
    for name, partitions in after.items():
        files_before = {one.partition: len(one.sizes_bytes) for one in before[name]}
        shown = sorted(partitions, key=lambda one: -one.row_count)[:MAX_PARTITION_LINES]
        rest = [one for one in partitions if one not in shown]
        for one in sorted(shown, key=lambda one: one.partition):
            table.add_row(name, one.partition, *_figures([one], files_before))
        if rest:
            table.add_row(name, f"{len(rest)} more", *_figures(rest, files_before))
    return table


def _figures(partitions: Sequence[PartitionFiles], files_before: Mapping[str, int]) -> list[str]:
    """Files before and after, how few the target size allows, size and rows of some partitions."""
    least = sum(-(-sum(one.sizes_bytes) // TARGET_FILE_BYTES) for one in partitions)
    return [
        f"{sum(files_before.get(one.partition, 0) for one in partitions):,}",
        f"{sum(len(one.sizes_bytes) for one in partitions):,}",
        f"{least:,}",
        f"{sum(sum(one.sizes_bytes) for one in partitions) / MIB:,.1f}",
        f"{sum(one.row_count for one in partitions):,}",
    ]


def show_charts(screen: Screen, sampler: Sampler, table: str) -> None:
    """Draw how many data files and log files a table had over time."""
    width = screen.console.width - 6
    for field, title in (("data_files", "data files"), ("log_files", "log files")):
        screen.say(Text(f"{title} of {table} in the store, live or waiting for their deletion", "dim"))
        points = [(sample.at_s, getattr(sample, field)) for sample in sampler.samples[table]]
        lines = render_chart(points, width=width, height=CHART_HEIGHT, is_ascii=screen.is_ascii)
        screen.show_lines(lines, style="cyan")


def make_steps_table(steps: Sequence[StepTime]) -> Table:
    """Return how long each step took."""
    table = make_table("step", "seconds", "events/s")
    for step in steps:
        rate = "" if step.row_count is None else f"{step.row_count / max(step.seconds, 1e-9):,.0f}"
        table.add_row(step.name, f"{step.seconds:.1f}", rate)
    return table


def show_verdict(screen: Screen, book: CheckBook, *, took_s: float) -> None:
    """Say whether everything holds, and what does not."""
    screen.console.print()
    broken = [check for check in book.checks if not check.holds]
    for check in broken:
        screen.show_check(check)
    mark = screen.mark(holds=book.is_ok)
    if book.is_ok:
        words = f"all {len(book.checks)} checks hold, {took_s:.0f} s"
    else:
        words = f"{len(broken)} of {len(book.checks)} checks do not hold"
    screen.console.print(Text.assemble(mark, " ", (words, "bold")))
