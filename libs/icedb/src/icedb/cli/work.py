"""``icedb work``: one process that does what is due, for a laptop or a small server."""

import signal
import threading
from typing import Any

import typer

from icedb.cli.output import err, format_bytes, format_count, format_time, print_error, print_line
from icedb.cli.runner import FAILED, Run, command, flag
from icedb.work import Done, Worker

_SINGULAR = {
    "batches": "batch",
    **{f"{one}s": one for one in ("commit", "file", "group", "object", "partition", "row")},
}
_HIDDEN = frozenset({"failures", "waiting_by_guard", "erasures", "paths", "unknown_objects"})


@command()
def work(
    run: Run,
    *,
    once: bool = flag("--once", "End when nothing is due any more, for cron; exit code 1 if anything failed."),
) -> None:
    """Do what is due on all tables, in this process: commit, feed views, merge, clean.

    Until Ctrl-C or SIGTERM, which let the piece of work that runs come to its end. It needs the store alone, and may
    run beside others, and beside workers of the stack. Prints a line for each thing that it did.
    """
    stop = threading.Event()
    before = {each: signal.signal(each, lambda *_: stop.set()) for each in (signal.SIGINT, signal.SIGTERM)}
    done: list[dict[str, Any]] = []
    problem_count = 0

    def tell(each: Done) -> None:
        nonlocal problem_count
        problem_count += each.problem is not None
        if run.as_data:
            problem = {} if each.problem is None else {"error": str(each.problem)}
            done.extend([{"task": each.task, "table": each.table, **each.details, **problem}] if once else ())
        elif each.problem is not None:
            print_error(f"{each.table}: {each.task}: {each.problem}")
        else:
            name = each.task.removeprefix("icedb.").replace("_", " ")
            print_line(f"[dim]{format_time(run.clock.now_ms())}[/] [bold]{each.table}[/] {name}: {_describe(each)}")

    lake = run.open_lake()
    try:
        if not once:  # also where nobody looks on: a log should say that it began, and where
            err.print(f"[dim]working on {lake.client.settings.store}; Ctrl-C ends it[/]", soft_wrap=True)
        Worker(lake, lake.table, stops=stop.is_set).work(tell, until_idle=once)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    if run.as_data:
        run.answer({"done": done, "problems": problem_count}, lambda: None)
    if once and problem_count:
        raise typer.Exit(FAILED)


def _describe(done: Done) -> str:
    """Return what was done in figures; those that are zero are left out."""
    figures = (
        (name, format_bytes(value) if "bytes" in name else format_count(value))
        for name, value in done.details.items()
        if type(value) is int and value and name not in _HIDDEN
    )
    return ", ".join(f"{value} {_words(name, is_one=value == '1')}".rstrip() for name, value in figures)


def _words(name: str, *, is_one: bool) -> str:
    return " ".join(_SINGULAR.get(word, word) if is_one else word for word in name.split("_") if word != "bytes")
