"""What the tests of the deployment files share: the files, parsed, and the names that the services know."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from icedb_console.metrics import ConsoleMetrics
from icedb_gateway.metrics import GatewayMetrics
from icedb_ingest.frontend.metrics import FrontendMetrics
from icedb_ingest.metrics import IngestMetrics
from icedb_janitor.metrics import JanitorMetrics
from icedb_merger.metrics import MergeMetrics
from icedb_snapshot.metrics import SnapshotMetrics, TableMetrics
from prometheus_client import CollectorRegistry

DEPLOY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def deploy() -> Path:
    return DEPLOY


@pytest.fixture(scope="session")
def repository() -> Path:
    return DEPLOY.parent


@pytest.fixture(scope="session")
def compose() -> dict:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


@pytest.fixture(scope="session")
def rules() -> list[dict]:
    """Every rule, in the order of the files' names."""
    return [
        rule
        for path in sorted((DEPLOY / "prometheus" / "rules").glob("*.yml"))
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
    ]


@pytest.fixture(scope="session")
def alerts(rules) -> dict[str, dict]:
    """Every alert by name."""
    return by_name(rules, "alert")


@pytest.fixture(scope="session")
def recordings(rules) -> dict[str, dict]:
    """Every recording by the series that it makes."""
    return by_name(rules, "record")


def by_name(rules: list[dict], kind: str) -> dict[str, dict]:
    found = [rule for rule in rules if kind in rule]
    named = {rule[kind]: rule for rule in found}
    assert len(named) == len(found)
    return named


@pytest.fixture(scope="session")
def boards() -> dict[str, dict]:
    """Every dashboard by the name of its file."""
    paths = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
    return {path.stem: json.loads(path.read_text()) for path in paths}


@pytest.fixture(scope="session")
def scrape_jobs() -> dict[str, dict]:
    """Every scrape configuration by job name."""
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    return {job["job_name"]: job for job in config["scrape_configs"]}


@pytest.fixture(scope="session")
def metric_names() -> frozenset[str]:
    """Every series name that some service exposes, taken from their registries."""
    kinds = (
        ConsoleMetrics, FrontendMetrics, GatewayMetrics, IngestMetrics, MergeMetrics, JanitorMetrics, SnapshotMetrics
    )  # fmt: skip
    registries = [CollectorRegistry(), *(kind().registry for kind in kinds)]
    TableMetrics(registries[0])
    return frozenset(name for registry in registries for name in registry._names_to_collectors)


@pytest.fixture(scope="session")
def find_metric_names():
    """Return the metric names in a text; `<component>` stands for each kind of worker."""

    def find(text: str) -> set[str]:
        found = re.findall(r"icedb_(?:<component>_)?[a-z0-9_]+(?![a-z0-9_…])", text)
        return {name.replace("<component>", each) for name in found for each in ("ingest", "merge", "janitor")}

    return find


@pytest.fixture(scope="session")
def find_recordings():
    """Return the names of recorded series in a text."""

    def find(text: str) -> set[str]:
        return set(re.findall(r"icedb:\w+:\w+", text))

    return find


@pytest.fixture(scope="session")
def promtool() -> str:
    done = subprocess.run(
        [sys.executable, str(DEPLOY / "prometheus" / "fetch.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["promtool"]


@pytest.fixture(scope="module")
def build_wheels():
    """Return the function of deploy/build_wheels.py."""
    spec = importlib.util.spec_from_file_location("build_wheels", DEPLOY / "build_wheels.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module.build_wheels
    del sys.modules[spec.name]
