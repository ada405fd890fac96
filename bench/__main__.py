"""``python -m bench NAME``: run one workload and write ``bench/results/NAME.json``."""

import importlib
import pkgutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from bench import workloads
from bench.harness import Options, print_report, run_workload, write_report

RESULTS = Path(__file__).parent / "results"


def main(
    name: Annotated[str, typer.Argument(help="workload, see bench/README.md")],
    repeat: Annotated[int, typer.Option(min=1, help="timed turns of each system")] = 5,
    events: Annotated[int, typer.Option(min=1000, help="events in the input")] = 1_000_000,
    batches: Annotated[int, typer.Option(min=1, help="batches that the input comes in")] = 40,
    size_gb: Annotated[float, typer.Option(min=0.01, help="size of the backlog, units of 10^9 bytes")] = 5.0,
    only: Annotated[str, typer.Option(help="run only the cases whose name contains this")] = "",
    objects: Annotated[int, typer.Option(min=1, help="objects to delete, where a workload deletes")] = 10_000,
    markers: Annotated[int, typer.Option(min=1, help="data files that a log names, where one is planned")] = 1_000_000,
    quick: Annotated[bool, typer.Option(help="small sizes and short turns, where there are any")] = False,  # noqa: FBT002
    results: Annotated[Path, typer.Option(help="folder for the report")] = RESULTS,
) -> None:
    """Run one workload for us and the rivals on the same data, taking turns."""
    known = sorted(module.name for module in pkgutil.iter_modules(workloads.__path__))
    if name not in known:
        typer.echo(f"no workload {name!r}; there is: {', '.join(known)}", err=True)
        raise typer.Exit(2)
    module = importlib.import_module(f"bench.workloads.{name}")
    options = Options(
        repeat_count=repeat,
        event_count=events,
        batch_count=batches,
        size_gb=size_gb,
        only=only,
        object_count=objects,
        marker_count=markers,
        is_quick=quick,
    )
    with (
        tempfile.TemporaryDirectory(prefix="icedb-bench-") as folder,
        module.open_workload(Path(folder), options) as workload,
    ):
        report = run_workload(workload, options)
    path = write_report(report, results)
    print_report(report)
    typer.echo(f"wrote {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


if __name__ == "__main__":
    typer.run(main)
