"""``icedb merge``: ask for merges, or for an explanation of what would be merged and why not."""

from dataclasses import asdict
from typing import Any, Final

from icedb_log.commit.table import Table
from icedb_log.errors import InvalidRequest
from icedb_log.merge.merge_explain import (
    ExplainedPartition,
    MergeExplanation,
    explain_merge,
    say_when,
    say_why_not,
)
from icedb_log.merge.merge_plan import WORTH_BYTES, MergeIndex
from icedb_log.names import MERGE_COLD, MERGE_MERGE

from icedb.cli.output import (
    Show,
    count_of,
    format_bytes,
    format_count,
    is_watched,
    out,
    print_note,
    print_pairs,
    print_table,
    progress,
)
from icedb.cli.runner import Run, TableName, Task, TimedOut, command, flag

BUSY_PAUSE_MS: Final = 200
"""How long to wait for another run on the table, between two turns of a full merge."""


@command(waits="10m")
def merge(
    run: Run,
    *,
    table: TableName,
    full: bool = flag("--full", "Merge each partition as far as the target file size allows."),
    cold: bool = flag("--cold", "Merge partitions that have got no data for a while."),
    dry_run: bool = flag(
        "--dry-run", "Show what would be merged, and why the rest not; writes nothing, needs no worker."
    ),
) -> None:
    """Ask a merge worker to merge a table now."""
    if cold and (full or dry_run):
        raise InvalidRequest("--cold goes neither with --full, which takes all partitions, nor with --dry-run")
    opened = run.open(table)
    if dry_run:
        explained = explain_merge(MergeIndex(opened.paths, opened.config), opened.read_log(), full=full)
        fan_in = opened.config.merge_fan_in
        run.answer({"table": table, **asdict(explained)}, lambda: _show_explanation(explained, fan_in=fan_in))
        return
    task = run.task(MERGE_COLD if cold else MERGE_MERGE, table, {"full": True} if full else {})
    if full and run.wait_ms is not None:
        total_bytes = _expect(opened) if is_watched(is_quiet=run.as_data) else 0
        with progress(f"merging table {table}", is_quiet=run.as_data, in_bytes=True) as show:
            done = _merge_in_full(task, wait_ms=run.wait_ms, show=show, total_bytes=total_bytes)
        task.finish(done, show=_show_merged)
        return
    task.carry_out(_show_merged)
    if full:
        print_note("one turn; `icedb merge --full` without --no-wait goes on until everything is merged")


def _expect(opened: Table) -> int:
    """Return how many bytes a full merge will read at least."""
    explained = explain_merge(MergeIndex(opened.paths, opened.config), opened.read_log(), full=True)
    return sum(group.size_bytes for found in explained.partitions for group in found.groups)


def _merge_in_full(task: Task, *, wait_ms: int, show: Show, total_bytes: int) -> dict[str, Any]:
    """Ask for turns of a full merge until nothing is left, and return the figures of all of them together.

    Raises:
        TimedOut: Something was left; what was merged stays merged.
    """
    clock = task.run.clock
    deadline_ms = clock.monotonic_ms() + wait_ms
    total: dict[str, Any] = {}
    while True:
        left_ms = deadline_ms - clock.monotonic_ms()
        if total and left_ms <= 0:
            count = total.get("commits", 0)
            stay = "1 commit has landed and stays" if count == 1 else f"{count} commits have landed and stay"
            raise TimedOut(f"table {task.table}: not everything was merged in time; {stay}; run it again to go on")
        result = task.ask(max(left_ms, 1), is_quiet=True)
        if total and result.get("outcome") == "busy":
            clock.sleep_ms(min(BUSY_PAUSE_MS, max(left_ms, 1)))  # a merge of the sweep has the table's lock
            continue
        total = _add(total, result)
        merged_bytes = total.get("bytes_in") or 0
        show(merged_bytes, max(total_bytes, merged_bytes))  # a turn may take what another turn has made
        if result.get("outcome") not in ("done", "idle") or not result.get("has_more"):
            return total


def _add(total: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """Return the result of several turns: figures are added, everything else is the last turn's."""
    added = {
        name: total[name] + value if type(value) is int and type(total.get(name)) is int else value
        for name, value in result.items()
    }
    if total and result.get("outcome") == "idle":
        added["outcome"] = total["outcome"]
    return {**total, **added}


def _show_merged(result: dict[str, Any]) -> None:
    table = result["table"]
    if result["outcome"] == "idle":
        out.print(f"nothing to merge in table [bold]{table}[/]")
        print_note(f"`icedb merge {table} --dry-run` says why")
        return
    before, after = (format_bytes(result.get(name, 0)) for name in ("bytes_in", "bytes_out"))
    print_pairs(
        {
            "table": table,
            "merged": f"{count_of(result.get('files_in', 0), 'data file')} ({before})",
            "into": f"{count_of(result.get('files_out', 0), 'data file')} ({after})",
            "rows": result.get("rows"),
            "commits": result.get("commits"),
            "log files folded": result.get("folded_log_files"),
            "more to merge": "yes: the next run takes it" if result.get("has_more") else None,
        }
    )


def _show_explanation(explained: MergeExplanation, *, fan_in: int) -> None:
    print_table(
        ("partition", ">files", ">size", "tiers", "what"),
        (
            (
                found.partition or "(none)",
                found.file_count,
                format_bytes(found.size_bytes),
                " ".join(f"{tier}:{count}" for tier, count in found.tiers.items()) or None,
                describe_partition(found, fan_in=fan_in),
            )
            for found in explained.partitions
        ),
    )
    print_table(
        ("log tier", ">log files", ">size", "what"),
        (
            (
                tier.tier,
                tier.file_count,
                format_bytes(tier.size_bytes),
                f"{format_count(tier.folded_count)} folded now" if tier.folded_count else "",
            )
            for tier in explained.log_tiers
        ),
    )
    if explained.waits:
        out.print(
            f"the next hot run waits until it folds {explained.log_fan_in} log files or moves "
            f"{format_bytes(WORTH_BYTES)}, or nothing comes any more; the log has "
            f"{format_count(explained.log_file_count)} log files, dead ones too"
        )


def describe_partition(found: ExplainedPartition, *, fan_in: int) -> str:
    """Return what is merged of a partition, a line for each merge, or why nothing is."""
    if not found.groups:
        return say_why_not(found.reason, fan_in=fan_in)
    return "\n".join(
        f"{group.lane}: {format_count(group.file_count)} files of up to tier {group.tier}, "
        f"{format_bytes(group.size_bytes)}: {say_when(group.when)}"
        for group in found.groups
    )
