"""The demo: a real stack, a million events, and proof that nothing is lost, doubled or left behind.

    python -m icedb_local.demo [--store local|s3] [--input FILE] [--events N] [--batches N] [--port P] [--json]

Exits 0 when everything holds, 1 when something does not, 2 for a wrong argument or input, 130 after Ctrl-C.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

from icedb_log.clock import Clock, SystemClock
from icedb_log.errors import IceDBError, InvalidRequest, NotFound

from icedb_local.demo_plan import DemoPlan, plan_file, plan_generated
from icedb_local.demo_report import make_steps_table, show_charts, show_verdict
from icedb_local.demo_run import DemoRun
from icedb_local.event_files import EventFile
from icedb_local.lake import Lake
from icedb_local.ports import HeldPorts
from icedb_local.screen import Screen, StepTime, make_console
from icedb_local.stack import LocalStack, stop_on_signals
from icedb_local.stack_layout import STORE_KINDS, StackLayout, StackPorts
from icedb_local.up import add_port_option, choose_and_tell

EXIT_BROKEN: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit status."""
    options = _parse(arguments)
    clock = SystemClock()
    screen = Screen(make_console(is_error_stream=options.json), clock=clock)
    run_dir = Path(tempfile.mkdtemp(prefix="icedb-demo-")).resolve()
    is_kept = bool(options.keep)
    try:
        with stop_on_signals():
            plan = _make_plan(options)
            choose_ports = partial(choose_and_tell, options.port, screen)
            report = run_demo(plan, run_dir, choose_ports, screen=screen, clock=clock)
    except (InvalidRequest, NotFound) as error:
        screen.console.print(f"icedb demo: {error}", style="red", markup=False, soft_wrap=True)
        return EXIT_USAGE
    except IceDBError as error:
        is_kept = True
        screen.console.print(f"icedb demo: {error}", style="red", markup=False, soft_wrap=True)
        screen.console.print(f"The logs of the services are in {run_dir / 'logs'}", markup=False)
        return EXIT_BROKEN
    except KeyboardInterrupt:
        screen.console.print("\nStopped; nothing is left running.")
        return EXIT_INTERRUPTED
    finally:
        if not is_kept:
            shutil.rmtree(run_dir, ignore_errors=True)
    if options.json:
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
    return 0 if report["ok"] else EXIT_BROKEN


def run_demo(
    plan: DemoPlan, run_dir: Path, choose_ports: Callable[[HeldPorts], StackPorts], *, screen: Screen, clock: Clock
) -> dict[str, Any]:
    """Start a stack, run the plan on it, stop it, and report.

    Args:
        plan: What to do.
        run_dir: An empty folder.
        choose_ports: Where it listens.
        screen: Where to show it.
        clock: For waiting and timing.

    Returns:
        What ``--json`` writes.

    Raises:
        IceDBError: The stack did not start, or a step could not be done at all. Everything is stopped by then.
    """
    begin_ms = clock.monotonic_ms()
    store = "local directory" if plan.store == "local" else "S3 over HTTP"
    title = f"IceDB demo: {plan.row_count:,} events in {plan.batch_count:,} batches, store: {store}"
    screen.console.print(title, style="bold")
    layout = StackLayout(run_dir, plan.store, StackPorts(), plan.service_env)
    progress = screen.make_progress()
    stack = LocalStack(layout, on_ready=lambda _: progress.advance(bar), choose_ports=choose_ports)
    bar = progress.add_task("servers and workers", total=len(stack.program_names), note="")
    try:
        with screen.step("Start the stack"):
            with progress:
                stack.start()
            screen.say(f"{', '.join(stack.program_names)} answer")
        with Lake(stack.layout, clock=clock) as lake:
            run = DemoRun(plan, lake, screen, clock=clock)
            run.run()
    except BaseException:
        screen.console.print("Stopping everything ...", style="dim")
        raise
    finally:
        stop_begin_ms = clock.monotonic_ms()
        stack.stop()
    screen.step_times.append(StepTime("Stop the stack", (clock.monotonic_ms() - stop_begin_ms) / 1000))
    took_s = (clock.monotonic_ms() - begin_ms) / 1000
    screen.console.print()
    show_charts(screen, run.sampler, plan.tables[0].name)
    screen.console.print()
    screen.show_table(make_steps_table(screen.step_times))
    show_verdict(screen, run.checks, took_s=took_s)
    return {
        "ok": run.checks.is_ok,
        "store": plan.store,
        "events": plan.row_count,
        "batches": plan.batch_count,
        "seconds": round(took_s, 2),
        "checks": [asdict(check) for check in run.checks.checks],
        "counts": [asdict(count) for count in run.counts],
        "steps": [asdict(step) for step in screen.step_times],
        "samples": {table: [asdict(one) for one in samples] for table, samples in run.sampler.samples.items()},
    }


def _make_plan(options: argparse.Namespace) -> DemoPlan:
    if options.input:
        return plan_file(options.store, EventFile(Path(options.input), options.ts_column))
    return plan_generated(options.store, event_count=options.events, batch_count=options.batches, seed=options.seed)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m icedb_local.demo",
        description="Run the warehouse's main job on a real local stack, and check that it does what it promises.",
    )
    parser.add_argument("--store", choices=STORE_KINDS, default="local", help="a directory, or S3 over HTTP")
    parser.add_argument(
        "--input", metavar="FILE", help="your own NDJSON (.ndjson, .gz, .zst) instead of made-up events"
    )
    parser.add_argument("--ts-column", default="ts", help="time column of the input (default: %(default)s)")
    parser.add_argument("--events", type=int, default=1_000_000, help="how many to make (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=200, help="in how many batches (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same events (default: %(default)s)")
    add_port_option(parser)
    parser.add_argument("--json", action="store_true", help="write the result to standard output as JSON")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the logs and the warehouse")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
