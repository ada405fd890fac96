"""``icedb merge``: ask for merges, or for an explanation of what would be merged and why not."""

from dataclasses import asdict
from typing import Annotated, Any, Final

import typer
from icedb_log.clock import SystemClock
from icedb_log.errors import InvalidRequest
from icedb_log.log.reader import LogReader
from icedb_log.merge.merge_explain import ExplainedPartition, MergeExplanation, explain_merge
from icedb_log.names import MERGE_COLD, MERGE_MERGE
from icedb_log.store.table_store import TableStore
from rich.markup import escape

from icedb_client.cli.output import format_bytes, format_count, make_table, out, print_note
from icedb_client.cli.parsing import parse_duration
from icedb_client.cli.runner import JsonFlag, TableName, Task, TimedOut, Timeout, Wait, answer, open_client
from icedb_client.client import Client

BUSY_PAUSE_MS: Final = 200
"""How long to wait for another run on the table, between two turns of a full merge."""

_WHY: Final = {
    "mature": "all files have the target size",
    "one_file": "one file only",
    "fan_in": "fewer than {fan_in} files in each tier",
    "cold": "fewer than {fan_in} files in each tier; merged further when it rests",
    "settled": "rests; a merge would rewrite a large file for little",
}
_WHEN: Final = {
    "now": "now",
    "next_run": "next run: this one is full",
    "log": "waits until it pays to rewrite its log files",
}


def merge(
    *,
    context: typer.Context,
    table: TableName,
    full: Annotated[
        bool, typer.Option("--full", help="Merge each partition as far as the target file size allows.")
    ] = False,
    cold: Annotated[
        bool, typer.Option("--cold", help="Merge partitions that have got no data for a while, as far as is worth it.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what would be merged, or why not; touches nothing, needs no worker.")
    ] = False,
    wait: Wait = True,
    timeout: Timeout = "10m",
    as_json: JsonFlag = False,
) -> None:
    """Ask a merge worker to merge a table now.

    Example: icedb merge events --explain
    """
    if cold and (full or explain):
        raise InvalidRequest("--cold goes neither with --full, which takes all partitions, nor with --explain")
    with open_client(context, table=table) as client:
        config = client.table_config(table)
        if explain:
            paths = client.warehouse.table(table).paths
            reader = LogReader(
                TableStore(client.warehouse.store, paths), clock=SystemClock(), max_refresh_ms=config.log_grace_ms // 2
            )
            explained = explain_merge(reader.read(), paths=paths, config=config, full=full)
            document = {"table": table, **asdict(explained)}
            answer(document, as_json=as_json, show=lambda: _show_explanation(explained, fan_in=config.merge_fan_in))
            return
        wait_ms = parse_duration(timeout, option="--timeout") if wait else None
        task = Task(MERGE_COLD if cold else MERGE_MERGE, table, {"full": True} if full else {}, as_json)
        if full and wait_ms is not None:
            task.finish(_merge_in_full(client, task, wait_ms=wait_ms))
            return
        task.run(client, wait_ms=wait_ms)
        if full:
            print_note("one turn; `icedb merge --full` without --no-wait goes on until everything is merged")


def _merge_in_full(client: Client, task: Task, *, wait_ms: int) -> dict[str, Any]:
    """Ask for turns of a full merge until nothing is left, and return the figures of all of them together.

    Raises:
        TimedOut: Something was left; what was merged stays merged.
    """
    clock = SystemClock()
    deadline_ms = clock.monotonic_ms() + wait_ms
    total: dict[str, Any] = {}
    while True:
        left_ms = deadline_ms - clock.monotonic_ms()
        if total and left_ms <= 0:
            count = total.get("commits", 0)
            stay = "1 commit has landed and stays" if count == 1 else f"{count} commits have landed and stay"
            raise TimedOut(f"table {task.table}: not everything was merged in time; {stay}; run it again to go on")
        result = task.ask(client, wait_ms=max(left_ms, 1))
        if total and result.get("outcome") == "busy":
            clock.sleep_ms(min(BUSY_PAUSE_MS, max(left_ms, 1)))  # a merge of the sweep has the table's lock
            continue
        total = add_results(total, result)
        if result.get("outcome") not in ("done", "idle") or not result.get("has_more"):
            return total


def add_results(total: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """Return the result of several turns: figures are added, everything else is the last turn's."""
    if not total:
        return result
    added = {
        name: total[name] + value if type(value) is int and type(total.get(name)) is int else value
        for name, value in result.items()
    }
    if result.get("outcome") == "idle":
        added["outcome"] = total["outcome"]
    return {**total, **added}


def _show_explanation(explained: MergeExplanation, *, fan_in: int) -> None:
    view = make_table("partition", "files", "size", "tiers", "what", right=("files", "size"))
    for found in explained.partitions:
        view.add_row(
            escape(found.partition or "(none)"),
            format_count(found.file_count),
            format_bytes(found.size_bytes),
            " ".join(f"{tier}:{count}" for tier, count in found.tiers.items()) or "-",
            escape(_describe(found, fan_in)),
        )
    out.print(view)
    logs = make_table("log tier", "log files", "size", "what", right=("log files", "size"))
    for tier in explained.log_tiers:
        what = "folded now" if tier.is_folded else "" if tier.may_be_rewritten else "too large to rewrite for now"
        logs.add_row(str(tier.tier), format_count(tier.file_count), format_bytes(tier.size_bytes), what)
    out.print(logs)
    if explained.is_crowded:
        out.print(
            f"the log is long ({format_count(explained.log_file_count)} log files, dead ones too): the next commit "
            f"waits until it replaces {explained.log_fan_in} of them"
        )


def _describe(found: ExplainedPartition, fan_in: int) -> str:
    if not found.groups:
        return _WHY[found.reason].format(fan_in=fan_in)
    lines = [
        f"{group.lane}: {format_count(group.file_count)} files of up to tier {group.tier}, "
        f"{format_bytes(group.size_bytes)}: {_WHEN[group.when]}"
        for group in found.groups
    ]
    return "\n".join(lines)
