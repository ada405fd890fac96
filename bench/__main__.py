"""``python -m bench [NAME …]``: run workloads, and write ``bench/results/NAME.json`` and ``docs/benchmarks.md``."""

import importlib
import pkgutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from bench import workloads
from bench.harness import RESULTS, Options, Size, run_workload, write_report
from bench.machine import read_load_average
from bench.printing import print_report
from bench.processes import ROOT
from bench.report import ORDER, PAGE, is_marked, read_reports, write_page

HEAVY: Final = ("backlog", "merge_memory", "many")
"""Workloads of several gigabytes, or thousands of streams, which only the full size has among all."""
SIZES: Final[Mapping[Size, Options]] = {
    "small": Options(1, 50_000, 10, 0.2, object_count=1_000, marker_count=20_000, size="small", case_limit_s=4),
    "middle": Options(3, 1_000_000, 40, 1.0, size="middle", case_limit_s=45),
    "full": Options(5, 1_000_000, 40, 5.0, size="full", case_limit_s=120),
}


def main(
    names: Annotated[list[str] | None, typer.Argument(help="workloads, see bench/README.md; none: all")] = None,
    size: Annotated[Size, typer.Option(help="small: five minutes for all; middle: 25 minutes; full: an hour")] = "full",
    repeat: Annotated[int | None, typer.Option(min=1, help="timed turns of each system, at most")] = None,
    events: Annotated[int | None, typer.Option(min=1000, help="events in the input")] = None,
    batches: Annotated[int | None, typer.Option(min=1, help="batches that the input comes in")] = None,
    size_gb: Annotated[float | None, typer.Option(min=0.01, help="size of the backlog, units of 10^9 bytes")] = None,
    case_limit: Annotated[float | None, typer.Option(help="seconds after which a case begins no turn more")] = None,
    only: Annotated[str | None, typer.Option(help="run only the cases whose name contains this")] = None,
    objects: Annotated[int | None, typer.Option(min=1, help="objects to delete, where a workload deletes")] = None,
    markers: Annotated[int | None, typer.Option(min=1, help="data files that a planned log names")] = None,
    results: Annotated[Path, typer.Option(help="folder for the results; docs follow the default one")] = RESULTS,
) -> None:
    """Run workloads for us and the peers on the same data, taking turns."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends as Ctrl-C does: inputs of gigabytes are removed
    known = sorted(module.name for module in pkgutil.iter_modules(workloads.__path__))
    unknown = [name for name in names or () if name not in known]
    if unknown:
        typer.echo(f"no workload {', '.join(unknown)}; there is: {', '.join(known)}", err=True)
        raise typer.Exit(2)
    chosen = {
        "repeat_count": repeat, "event_count": events, "batch_count": batches, "size_gb": size_gb, "only": only,
        "case_limit_s": case_limit,
        "object_count": objects, "marker_count": markers,
    }  # fmt: skip
    more: dict[str, Any] = {field: value for field, value in chosen.items() if value is not None}
    options = replace(SIZES[size], load_average=read_load_average(), **more)
    wanted = names or sort_names(name for name in known if size == "full" or name not in HEAVY)
    written, failed = run_all(wanted, options, results)
    if results == RESULTS and written:
        written += write_page(read_reports(results), PAGE)
    for path in written:
        typer.echo(f"wrote {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")
    if failed:
        typer.echo(f"failed: {', '.join(failed)}", err=True)
        raise typer.Exit(1)


def run_all(names: Sequence[str], options: Options, results: Path) -> tuple[list[Path], list[str]]:
    """Run one workload after the other; return what was written, and the names of those that failed."""
    written: list[Path] = []
    failed: list[str] = []
    for name in names:
        module = importlib.import_module(f"bench.workloads.{name}")
        kind = getattr(module, f"{name.title().replace('_', '')}Workload")
        try:
            with tempfile.TemporaryDirectory(prefix="icedb-bench-") as folder:
                report = run_workload(kind(Path(folder), options), options)
        except Exception:  # noqa: BLE001 - the others are worth their hour
            traceback.print_exc()
            failed.append(name)
            continue
        written.append(write_report(report, results))
        print_report(report)
        if is_marked(report):
            typer.echo("measured under load: these figures are for orientation only")
        sys.stdout.flush()
    return written, failed


def sort_names(names: Iterable[str]) -> list[str]:
    """Return workloads in the order of the page."""
    known = {name: number for number, name in enumerate(ORDER)}
    return sorted(names, key=lambda name: (known.get(name, len(known)), name))


if __name__ == "__main__":
    typer.run(main)
