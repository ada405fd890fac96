"""Chaos: a real stack under load, faults at random from a seed, and proof that no row is lost or doubled.

python -m icedb_local.chaos [--seconds 300] [--faults 0] [--seed N] [--engine spark|light] [--short]
"""

import secrets
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Final

import typer
from icedb_log.clock import SystemClock
from icedb_log.errors import IceDBError

from icedb_local.chaos.chaos_layout import ChaosLayout, Pace
from icedb_local.chaos.chaos_report import ChaosReport
from icedb_local.chaos.chaos_run import ChaosPlan, ChaosRun
from icedb_local.chaos.fault_plan import PlanShape
from icedb_local.screen import Screen
from icedb_local.stack import stop_on_signals

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
SHORT_PACE: Final = Pace(
    log_grace_ms=8_000,
    data_grace_ms=8_000,
    orphan_age_ms=240_000,
    lock_ttl_ms=1_200,
    read_timeout_ms=1_500,
    sweep_ms=800,
)
SHORT_SHAPE: Final = PlanShape(gap_ms=300, longest_ms=1_600, left_out=("enqueue",))
SHORT_PAUSE_S: Final = 0.15
SHORT_SCRAPE_S: Final = 0.5
MAX_SEED: Final = 2**31

app: Final = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")


@app.command()
def chaos(
    *,
    seconds: Annotated[
        int,
        typer.Option(min=1, help="How long faults go on; see docs/internals/chaos.md for longer."),
    ] = 300,
    faults: Annotated[int, typer.Option(min=0, help="Enough after so many faults; 0: go by time.")] = 0,
    seed: Annotated[str, typer.Option(help="Of faults and rows; by default a fresh one.")] = "",
    engine: Annotated[str, typer.Option(help="spark, or light: units of work without Spark.")] = "spark",
    short: Annotated[
        bool, typer.Option("--short", help="Each kind of fault once, quickly: what `make test` runs.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="Where the JSON goes; by default beside the run.")] = None,
) -> None:
    """Let a whole stack fail in every way, and check that no row is lost or doubled."""
    if engine not in ("spark", "light"):
        raise typer.BadParameter("spark or light", param_hint="--engine")
    try:
        number = int(seed) if seed else secrets.randbelow(MAX_SEED)
    except ValueError as error:
        raise typer.BadParameter("a whole number", param_hint="--seed") from error
    screen, clock = Screen(), SystemClock()
    run_dir = Path(tempfile.mkdtemp(prefix="icedb-chaos-")).resolve()
    if short:
        layout = ChaosLayout.make(run_dir, pace=SHORT_PACE, engine="light", left_out=frozenset(SHORT_SHAPE.left_out))
        plan = ChaosPlan(
            number,
            seconds,
            faults,
            SHORT_SHAPE,
            each_kind_once=True,
            pause_s=SHORT_PAUSE_S,
            scrape_s=SHORT_SCRAPE_S,
            waits_for_orphans=False,
        )
    else:
        layout = ChaosLayout.make(run_dir, pace=Pace(), engine="light" if engine == "light" else "spark")
        plan = ChaosPlan(number, seconds, faults)
    screen.say(f"seed {number}; the run is in {run_dir}")
    began_ms = clock.monotonic_ms()
    run = ChaosRun(plan, layout, clock, screen.say)
    try:
        with stop_on_signals():
            run.run()
    except IceDBError as error:
        screen.console.print(f"chaos: {error}\n   seed {number}; logs in {run_dir / 'logs'}", style="red", markup=False)
        raise typer.Exit(EXIT_FAILED) from error
    options = "--short" if short else f"--seconds {seconds} --faults {faults} --engine {layout.engine}"
    command = f"python -m icedb_local.chaos --seed {number} {options}"
    report = ChaosReport(run, (clock.monotonic_ms() - began_ms) / 1000, command)
    report.show(screen)
    path = output or run_dir / "chaos.json"
    report.write(path)
    if report.is_ok and output is not None:
        shutil.rmtree(run_dir, ignore_errors=True)
    else:
        screen.say(f"the report is {path}")
    if not report.is_ok:
        raise typer.Exit(EXIT_FAILED)


if __name__ == "__main__":
    sys.exit(app())
