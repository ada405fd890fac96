"""Erasures in the simulation: certificates tell the truth, and each rule switched off is noticed."""

from collections import Counter

import pytest
from icedb_sim.rules.catalogue import ALL_RULES
from icedb_sim.rules.erase import ERASE_RULES
from icedb_sim.simulation.cast import Cast
from icedb_sim.simulation.schedule import run_schedule
from icedb_sim.simulation.search import find_failure

SCHEDULES = 200

NAMES = {rule.name for rule in ERASE_RULES}

# Noticed by one schedule in hundreds, if at all: tests of their own break these rules (libs/icedb_log/tests).
RARE = {
    "what others added to the record after the listing is taken for gone",
    "a record that changed since the last look is completed all the same",
    "unnamed data objects are not searched in the end",
    "what the last look finds is never looked for again",
}


def test_certificates_hold_in_many_schedules():
    totals = Counter()
    for seed in range(12):
        totals.update(run_schedule(seed, Cast.parse("erasers:2")).counters)
    assert totals["erasures"] > 12


@pytest.mark.parametrize(
    "mutation",
    [m for m in ALL_RULES if m.name in NAMES - RARE and not m.is_harmless],
    ids=lambda m: f"{m.rule}: {m.name}",
)
def test_a_rule_switched_off_is_noticed(mutation, seeds_for):
    assert find_failure(mutation, seeds_for(mutation, SCHEDULES)) is not None
