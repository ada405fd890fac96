"""A soak is run to its end, whatever of it is red: hours are not lost to one test, and its exit code tells of it."""

import os
import subprocess
from pathlib import Path

import pytest
from waiting import LIMIT_S

ROOT = Path(__file__).parents[2]
STUB = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/asked"
case "$*" in *"$RED"*) exit 3;; esac
"""


@pytest.mark.parametrize("red", ["-m soak", "icedb_sim.simulation", "run_fuzz.py", "none of them"])
def test_a_soak_goes_on_after_what_is_red_and_tells_it_at_the_end(tmp_path, red):
    for name in ("pytest", "python"):
        stub = tmp_path / name
        stub.write_text(STUB)
        stub.chmod(0o755)
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    made = [part for name in ("install", "node", "engines") for part in ("--old-file", name)]
    done = subprocess.run(
        ["make", *made, "soak", f"BIN={tmp_path}", "SECONDS=7", "JOBS=1"],
        cwd=ROOT, env=env | {"RED": red}, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert (tmp_path / "asked").read_text().splitlines() == [
        "-q -m soak tests libs services deploy",
        "-m icedb_sim.simulation --seconds 7 --jobs 1",
        "tests/fuzz/run_fuzz.py --seconds 7 --jobs 1",
    ]
    assert (done.returncode == 0) is (red == "none of them"), done.stderr
