"""Find Prometheus and promtool, or fetch Debian's package of them into the environment, without root.

Owns `.venv/prometheus`. The programs on PATH come first; else `apt-get download` fetches the package (with
package lists of its own in a temporary folder, so that neither root nor a fresh `apt-get update` is needed)
and `dpkg-deb -x` unpacks it. The finished folder appears by one rename: a run that is cut off leaves nothing
half done.
Never installs anything on the system.

    python deploy/prometheus/fetch.py      prints {"prometheus": "...", "promtool": "..."}
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HOME = Path(__file__).resolve().parents[2] / ".venv" / "prometheus"
"""Where the unpacked package lies."""

PROGRAMS = ("prometheus", "promtool")
TIMEOUT_S = 300
"""How long one apt or dpkg command may take."""


class FetchError(Exception):
    """The programs are neither here nor to be had; the message says what to install."""


def find_programs(home: Path = HOME) -> dict[str, str] | None:
    """Look for both programs on PATH, then below `home`.

    Args:
        home: the folder that `fetch_programs` fills.

    Returns:
        Program name to path, or None when one of them is in neither place.
    """
    for search_path in (None, str(home / "usr" / "bin")):
        found = {name: shutil.which(name, path=search_path) for name in PROGRAMS}
        if all(found.values()):
            return {name: str(path) for name, path in found.items()}
    return None


def run(command: list[str], *, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run one command to its end, its output kept for the error message."""
    return subprocess.run(  # noqa: PLW1510  the caller looks at the exit code: a first try may fail
        command, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S
    )


def download_package(folder: Path) -> Path:
    """Download Debian's prometheus package to `folder`.

    The system's package lists are tried first. Where they are missing or out of date, lists of our own are
    fetched below `folder`.

    Args:
        folder: an empty folder to work in.

    Returns:
        The package file.

    Raises:
        FetchError: neither try brought the package.
    """
    lists, cache = folder / "lists", folder / "cache"
    (lists / "partial").mkdir(parents=True)
    (cache / "archives" / "partial").mkdir(parents=True)
    own = ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={cache}"]
    tries = (
        [["apt-get", "download", "prometheus"]],
        [["apt-get", *own, "update"], ["apt-get", *own, "download", "prometheus"]],
    )
    said = ""
    for commands in tries:
        for command in commands:
            said = run(command, cwd=folder).stderr
        packages = sorted(folder.glob("prometheus_*.deb"))
        if packages:
            return packages[-1]
    raise FetchError(
        f"apt-get download prometheus failed: {said.strip()[-500:]}\n"
        "Install Prometheus 2.42 or newer so that prometheus and promtool are on PATH, and run again."
    )


def fetch_programs(home: Path = HOME) -> dict[str, str]:
    """Make both programs available and say where they are.

    Args:
        home: where to unpack the package, when PATH has no Prometheus.

    Returns:
        Program name to path.

    Raises:
        FetchError: they are not on PATH, and there is no apt or it has no such package.

    Idempotency: what is there already is kept.
    """
    found = find_programs(home)
    if found:
        return found
    missing = [tool for tool in ("apt-get", "dpkg-deb") if shutil.which(tool) is None]
    if missing:
        raise FetchError(
            f"prometheus and promtool are not on PATH, and {' and '.join(missing)} is missing to get them.\n"
            "Install Prometheus 2.42 or newer so that both are on PATH, and run again."
        )
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="prometheus-", dir=home.parent) as scratch:
        package = download_package(Path(scratch))
        unpacked = Path(scratch) / "unpacked"
        result = run(["dpkg-deb", "-x", str(package), str(unpacked)], cwd=Path(scratch))
        if result.returncode != 0:
            raise FetchError(f"dpkg-deb -x {package.name} failed: {result.stderr.strip()}")
        shutil.rmtree(home, ignore_errors=True)
        os.replace(unpacked, home)  # noqa: PTH105  a rename over nothing: the folder is there whole or not at all
    found = find_programs(home)
    if not found:
        raise FetchError(f"{package.name} holds no {' and '.join(PROGRAMS)} below usr/bin: see {home}")
    return found


def main() -> int:
    """Print where the programs are, as one JSON object; 1 with a message when they cannot be had."""
    try:
        found = fetch_programs()
    except (FetchError, OSError, subprocess.TimeoutExpired) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
