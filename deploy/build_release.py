"""Build wheels: of what is checked out, or of a release from its commit, whatever is checked out.

``make wheels`` writes those of what is checked out to ``dist``: ``pip install --find-links dist icedb``.
``make release VERSION=0.1.0`` writes a release's to ``dist/<version>``, with the versions of the dependencies that the
release was tested with (``constraints.txt``) and a ``SHA256SUMS``. Which commit a release is stands in the table
"Releases" of ``docs/upgrades.md``: a tag may not travel with a clone, a commit always does. The same commit gives the
same wheels.

To install one:  ``pip install --constraint dist/0.1.0/constraints.txt dist/0.1.0/*.whl``
"""

import argparse
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
RELEASES_PAGE = ROOT / "docs" / "upgrades.md"
RELEASE_ROW = re.compile(
    r"^\| (?P<version>\d+\.\d+\.\d+) \| (?P<date>[\d-]+) \| `(?P<commit>[0-9a-f]{40})` \|", re.MULTILINE
)
PACKAGES = ("proto", "libs/*", "services/*")
"""What is installed by users: nothing of the local stack, its demo and chaos, or of tests."""


class ReleaseError(Exception):
    """A release cannot be built; the message says why, and what to do."""


@dataclass(frozen=True)
class Release:
    """A released version, the day of its release, and the full hash of its commit."""

    version: str
    date: str
    commit: str


def read_releases(page: Path = RELEASES_PAGE) -> dict[str, Release]:
    """Return all releases by version, from the table in ``docs/upgrades.md``."""
    rows = RELEASE_ROW.finditer(page.read_text(encoding="utf-8"))
    return {row["version"]: Release(**row.groupdict()) for row in rows}


def extract_commit(commit: str, folder: Path, *, repository: Path = ROOT) -> int:
    """Write the files of a commit to a folder, and return the commit's time in unix seconds.

    Raises:
        ReleaseError: the history at hand does not have the commit.
    """
    git = ["git", "-C", str(repository)]
    archive = subprocess.run([*git, "archive", commit], capture_output=True, check=False)
    if archive.returncode:
        raise ReleaseError(
            f"commit {commit} is not in the history of {repository}: {archive.stderr.decode().strip()}. "
            "Use a full clone (git fetch --unshallow)"
        )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    shown = subprocess.run([*git, "show", "--no-patch", "--format=%ct", commit], capture_output=True, check=True)
    return int(shown.stdout)


def build_wheels(sources: Path, out: Path, *, environment: Mapping[str, str] | None = None) -> list[Path]:
    """Build every package below a folder, and return the wheels. Older wheels in ``out`` are removed first."""
    uv = Path(sys.executable).with_name("uv")
    out.mkdir(parents=True, exist_ok=True)
    for wheel in out.glob("*.whl"):
        wheel.unlink()

    def build(package: Path) -> None:
        # What setuptools gathered for an earlier build it takes along, also modules that are gone from the sources.
        shutil.rmtree(package / "build", ignore_errors=True)
        command = [uv, "build", "--quiet", "--wheel", "--no-create-gitignore", "--out-dir", out.resolve(), package]
        try:
            subprocess.run([str(word) for word in command], check=True, env={**os.environ, **(environment or {})})
        finally:
            shutil.rmtree(package / "build", ignore_errors=True)

    with ThreadPoolExecutor(os.cpu_count()) as builders:
        list(builders.map(build, sorted(each for pattern in PACKAGES for each in sources.glob(pattern))))
    return sorted(out.glob("*.whl"))


def build_release(release: Release, out: Path, *, repository: Path = ROOT) -> list[Path]:
    """Build every package of a release from its commit into a folder, and return the wheels."""
    with tempfile.TemporaryDirectory() as temporary:
        sources = Path(temporary)
        committed_s = extract_commit(release.commit, sources, repository=repository)
        wheels = build_wheels(sources, out, environment={"SOURCE_DATE_EPOCH": str(committed_s)})
        shutil.copy(sources / "constraints.txt", out)
    if not wheels or any(f"-{release.version}-" not in wheel.name for wheel in wheels):
        raise ReleaseError(
            f"commit {release.commit} does not build version {release.version}: {[w.name for w in wheels]}"
        )
    sums = (f"{hashlib.sha256(wheel.read_bytes()).hexdigest()}  {wheel.name}\n" for wheel in wheels)
    (out / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    return wheels


def main() -> int:
    """Build what is checked out, or the release that the command line names."""
    releases = read_releases()
    parser = argparse.ArgumentParser(description="Build wheels of what is checked out, or of a release.")
    parser.add_argument("version", nargs="?", help=f"one of: {', '.join(releases)}; not given: what is checked out")
    parser.add_argument("--out", type=Path, help="where to; dist, or dist/VERSION, unless told")
    arguments = parser.parse_args()
    if arguments.version is None:
        wheels = build_wheels(ROOT, arguments.out or ROOT / "dist")
        sys.stdout.write("".join(f"{wheel}\n" for wheel in wheels))
        return 0
    if arguments.version not in releases:
        parser.error(f"no release {arguments.version}; there are: {', '.join(releases)} (docs/upgrades.md)")
    out = arguments.out or ROOT / "dist" / arguments.version
    try:
        wheels = build_release(releases[arguments.version], out)
    except ReleaseError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write("".join(f"{wheel}\n" for wheel in wheels))
    return 0


if __name__ == "__main__":
    sys.exit(main())
