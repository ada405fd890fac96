"""Retention, served answers, dropped tables, quarantine by age and wrong clocks in the simulation."""

from collections import Counter

import pytest
from icedb_sim.rules.retention import RETENTION_RULES
from icedb_sim.rules.serving import SERVING_RULES
from icedb_sim.rules.sweeps import SWEEP_RULES
from icedb_sim.rules.trash import TRASH_RULES
from icedb_sim.simulation.cast import Cast
from icedb_sim.simulation.schedule import run_schedule
from icedb_sim.simulation.search import find_failure

NEW_RULES = (*RETENTION_RULES, *SERVING_RULES, *TRASH_RULES, *SWEEP_RULES)
SCHEDULES = 60

# Noticed by one of the first few schedules; the others are left to the full check, and to tests of their own (test_retention.py,
# test_purge_races.py, test_purged_names.py, test_leftovers.py, test_snapshot_table_cache.py).
QUICK = {
    "what is no time goes, too",
    "rows that came just now go",
    "a state that is too old is served",
    "files that died stay live in a fold of what is new",
    "a new file is live although a tombstone of it is there",
    "a table is purged at once",
    "a name is free before its table is purged",
    "nobody looks once more for what came late",
    "entries of quarantine go whatever their age",
    "what could not be announced goes all the same",
}


@pytest.mark.parametrize(
    ("cast", "counters"),
    [
        ("retainers:2", ["expired_files"]),
        ("servers:2", ["served", "served_past", "served_changes", "served_commits"]),
        ("droppers:1", ["purges", "lives", "visits"]),
        ("sweepers:2", ["audits"]),
        ("clocks:1", ["commits"]),
    ],
)
def test_each_troupe_does_its_work_and_finds_nothing(cast, counters):
    totals = Counter()
    for seed in range(4):
        totals.update(run_schedule(seed, Cast.parse(cast)).counters)
    assert all(totals[name] > 0 for name in counters), totals


@pytest.mark.parametrize("mutation", [m for m in NEW_RULES if m.name in QUICK], ids=lambda m: f"{m.rule}: {m.name}")
def test_a_rule_switched_off_is_noticed(mutation, seeds_for):
    assert find_failure(mutation, seeds_for(mutation, SCHEDULES)) is not None


@pytest.mark.parametrize("mutation", [m for m in NEW_RULES if m.is_harmless], ids=lambda m: f"{m.rule}: {m.name}")
def test_what_is_said_to_be_harmless_is(mutation):
    assert find_failure(mutation, range(3)) is None


def test_the_lists_name_rules_that_exist():
    names = [rule.name for rule in NEW_RULES]
    assert len(set(names)) == len(names)
    assert set(names) >= QUICK
