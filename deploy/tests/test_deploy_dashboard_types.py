"""The dashboards against Grafana's own types: npm's ``@grafana/schema``, by ``tsc --strict``."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from waiting import LIMIT_S

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "deploy" / "grafana" / "schema"


BROKEN = {
    "dashboard": ('"fiscalYearStartMonth"', '"fiscalMonth"'),
    "variable": ('"includeAll"', '"everything"'),
    "panel": ('"gridPos"', '"place"'),
    "kind": ('"type": "stat"', '"type": "singlestat"'),
    "option": ('"colorMode": "background"', '"colorMode": "back"'),
    "line": ('"fillOpacity"', '"opacity"'),
    "query": ('"legendFormat"', '"legend"'),
}
"""Of boards that are wrong: what the overview says, and what they say instead."""


@pytest.fixture(scope="module")
def errors(boards, tmp_path_factory):
    """The errors of ``tsc`` by the name of a board: in those that are deployed, and in wrong ones."""
    if not (SCHEMA / "node_modules" / ".installed").exists():
        subprocess.run(["make", "--no-print-directory", "node"], cwd=ROOT, check=True, timeout=300)
    node = shutil.which("node", path=f"{os.environ['PATH']}{os.pathsep}{Path(sys.executable).parent}")
    folder = tmp_path_factory.mktemp("types")
    for name in ("board.ts", "package.json", "tsconfig.json"):
        shutil.copy(SCHEMA / name, folder)
    (folder / "node_modules").symlink_to(SCHEMA / "node_modules")
    texts = {name: json.dumps(board) for name, board in boards.items()}
    for name, (right, other) in BROKEN.items():
        assert right in texts["overview"]
        assert name not in boards
        texts[name] = texts["overview"].replace(right, other)
    for name, text in texts.items():
        written = f'import type {{ Board }} from "./board.js";\nexport const board: Board = {text};\n'
        (folder / f"{name}.ts").write_text(written)
    tsc = SCHEMA / "node_modules" / "typescript" / "bin" / "tsc"
    done = subprocess.run([node, tsc], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    found = dict(re.findall(r"^([\w-]+)\.ts\(\d+,\d+\): error (.+)$", done.stdout, re.MULTILINE))
    assert found, done.stdout + done.stderr
    return found


def test_grafana_knows_every_field_and_every_value(errors, boards):
    assert errors.keys() & boards.keys() == set()


def test_what_grafana_does_not_know_is_found(errors):
    assert errors.keys() == BROKEN.keys()


def test_the_types_are_those_of_the_grafana_that_is_deployed():
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
    _, version = compose["services"]["grafana"]["image"].split(":")
    assert json.loads((SCHEMA / "package.json").read_text())["devDependencies"]["@grafana/schema"] == version
