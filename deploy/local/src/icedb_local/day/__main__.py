"""A realistic day on a real stack, compressed into minutes or in real hours, with every row accounted for at its end.

python -m icedb_local.day [--minutes 15] [--rate 1] [--engine spark|light] [--seed 1] [--output FOLDER]
"""

import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Final

import typer
from icedb_log.clock import SystemClock
from icedb_log.errors import IceDBError
from icedb_log.units import HOUR_MS, MINUTE_MS

from icedb_local.day.day_plan import HOURS, DayPlan
from icedb_local.day.day_report import describe_day, show_day, write_day
from icedb_local.day.day_run import DayLayout, DayRun
from icedb_local.demo_report import show_verdict
from icedb_local.lake import Lake
from icedb_local.screen import Screen
from icedb_local.stack import LocalStack, stop_on_signals
from icedb_local.stack_layout import StackPorts

EXIT_FAILED: Final = 1

app: Final = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")


@app.command()
def day(
    *,
    minutes: Annotated[float, typer.Option(min=2, help="How long the day takes; 1440: real hours.")] = 15,
    rate: Annotated[float, typer.Option(min=0.01, help="Factor of the pace of all producers.")] = 1,
    engine: Annotated[str, typer.Option(help="spark, or light: units of work without Spark.")] = "spark",
    seed: Annotated[int, typer.Option(min=0, help="Of the rows.")] = 1,
    output: Annotated[Path, typer.Option(help="Folder for day.json and day.svg.")] = Path("build/day"),
) -> None:
    """Let a stack live through a day, and account for every row."""
    if engine not in ("spark", "light"):
        raise typer.BadParameter("spark or light", param_hint="--engine")
    screen, clock = Screen(), SystemClock()
    run_dir = Path(tempfile.mkdtemp(prefix="icedb-day-")).resolve()
    begin_ms = clock.monotonic_ms()
    screen.say(f"the run is in {run_dir}")
    try:
        with stop_on_signals():
            layout = DayLayout(
                run_dir,
                "s3",
                StackPorts.find_free(),
                DayPlan(minutes, rate, seed, 0).env,
                has_frontend=True,
                engine="light" if engine == "light" else "spark",
            )
            with ExitStack() as exits:
                with screen.step("Start the stack"):
                    stack = exits.enter_context(LocalStack(layout, clock=clock))
                lake = exits.enter_context(Lake(layout, clock=clock))
                first_ms = clock.now_ms() - HOURS * HOUR_MS + round(minutes * MINUTE_MS)
                run = DayRun(DayPlan(minutes, rate, seed, first_ms), stack, lake, clock, screen)
                run.run()
    except IceDBError as error:
        screen.console.print(f"day: {error}\n   logs in {run_dir / 'logs'}", style="red", markup=False)
        raise typer.Exit(EXIT_FAILED) from error
    document = describe_day(run)
    files = write_day(document, output)
    show_day(document, screen)
    screen.say(f"written: {', '.join(map(str, files))}")
    show_verdict(screen, run.checks, took_s=(clock.monotonic_ms() - begin_ms) / 1000)
    if not run.checks.is_ok:
        screen.say(f"the data and logs of this run are in {run_dir}")
        raise typer.Exit(EXIT_FAILED)
    shutil.rmtree(run_dir, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(app())
