"""Releases: the page, the changelog and the history agree; the wheels of one are those of its commit."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def git(*words, folder):
    author = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.com"]
    done = subprocess.run(["git", *author, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def history(tmp_path):
    """A repository of two commits: a package, and the same one changed."""
    folder = tmp_path / "history"
    (folder / "proto").mkdir(parents=True)
    git("init", "--quiet", folder=folder)
    commits = []
    for version in ("1.0.0", "1.1.0"):
        (folder / "proto" / "version.txt").write_text(version)
        git("add", ".", folder=folder)
        git("commit", "--quiet", "--message", version, folder=folder)
        commits.append(git("rev-parse", "HEAD", folder=folder))
    return folder, commits


def test_page_and_changelog_name_the_same_commits(build_release):
    releases = build_release.read_releases()
    changelog = (ROOT / "CHANGELOG.md").read_text()
    named = re.findall(r"^## (\S+) \((\S+)\)\n\nCommit `([0-9a-f]{40})`", changelog, re.MULTILINE)
    assert [(each.version, each.date, each.commit) for each in releases.values()] == named
    assert "0.1.0" in releases


def test_every_package_has_the_version_after_the_last_release(build_release):
    patterns = ("pyproject.toml", "*/*/pyproject.toml", "proto/pyproject.toml")
    versions = {tomllib.loads(path.read_text())["project"]["version"] for each in patterns for path in ROOT.glob(each)}
    assert len(versions) == 1
    (version,) = versions
    numbers = [tuple(map(int, each.split("."))) for each in build_release.read_releases()]
    assert tuple(map(int, version.removesuffix(".dev0").split("."))) > max(numbers)


def test_a_commit_is_extracted_whatever_is_checked_out(build_release, history, tmp_path):
    folder, (first, second) = history
    for commit, version in ((first, "1.0.0"), (second, "1.1.0")):
        out = tmp_path / version
        assert build_release.extract_commit(commit, out, repository=folder) > 0
        assert (out / "proto" / "version.txt").read_text() == version


def test_a_commit_that_the_history_lacks_is_one_clear_error(build_release, history, tmp_path):
    with pytest.raises(build_release.ReleaseError, match=r"not in the history of .*Use a full clone"):
        build_release.extract_commit("0" * 40, tmp_path / "out", repository=history[0])


def test_an_unknown_version_names_those_that_there_are():
    script = ROOT / "deploy" / "build_release.py"
    done = subprocess.run([sys.executable, script, "9.9.9"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no release 9.9.9; there are: 0.1.0" in done.stderr


@pytest.mark.soak
def test_the_wheels_of_a_release_are_those_of_its_commit_and_run(build_release, tmp_path):
    """Asks the package index for setuptools; dependencies come from the environment of the tests."""
    release = build_release.read_releases()["0.1.0"]
    wheels = build_release.build_release(release, tmp_path / "once")
    build_release.build_release(release, tmp_path / "again")
    sums = (tmp_path / "once" / "SHA256SUMS").read_text()
    assert sums == (tmp_path / "again" / "SHA256SUMS").read_text()
    assert len(wheels) == len(sums.splitlines()) == 11

    uv, site = Path(sys.executable).with_name("uv"), tmp_path / "site"
    subprocess.run([uv, "pip", "install", "--quiet", "--no-deps", "--target", site, *wheels], check=True)
    told = "import importlib.metadata, icedb_client; print(importlib.metadata.version('icedb-client'), icedb_client.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", told], env={"PYTHONPATH": str(site)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0.1.0", str(site / "icedb_client" / "__init__.py")]
