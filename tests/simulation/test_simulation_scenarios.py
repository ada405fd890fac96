"""Each kind of extra work in the simulation: it does something, nothing breaks, and its rules switched off are noticed."""

from collections import Counter

import pytest
from icedb_sim.rules.catalogue import ALL_RULES, RULES, TEST_OF_RULE
from icedb_sim.simulation.scenario import Mix
from icedb_sim.simulation.schedule import run_schedule
from icedb_sim.simulation.soak import find_failure

SCHEDULES = 200
EXTRA = [rule for rule in ALL_RULES if rule not in RULES]

# Noticed by one schedule in dozens or hundreds: left to the full check.
RARE = {
    "tags are read before the log",
    "a lease is proven by a log that was read before it was there",
    "clocks that are hours apart are believed",
}


@pytest.mark.parametrize(
    ("mix", "seeds", "least"),
    [
        ("reusers:2", 8, {"conflicts": 6}),
        ("importers:2", 8, {"imported_files": 20, "imported_before": 20}),
        ("sizers:2", 6, {"poisoned": 12, "isolated": 12}),
        ("feeders:2", 12, {"fed_rows": 101}),
        ("embedders:2", 8, {"appends": 1, "takeovers": 1, "waits": 1}),
        ("embedders:2,fairappends:1", 4, {"commits": 40, "merges": 10, "appends": 10}),
        ("outsiders:2", 10, {"delivered_rows": 41}),
        ("erasers:2", 12, {"erasures": 13}),
        ("lessees:2", 6, {"leases": 11}),
        ("taggers:2", 6, {"tags": 11}),
        ("publishers:2", 30, {"publications": 90, "retired": 40, "published_reads": 200, "published_swept": 200}),
        ("retainers:2", 4, {"expired_files": 1}),
        ("servers:2", 4, {"served": 1, "served_past": 1, "served_changes": 1, "served_commits": 1}),
        ("droppers:1", 4, {"purges": 1, "lives": 1, "visits": 1}),
        ("sweepers:2", 4, {"audits": 1}),
        ("clocks:1", 4, {"commits": 1}),
        ("checkers:3", 12, {"commits": 1}),
    ],
)
def test_each_does_its_work_and_finds_nothing(mix, seeds, least):
    totals = Counter()
    for seed in range(seeds):
        totals.update(run_schedule(seed, Mix.parse(mix)).counters)
    assert {name: totals[name] for name, count in least.items() if totals[name] < count} == {}


@pytest.mark.parametrize(
    "mutation",
    [rule for rule in EXTRA if not rule.is_harmless and rule.name not in RARE | TEST_OF_RULE.keys()],
    ids=lambda rule: f"{rule.rule}: {rule.name}",
)
def test_a_rule_switched_off_is_noticed(mutation, seeds_for):
    assert find_failure(mutation, seeds_for(mutation, SCHEDULES)) is not None


@pytest.mark.parametrize(
    "mutation", [rule for rule in EXTRA if rule.is_harmless], ids=lambda rule: f"{rule.rule}: {rule.name}"
)
def test_what_is_said_to_be_harmless_is(mutation):
    assert find_failure(mutation, range(3)) is None


def test_the_lists_name_rules_that_exist():
    assert len({rule.name for rule in ALL_RULES}) == len(ALL_RULES)
    assert {rule.name for rule in EXTRA} >= RARE
