"""The short form of `make chaos`: faults from a fixed seed on a stack of real processes; in a soak, each kind of them.

Workers are the services' own without Spark, whose JVMs take longer to start than this lasts; `make chaos` has them.
"""

import dataclasses
import json
import os
import subprocess
import sys

import pytest
from icedb_local.chaos.chaos_layout import BROKER, ChaosLayout, Pace
from icedb_local.chaos.fault_plan import KIND_BY_NAME, KINDS, PlannedFault
from icedb_local.chaos.injector import Injector
from icedb_local.ports import answers_ping
from icedb_local.stack import LocalStack
from icedb_log.clock import SystemClock
from icedb_log.errors import Unavailable

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

SEED = 4
FEW = 5
FAULTS = 12
"""That met somebody: on a quiet machine they take some ten seconds."""


def run_chaos(tmp_path, *arguments):
    output = tmp_path / "chaos.json"
    command = [sys.executable, "-m", "icedb_local.chaos", "--output", str(output), *arguments]
    env = {**os.environ, "TMPDIR": str(tmp_path), "TERM": "dumb"}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=1700, check=False)
    return done, json.loads(output.read_text()) if output.exists() else {}


def check_report(done, report):
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert report["ok"]
    assert report["violations"] == []
    assert all(kind["unseen_count"] == 0 for kind in report["kinds"])
    assert report["batches"]["acknowledged"] > 0
    assert report["rows_checked"] > report["rows_acknowledged"] > 0, "readers find rows"
    assert all(one["successes"] > 0 for one in report["outages"]), "each door and each reader got through"


def test_faults_cost_no_row(tmp_path, find_processes):
    done, report = run_chaos(tmp_path, "--short", "--seed", str(SEED), "--seconds", "180", "--faults", str(FAULTS))
    check_report(done, report)
    assert report["faults"] >= FAULTS
    assert report["reads_checked"] > FEW
    assert find_processes(tmp_path) == {}


@pytest.mark.soak
def test_each_kind_of_fault_costs_no_row(tmp_path, find_processes):
    done, report = run_chaos(tmp_path, "--short", "--seed", str(SEED), "--seconds", "240")
    check_report(done, report)
    assert {kind["kind"] for kind in report["kinds"]} == {kind.name for kind in KINDS}
    assert report["faults"] >= len(KINDS) // 2, "most of them met somebody"
    assert report["reads_checked"] > len(KINDS)
    assert report["pasts_compared"] > 0
    assert find_processes(tmp_path) == {}


def test_a_killed_master_stays_down_until_it_is_started_again(tmp_path):
    whole = ChaosLayout.make(tmp_path, pace=Pace(), engine="light")
    others = frozenset(program.name for program in whole.programs()) - {BROKER}
    layout = dataclasses.replace(whole, store="fs", left_out=whole.left_out | others)
    planned = PlannedFault(1, KIND_BY_NAME["broker_down"], BROKER, duration_ms=0, gap_ms=0)
    with LocalStack(layout) as stack:
        injector = Injector(layout, stack, None, None, None, clock=SystemClock())
        for _ in range(FEW):
            with injector.inject(planned):
                assert not answers_ping(layout.redis_url)
                with pytest.raises(Unavailable, match="does not run now"):
                    stack.kill_and_hold_down(BROKER)
            assert stack.find_process(BROKER).is_running()


def test_wrong_arguments_are_one_message_and_start_nothing(tmp_path):
    done, _ = run_chaos(tmp_path, "--seed", "x")
    assert done.returncode == 2
    assert "a whole number" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
