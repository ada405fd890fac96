"""``icedb ingest``: files to accepted batches; ``icedb import``: existing Parquet files become data files of a table.

An import is done by the ingest worker; the command asks it.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import typer
from icedb_client.delivery import Undelivered, Wait
from icedb_client.files import DEFAULT_BATCH_ROWS, STDIN_NAME, SUFFIXES, may_hold_rows
from icedb_client.transport import CommitReport, EnqueuedBatch
from icedb_log.commit.fence import look_at_fence
from icedb_log.errors import IceDBError, InvalidRequest, TableHalted, Unavailable
from icedb_log.formats import DataFormat
from icedb_log.imports.import_sources import parse_pattern
from icedb_log.ingest.pressure import describe_halt
from icedb_log.names import INGEST_FLUSH, INGEST_IMPORT, TASKS
from icedb_log.units import parse_duration
from rich.markup import escape

from icedb.cli.output import (
    Show,
    count_of,
    format_bytes,
    format_count,
    format_span,
    out,
    print_error,
    print_json,
    print_note,
    print_pairs,
    print_table,
    progress,
)
from icedb.cli.runner import FAILED, Run, TableName, TimedOut, argument, command, flag, option

MAX_SHOWN_QUARANTINED: Final = 5
MAX_SHOWN_FAULTS: Final = 5
"""Of one batch: the others are as many lines more."""
MAX_SHOWN_PARTITIONS: Final = 20
MAX_SHOWN_REASONS: Final = 20
LONE_WAIT_MS: Final = 5000
"""How long --wait waits for a worker that nobody can wake: those look by themselves, every second or two. After so long
it also looks whether anybody has taken the wake-up."""
COMMIT_HINT: Final = "`icedb work --once` commits them now, `icedb work` or `make up` from now on"
_SHOWN: Final = 80


@command()
def ingest(
    run: Run,
    *,
    table: TableName,
    source: str = argument("A file, a folder of files, or - for standard input.", metavar="FILE"),
    batch_rows: int = option("--batch-rows", "Most events of one batch.", DEFAULT_BATCH_ROWS, min=1),
    from_row: int = option("--from-row", "Continue at this row of the file, counted from 1.", 1, min=1),
    batch_id: str | None = option(
        "--batch-id", "Id of the first batch, if it may have been accepted already; an error message names it."
    ),
    once: bool = flag("--once", "Ingest a file once: the same bytes are not ingested again for a day."),
    input_format: DataFormat | None = option(
        "--input-format", "Format of the input, if neither content nor name shows it (CSV from a pipe)."
    ),
    retry: str = option(
        "--retry", "How long to retry a batch that is not accepted; 0s tries once.", "5m", metavar="TIME"
    ),
    wait: bool = flag("--wait", "Wait until workers have committed every batch; fail if one is quarantined."),
    commit: bool = flag("--commit", "Commit in this process, without Redis and worker; fail if one is quarantined."),
    timeout: str = option("--timeout", "How long --wait waits.", "5m", metavar="TIME"),
) -> None:
    """Enqueue events: NDJSON, a JSON array, CSV (plain, gzip or zstd), Parquet or Arrow IPC.

    An accepted batch is durable: it will be committed, or quarantined with the reason.
    """
    run = _choose_client(run, wait=wait, commit=commit)
    if once and from_row > 1:
        raise InvalidRequest("--once knows what was accepted: give the whole file, without --from-row")
    timeout_ms, retry_ms = parse_duration(timeout, option="--timeout"), parse_duration(retry, option="--retry")
    paths = _find_files(source, is_forced=input_format is not None)
    _require_one(paths, source, is_needed=from_row > 1 or batch_id is not None)
    how = {
        "batch_rows": batch_rows,
        "first_row": from_row,
        "batch_id": batch_id,
        "data_format": input_format,
        "retry_ms": retry_ms,
        "once": once,
    }
    batches: list[EnqueuedBatch] = []
    try:
        sizes = [path.stat().st_size for path in paths if path is not None]
        total = sum(sizes) if len(sizes) == len(paths) else None
        with progress(table, is_quiet=run.as_data, in_bytes=True) as show:
            for number, path in enumerate(paths):
                before = sum(sizes[:number])
                batches.extend(_enqueue(run, table, path, show=partial(_show_from, show, before, total), how=how))
    except IceDBError as error:
        hint = _resume_hint(error, batches, file_count=len(paths), from_row=from_row, once=once)
        error.args = (f"{error}{hint}",)
        raise
    except KeyboardInterrupt:
        if batches:
            print_note(
                f"{count_of(_count_rows(batches), 'row')} accepted in {count_of(len(batches), 'batch')}, up to row "
                f"{batches[-1].last_row or '?'} of the last file; the batch that was on its way may be, too"
            )
        raise
    fresh = [batch for batch in batches if not batch.is_repeated]
    report = {
        "table": table,
        "batches": len(fresh),
        "rows": _count_rows(fresh),
        "raw_bytes": sum(batch.raw_bytes for batch in fresh),
        "staged_bytes": sum(batch.staged_bytes for batch in fresh),
        "repeated": len(batches) - len(fresh),
        "woken": all(batch.is_woken for batch in batches),
        "batch_ids": [batch.batch_id for batch in batches],
    }
    if not run.as_data:
        is_lone = not (wait or commit or report["woken"]) and not look_at_fence(run.place(table)).is_worker_alive
        _print_accepted(run, report, will_wait=wait or commit, is_lone=is_lone)
    if (wait or commit) and batches:
        fresh_ids = [batch.batch_id for batch in fresh]
        _wait(run, report, fresh_ids, timeout_ms=None if commit else timeout_ms)
    if run.as_data:
        print_json(report)
    if report.get("quarantined") or report.get("bad_rows") or report.get("conflicts"):
        raise typer.Exit(FAILED)


def _choose_client(run: Run, *, wait: bool, commit: bool) -> Run:
    """Return the run with a client that wakes nobody, if this process commits. Raises InvalidRequest."""
    if wait and commit:
        raise InvalidRequest("--wait waits for a worker's commit, --commit makes it here: give one of them")
    if commit and run.client.settings.address is not None:
        raise InvalidRequest(
            f"--commit writes to the store, and events are sent to {run.client.settings.address}: give --store, or "
            "--wait instead of --commit"
        )
    return replace(run, client=run.open_lake().client) if commit else run


def _require_one(paths: list[Path | None], source: str, *, is_needed: bool) -> None:
    if is_needed and len(paths) > 1:
        raise InvalidRequest(f"--from-row and --batch-id are for one file, but {source} has {len(paths)}")


def _show_from(show: Show, before: int, total: int | None, done: int, name: str) -> None:
    show(before + done, total, name)


def _enqueue(run: Run, table: str, path: Path | None, *, show: Show, how: Mapping[str, Any]) -> Iterator[EnqueuedBatch]:
    name, source = (STDIN_NAME, sys.stdin.buffer) if path is None else (path.name, path)
    done, told = 0, set[type[Exception]]()

    def tell(wait: Wait) -> None:
        """Tell a person that a batch waits: in the progress bar, and once for each reason on a line."""
        span = format_span(wait.pause_ms)
        show(done, f"{name} waits {span}")
        if type(wait.error) not in told:
            told.add(type(wait.error))
            print_note(f"waiting {span} before the batch is sent again (--retry bounds this): {wait.error}")

    show(done, name)
    for batch in run.client.enqueue_file(table, source, on_wait=tell, **how):
        done = batch.position
        show(done, name)
        yield batch


def _find_files(source: str, *, is_forced: bool) -> list[Path | None]:
    if source == "-":
        return [None]
    path = Path(source)
    try:
        if path.is_dir():
            shown = (file for file in sorted(path.rglob("*")) if not _is_hidden(file.relative_to(path)))
            files: list[Path | None] = [
                file for file in shown if file.is_file() and (is_forced or may_hold_rows(file.name))
            ]
            if not files:
                wanted = "file" if is_forced else f"{', '.join(SUFFIXES)} file (--input-format takes all files)"
                raise InvalidRequest(f"{source}: no {wanted} in this folder")
            return files
        is_there = path.exists()
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{source[:200]!r} is not a usable file name: {error.__class__.__name__}") from error
    if not is_there:
        raise InvalidRequest(f"{source}: no such file; give a file, a folder, or - for standard input")
    return [path]


def _is_hidden(file: Path) -> bool:
    """Return whether it is no data to readers of folders, as Spark: so are ``_data`` and ``_log`` of a warehouse."""
    return any(part.startswith(("_", ".")) for part in file.parts)


def _print_accepted(run: Run, report: dict[str, Any], *, will_wait: bool, is_lone: bool) -> None:
    if report["repeated"]:
        print_note(f"{count_of(report['repeated'], 'batch')} with the same bytes accepted before (--once)")
    if not report["batches"]:
        if not report["repeated"]:
            print_note("nothing to ingest: the input has no rows")
        return
    out.print(
        f"{count_of(report['rows'], 'row')} accepted in {count_of(report['batches'], 'batch')} "
        f"({format_bytes(report['raw_bytes'])}, staged as {format_bytes(report['staged_bytes'])})"
    )
    if is_lone:
        print_note(f"not committed yet, and no worker has been seen: {COMMIT_HINT}")
    if not will_wait:
        can_commit = run.client.settings.address is None
        print_note(
            f"what does not fit the table goes to quarantine: `icedb quarantine list {report['table']}` shows it with "
            "the reason; --wait waits for a worker's commit and says it here"
            + (", --commit commits in this process" if can_commit else "")
        )


def _count_rows(batches: list[EnqueuedBatch]) -> int | None:
    counts = [batch.row_count for batch in batches]
    return None if None in counts else sum(count for count in counts if count is not None)


def _resume_hint(error: IceDBError, batches: list[EnqueuedBatch], *, file_count: int, from_row: int, once: bool) -> str:
    """Return what to add to an error, so that nothing is missing or twice in the end."""
    if not batches and not isinstance(error, Undelivered):
        return ""
    if once:
        return ". The same command again goes on: what was accepted is not ingested again"
    accepted = f". {count_of(_count_rows(batches), 'row')} before it accepted in {count_of(len(batches), 'batch')}"
    last = batches[-1].last_row if batches else from_row - 1
    if file_count > 1 or last is None:
        return f"{accepted}: do not ingest them again"
    go_on = f"go on with --from-row {last + 1}"
    if isinstance(error, Undelivered):
        return f"{accepted}; this one may be accepted, too: {go_on} --batch-id {error.batch_id}, and it is taken once"
    return f"{accepted}: {'try again and' if isinstance(error, Unavailable) else 'correct it and'} {go_on}"


def _wait(run: Run, report: dict[str, Any], fresh_ids: Sequence[str], *, timeout_ms: int | None) -> None:
    """Wait for the commit, or make it here (``None``), and add to the report what became of the batches."""
    table, ids, is_quiet = report["table"], report["batch_ids"], run.as_data
    if timeout_ms is None:
        timeout_ms = 0
        from icedb.table_writer import StagedBatch  # noqa: PLC0415 - what commits here comes with it

        with progress("committing", is_quiet=is_quiet):
            run.open_lake().table(table).commit({each: StagedBatch() for each in fresh_ids})
    elif not report["woken"] and not look_at_fence(run.place(table)).is_worker_alive:
        timeout_ms = min(timeout_ms, LONE_WAIT_MS)
        print_note(
            f"no worker has been seen: Redis does not answer, and none has committed to table {table} for a minute; "
            f"waiting {timeout_ms / 1000:g} s for one that looks by itself"
        )
    with progress("waiting for the commit", is_quiet=is_quiet):
        found = _wait_for_worker(run, table, ids, timeout_ms=timeout_ms)
    # These batches were accepted just now: what is not staged, in quarantine or in the log any more was committed.
    committed_count = len(found.committed) + len(found.unknown)
    report["committed"] = committed_count
    report["waiting"] = list(found.waiting)
    report["quarantined"] = [{"batch_id": batch.batch_id, "reason": batch.reason} for batch in found.quarantined]
    report["bad_rows"] = [
        {"batch_id": batch.batch_id, "rows": batch.row_count, "reason": batch.reason} for batch in found.bad_rows
    ]
    report["conflicts"] = [{"entry": entry.batch_id, "reason": entry.reason} for entry in found.conflicts]
    if found.waiting:
        if is_quiet:
            print_json(report)
        if found.halted:
            raise TableHalted(
                f"{describe_halt(table, found.halted)}. {len(found.waiting)} of {len(ids)} batches wait: they stay "
                "accepted, and are committed once that is mended"
            )
        raise TimedOut(
            f"table {table}: {len(found.waiting)} of {len(ids)} batches are still staged after "
            f"{timeout_ms / 1000:g} s: {found.failing or 'no ingest worker has taken them'}. They stay accepted"
            + ("" if run.client.settings.address else f": {COMMIT_HINT}; --commit commits without any")
        )
    if not is_quiet:
        out.print(f"{count_of(committed_count, 'batch')} committed")
    for batch in (*found.quarantined, *found.bad_rows, *found.conflicts)[:MAX_SHOWN_QUARANTINED]:
        what = {"batch": "batch", "conflict": "other content under the id of a batch:"}.get(batch.kind)
        what = what or f"{format_count(batch.row_count)} rows of batch"
        first, rest = batch.reason.splitlines()[:MAX_SHOWN_FAULTS], batch.reason.splitlines()[MAX_SHOWN_FAULTS:]
        more = f" | … {len(rest)} more: `icedb quarantine list {table} {batch.batch_id}`" if rest else ""
        print_error(f"{what} {batch.batch_id} in quarantine: {' | '.join(first)}{more}")
    if len(found.quarantined) + len(found.bad_rows) > MAX_SHOWN_QUARANTINED:
        print_error(
            f"{len(found.quarantined)} batches and rows of {len(found.bad_rows)} more in quarantine; "
            f"see `icedb quarantine list {table}`"
        )


def _wait_for_worker(run: Run, table: str, ids: Sequence[str], *, timeout_ms: int) -> CommitReport:
    """Wait until batches are decided, or the time is over; say after a while if nobody has taken the wake-up."""
    found = run.client.wait_committed(table, ids, timeout_ms=min(timeout_ms, LONE_WAIT_MS))
    if not found.waiting or found.halted or timeout_ms <= LONE_WAIT_MS:
        return found
    if run.client.settings.address is None and _is_wakeup_waiting(run, table):
        print_note(
            "no ingest worker has taken the wake-up: none runs, or it is busy with other tables; waiting on. Beside it "
            f"{COMMIT_HINT}"
        )
    return run.client.wait_committed(table, ids, timeout_ms=timeout_ms - LONE_WAIT_MS)


def _is_wakeup_waiting(run: Run, table: str) -> bool:
    """Whether messages to ingest workers lie in Redis, and none of these has committed to the table for a minute."""
    from icedb_client.wakeups import look_at_redis  # noqa: PLC0415 - redis only where it is used

    try:
        look = look_at_redis(run.client.settings.redis_url, timeout_ms=LONE_WAIT_MS)
    except Unavailable:
        return False
    return look.waiting[TASKS[INGEST_FLUSH]] > 0 and not look_at_fence(run.place(table)).is_worker_alive


@command(timeout="1h")
def import_files(
    run: Run,
    *,
    table: TableName,
    sources: list[str] | None = argument(
        "s3://bucket/path/*.parquet, or paths of the worker's machine; ** stands for any folders. "
        "Omit with --in-place: all files below the table's data folder.",
        None,
        metavar="[FILE]...",
    ),
    in_place: bool = flag("--in-place", "The files are below this table's _data/<partition>/ already: copy nothing."),
    partition: list[str] | None = option(
        "--partition",
        "NAME=VALUE of all files, if their statistics do not prove their partition. Repeat for levels.",
    ),
    changed: bool = flag("--changed", "Import files whose content changed since they were imported as new ones."),
    dry_run: bool = flag("--dry-run", "Show what would be imported; writes nothing."),
    assume: Literal["landed", "lost"] | None = option(
        "--assume", "Whether an earlier import of these files landed, if the log does not show it any more."
    ),
) -> None:
    """Register existing Parquet files in a table, without rewriting them. Each file once, also if repeated.

    Only footers are read. Files of this machine that a worker elsewhere does not see are sent with `icedb ingest`.
    """
    if not sources and not in_place:
        raise InvalidRequest("give the files to import, e.g. 's3://bucket/path/*.parquet'")
    task = run.task(
        INGEST_IMPORT,
        table,
        {
            "sources": [to_url(source) for source in sources or ()],
            "mode": "in_place" if in_place else "copy",
            "partition": _parse_partition(partition or ()),
            "dry_run": dry_run,
            "changed": changed,
            "assume": assume,
        },
        title=f"import into table {table}",
        note=f"{'reading footers' if dry_run else 'importing'}: an ingest worker is asked; Ctrl-C stops the waiting, "
        "not the import",
        late=". The import may still go on; run it again to see: what is imported is not imported twice",
    )
    run.client.table_config(table)
    result = task.ask(run.timeout_ms)
    task.finish(result, show=lambda done: _show_import(table, done))
    if result.get("refused"):
        raise typer.Exit(FAILED)


def to_url(source: str) -> str:
    """Return a source as a URL: a path is one of this machine, relative to the working folder.

    Raises:
        InvalidRequest: It is neither, or has a form that no worker takes.
    """
    if "://" in source:
        url = source
    else:
        is_folder = source.endswith("/") or Path(source).is_dir()
        url = f"file://{os.path.abspath(source)}{'/' if is_folder else ''}"  # noqa: PTH100 - wildcards are no path
    parse_pattern(url)
    return url


def _parse_partition(texts: Iterable[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise InvalidRequest(f"--partition {text[:_SHOWN]!r}: write NAME=VALUE, e.g. d=2026-01-31")
        if name in values:
            raise InvalidRequest(f"--partition {name[:_SHOWN]!r} is given twice: all files get one value")
        values[name] = value
    return values


def _show_import(table: str, result: dict[str, Any]) -> None:
    verb = "would be imported" if result["dry_run"] else "imported"
    if result["files"]:
        print_pairs(
            {
                "table": table,
                f"files {verb}": format_count(result["files"]),
                "rows": format_count(result["rows"]),
                "size": format_bytes(result["bytes"]),
                "partitions": format_count(result["partition_count"]),
                "commits": None if result["dry_run"] else format_count(result["commits"]),
            }
        )
        shown = result["partitions"][:MAX_SHOWN_PARTITIONS]
        if any(each["partition"] for each in shown):
            rows = ((each["partition"], format_count(each["rows"])) for each in shown)
            print_table(("partition", ">rows"), rows)
        if result["partition_count"] > len(shown):
            print_note(f"and {format_count(result['partition_count'] - len(shown))} partitions more; -o json has them")
    elif not result["refused"]:
        out.print(f"nothing to import into table [bold]{escape(table)}[/]")
    for name, words in (
        ("imported_before", "were imported already"),
        ("empty", "have no rows"),
        ("unsorted", "do not say to be sorted as the table is; merges sort their rows"),
    ):
        if result[name]:
            print_note(f"{format_count(result[name])} files {words}")
    for each in result["reasons"][:MAX_SHOWN_REASONS]:
        print_error(f"{each['file']} is refused: {each['reason']}")
    if result["refused"] > MAX_SHOWN_REASONS:
        print_error(f"{format_count(result['refused'])} files are refused; -o json names up to 100 of them")
