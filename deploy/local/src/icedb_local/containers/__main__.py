"""Start the whole of ``deploy/compose.yaml`` in containers, let them fail, and check every row.

python -m icedb_local.containers [--rows 1000000] [--seed N] [--keep]

Exits 0 when everything holds, or when this machine cannot run it (it says what is missing), 1 when something does not
hold.
"""

import json
import secrets
import tomllib
from pathlib import Path
from typing import Annotated, Final

import typer
from icedb_log.clock import SystemClock
from icedb_log.errors import IceDBError

from icedb_local.containers.composed import Release
from icedb_local.containers.containers_run import ContainersRun
from icedb_local.containers.podman import Podman, find_missing
from icedb_local.screen import Screen
from icedb_local.stack import stop_on_signals

EXIT_FAILED: Final = 1
ROOT: Final = Path(__file__).resolve().parents[5]
FOLDER: Final = Path("/var/tmp/icedb-containers")  # short: sockets lie in it  # nosec B108
MAX_SEED: Final = 2**31

app: Final = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def containers(
    *,
    rows: Annotated[int, typer.Option(min=1, help="So many rows have to come in.")] = 1_000_000,
    seed: Annotated[int | None, typer.Option(help="Of the rows; by default a fresh one.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the images, for a quicker next run.")] = False,
    output: Annotated[Path | None, typer.Option(help="Where bills of materials, logs and the result go.")] = None,
) -> None:
    """Start everything in containers, kill and restart them under load, and check every row."""
    screen = Screen()
    if missing := find_missing():
        screen.console.print(f"containers: skipped, this machine has no {'; no '.join(missing)}", markup=False)
        return
    folder = (output or ROOT / "build" / "containers").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    run: ContainersRun | None = None
    with stop_on_signals():
        try:
            with Podman(FOLDER, keeps_images=keep) as podman:
                run = ContainersRun(
                    podman,
                    Release.read(version, ROOT),
                    row_count=rows,
                    folder=folder,
                    seed=secrets.randbelow(MAX_SEED) if seed is None else seed,
                    clock=SystemClock(),
                    say=screen.say,
                )
                run.run()
        except IceDBError as error:
            screen.console.print(f"containers: {error}\n   logs in {folder}", style="red", markup=False)
            raise typer.Exit(EXIT_FAILED) from error
    report = to_json(run)
    (folder / "containers.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    screen.say(f"the report is {folder / 'containers.json'}, the logs are beside it")
    for violation in run.checker.violations:
        screen.console.print(f"{violation.table} {violation.reader}: {violation.what}", style="red", markup=False)
    if run.checker.violations:
        raise typer.Exit(EXIT_FAILED)
    screen.say("every row is there once")


def to_json(run: ContainersRun) -> dict[str, object]:
    """Return what a run found."""
    return {
        **run.load.to_json(),
        "release": run.release.version,
        "images": [
            {"name": one.name, "size_mb": one.size_mb, "packages": len(one.packages), "faults": one.faults}
            for one in run.images
        ],
        "phase_seconds": run.phase_seconds,
        "rows_found": run.rows_found,
    }


if __name__ == "__main__":
    app()
