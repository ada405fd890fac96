"""A stack to work with: starts everything, prints how to use it, and stops it all on Ctrl-C.

    python -m icedb_local.up [--store local|s3] [--run-dir .run] [--port 7000]

The warehouse of a directory store stays in the run folder and is there again the next time. Stacks with folders of
their own run beside each other.
"""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from icedb_log.clock import Clock, SystemClock
from icedb_log.errors import IceDBError, InvalidRequest, Unavailable
from rich.text import Text

from icedb_local.ports import LOOPBACK, HeldPorts
from icedb_local.screen import Screen, make_table
from icedb_local.stack import LocalStack, stop_on_signals
from icedb_local.stack_layout import (
    CONSOLE,
    DOORS,
    ENV_FILE,
    FRONTENDS,
    GATEWAY,
    LARGE,
    STORE_KINDS,
    WORKERS,
    StackLayout,
    StackPorts,
)
from icedb_local.supervisor_config import log_path

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
POLL_MS: Final = 500
LATE: Final = frozenset({"merger", LARGE})
"""Nobody waits for the first merge: on a laptop its Spark takes memory when there is something to merge."""
EVENT: Final = '{"ts": "2026-01-02T03:04:05Z", "event": "signup", "user": 7}'
CURL: Final = (
    "curl -H 'Content-Type: application/x-ndjson' --data-binary '" + EVENT + "' {http}/v1/tables/events/batches"
)
EXAMPLES: Final = (
    ("a table by day, sorted", "icedb table create events --partition 'd=day(ts)' --sort event,ts"),
    ("send events, one JSON object a line with a time in ts", "icedb ingest events events.ndjson --address {http}"),
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
    add_port_option(parser)
    options = parser.parse_args(arguments)
    clock = SystemClock()
    screen = Screen(clock=clock)
    choose_ports = partial(choose_and_tell, options.port, screen)
    try:
        with stop_on_signals():
            layout = StackLayout(
                Path(options.run_dir).resolve(),
                options.store,
                StackPorts(),
                has_frontend=True,
                has_console=True,
                late=LATE,
            )
            _run(layout, choose_ports, screen, clock)
    except IceDBError as error:
        screen.console.print(f"icedb up: {error}", style="red", markup=False, soft_wrap=True)
        return EXIT_USAGE if isinstance(error, InvalidRequest) else EXIT_FAILED
    except KeyboardInterrupt:
        screen.console.print("\nStopped; nothing is left running.")
        return 0


def _run(
    layout: StackLayout, choose_ports: Callable[[HeldPorts], StackPorts], screen: Screen, clock: Clock
) -> NoReturn:
    progress = screen.make_progress()
    begin_ms = clock.monotonic_ms()
    answering: set[str] = set()

    def note_ready(name: str) -> None:
        if name in answering:  # all begins again, on other ports
            answering.clear()
            screen.say("A port was lost to somebody else while this started: all begins again, on others")
        answering.add(name)
        progress.update(bar, completed=len(answering))
        screen.say(f"{name} answers ({len(answering)} of {len(names)})")
        if name in DOORS and answering.issuperset(DOORS):
            tell("The stack is up: it takes batches and answers queries. Ctrl-C stops it.")
            _show_usage(stack.layout, screen)
            screen.say("Spark still starts: what is sent until then is kept, and can be queried afterwards")

    def tell(what: str) -> None:
        took = f"({(clock.monotonic_ms() - begin_ms) / 1000:.0f} s)"
        screen.console.print(Text.assemble(screen.mark(holds=True), " ", (what, "bold"), " ", (took, "dim")))

    stack = LocalStack(layout, on_ready=note_ready, choose_ports=choose_ports)
    names = stack.program_names
    screen.say(f"Starting {', '.join(names)}; logs: {layout.run_dir / 'logs'}")
    bar = progress.add_task("servers and workers", total=len(names), note="")
    try:
        with progress:
            stack.start()
        tell("Spark is ready: what is sent can be queried a second or two later.")
        while stack.is_alive():
            clock.sleep_ms(POLL_MS)
        raise Unavailable(f"the supervisor ended by itself; log: {log_path(layout.run_dir, 'supervisord')}")
    except KeyboardInterrupt:
        screen.console.print("\nStopping everything ...", style="dim")
        raise
    finally:
        stack.stop()


def add_port_option(parser: argparse.ArgumentParser) -> None:
    """Let a command choose where its stack listens."""
    parser.add_argument(
        "--port",
        type=int,
        help="HTTP listens there, the others on the ports after it (default: the usual ones, or free ones)",
    )


def choose_and_tell(base: int | None, screen: Screen, held: HeldPorts) -> StackPorts:
    """Hold ports, and say which of the usual ones are taken. Raises what StackPorts.choose raises."""
    ports = StackPorts.choose(held, base)
    usual = dataclasses.asdict(StackPorts())
    moved = [f"{usual[name]} ({name})" for name, port in dataclasses.asdict(ports).items() if port != usual[name]]
    if moved and base is None:
        screen.say(f"Taken by others, and replaced by free ports: {', '.join(moved)}")
    return ports


def _show_usage(layout: StackLayout, screen: Screen) -> None:
    console = screen.console
    here = Path.cwd()
    env_file = layout.run_dir / ENV_FILE
    shown = env_file.relative_to(here) if env_file.is_relative_to(here) else env_file
    console.print(f"\nIn another terminal, `source {shown}`, which says:\n", soft_wrap=True)
    for line in layout.export_lines():
        console.print(Text("  " + line, "cyan"), soft_wrap=True)
    console.print()
    for what, command in EXAMPLES:
        console.print(Text(f"  # {what}", "dim"), soft_wrap=True)
        console.print(Text("  " + command.replace("{http}", layout.http_url)), soft_wrap=True)
    console.print()
    table = make_table("", "", left=2)
    table.show_header = False
    table.add_row(Text("Console", "bold"), Text(layout.console_url, "bold"))
    table.add_row(Text("gRPC", "dim"), f"{layout.snapshot_address}  (SnapshotService, health, reflection)")
    table.add_row(Text("gRPC", "dim"), f"{layout.grpc_address}  (IngestService, health, reflection)")
    table.add_row(Text("HTTP", "dim"), f"{layout.http_url}/v1/tables/<table>/batches, …/segment")
    table.add_row(Text("Celery", "dim"), f"{layout.redis_url}, queue enqueue, task icedb.ingest.enqueue")
    table.add_row(Text("S3", "dim"), f"{layout.s3_url}  (read-only: s3://icedb/<table>/**/*.parquet, any key pair)")
    table.add_row(Text("Iceberg", "dim"), f"{layout.iceberg_url}  (read-only REST catalog: icedb.<table>)")
    for name in ("snapshot", *WORKERS, LARGE, *FRONTENDS, GATEWAY, CONSOLE):
        table.add_row(Text(name, "dim"), f"http://{LOOPBACK}:{layout.ports.metrics_of(name)}/metrics")
    table.add_row(Text("logs", "dim"), str(layout.run_dir / "logs"))
    if layout.store == "s3":
        table.add_row(Text("note", "dim"), "the S3 server keeps objects in memory: they are gone when it stops")
    screen.show_table(table)


if __name__ == "__main__":
    sys.exit(main())
