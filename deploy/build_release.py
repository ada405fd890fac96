"""Build the wheels of a release from its commit, whatever is checked out now.

``make release VERSION=0.1.0`` writes them to ``dist/<version>``, with the versions of the dependencies that the release
was tested with (``constraints.txt``) and a ``SHA256SUMS``. Which commit a release is stands in the table "Releases" of
``docs/upgrades.md``: a tag may not travel with a clone, a commit always does. The same commit gives the same wheels.

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
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
RELEASES_PAGE = ROOT / "docs" / "upgrades.md"
RELEASE_ROW = re.compile(
    r"^\| (?P<version>\d+\.\d+\.\d+) \| (?P<date>[\d-]+) \| `(?P<commit>[0-9a-f]{40})` \|", re.MULTILINE
)
PACKAGES = ("proto", "libs/*", "services/*", "deploy/local")


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


def build_wheels(release: Release, out: Path, *, repository: Path = ROOT) -> list[Path]:
    """Build every package of a release into a folder that is emptied first, and return the wheels."""
    uv = Path(sys.executable).with_name("uv")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as temporary:
        sources = Path(temporary)
        committed_s = extract_commit(release.commit, sources, repository=repository)
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(committed_s)}
        for package in sorted(each for pattern in PACKAGES for each in sources.glob(pattern)):
            command = [uv, "build", "--quiet", "--wheel", "--no-create-gitignore", "--out-dir", out.resolve(), package]
            subprocess.run([str(word) for word in command], check=True, env=environment)
        shutil.copy(sources / "constraints.txt", out)
    wheels = sorted(out.glob("*.whl"))
    if not wheels or any(f"-{release.version}-" not in wheel.name for wheel in wheels):
        raise ReleaseError(
            f"commit {release.commit} does not build version {release.version}: {[w.name for w in wheels]}"
        )
    sums = (f"{hashlib.sha256(wheel.read_bytes()).hexdigest()}  {wheel.name}\n" for wheel in wheels)
    (out / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    return wheels


def main() -> int:
    """Build the release that the command line names."""
    releases = read_releases()
    parser = argparse.ArgumentParser(description="Build the wheels of a release from its commit.")
    parser.add_argument("version", help=f"one of: {', '.join(releases)}")
    parser.add_argument("--out", type=Path, help="where to; dist/VERSION unless told")
    arguments = parser.parse_args()
    if arguments.version not in releases:
        parser.error(f"no release {arguments.version}; there are: {', '.join(releases)} (docs/upgrades.md)")
    out = arguments.out or ROOT / "dist" / arguments.version
    try:
        wheels = build_wheels(releases[arguments.version], out)
    except ReleaseError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write("".join(f"{wheel}\n" for wheel in wheels))
    return 0


if __name__ == "__main__":
    sys.exit(main())
