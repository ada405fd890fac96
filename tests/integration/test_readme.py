"""README is short and names what is there. That it runs: ``deploy/tests/test_deploy_wheels.py``, and ``test_pages.py``."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)


def blocks(language):
    return [code for name, code in BLOCK.findall(README) if name == language]


def test_it_is_short_and_the_first_query_comes_early():
    assert len(README.splitlines()) <= 120
    before, _, after = README.partition(blocks("python")[0])
    assert after
    read = [line for line in (before + blocks("python")[0]).splitlines() if line and not line.startswith(("```", "!["))]
    assert len(read) <= 15


def test_its_targets_of_make_are_there():
    made = {line.split()[1] for code in blocks("sh") for line in code.splitlines() if line.startswith("make ")}
    assert made >= {"up", "demo", "wheels"}
    assert made <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
