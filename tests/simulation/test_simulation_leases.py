"""Leases that readers take in the simulation: they hold, and each rule switched off is noticed."""

from collections import Counter

import pytest
from icedb_sim.rules.lease import LEASE_RULES
from icedb_sim.simulation.cast import Cast
from icedb_sim.simulation.schedule import run_schedule
from icedb_sim.simulation.search import find_failure

SCHEDULES = 100

# Noticed by one schedule in dozens or hundreds: tests of their own break these rules, in
# libs/icedb_log/tests/test_lease_faults.py.
RARE = {
    "a lease is proven by a log that was read before it was there",
    "a lease that was renewed after its end is alive again",
    "a lease ends before its time",
}


def test_leases_hold_in_many_schedules():
    totals = Counter()
    for seed in range(6):
        totals.update(run_schedule(seed, Cast.parse("lessees:2")).counters)
    assert totals["leases"] > 10


@pytest.mark.parametrize(
    "mutation", [m for m in LEASE_RULES if m.name not in RARE], ids=lambda m: f"{m.rule}: {m.name}"
)
def test_a_rule_switched_off_is_noticed(mutation, seeds_for):
    assert find_failure(mutation, seeds_for(mutation, SCHEDULES)) is not None
