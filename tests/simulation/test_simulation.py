"""Schedules of the simulation: they hold, they do something, and they can be run again."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from icedb_sim.simulation.__main__ import main
from icedb_sim.simulation.faulty_store import FaultyStore
from icedb_sim.simulation.profiles import PROFILES
from icedb_sim.simulation.scenario import PLAIN
from icedb_sim.simulation.scenarios import SCENARIOS, draw_mix
from icedb_sim.simulation.schedule import ScheduleFailed, run_schedule
from icedb_sim.simulation.shrink import check_seeds

BLOCK = 50
BLOCKS = 8

# Happens in one of a hundred schedules: some hundreds may be without it.
RARE_EVENTS = {"old_entries", "suspected"}  # the second: a good batch is refused for three readers that died by chance


@pytest.fixture(scope="module")
def totals():
    """Return what happened in all blocks so far."""
    return Counter()


@pytest.mark.parametrize("first", range(0, BLOCKS * BLOCK, BLOCK))
def test_every_rule_holds_in_many_schedules(first, totals):
    block = check_seeds(range(first, first + BLOCK))
    assert block["commits"] > 3 * BLOCK
    assert block["merges"] > BLOCK
    totals.update(block)


def test_everything_happened_in_some_of_these_schedules(totals):
    # A simulation in which nothing happens would hold, too.
    if totals["commits"] > 3 * BLOCK * BLOCKS:  # all blocks were run
        assert [name for name, count in totals.items() if count == 0 and name not in RARE_EVENTS] == []


def test_these_schedules_have_every_scenario():
    seen = {name for seed in range(BLOCKS * BLOCK) for name, _ in draw_mix(seed).sizes}
    assert seen >= SCENARIOS.keys() - PROFILES.keys()
    assert len(seen & PROFILES.keys()) > len(PROFILES) // 2, "of profiles, which come with fewer seeds, most"


def test_the_same_seed_is_the_same_schedule():
    hashes = [run_schedule(seed).trace_hash for seed in range(12)]
    assert [run_schedule(seed).trace_hash for seed in range(12)] == hashes
    assert len(set(hashes)) == len(hashes)


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_the_same_seed_is_the_same_schedule_in_another_process(hash_seed):
    code = (
        "from icedb_sim.simulation.schedule import run_schedule; print([run_schedule(s).trace_hash for s in range(6)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str([run_schedule(seed).trace_hash for seed in range(6)])


def test_a_failure_names_its_seed_and_shows_how_it_came_about(monkeypatch):
    honest = FaultyStore.delete

    def loses_live_files(self, keys):
        honest(self, [info.key for info in self.inner.list_page("lake/events/_data/").objects])
        return honest(self, keys)

    monkeypatch.setattr(FaultyStore, "delete", loses_live_files)
    with pytest.raises(ScheduleFailed) as failed:
        for seed in range(20):
            run_schedule(seed)
    lines = str(failed.value).splitlines()
    assert lines[0].startswith("seed ")
    assert "Violation" in lines[0]
    assert lines[1].startswith("Settings(")
    assert any(" delete " in line and "/_data/" in line for line in lines[2:])


def test_the_command_runs_the_seeds_that_it_is_given(capsys):
    assert main(["--seeds", "3..5", "--jobs", "1"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["schedules"], summary["failed"], summary["first_seed"], summary["last_seed"]) == (3, 0, 3, 5)
    assert summary["counters"]["commits"] > 0
    assert sum(summary["faults"].values()) > 0
    assert sum(summary["mixes"].values()) >= 3


def test_processes_share_the_seeds(capsys):
    assert main(["--seeds", "0..29", "--jobs", "2", "--cast", "plain"]) == 0
    shared = json.loads(capsys.readouterr().out)
    assert (shared["schedules"], shared["jobs"], shared["mixes"]) == (30, 2, {"plain": 30})
    assert shared["counters"] == check_seeds(range(30), PLAIN)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seeds", "x"], "for example 0..999"),
        (["--seeds", "5..3"], "holds no seed"),
        (["--cast", "clowns:1"], "no scenario"),
        (["--mutations", "J1,Q9"], "no rule Q9"),
        (["--replay", "nonsense"], "error"),
    ],
)
def test_wrong_arguments_are_one_message_and_run_nothing(arguments, words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.out == ""
