"""A stack to work with: starts everything on fixed ports, prints how to use it, and stops it all on Ctrl-C.

    python -m icedb_local.up [--store local|s3] [--run-dir .run]

The warehouse of a directory store stays in the run folder and is there again the next time.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from icedb_log.clock import Clock, SystemClock
from icedb_log.errors import IceDBError, InvalidRequest, Unavailable
from rich.text import Text

from icedb_local.ports import LOOPBACK
from icedb_local.screen import Screen, make_table
from icedb_local.stack import LocalStack, stop_on_signals
from icedb_local.stack_layout import FRONTENDS, GATEWAY, LARGE, STORE_KINDS, WORKERS, StackLayout, StackPorts

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
POLL_MS: Final = 500
EVENT: Final = '{"ts": "2026-01-02T03:04:05Z", "event": "signup", "user": 7}'
CURL: Final = (
    "curl -H 'Content-Type: application/x-ndjson' --data-binary '" + EVENT + "' {http}/v1/tables/events/batches"
)
EXAMPLES: Final = (
    ("a table by day, sorted", "icedb table create events --partition 'd=day(ts)' --sort event,ts"),
    ("send events, one JSON object a line with a time in ts", "icedb ingest events events.ndjson"),
    ("the same over HTTP, from anything; docs/ingest.md has gRPC, webhooks and Celery", CURL),
    ("ask, a second or two later", 'icedb query "select event, count(*) from events group by all"'),
    ("how the table is, and which files it has now", "icedb status events && icedb snapshot events"),
    ("merge now; what could be deleted", "icedb merge events --full && icedb vacuum events --dry-run"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a stack until Ctrl-C; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m icedb_local.up", description="Keep a local stack running; Ctrl-C stops it."
    )
    parser.add_argument("--store", choices=STORE_KINDS, default="local", help="a directory, or S3 over HTTP")
    parser.add_argument("--run-dir", default=".run", help="logs and warehouse (default: %(default)s)")
    options = parser.parse_args(arguments)
    clock = SystemClock()
    screen = Screen(clock=clock)
    layout = StackLayout(Path(options.run_dir).resolve(), options.store, StackPorts(), has_frontend=True)
    try:
        with stop_on_signals():
            _run(layout, screen, clock)
    except InvalidRequest as error:
        screen.console.print(f"icedb up: {error}", style="red", markup=False, soft_wrap=True)
        return EXIT_USAGE
    except IceDBError as error:
        screen.console.print(f"icedb up: {error}", style="red", markup=False, soft_wrap=True)
        return EXIT_FAILED
    except KeyboardInterrupt:
        screen.console.print("\nStopped; nothing is left running.")
        return 0


def _run(layout: StackLayout, screen: Screen, clock: Clock) -> NoReturn:
    progress = screen.make_progress()
    answering: list[str] = []

    def note_ready(name: str) -> None:
        answering.append(name)
        progress.advance(bar)
        screen.say(f"{name} answers ({len(answering)} of {len(stack.program_names)})")

    stack = LocalStack(layout, on_ready=note_ready)
    screen.say(f"Starting {', '.join(stack.program_names)}; logs: {layout.run_dir / 'logs'}")
    bar = progress.add_task("servers and workers", total=len(stack.program_names), note="")
    try:
        with progress:
            stack.start()
        _show_usage(layout, screen)
        while stack.is_alive():
            clock.sleep_ms(POLL_MS)
        raise Unavailable(f"the supervisor ended by itself:\n{stack.read_log_tail('supervisord')}")
    except KeyboardInterrupt:
        screen.console.print("\nStopping everything ...", style="dim")
        raise
    finally:
        stack.stop()


def _show_usage(layout: StackLayout, screen: Screen) -> None:
    console = screen.console
    console.print(Text.assemble(screen.mark(holds=True), " ", ("The stack is up. Ctrl-C stops it.", "bold")))
    console.print("\nIn another terminal, from this folder:\n")
    bin_dir = Path(sys.executable).parent
    shown_bin = bin_dir.relative_to(Path.cwd()) if bin_dir.is_relative_to(Path.cwd()) else bin_dir
    lines = [
        f'export PATH="$PWD/{shown_bin}:$PATH"' if not shown_bin.is_absolute() else f'export PATH="{bin_dir}:$PATH"'
    ]
    lines += [f"export {name}={value}" for name, value in layout.client_env().items()]
    for line in lines:
        console.print(Text("  " + line, "cyan"), soft_wrap=True)
    console.print()
    for what, command in EXAMPLES:
        console.print(Text(f"  # {what}", "dim"), soft_wrap=True)
        console.print(Text("  " + command.replace("{http}", layout.http_url)), soft_wrap=True)
    console.print()
    table = make_table("", "", left=2)
    table.show_header = False
    table.add_row(Text("gRPC", "dim"), f"{layout.snapshot_address}  (SnapshotService, health, reflection)")
    table.add_row(Text("gRPC", "dim"), f"{layout.grpc_address}  (IngestService, health, reflection)")
    table.add_row(Text("HTTP", "dim"), f"{layout.http_url}/v1/tables/<table>/batches, …/segment")
    table.add_row(Text("Celery", "dim"), f"{layout.redis_url}, queue enqueue, task icedb.ingest.enqueue")
    table.add_row(Text("S3", "dim"), f"{layout.s3_url}  (read-only: s3://icedb/<table>/**/*.parquet, any key pair)")
    for name in ("snapshot", *WORKERS, LARGE, *FRONTENDS, GATEWAY):
        table.add_row(Text(name, "dim"), f"http://{LOOPBACK}:{layout.ports.metrics_of(name)}/metrics")
    table.add_row(Text("logs", "dim"), str(layout.run_dir / "logs"))
    if layout.store == "s3":
        table.add_row(Text("note", "dim"), "the S3 server keeps objects in memory: they are gone when it stops")
    screen.show_table(table)


if __name__ == "__main__":
    sys.exit(main())
