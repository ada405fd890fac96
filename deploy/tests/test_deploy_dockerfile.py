"""The image's recipe: linted, and every path, package and module that it names exists."""

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

import pytest


@dataclass
class Stage:
    """One stage: its base and its instructions, in order."""

    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def values(self, name: str) -> list[str]:
        return [value for instruction, value in self.instructions if instruction == name]


@pytest.fixture(scope="module")
def text(deploy) -> str:
    return (deploy / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def stages(text) -> dict[str, Stage]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    arguments: dict[str, str] = {}
    found: dict[str, Stage] = {}
    stage = None
    for line in filter(str.strip, joined.splitlines()):
        name, _, value = line.strip().partition(" ")
        if name == "ARG" and stage is None:
            arguments.update([value.split("=", 1)])
        elif name == "FROM":
            base, _, alias = value.partition(" AS ")
            stage = Stage(re.sub(r"\$\{(\w+)\}", lambda match: arguments[match[1]], base))
            found[alias] = stage
        else:
            stage.instructions.append((name, value.strip()))
    return found


def ancestry(stages, name):
    """A stage and those that it is made from, oldest first."""
    chain = []
    while name in stages:
        chain.insert(0, stages[name])
        name = stages[name].base
    return chain


def test_hadolint_has_nothing_to_say(deploy):
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, str(deploy / "Dockerfile")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_base_images_are_pinned_to_a_patch_release(stages):
    for name in ("build", "runtime"):
        assert re.fullmatch(r"python:3\.11\.\d+-slim-\w+", stages[name].base)


def test_no_index_address_and_no_secret_in_the_recipe(text):
    assert "://" not in text
    assert "--index" not in text
    assert "--mount=type=secret,id=pip_conf" in text


@pytest.mark.parametrize("target", ["service", "spark"])
def test_target_runs_without_rights_behind_an_init(stages, target):
    instructions = [pair for stage in ancestry(stages, target) for pair in stage.instructions]
    last = dict(instructions)
    assert last["USER"] == "10001:10001"
    assert json.loads(last["ENTRYPOINT"]) == ["tini", "--"]
    assert "HEALTHCHECK" in last
    command = json.loads(last["CMD"])
    assert command[:2] == ["python", "-m"]
    assert importlib.util.find_spec(f"{command[2]}.__main__")


@pytest.mark.parametrize("target", ["service", "spark"])
def test_target_says_what_it_is(stages, repository, target):
    labels = " ".join(stages[target].values("LABEL"))
    project = tomllib.loads((repository / "services" / "merger" / "pyproject.toml").read_text())["project"]
    assert f'image.title="icedb-{target}"' in labels
    assert f'image.licenses="{project["license"]}"' in labels
    assert 'image.version="$VERSION"' in labels
    assert 'image.revision="$REVISION"' in labels
    assert f"VERSION={project['version']}" in stages[target].values("ARG")


def test_no_target_carries_pip_or_what_apt_has_fetched(stages):
    assert "-m venv --without-pip /opt/icedb" in " ".join(stages["build"].values("RUN"))
    for name in ("runtime", "service", "spark"):
        for run in stages[name].values("RUN"):
            assert "pip" not in run
            if "apt-get install" in run:
                assert "rm -rf /var/lib/apt/lists/* /var/cache/apt/*" in run


def test_only_the_spark_target_has_java(stages):
    assert any("openjdk-17-jre-headless" in run for run in stages["spark"].values("RUN"))
    assert not any("jdk" in run for stage in ancestry(stages, "service") for run in stage.values("RUN"))


def test_copied_paths_exist_and_reach_the_builder(stages, repository):
    rules = [line for line in (repository / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert rules[0] == "*"
    allowed = [rule.removeprefix("!") for rule in rules if rule.startswith("!")]
    for stage in stages.values():
        for copy in stage.values("COPY"):
            *sources, _ = [word for word in copy.split() if not word.startswith("--")]
            if "--from=" in copy:
                assert re.search(r"--from=([\w-]+)", copy)[1] in stages
                continue
            for source in sources:
                assert (repository / source).exists(), source
                assert any(source.rstrip("/") == rule or source.startswith(f"{rule}/") for rule in allowed), source


@pytest.mark.parametrize(
    ("stage", "services"), [("build", "ingest janitor snapshot gateway console"), ("build-spark", "ingest merger")]
)
def test_installed_packages_are_copied_and_complete(stages, repository, stage, services):
    chain = ancestry(stages, stage)
    copied = {copy.split()[0].rstrip("/") for each in chain for copy in each.values("COPY")}
    installed = {
        path.removeprefix("./")
        for each in chain
        for run in each.values("RUN")
        for path in re.findall(r"\./[\w/]+", run)
    }
    assert installed <= copied
    assert {f"services/{name}" for name in services.split()} <= installed
    projects = {
        path: tomllib.loads((repository / path / "pyproject.toml").read_text())["project"] for path in installed
    }
    names = {project["name"] for project in projects.values()}
    for path, project in projects.items():
        ours = {re.split(r"[\[=]", each)[0] for each in project["dependencies"] if each.startswith("icedb-")}
        if path == "libs/icedb":
            ours -= {"icedb-engine"}  # the command alone, as its own line of the Dockerfile says
        assert ours <= names, f"{path} needs {sorted(ours - names)}, which the image does not install"
    if stage == "build-spark":
        worker = projects["services/ingest"]["optional-dependencies"]["worker"]
        assert {re.split(r"[\[=]", each)[0] for each in worker} <= names
    installs = [run for each in chain for run in each.values("RUN") if "$PIP install" in run]
    assert installs
    assert all("--constraint constraints.txt" in run for run in installs)


def test_tests_and_caches_stay_out_of_the_image(repository):
    rules = (repository / ".dockerignore").read_text().splitlines()
    for path in ("libs/icedb_log/tests", "services/merger/src/icedb_merger/__pycache__", "proto/build"):
        assert any(fnmatch(path, rule.replace("**/", "*/")) for rule in rules if rule.startswith("**")), path
