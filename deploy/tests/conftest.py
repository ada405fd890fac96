"""What the tests of the deployment files share: the files, parsed, and the names that the services know."""

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
def alerts() -> dict[str, dict]:
    """Every alert rule by name."""
    rules = [
        rule
        for path in sorted((DEPLOY / "prometheus" / "rules").glob("*.yml"))
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
    ]
    names = [rule["alert"] for rule in rules]
    assert len(set(names)) == len(names)
    return dict(zip(names, rules, strict=True))


@pytest.fixture(scope="session")
def scrape_jobs() -> dict[str, dict]:
    """Every scrape configuration by job name."""
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    return {job["job_name"]: job for job in config["scrape_configs"]}


@pytest.fixture(scope="session")
def metric_names() -> frozenset[str]:
    """Every series name that some service exposes, taken from their registries."""
    snapshot = CollectorRegistry()
    for kind in (SnapshotMetrics, TableMetrics):
        kind(snapshot)
    workers = (ConsoleMetrics, FrontendMetrics, GatewayMetrics, IngestMetrics, MergeMetrics, JanitorMetrics)
    registries = [snapshot, *(kind().registry for kind in workers)]
    return frozenset(name for registry in registries for name in registry._names_to_collectors)


@pytest.fixture(scope="session")
def find_metric_names():
    """Return the metric names in a text; `<component>` stands for each kind of worker."""

    def find(text: str) -> set[str]:
        found = re.findall(r"icedb_(?:<component>_)?[a-z0-9_]+(?![a-z0-9_…])", text)
        return {name.replace("<component>", each) for name in found for each in ("ingest", "merge", "janitor")}

    return find


@pytest.fixture(scope="session")
def promtool() -> str:
    done = subprocess.run(
        [sys.executable, str(DEPLOY / "prometheus" / "fetch.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["promtool"]
