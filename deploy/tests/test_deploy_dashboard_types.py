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

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "deploy" / "grafana" / "schema"


@pytest.fixture
def check(tmp_path):
    """Return a function: the errors of ``tsc`` in dashboards, by the name of their file."""
    if not (SCHEMA / "node_modules" / ".installed").exists():
        subprocess.run(["make", "--no-print-directory", "node"], cwd=ROOT, check=True, timeout=300)
    node = shutil.which("node", path=f"{os.environ['PATH']}{os.pathsep}{Path(sys.executable).parent}")
    for name in ("board.ts", "package.json", "tsconfig.json"):
        shutil.copy(SCHEMA / name, tmp_path)
    (tmp_path / "node_modules").symlink_to(SCHEMA / "node_modules")

    def check(boards):
        for name, board in boards.items():
            written = f'import type {{ Board }} from "./board.js";\nexport const board: Board = {json.dumps(board)};\n'
            (tmp_path / f"{name}.ts").write_text(written)
        tsc = SCHEMA / "node_modules" / "typescript" / "bin" / "tsc"
        done = subprocess.run([node, tsc], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode == 0) == (done.stdout == ""), done.stdout + done.stderr
        return dict(re.findall(r"^([\w-]+)\.ts\(\d+,\d+\): error (.+)$", done.stdout, re.MULTILINE))

    return check


def test_grafana_knows_every_field_and_every_value(check, boards):
    assert check(boards) == {}


def test_what_grafana_does_not_know_is_found(check, boards):
    text, wrong = json.dumps(boards["overview"]), {}
    for name, right, other in (
        ("board", '"fiscalYearStartMonth"', '"fiscalMonth"'),
        ("variable", '"includeAll"', '"everything"'),
        ("panel", '"gridPos"', '"place"'),
        ("kind", '"type": "stat"', '"type": "singlestat"'),
        ("option", '"colorMode": "background"', '"colorMode": "back"'),
        ("line", '"fillOpacity"', '"opacity"'),
        ("query", '"legendFormat"', '"legend"'),
    ):
        assert right in text
        wrong[name] = json.loads(text.replace(right, other))
    assert set(check(wrong)) == set(wrong)


def test_the_types_are_those_of_the_grafana_that_is_deployed():
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
    _, version = compose["services"]["grafana"]["image"].split(":")
    assert json.loads((SCHEMA / "package.json").read_text())["devDependencies"]["@grafana/schema"] == version
