"""The runbook: an entry for each alert, and only links, metrics, settings and commands that exist."""

import json
import os
import re
import subprocess
import sys

import pytest
import yaml
from icedb_console.settings import ConsoleSettings
from icedb_gateway.settings import GatewaySettings
from icedb_ingest.frontend.settings import FrontendSettings
from icedb_ingest.settings import IngestSettings
from icedb_janitor.settings import JanitorSettings
from icedb_merger.settings import MergerSettings
from icedb_snapshot.settings import SnapshotSettings
from waiting import LIMIT_S

FIELDS = {
    f"ICEDB_{field.upper()}"
    for kind in (
        *(ConsoleSettings, FrontendSettings, GatewaySettings, IngestSettings),
        *(MergerSettings, JanitorSettings, SnapshotSettings),
    )
    for field in kind.model_fields
}


@pytest.fixture(scope="module")
def texts(repository, deploy) -> dict[str, str]:
    return {"runbook": (repository / "docs" / "runbook.md").read_text(), "readme": (deploy / "README.md").read_text()}


def test_an_entry_for_each_alert_says_all_three_things(texts, alerts):
    entries = dict(re.findall(r"^## (IceDB\w+)\n(.*?)(?=^#|\Z)", texts["runbook"], re.MULTILINE | re.DOTALL))
    assert set(entries) == set(alerts)
    for name, entry in entries.items():
        assert re.findall(r"^\*\*([\w ]+)\.\*\*", entry, re.MULTILINE) == ["Meaning", "Look at", "Do"], name


def test_links_lead_somewhere(texts):
    headings = re.findall(r"^#+ (.+)$", texts["runbook"], re.MULTILINE)
    anchors = {heading.lower().replace(",", "").replace(" ", "-") for heading in headings}
    for anchor in re.findall(r"\]\(#([\w-]+)\)", texts["runbook"]):
        assert anchor in anchors


def test_metrics_exist(texts, metric_names, find_metric_names):
    for text in texts.values():
        assert not find_metric_names(text) - metric_names


def test_settings_exist(texts):
    for text in texts.values():
        assert set(re.findall(r"ICEDB_[A-Z][A-Z0-9_]+[A-Z]", text)) <= FIELDS


def test_what_kubectl_and_compose_are_told_to_touch_exists(texts, deploy):
    files = [yaml.safe_load_all(path.read_text()) for path in sorted((deploy / "kubernetes" / "base").glob("*.yaml"))]
    names = {each["metadata"]["name"] for file in files for each in file if each.get("kind") == "Deployment"}
    steps = re.findall(r"`(?:docker compose|kubectl) [^`]+`", texts["runbook"])
    told = {name for step in steps for name in re.findall(r"icedb-[a-z-]+", step)}
    assert told and told <= names
    components = {name for step in steps for name in re.findall(r"/component=([a-z-]+)", step)}
    assert {f"icedb-{name}" for name in components} <= names
    lines = [line for line in texts["runbook"].splitlines() if "`docker compose" in line and not line.startswith("|")]
    assert [line for line in lines if "kubectl" not in line] == []


def test_panels_exist(texts, boards):
    titles = {panel["title"] for board in boards.values() for panel in board["panels"]}
    for line in texts["runbook"].splitlines():
        if "dashboard" in line.lower():
            for title in re.findall(r"(?<!\*)\*([A-Z][a-z ]+)\*(?!\*)", line):
                assert title in titles, title


def test_commands_exist(texts):
    """Each command that is told to operators, asked for its help: the command and its options are there."""
    lines = {line for text in texts.values() for line in re.findall(r"`icedb ([^`]+)`", text)}
    assert {"status TABLE", "vacuum TABLE --dry-run", "merge TABLE --full", "quarantine list TABLE"} <= lines
    commands = {tuple(word for word in line.split() if word.islower() and not word.startswith("-")) for line in lines}
    helps = ask_for_help(sorted(commands))
    for line in sorted(lines):
        command = tuple(word for word in line.split() if word.islower() and not word.startswith("-"))
        for option in (word for word in line.split() if word.startswith("-")):
            assert option in helps[command], f"icedb {line}"


ASK_FOR_HELP = """
import io, json, sys
from contextlib import redirect_stdout
from icedb.cli.app import run

helps = []
for command in json.load(sys.stdin):
    with redirect_stdout(io.StringIO()) as text:
        code = run([*command, "--help"])
    helps.append([code, text.getvalue()])
json.dump(helps, sys.stdout)
"""


def ask_for_help(commands: list[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """In one process: it takes longer to start than to print all of them."""
    environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ASK_FOR_HELP],
        input=json.dumps(commands),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    helps = json.loads(done.stdout)
    assert [command for command, (code, _) in zip(commands, helps, strict=True) if code] == []
    return {command: text for command, (_, text) in zip(commands, helps, strict=True)}
