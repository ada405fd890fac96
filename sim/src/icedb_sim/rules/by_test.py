"""Which test fails when a rule is switched off that few schedules miss, or none: the one that plays its history.

``python -m icedb_sim.simulation --mutations`` runs these tests, each with its rule switched off
(:mod:`icedb_sim.rules.rules_off`), and so does ``tests/simulation/test_rules_by_test.py``. Every other rule has to
be missed by schedules.
"""

import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Final, Literal

import icedb_log
import orjson
from icedb_log.errors import InvariantViolated

from icedb_sim.rules.catalogue import TEST_OF_RULE

Outcome = Literal["noticed", "passed", "broken"]
"""``noticed``: the test failed; ``passed``: it did not; ``broken``: what stands in for it does not run."""

OPTION: Final = "--rules-off"
_PLUGIN: Final = "icedb_sim.rules.rules_off"


def run_tests_of_rules(names: Collection[str]) -> dict[str, Outcome]:
    """Run the tests of some rules in a process of its own, each with its rule switched off.

    Raises:
        InvariantViolated: There are no such tests here: it takes a checkout of the project.
    """
    if not names:
        return {}
    root = Path(icedb_log.__file__).parents[4]
    tests = sorted({TEST_OF_RULE[name] for name in names})
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "outcomes.json"
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", _PLUGIN, "-p", "no:cacheprovider", OPTION, str(out), *tests],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
        outcomes: dict[str, Outcome] = orjson.loads(out.read_bytes()) if out.exists() else {}
    missing = [name for name in names if name not in outcomes]
    if missing:
        raise InvariantViolated(f"{missing[0]}: {TEST_OF_RULE[missing[0]]} did not run: {run.stdout[-2000:]}")
    return outcomes
